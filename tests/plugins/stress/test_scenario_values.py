"""Values of scenario files: sums and names of variables, and when an answer is what was expected."""

from typing import Any

import pytest

from kvarena.plugins.stress.scenario.values import differences, matches, resolved
from kvarena.terms.errors import ConfigError

VARIABLES = {"n": 7, "rows": [3, 4], "who": "R", "deep": {"a": {"b": 2}}, "long": "a" * 600_000}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("plain", "plain"),
        ("{who}{n}", "R7"),
        ("= n - 4", 3),
        ("= range(max(0, n - 4), n)", [3, 4, 5, 6]),
        ("= -n // 2 % 5 * 2", 2),
        ("= rows[1] + len(rows)", 6),
        ("= deep['a']['b']", 2),
        ("= n > 3 and not n == 8 or n in rows", True),
        ("= distinct(rows + [3])", 2),
        ("= names('A', rows)", ["A3", "A4"]),
        (["= n", {"{who}": "= sum(rows)"}, 1.5, True], [7, {"R": 7}, 1.5, True]),
    ],
)
def test_a_sum_is_worked_out(value: Any, found: Any) -> None:
    """Numbers, comparisons, lists, tables and the few functions there are."""
    assert resolved(value, VARIABLES) == found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("= m", "there is no variable 'm' here; did you mean 'n'|choose"),
        ("{nn}", "there is no variable 'nn' here"),
        ("= n +", "is no sum"),
        ("= n / 2", "may not stand in a sum"),
        ("= __import__('os')", "may not stand in a sum"),
        ("= who.upper", "may not stand in a sum"),
        ("= n // 0", "is no sum"),
        ("= rows[9]", "is no sum"),
        ("= range(0, 1 + 1048576)", "is absurd"),
        ("= [1] * 999999999", "a value of 999,999,999 items or characters is absurd; at most 1,048,576"),
        ("= 999999999 * 'a'", "a value of 999,999,999 items or characters is absurd"),
        ("= [[1] * 1024] * 1024", "a value of 1,049,600 items or characters is absurd"),
        ("= names('a' * 1024, range(1025))", "a value of 1,049,600 items or characters is absurd"),
        ("{long}{long}", "items or characters is absurd"),
        (["{long}", "{long}"], "items or characters is absurd"),
        ("= 1000000000 * 1000000000 + 1", "a number beyond 1,000,000,000,000,000,000 is absurd"),
        ("= range(0, 10 * 1000000000000000000)", "a number beyond"),
        ("= '%999999999d' % 5", "% divides numbers, and fills in no text"),
        ("= sum([[1], [2]], [])", "is no sum"),
        ("= " + "-" * 100000 + "1", "is no sum"),
        ("= " + "[" * 65 + "]" * 65 + " + []", "lists more than 64 deep are absurd"),
    ],
)
def test_what_is_no_sum_is_refused(value: str, words: str) -> None:
    """A file can work out numbers, and nothing else."""
    with pytest.raises(ConfigError, match=words):
        resolved(value, VARIABLES)


@pytest.mark.parametrize(
    ("found", "expected", "holds"),
    [
        (3, 3, True),
        (3, {"at_least": 3, "at_most": 4}, True),
        (5, {"at_least": 3, "at_most": 4}, False),
        ("ok", {"at_least": 3}, False),
        (3, {"any": [2, {"at_least": 3}]}, True),
        (1, True, False),
        (True, "yes", True),
        (False, "no", True),
        ({"answer": "wait", "charge": {"F": 2}}, "wait", True),
        ({"answer": "wait", "charge": {"F": 2}}, {"charge": {"F": 2}}, True),
        ({"F": {"live": 2, "free": 1}}, {"F": {"live": 2}}, True),
        ({"F": {"live": 2}}, {"F": {"dead": 2}}, False),
        ([1, 2, 2], {"length": 3, "distinct": 2}, True),
        ([1, 2], [1, {"at_least": 2}], True),
        ([1, 2], [1], False),
        ([1, 2], {"contains": 2}, True),
        (3, {"is_not": 4}, True),
    ],
)
def test_an_answer_is_what_was_expected(found: Any, expected: Any, holds: bool) -> None:
    """A value, bounds, one of several, the named part of a table, or a list item by item."""
    assert matches(found, expected) is holds


def test_a_difference_is_told_by_its_key() -> None:
    """Only what differs, with the whole path to it."""
    found = {"F": {"live": 2, "free": 1}, "W": {"live": 1}}
    assert differences(found, {"F": {"live": 3, "free": 1}, "W": {"dead": 0}}) == [
        "F.live is 2, not 3",
        "there is no W.dead",
    ]
    assert differences(4, {"at_least": 5}) == ["the answer is 4, not at least 5"]
