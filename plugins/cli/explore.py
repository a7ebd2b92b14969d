"""``kvarena explore``: every order of all that may happen in a tiny world, to a depth, with the states counted."""

import contextlib
from collections.abc import Sequence
from typing import Any

import attrs
import click

from kvarena.plugins.cli.context import catalog_of, json_option
from kvarena.plugins.cli.output import Progress, console, print_json
from kvarena.plugins.stress.explore.exhaustive import Found, Level, Report
from kvarena.plugins.stress.explore.exhaustive import explore as explore_world
from kvarena.plugins.stress.explore.world import MOVES, WORLDS
from kvarena.plugins.stress.swarm.checks import PROMISES
from kvarena.terms.errors import nearest

EXIT_BROKEN = 1


class Moves(click.ParamType):  # type: ignore[type-arg]
    """``take,finish,flush``: kinds of move."""

    name = "kinds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The kinds, each once, or a usage error."""
        kinds = value if isinstance(value, tuple) else tuple(dict.fromkeys(value.split(",")))
        for kind in kinds:
            if kind not in MOVES:
                self.fail(f"there is no move {kind!r}; {nearest(kind, MOVES)}", param, ctx)
        return kinds


@click.command()
@click.option("--depth", type=click.IntRange(1, 64), default=4, show_default=True, help="Moves from the start.")
@click.option(
    "--world",
    "names",
    type=click.Choice(list(WORLDS)),
    multiple=True,
    help="One of the worlds; all where none is named.",
)
@click.option("--moves", type=Moves(), default=(), help=f"Only these kinds of move, to go deeper: {','.join(MOVES)}.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@json_option
@click.pass_context
def explore(
    ctx: click.Context, /, *, depth: int, names: tuple[str, ...], moves: tuple[str, ...], jobs: int, as_json: bool
) -> int:
    """Try every order of takes, frees, forwards, copies and transfers in tiny worlds, and check every promise.

    Exit code 0: every promise held in every state. 1: one was broken; the fewest moves that break it are printed.
    """
    catalog, reports = catalog_of(ctx), []
    for name in names or WORLDS:
        world = attrs.evolve(WORLDS[name], moves=moves or WORLDS[name].moves)
        with _Levels(name, quiet=as_json) as levels:
            report = explore_world(world, depth, catalog, workers=jobs, told=levels.at)
        reports.append(report)
        if not as_json:
            for line in lines_of(report):
                console().print(line)
    if as_json:
        print_json({"version": 1, "worlds": [document(report) for report in reports]})
    return EXIT_BROKEN if any(report.found for report in reports) else 0


class _Levels:
    """Progress through one depth after another."""

    def __init__(self, world: str, *, quiet: bool) -> None:
        self._world, self._quiet = world, quiet
        self._open = contextlib.ExitStack()
        self._depth = 0
        self._progress: Progress | None = None

    def __enter__(self) -> "_Levels":
        return self

    def at(self, level: Level) -> None:
        """So many states of this depth were followed."""
        if level.depth != self._depth or self._progress is None:
            self._open.close()
            label = f"{self._world}, depth {level.depth}"
            self._depth = level.depth
            self._progress = self._open.enter_context(Progress(label, level.to_follow, quiet=self._quiet))
        self._progress.at(level.followed, f"{level.states:,} states, {level.moves:,} moves")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._open.close()


def lines_of(report: Report) -> Sequence[str]:
    """A report for people."""
    speed = report.moves / report.seconds if report.seconds else 0.0
    whole = ", and there is no other" if report.is_whole else ""
    verdict = f"{len(report.found)} promises broken" if report.found else "every promise held"
    lines = [
        f"{report.world}: {report.state_count:,} states{whole}, {report.moves:,} moves and {report.probes:,} probes to "
        f"depth {report.depth} in {report.seconds:,.1f} s ({speed:,.0f} moves a second): {verdict}"
    ]
    for found in report.found:
        lines.append(f"  {found.check}: {found.words}")
        if found.check in PROMISES:
            lines.append(f"  The promise: {PROMISES[found.check]}")
        lines += [f"    {number}. {op}" for number, op in enumerate(found.operations, start=1)]
    return lines


def document(report: Report) -> dict[str, Any]:
    """A report for programs; without the time it took, so that it is the same each time."""
    return {
        "world": report.world, "about": WORLDS[report.world].about, "depth": report.depth,
        "states": report.state_count, "states_by_depth": list(report.states), "moves": report.moves,
        "probes": report.probes, "whole": report.is_whole, "found": [_found(found) for found in report.found],
    }  # fmt: skip


def _found(found: Found) -> dict[str, Any]:
    operations = [{"do": op.verb, **op.arguments} for op in found.operations]
    return {"check": found.check, "words": found.words, "operations": operations}
