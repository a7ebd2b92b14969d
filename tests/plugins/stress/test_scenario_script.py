"""A script: which steps are due, how often, with which values, and how sub-pools are named."""

import re
from pathlib import Path

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.scenario import script as script_module
from kvarena.plugins.stress.scenario.file import read_scenario
from kvarena.plugins.stress.scenario.script import TIMES_MAX, Script, Step
from kvarena.plugins.stress.stage.operations import Op
from kvarena.terms.errors import ConfigError

HEAD = """version = 1
title = "a file"

[chain]
arena = 4
context = 4
requests = 2
sub_pools = {F = {lifetime = "full"}}

[variants]
timing = ["late"]
cases = [{n = 2, kind = "x"}]
orders = {end = [["a", "b"], ["b", "a"]]}

[script]
steps = [
"""
FIRST_LINE = HEAD.count("\n") + 1


def script(tmp_path: Path, *steps: str, order: int = 0) -> Script:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + "".join(f"    {{{step}}},\n" for step in steps) + "]\n", encoding="utf-8")
    scenario = read_scenario(path)
    return scenario.script(list(scenario.variants())[order], Catalog.installed())


def operations(played: Script) -> list[Op]:
    """The steps that are due, as the storage is given them."""
    return [played.operation(step, played.arguments(step)) for step in played.due()]


def said(played: Script) -> list[str]:
    """The steps that are due, as they are done."""
    return [str(Op(step.verb, played.arguments(step))) for step in played.due()]


def test_a_step_is_done_in_its_cases_and_where_its_sum_holds(tmp_path: Path) -> None:
    """``only`` names a value or several of the case, ``when`` is a sum."""
    steps = [
        'do = "counts", sub_pool = "F", only = {kind = "x"}',
        'do = "flush", only = {kind = "y"}',
        'do = "quiet", only = {n = [1, 2]}, when = "= n > 1"',
        'do = "flush", when = "= n > 2"',
    ]
    assert said(script(tmp_path, *steps)) == ["counts sub_pool='F'", "quiet"]


def test_a_step_is_done_as_often_as_it_says_and_counts(tmp_path: Path) -> None:
    """A repeat plays what is inside it again and again; counters start where they are told to."""
    inner = '{do = "finish", request = "{i}{j}", repeat = "= i", counter = "j"}'
    steps = [
        f'do = "repeat", times = "= n", counter = "i", first = 1, steps = [{inner}]',
        'do = "flush", repeat = 0',
    ]
    assert said(script(tmp_path, *steps)) == ["finish request='10'", "finish request='20'", "finish request='21'"]


def test_variables_change_while_the_steps_are_done(tmp_path: Path) -> None:
    """By ``let``, which is no step that is due, and by an answer that is kept."""
    played = script(
        tmp_path,
        'do = "let", values = {n = "= n + 5"}',
        'do = "counts", sub_pool = "F", save = "got"',
        'do = "check", holds = "= got == n"',
        'do = "take", request = "R{got}", rows = "= got - n", expect = "= n"',
    )
    due = played.due()
    counts = next(due)
    played.save(counts, 8)
    check = next(due)
    played.save(check, 9)
    take = next(due)

    assert played.expectation(check) is False
    assert (played.arguments(take), played.expectation(take)) == ({"request": "R8", "rows": 1}, 7)
    assert next(due, None) is None


def test_sub_pools_have_two_names(tmp_path: Path) -> None:
    """The file's in arguments and answers, kvarena's in operations; what is no sub-pool keeps its name."""
    played = script(tmp_path, 'do = "fits", units = {F = 3}', 'do = "counts", sub_pool = "F"')
    fits, counts = played.due()

    assert played.operation(fits, played.arguments(fits)) == Op("fits", {"units": {"full": 3}}, FIRST_LINE)
    assert played.operation(counts, {"sub_pool": "F"}) == Op("counts", {"sub_pool": "full"}, FIRST_LINE + 1)
    assert played.by_file_names({"full": {"free": 4}, "other": 1}) == {"F": {"free": 4}, "other": 1}


