"""Traces: what the allocator decided, operation by operation, and the first place where another version decides else.

``record`` plays seeds and scenario files on one rank and writes what came of each operation and the decisions of the
host. ``replay`` plays the operations of a file again, here; ``beside`` compares two files that were recorded.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.stage.operations import Op, read_operation
from kvarena.plugins.stress.stage.stage import Outcome, Stage
from kvarena.plugins.stress.swarm.draw import Draw
from kvarena.plugins.stress.swarm.generate import Generator
from kvarena.plugins.stress.swarm.scene import Scene
from kvarena.plugins.stress.swarm.world import World, draw_world
from kvarena.plugins.stress.trace.decisions import (
    BAND_FIELDS,
    came_of,
    check_decisions,
    decisions_of,
    differences,
    plain,
)
from kvarena.plugins.stress.trace.file import Line, RecordedRun, TraceReader, TraceWriter
from kvarena.plugins.stress.trace.scenario import ScriptedRun
from kvarena.plugins.stress.trace.setting import Setting, paged, read_setting, setting_of
from kvarena.terms.errors import ConfigError, PlanError

Told = Callable[[int, int], None]
"""Is given how far it is: runs and operations that were recorded; bytes that were compared, of how many."""


def _nobody(done: int, of: int) -> None:
    """Nobody is told."""


@attrs.frozen
class Divergence:
    """The first operation of a run that came out otherwise. ``number``: from 1; 0 is the storage itself."""

    run: str
    number: int
    operation: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.run}: operation {self.number}, {self.operation}: {'; '.join(self.words)}"


@attrs.frozen
class Compared:
    """One run that was compared: how many operations were alike, and where it parted; None where it did not."""

    run: str
    operations: int
    divergence: Divergence | None = None


def record(
    path: Path,
    worlds: Iterable[tuple[str, World]],
    scripts: Iterable[ScriptedRun],
    *,
    operations: int,
    catalog: Catalog,
    device: str = "host",
    told: Told = _nobody,
) -> tuple[int, int]:
    """Write a trace of so many operations of each world, and of all scripts; how many runs and operations.

    Raises:
        KvarenaError: a world or a scenario cannot be built; the file is then none that can be compared.
    """
    runs = played = 0
    with TraceWriter(path) as writer:
        for name, world in worlds:
            with _Recording(writer, name, setting_of(world, device), catalog) as recording:
                _play_world(world, operations, recording)
            runs, played = runs + 1, played + recording.played
            told(runs, played)
        for script in scripts:
            with _Recording(writer, script.name, script.setting, catalog) as recording:
                _play_script(script, recording)
            runs, played = runs + 1, played + recording.played
            told(runs, played)
    return runs, played


def worlds_of(seeds: Iterable[int], page_sizes: Sequence[int], catalog: Catalog) -> Iterator[tuple[str, World]]:
    """The world of each seed, at each of the page sizes; at its own where none is given. With the names of the runs."""
    for seed in seeds:
        world = draw_world(seed, catalog=catalog)
        for size in page_sizes:
            yield f"seed {seed}, pages of {size}", paged(world, size, catalog)
        if not page_sizes:
            yield f"seed {seed}", world


def replay(path: Path, catalog: Catalog, told: Told = _nobody) -> Iterator[Compared]:
    """Play each run of a trace again, here.

    Raises:
        ConfigError: the file is none, of another version, cut off, or speaks of what is not known here; with its place.
    """
    reader = TraceReader(path)
    for run in reader.runs():
        yield _replayed(run, catalog)
        told(reader.bytes_read, reader.size)


def beside(path: Path, other: Path, told: Told = _nobody) -> Iterator[Compared]:
    """Compare two traces of the same runs.

    Raises:
        ConfigError: a file is none, of another version or cut off, or they are not of the same runs; with the place.
    """
    one, two = TraceReader(path), TraceReader(other)
    for mine, its in itertools.zip_longest(one.runs(), two.runs()):
        if mine is None or its is None or mine.name != its.name:
            here, there = (run.name if run else "no run" for run in (mine, its))
            place = next((run.place for run in (mine, its) if run), str(path))
            words = f"{path} has {here!r} here, {other} has {there!r}"
            raise ConfigError(f"{place}: {words}; record both of the same seeds and files")
        yield _beside(mine, its)
        told(one.bytes_read, one.size)


# -- recording


class _Recording:
    """One run being written."""

    def __init__(self, writer: TraceWriter, name: str, setting: Setting, catalog: Catalog) -> None:
        self.played = 0
        self.stage = setting.open(catalog, name)
        self.is_over = False
        self._writer = writer
        writer.begin({"run": name, "fields": BAND_FIELDS, "on": plain(setting.told()), "arena": _arena_of(self.stage)})

    def __enter__(self) -> "_Recording":
        return self

    def play(self, op: Op) -> Outcome:
        """Apply it, and write what came of it."""
        line, outcome = _played(self.stage, op)
        self._writer.operation({"do": op.verb, "with": plain(op.arguments), **line})
        self.played += 1
        self.is_over = "crash" in line["came"]
        return outcome

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._writer.end()
        self.stage.storage.release()


def _play_world(world: World, operations: int, recording: _Recording) -> None:
    """Operations as the harness draws them."""
    scene, storage = Scene(), recording.stage.storage
    units = [(name, band.grid.page_count) for name, band in storage.chain.bands.items() if band.grid.unit_bytes]
    generator = Generator(Draw(world, scene, units, (len(storage.requests), storage.sizing.context_tokens)))
    for _ in range(operations):
        op = generator.next()
        outcome = recording.play(op)
        if recording.is_over:
            return
        if outcome.kind == "value":
            scene.saw(op, outcome.value)
        elif outcome.kind == "error":
            scene.failed(op)


def _play_script(script: ScriptedRun, recording: _Recording) -> None:
    script.operations(lambda op: Outcome("awaits") if recording.is_over else recording.play(op))


def _played(stage: Stage, op: Op) -> tuple[dict[str, Any], Outcome]:
    """What came of an operation, as a line has it. One that stops with anything but a named error ends its run."""
    try:
        outcome = stage.apply(op)
    except Exception as error:  # a fault of ours is something that two versions may differ in, too
        return {"came": {"crash": type(error).__name__}}, Outcome("crash")
    return {"came": came_of(op.verb, outcome), **decisions_of(stage)}, outcome


def _arena_of(stage: Stage) -> dict[str, Any]:
    """What the budget came to."""
    sizing = stage.storage.sizing
    return {"arena_bytes": sizing.arena_bytes, "requests": len(stage.storage.requests), **plain(sizing.units)}


# -- comparing


def _replayed(run: RecordedRun, catalog: Catalog) -> Compared:
    setting = read_setting(run.header, run.place)
    fields = _fields(run)
    try:
        stage = setting.open(catalog, run.place)
    except PlanError as error:
        return Compared(run.name, 0, Divergence(run.name, 0, "the storage", (f"it was built -> {error}",)))
    try:
        words = _unlike(_arena(run), _arena_of(stage))
        if words:
            return Compared(run.name, 0, Divergence(run.name, 0, "the storage", words))
        number = 0
        for number, line in enumerate(run.operations(), start=1):
            op = _operation(line)
            now, _ = _played(stage, op)
            found = differences(line.says, now, fields)
            if found:
                return Compared(run.name, number - 1, Divergence(run.name, number, str(op), tuple(found)))
            if "crash" in now["came"]:
                break
        return Compared(run.name, number)
    finally:
        stage.storage.release()


def _beside(mine: RecordedRun, its: RecordedRun) -> Compared:
    fields, name = _fields(mine), mine.name
    words = _unlike(_arena(mine), _arena(its))
    if words:
        return Compared(name, 0, Divergence(name, 0, "the storage", words))
    number = 0
    for number, (one, two) in enumerate(itertools.zip_longest(mine.operations(), its.operations()), start=1):
        if one is None or two is None or _asked(one) != _asked(two):
            told = [str(_operation(line)) if line else "the end of the run" for line in (one, two)]
            return Compared(name, number - 1, Divergence(name, number, "another operation", (" -> ".join(told),)))
        for line in (one, two):
            check_decisions(line.says, line.place)
        found = differences(one.says, two.says, fields)
        if found:
            return Compared(name, number - 1, Divergence(name, number, str(_operation(one)), tuple(found)))
    return Compared(name, number)


def _operation(line: Line) -> Op:
    """The operation of a line, whose decisions can be compared.

    Raises:
        ConfigError: it is not known here, or the line is damaged; with its place.
    """
    check_decisions(line.says, line.place)
    arguments = line.says.get("with", {})
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{line.place}: with: must be a table of arguments, not {str(arguments)[:60]!r}")
    given = {name: value for name, value in arguments.items() if value is not None}
    return read_operation(line.says["do"], given, line.place)


def _asked(line: Line) -> tuple[Any, Any]:
    return line.says["do"], line.says.get("with")


def _arena(run: RecordedRun) -> Mapping[str, Any]:
    arena = run.header.get("arena", {})
    if not isinstance(arena, Mapping):
        raise ConfigError(f"{run.place}: arena: must be a table, not {str(arena)[:60]!r}")
    return arena


def _fields(run: RecordedRun) -> tuple[str, ...]:
    fields = run.header.get("fields", BAND_FIELDS)
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise ConfigError(f"{run.place}: fields: must be a list of names, not {str(fields)[:60]!r}")
    return tuple(fields)


def _unlike(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    names = [*recorded, *(name for name in now if name not in recorded)]
    return tuple(
        f"{name} {recorded.get(name)} -> {now.get(name)}" for name in names if recorded.get(name) != now.get(name)
    )
