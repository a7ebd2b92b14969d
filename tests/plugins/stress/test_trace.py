"""Traces: what is written, that the same version decides alike, and that the first difference is named."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarena.plugins.stress.scenario.file import read_scenario
from kvarena.plugins.stress.scenario.run import run_scenario
from kvarena.plugins.stress.stage.stage import Stage
from kvarena.plugins.stress.swarm.world import draw_world, installed
from kvarena.plugins.stress.trace.scenario import scripts_of
from kvarena.plugins.stress.trace.setting import paged
from kvarena.plugins.stress.trace.trace import Compared, beside, record, replay, worlds_of
from kvarena.policies.hole_order import NearestHoles
from kvarena.terms.errors import ConfigError
from kvarena.terms.ports import IntArray

ROOT = Path(__file__).parents[3]
WINGS = ("plugins", "backends", "layouts", "policies")

SCENARIO = """version = 1
title = "a hole is filled again"

[chain]
unit = 64
arena = 8
context = 8
requests = 4
sub_pools = {F = {lifetime = "full"}}

[variants]
timing = ["late"]
cases = [{n = 1}, {n = 2}]

[script]
steps = [
    {do = "take", request = "A", rows = "= n"},
    {do = "take", request = "B", rows = 1, save = "got"},
    {do = "take", request = "C", rows = 1},
    {do = "take", request = "D", rows = 1},
    {do = "finish", request = "A"},
    {do = "finish", request = "C"},
    {do = "counts", sub_pool = "F"},
    {do = "repeat", times = "= got + 1", counter = "i", steps = [{do = "take", request = "E{i}", rows = 1}]},
    {do = "flush"},
]
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Three seeds at two page sizes each."""
    path = tmp_path / "base.jsonl"
    record(path, worlds_of(range(3), (1, 16), installed()), (), operations=60, catalog=installed())
    return path


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A trace of one scenario file, in its two cases."""
    (tmp_path / "holes.toml").write_text(SCENARIO, encoding="utf-8")
    scripts = scripts_of(read_scenario(tmp_path / "holes.toml"), installed())
    path = tmp_path / "holes.jsonl"
    record(path, (), scripts, operations=0, catalog=installed())
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def changed(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """The file with something else in it."""
    told = lines(path)
    change(told)
    other = path.with_name(f"changed-{path.name}")
    other.write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")
    return other


def parted(compared: list[Compared]) -> list[Compared]:
    return [run for run in compared if run.divergence is not None]


@pytest.mark.req("TRC-1")
def test_a_trace_has_runs_of_operations_with_outcomes_and_decisions(recorded: Path) -> None:
    """A line says what a run is on, one each operation with what came and what the host decided, one ends the run."""
    told = lines(recorded)
    first = told[0]

    assert first["version"] == 1
    assert [line["run"] for line in told if "run" in line][:2] == ["seed 0, pages of 1", "seed 0, pages of 16"]
    assert first["on"]["storage"]["arena"]["page_tokens"] == 1
    assert told[1].keys() == {"do", "with", "came", "bands", "steps", "uses", "moves", "rows"}
    assert len(told[1]["bands"]) == len(first["on"]["storage"]["layers"])
    assert [line["end"] for line in told if "end" in line] == [60] * 6
    assert told[-1] == {"runs": 6}


@pytest.mark.req("TRC-1")
def test_the_same_version_decides_alike(recorded: Path) -> None:
    """Played again, and beside itself, every run is the same to the end."""
    for compared in (list(replay(recorded, installed())), list(beside(recorded, recorded))):
        assert [run.operations for run in compared] == [60] * 6
        assert not parted(compared)


def test_the_same_seeds_give_the_same_file(recorded: Path, tmp_path: Path) -> None:
    """A trace is a function of its seeds, page sizes and length: nothing of the clock or the machine is in it."""
    other = tmp_path / "again.jsonl"
    record(other, worlds_of(range(3), (1, 16), installed()), (), operations=60, catalog=installed())

    assert other.read_bytes() == recorded.read_bytes()


@pytest.mark.req("TRC-1")
@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_a_seed_runs_at_any_page_size(page_tokens: int, tmp_path: Path) -> None:
    """The same world with pages of another size: as many pages, and operations that serve requests."""
    path = tmp_path / "pages.jsonl"
    record(path, worlds_of(range(4), (page_tokens,), installed()), (), operations=50, catalog=installed())
    told = lines(path)

    assert {line["on"]["storage"]["arena"]["page_tokens"] for line in told if "run" in line} == {page_tokens}
    assert sum("value" in line.get("came", {}) for line in told) > 100
    assert not parted(list(replay(path, installed())))


@pytest.mark.req("TRC-1")
def test_a_grid_of_checkpoints_keeps_its_pages() -> None:
    """A world that copies states every so many pages does so at any page size, and can be built."""
    world = draw_world(next(seed for seed in range(40) if "prefix" in draw_world(seed).storage))
    before = world.config()
    assert before.prefix.checkpoint_tokens

    for page_tokens in (1, 16, 64):
        after = paged(world, page_tokens, installed()).config()
        pages = before.prefix.checkpoint_tokens // before.arena.page_tokens
        assert after.prefix.checkpoint_tokens == pages * page_tokens


def test_a_scenario_file_is_recorded_case_by_case(scenario: Path) -> None:
    """Variables are filled in, repeats are played out, and sub-pools have kvarena's own names."""
    told = lines(scenario)
    operations = [{"do": line["do"], **line["with"]} for line in told if "do" in line]
    taken = [op for op in operations if op["do"] == "take"]

    assert [line["run"].rsplit(": ", 1)[1] for line in told if "run" in line] == ["late; n = 1", "late; n = 2"]
    assert [op["rows"] for op in taken if op["request"] == "A"] == [1, 2]
    assert [op["request"] for op in taken][-2:] == ["E0", "E1"]
    assert {"do": "counts", "sub_pool": "full"} in operations
    assert not parted(list(replay(scenario, installed())))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ('{do = "flush", repeat = "= n - 3"}', ":18: flush: so many times must be a whole number"),
        ('{do = "let", values = 5}', ":18: let: values must be a table of variables, not 5"),
        ('{do = "counts", sub_pool = ["F"]}', ":18: counts: sub_pool must be a name"),
    ],
)
def test_a_scenario_that_cannot_be_played_is_not_recorded(step: str, words: str, tmp_path: Path) -> None:
    """What the runner refuses as it runs, the recorder refuses in the same words, by file and line."""
    path = tmp_path / "bad.toml"
    path.write_text(
        SCENARIO[: SCENARIO.index("    {do")] + f'    {{do = "flush"}},\n    {step},\n]\n', encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=words):
        record(
            tmp_path / "bad.jsonl", (), scripts_of(read_scenario(path), installed()), operations=0, catalog=installed()
        )
    with pytest.raises(ConfigError, match=words):
        run_scenario(read_scenario(path), installed())


