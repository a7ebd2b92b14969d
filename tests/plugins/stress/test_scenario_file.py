"""Scenario files are read whole before anything runs; each mistake is refused with its file and line."""

from pathlib import Path
from typing import Any

import pytest

from kvarena.plugins.stress.scenario.file import ordered, read_scenario
from kvarena.terms.errors import ConfigError

HEAD = """version = 1
title = "a file"

[chain]
arena = "= arena"
sub_pools = {F = {lifetime = "full"}}

[variants]
cases = [{arena = 4}, {arena = 5}]
orders = {end = [["a", "b"], ["b", "a"]]}

"""
STEPS = '''[[step]]
# a comment with do = "nothing"
do = "take"
request = "R"
rows = 1
note = """
do = "not a step"
"""

[[step]]
do = "repeat"
times = 2
steps = [
    {do = "flush", order = "end.a"},
    {do = "flush", order = "end.b"},
]
'''


def read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "x.toml"
    path.write_text(text)
    return read_scenario(path)


def test_each_step_knows_its_line(tmp_path: Path) -> None:
    """The line of its do, in tables and in lists, whatever texts and comments say."""
    scenario = read(tmp_path, HEAD + STEPS)
    take, repeat = scenario.steps
    assert (take.line, take.verb, take.arguments) == (14, "take", {"request": "R", "rows": 1})
    assert take.place == f"{tmp_path / 'x.toml'}:14"
    assert (repeat.line, [step.line for step in repeat.steps]) == (22, [25, 26])


def test_every_variant_is_a_timing_a_case_and_an_order(tmp_path: Path) -> None:
    """Two cases and two orders, each late, early and with two random timings."""
    scenario = read(tmp_path, HEAD + STEPS)
    variants = list(scenario.variants())
    assert len(variants) == 2 * 2 * 4
    assert str(variants[0]) == "late; arena = 4; end: a, b"
    assert len(list(scenario.variants(("late",)))) == 4
    assert {scenario.chain_of(variant.case).arena for variant in variants} == {4, 5}


def test_an_order_moves_steps_between_the_places_of_its_group(tmp_path: Path) -> None:
    """What stands between them stays."""
    text = "\n".join(
        f'[[step]]\ndo = "counts"\nsub_pool = "{name}"' + (f'\norder = "end.{key}"' if key else "")
        for name, key in (("one", "a"), ("two", ""), ("three", "b"))
    )
    steps = read(tmp_path, HEAD + text).steps
    moved = ordered(steps, {"end": ("b", "a")})
    assert [step.arguments["sub_pool"] for step in moved] == ["three", "two", "one"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "version = 2\ntitle = 'x'\n[[step]]\ndo = 'flush'",
            "version: 2 is not known here; this kvarena reads version 1",
        ),
        ("version = 1\ntitle = 'x'\n", "there is none, so nothing would be tried"),
        (
            "version = 1\ntitle = 'x'\n[[step]]\ndo = 'flosh'",
            r"x.toml:4: there is no operation 'flosh'; did you mean 'flush'",
        ),
        (
            "version = 1\ntitle = 'x'\n[[step]]\ndo = 'take'\nrequest = 'R'\nrow = 2",
            r"x.toml:4: take has no argument 'row'",
        ),
        ("version = 1\ntitle = 'x'\n[[step]]\ndo = 'repeat'\ntimes = 2", "x.toml:4: repeat needs steps"),
        ("version = 1\ntitle = 'x'\n[[step]]\nrequest = 'R'", "begin each step with its do"),
        ("version = 1\ntitle = 'x'\n[[step]]\ndo = 'flush'\nonly = {a = 1}", "only: no case gives 'a'"),
        ("version = 1\ntitle = 'x'\n[[step]]\ndo = 'flush'\norder = 'a'", 'order must be a text "group.key"'),
        ("version = 1\ntitle = 'x'\n[[step]]\ndo = 'flush'\norder = 'a.b'", "has no 'b' in each of its orders"),
        ("version = 1\ntitle = 'x'\n[variants]\nseeds = 0\n[[step]]\ndo = 'flush'", "variants.seeds: must be"),
        ("version = 1\ntitle = 'x'\n[variants]\nseeds = 99999999\n[[step]]\ndo = 'flush'", "variants.seeds: .* absurd"),
        ("version = 1\ntitle = 'x'\n[variants]\ntiming = ['soon']\n[[step]]\ndo = 'flush'", "variants.timing"),
        (
            "version = 1\ntitle = 'x'\n[variants]\ncases = [{a = 1}, {b = 1}]\n[[step]]\ndo = 'flush'",
            "the same variables",
        ),
        ("version = 1\ntitle = 'x'\n[chain]\narana = 3\n[[step]]\ndo = 'flush'", "chain.arana: .*did you mean 'arena'"),
        (
            "version = 1\ntitle = 'x'\n[chain]\narena = 3\nmemory = 3\n[[step]]\ndo = 'flush'",
            "chain.memory: arena is set too",
        ),
        (
            "version = 1\ntitle = 'x'\n[script]\nsteps = [{do = 'flush'}]\n[[step]]\ndo = 'flush'",
            "write all steps one way",
        ),
        ("version = 1\ntitle = [", "is no TOML"),
    ],
)
def test_a_mistake_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    """The message starts with the file, and has the line where it is about a step."""
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "x.toml"))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(ConfigError, match="there is no such file"):
        read_scenario(tmp_path / "none.toml")