def test_steps_are_in_the_order_of_the_variant(tmp_path: Path) -> None:
    """Each of a group stands where the order puts it."""
    steps = ['do = "finish", request = "A", order = "end.a"', 'do = "finish", request = "B", order = "end.b"']
    assert said(script(tmp_path, *steps)) == ["finish request='A'", "finish request='B'"]
    assert said(script(tmp_path, *steps, order=1)) == ["finish request='B'", "finish request='A'"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            'do = "flush", repeat = "= n - 3"',
            f"flush: so many times must be a whole number up to {TIMES_MAX:,}, not -1",
        ),
        ('do = "flush", repeat = "= n > 1"', "flush: so many times must be a whole number .* not True"),
        (f'do = "flush", repeat = {TIMES_MAX + 1}', "flush: so many times must be a whole number"),
        ('do = "let", values = "= n"', "let: values must be a table of variables, not 2"),
        ('do = "flush", when = "= m"', "there is no variable 'm' here"),
        ('do = "take", request = "R{m}", rows = 1', "there is no variable 'm' here"),
        ('do = "take", rows = 1', "take needs request"),
    ],
)
def test_what_is_found_as_it_is_played_has_its_line(step: str, words: str, tmp_path: Path) -> None:
    """A sum that is none, a value of another kind, an argument that is missing."""
    played = script(tmp_path, step)
    with pytest.raises(ConfigError, match=f"x.toml:{FIRST_LINE}: {words}"):
        operations(played)


def test_steps_are_counted_over_all_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats in repeats cannot go on for ever: each round counts, also one with nothing in it."""
    monkeypatch.setattr(script_module, "STEPS_MAX", 1000)
    enough = 'do = "repeat", times = 9, steps = [{do = "flush", repeat = 100}]'
    assert len(said(script(tmp_path, enough))) == 900

    for inner in ('{do = "flush", repeat = 100}', '{do = "repeat", times = 100, steps = []}'):
        played = script(tmp_path, f'do = "repeat", times = 10, steps = [{inner}]')
        with pytest.raises(ConfigError, match=f"x.toml:{FIRST_LINE}: more than 1,000 steps would be played"):
            operations(played)


def test_a_value_that_doubles_has_its_line(tmp_path: Path) -> None:
    """Whatever a file works out again and again stays of a size that can be meant."""
    doubled = 'do = "repeat", times = 60, steps = [{do = "let", values = {x = %s}}]'
    for value in ('"{x}{x}"', '"= x + x"', '["= x", "= x"]'):
        played = script(tmp_path, 'do = "let", values = {x = "ab"}', doubled % value)
        with pytest.raises(ConfigError, match=f"x.toml:{FIRST_LINE + 1}: a value of .* is absurd"):
            operations(played)


def test_whether_a_step_only_plans() -> None:
    """Planning, the peak of a window, and what is no operation; a repeat if all inside it do."""
    plan, take = Step(1, "x:1", "plan", {}), Step(2, "x:2", "take", {})
    peak, demand = Step(3, "x:3", "demand", {"window": 4}), Step(4, "x:4", "demand", {"tokens": 4})

    assert [step.only_plans for step in (plan, take, peak, demand)] == [True, False, True, False]
    assert [Step(5, "x:5", verb, {}).only_plans for verb in ("check", "let")] == [True, True]
    assert Step(6, "x:6", "repeat", {}, steps=(plan, peak)).only_plans
    assert not Step(7, "x:7", "repeat", {}, steps=(plan, take)).only_plans


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ('do = "repeat", times = 2, steps = 5', "steps must be a list of tables"),
        ('do = "repeat", times = 2, steps = "flush"', "steps must be a list of tables"),
        ('do = "flush", counter = 3', "counter must be the name of a variable, not 3"),
        ('do = "flush", save = ["x"]', "save must be the name of a variable"),
        ('do = "flush", repeat = 2, counter = "i", first = "a"', "flush: first must be a whole number, not 'a'"),
    ],
)
def test_a_key_of_another_kind_is_refused_with_its_line(tmp_path: Path, step: str, words: str) -> None:
    """When it is read, or when its value is known."""
    with pytest.raises(ConfigError, match=rf"x\.toml:{FIRST_LINE}: .*{re.escape(words)}"):
        said(script(tmp_path, step))