@pytest.mark.req("TRC-1")
def test_the_first_divergence_of_each_run_is_named(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another order of holes: everything is alike up to the first operation that fills one of several."""
    take = NearestHoles.take

    def farthest(self: NearestHoles, count: int) -> IntArray:
        every = take(self, len(self))
        if len(every) > count:
            self.add(every[: len(every) - count])
        return every[len(every) - count :]

    monkeypatch.setattr(NearestHoles, "take", farthest)
    found = parted(list(replay(scenario, installed())))

    assert len(found) == 2
    for run in found:
        assert run.divergence is not None
        assert run.operations == 7
        assert run.divergence.number == 8
        assert run.divergence.operation == "take request='E0' rows=1"
        assert run.divergence.words == ("band full: which id is on which page",)


def test_a_count_that_differs_is_told_with_both_values(recorded: Path) -> None:
    """What was recorded stands before the arrow, what came now behind it."""

    def other(told: list[dict[str, Any]]) -> None:
        at = next(number for number, line in enumerate(told) if line.get("do") == "take")
        name = next(iter(told[at]["bands"]))
        told[at]["bands"][name][told[0]["fields"].index("stop")] += 7
        told[at]["came"] = {"refused": ""}

    found = parted(list(replay(changed(recorded, other), installed())))

    assert len(found) == 1
    assert found[0].divergence is not None
    words = found[0].divergence.words
    assert words[0].startswith("it came to a refusal -> ")
    assert len(words) == 2
    assert "stop" in words[1]
    before, after = words[1].rpartition("stop ")[2].split(" -> ")
    assert int(before) == int(after) + 7


def test_two_files_are_compared_without_playing(recorded: Path) -> None:
    """Beside another trace, runs part where a line differs, where an operation does, or where one ends."""

    def other(told: list[dict[str, Any]]) -> None:
        starts = [number for number, line in enumerate(told) if "run" in line]
        told[starts[0] + 3]["moves"] += 1
        told[starts[1] + 5] = {**told[starts[1] + 5], "do": "prebuilt", "with": {}}
        told[starts[2]]["arena"]["arena_bytes"] -= 1
        del told[starts[3] + 60]
        told[starts[3] + 60]["end"] = 59

    found = parted(list(beside(recorded, changed(recorded, other))))
    parts = [run.divergence for run in found if run.divergence is not None]

    assert [part.number for part in parts] == [3, 5, 0, 60]
    assert parts[0].words[0].startswith("pages moved: ")
    assert parts[1].operation == "another operation"
    assert parts[1].words[0].endswith("-> prebuilt")
    assert parts[2].words[0].startswith("arena_bytes ")
    assert parts[3].words[0].endswith("-> the end of the run")


def test_an_operation_that_crashes_here_is_a_divergence(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that stops the allocator is found like any other difference, and the other runs go on."""
    monkeypatch.setattr("kvarena.chain.chain.feasible", None)
    found = parted(list(replay(recorded, installed())))

    assert found
    for run in found:
        assert run.divergence is not None
        assert "crash TypeError" in run.divergence.words[0]


def test_a_crash_is_recorded_and_ends_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that crashes can be recorded too; compared with itself it is alike."""
    apply = Stage.apply

    def crashing(self: Stage, op: Any) -> Any:
        if self.applied == 5:
            raise ZeroDivisionError
        return apply(self, op)

    monkeypatch.setattr(Stage, "apply", crashing)
    path = tmp_path / "crash.jsonl"
    record(path, worlds_of((0,), (), installed()), (), operations=50, catalog=installed())

    assert lines(path)[-3]["came"] == {"crash": "ZeroDivisionError"}
    assert lines(path)[-2] == {"end": 6}
    assert not parted(list(replay(path, installed())))


@pytest.mark.req("TRC-1")
def test_a_trace_that_another_checkout_recorded_is_compared(tmp_path: Path) -> None:
    """A copy of this checkout, run from its own folder, decides alike; one with another order of holes does not."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "core", copy / "kvarena", ignore=shutil.ignore_patterns("__pycache__"))
    for wing in WINGS:
        shutil.copytree(ROOT / wing, copy / "kvarena" / wing, ignore=shutil.ignore_patterns("__pycache__"))
    same = recorded_by(copy, tmp_path / "same.jsonl")
    holes = copy / "kvarena" / "policies" / "hole_order.py"
    text = holes.read_text(encoding="utf-8")
    holes.write_text(text.replace("found = self._flip(found)\n", "found = self._flip(found)[::-1]\n"), encoding="utf-8")
    other = recorded_by(copy, tmp_path / "other.jsonl")

    assert not parted(list(replay(same, installed())))
    found = parted(list(replay(other, installed())))
    assert found
    for run in found:
        assert run.divergence is not None
        assert any("which id is on which page" in words for words in run.divergence.words)


def recorded_by(checkout: Path, path: Path) -> Path:
    """A trace that another checkout's code wrote."""
    code = (
        "import sys, pathlib, kvarena\n"
        "from kvarena.plugins.stress.trace.trace import record, worlds_of\n"
        "from kvarena.plugins.stress.swarm.world import installed\n"
        "assert kvarena.__file__.startswith(sys.argv[1])\n"
        "record(pathlib.Path(sys.argv[2]), worlds_of(range(8), (), installed()), (), operations=80,"
        " catalog=installed())\n"
    )
    arguments = [sys.executable, "-c", code, str(checkout), str(path)]
    subprocess.run(arguments, check=True, env={"PYTHONPATH": str(checkout)}, cwd=checkout)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told[0].update(version=2), ":1: version 2 of a trace is not known here"),
        (lambda told: told[3].update(do="teke"), ":4: there is no operation 'teke'; did you mean 'take'"),
        (lambda told: told[3].update({"with": {"colour": 1}}), ":4: .* has no argument 'colour'"),
        (lambda told: told[3].update({"with": 5}), ":4: with: must be a table"),
        (lambda told: told[3].update(do=[]), r":4: there is no operation '\[\]'"),
        (lambda told: told[3].update(bands=5), ":4: bands: must be a table of lists, not '5'"),
        (lambda told: told[3]["bands"].update(new=None), ":4: bands: must be a table of lists"),
        (lambda told: told[3].update(steps=None), ":4: steps: must be a list of numbers, not 'None'"),
        (lambda told: told[3].update(rows=[]), r":4: rows: must be a table, not '\[\]'"),
        (lambda told: told[3].update(came=1), ":4: came: must be a table, not '1'"),
        (lambda told: told[0].update(arena=7), ":1: arena: must be a table, not '7'"),
        (lambda told: told[0].update(on=[]), r":1: on: must be a table, not '\[\]'"),
        (lambda told: told[0]["on"]["storage"]["arena"].update(memory="lots"), ":1: .*memory"),
        (lambda told: told[0]["on"].update(planet="Mars"), ":1: on.planet"),
        (lambda told: told[0].update(fields=3), ":1: fields: must be a list"),
        (lambda told: told.pop(), "there is no end: the file was cut off"),
        (lambda told: told.__delitem__(slice(30, None)), ":1: run 'seed 0, pages of 1' has no end"),
        (lambda told: told.pop(10), ":61: run 'seed 0, pages of 1' should go on here, or end after 59 operations"),
        (lambda told: told.pop(0), ":1: a run should begin here"),
        (lambda told: told[-1].update(runs=9), ":373: 9 runs are said to be here, and 6 are"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_its_line(recorded: Path, change: Any, words: str) -> None:
    """Another version, an unknown operation or setting, a part that is missing: refused by file and line."""
    with pytest.raises(ConfigError, match=words):
        list(replay(changed(recorded, change), installed()))


def test_a_damaged_file_is_refused_beside_another_too(recorded: Path, tmp_path: Path) -> None:
    """On whichever side it is, by its own line."""
    whole = tmp_path / "whole.jsonl"
    shutil.copy(recorded, whole)
    for damage, words in (
        ({"bands": 5}, ":4: bands: must be"),
        ({"steps": 5}, ":4: steps: must be"),
        ({"with": 5}, ":4: with: must be"),
        ({"do": []}, ":4: there is no operation"),
    ):
        shutil.copy(whole, recorded)
        damaged = changed(recorded, lambda told, damage=damage: told[3].update(damage))
        for pair in ((damaged, whole), (whole, damaged)):
            with pytest.raises(ConfigError, match=f"{damaged.name}{words}"):
                list(beside(*pair))


def test_a_file_that_was_cut_off_is_refused(recorded: Path) -> None:
    """In the middle of a line, or before its end; and so is one that is not there, or no text."""
    whole = recorded.read_bytes()
    for content, words in (
        (whole[:1000], ":2: the line has no end"),
        (b"", "there is no end"),
        (b"\xff\xfe\n", ":1: is no JSON"),
        (b"[1]\n", ":1: must be a JSON object"),
    ):
        recorded.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            list(replay(recorded, installed()))
    with pytest.raises(ConfigError, match="there is no such file"):
        list(replay(recorded.with_name("none.jsonl"), installed()))


def test_traces_of_other_runs_are_not_compared(recorded: Path, tmp_path: Path) -> None:
    """Two files must be of the same seeds and files, run by run."""
    other = tmp_path / "other.jsonl"
    record(other, worlds_of(range(2), (1, 16), installed()), (), operations=60, catalog=installed())

    with pytest.raises(ConfigError, match="record both of the same seeds and files"):
        list(beside(recorded, other))


def test_a_trace_is_read_a_line_at_a_time(recorded: Path) -> None:
    """The first run is compared before the rest of the file is looked at."""
    with recorded.open("ab") as file:
        file.write(b"nonsense")
    first = next(replay(recorded, installed()))

    assert first.operations == 60


def test_a_world_that_is_drawn_anew_elsewhere_is_no_matter(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations and storage come from the file: what a seed would draw here is not asked."""
    monkeypatch.setattr("kvarena.plugins.stress.trace.trace.draw_world", lambda *args, **more: draw_world(999))

    assert not parted(list(replay(recorded, installed())))
