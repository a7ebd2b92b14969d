"""``kvarena stress``: random operations against a real storage, every byte watched, on two ranks that must agree."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig, read_toml, structure
from kvarena.assembly.loader import check_eviction, declared_layers, make_policies
from kvarena.assembly.places import Places
from kvarena.planning.sizing import size_plan
from kvarena.plugins.cli.context import FILE, catalog_of, json_option
from kvarena.plugins.cli.logs import settle_logs
from kvarena.plugins.cli.output import Progress, console, print_json
from kvarena.plugins.stress.swarm.case import Case, dump_case, read_case
from kvarena.plugins.stress.swarm.harness import SIMULATED, check_world, replay_case
from kvarena.plugins.stress.swarm.sweep import Ended, Job, sweep
from kvarena.plugins.stress.swarm.world import draw_world
from kvarena.terms.errors import ConfigError, PluginError

EXIT_BROKEN = 1
SEEDS_MAX = 1 << 40
_SEEDS = re.compile(r"([0-9]+)(?::([0-9]+))?")


class Seeds(click.ParamType):  # type: ignore[type-arg]
    """``17``, or ``0:200`` for the seeds from 0 up to and without 200."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """A range of seeds, or a usage error."""
        if isinstance(value, range):
            return value
        found = _SEEDS.fullmatch(value)
        first = int(found[1]) if found else 0
        stop = int(found[2]) if found and found[2] else first + 1
        if not found or not first < stop <= SEEDS_MAX:
            self.fail(f"{value!r} is no seed and no range of seeds; write 17, or 0:200", param, ctx)
        return range(first, stop)


class Folder(click.Path):
    """A folder by its name; an empty one, of a variable that was never set, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A path, or a usage error."""
        if not str(value):
            self.fail("a folder's name cannot be empty", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.option("--seeds", type=Seeds(), default="0:20", show_default=True, help="A seed, or a range of them.")
@click.option("--ops", type=click.IntRange(1, 1 << 30), default=400, show_default=True, help="Operations a seed.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--minimize", is_flag=True, help="Shrink what breaks to the shortest list of operations.")
@click.option(
    "--out", type=Folder(path_type=Path), help="A folder for the cases that broke; printed where it is not given."
)
@click.option("--replay", "file", type=FILE, help="Run the one case of this file again, and nothing else.")
@click.option(
    "--device", default=SIMULATED, show_default=True, help="The backend: simulated, cpu or cuda, or a plugin's by name."
)
@click.option("--config", type=FILE, help="A storage's config: its layers, policies and plugins, on every seed.")
@json_option
@click.pass_context
def stress(
    ctx: click.Context,
    /,
    *,
    seeds: range,
    ops: int,
    jobs: int,
    minimize: bool,
    out: Path | None,
    file: Path | None,
    device: str,
    config: Path | None,
    as_json: bool,
) -> int:
    """Stress the allocator: overlapped forwards, copies, transfers and moves in random order, everything checked.

    Exit code 0: every promise held. 1: one was broken; its case can be run again with --replay. 2: bad input.
    """
    if file is not None:
        given = ctx.get_parameter_source("device")
        chosen = device if given is click.core.ParameterSource.COMMANDLINE else None
        return _replay(file, chosen, as_json=as_json)
    storage = None if config is None else _read_config(config, catalog_of(ctx))
    check_world(draw_world(seeds[0], storage), device, str(config) if config else f"seed {seeds[0]}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    work = [Job(seed=seed, operations=ops, device=device, minimize=minimize, storage=storage) for seed in seeds]
    began = time.monotonic()
    ended = _run(work, jobs, out, as_json=as_json)
    _report(ended, time.monotonic() - began, device, as_json=as_json)
    return EXIT_BROKEN if any(one.case for one in ended) else 0


def _run(work: Sequence[Job], workers: int, out: Path | None, *, as_json: bool) -> list[Ended]:
    """All seeds, with progress on stderr; each case that broke is told as it is found."""
    ended: list[Ended] = []
    operations, began = 0, time.monotonic()
    with Progress("seeds", len(work), quiet=as_json) as progress:
        for one in sweep(work, workers):
            ended.append(one)
            operations += one.operations
            if one.case is not None and not as_json:
                _tell(one.case, out)
            elif one.case is not None and out is not None:
                _save(one.case, out)
            broken = sum(other.case is not None for other in ended)
            speed = operations / max(time.monotonic() - began, 1e-9)
            progress.at(len(ended), f"{speed:,.0f} operations/s, {broken} broken")
    return sorted(ended, key=lambda one: one.seed)


def _tell(case: Case, out: Path | None) -> None:
    """The seed, the promise in words, and the operations as a file that --replay reads."""
    printed = console()
    printed.print(f"seed={case.seed}  {case.check}: {case.words}")
    if out is None:
        printed.print(dump_case(case))
        return
    path = _save(case, out)
    printed.print(f"  {len(case.operations):,} operations in {path}; again: kvarena stress --replay {path}")


def _save(case: Case, out: Path) -> Path:
    path = out / f"seed-{case.seed}.toml"
    path.write_text(dump_case(case), encoding="utf-8")
    return path


def _report(ended: Sequence[Ended], seconds: float, device: str, *, as_json: bool) -> None:
    operations = sum(one.operations for one in ended)
    spent = sum(one.seconds for one in ended)
    broken = [one for one in ended if one.case is not None]
    if as_json:
        print_json(
            {
                "version": 1,
                "device": device,
                "seeds": len(ended),
                "operations": operations,
                "broken": [_words(one.case) for one in broken if one.case],
            }
        )
        return
    core = operations / spent if spent else 0.0
    verdict = f"{len(broken)} of them broke a promise" if broken else "every promise held"
    console().print(
        f"{len(ended):,} seeds, {operations:,} operations on the {device} device in {seconds:,.1f} s "
        f"({core:,.0f} a second and core): {verdict}"
    )


def _words(case: Case) -> Mapping[str, Any]:
    return {"seed": case.seed, "check": case.check, "words": case.words, "operations": len(case.operations)}


def _replay(path: Path, device: str | None, *, as_json: bool) -> int:
    """One saved case, on the device it was found on or on another."""
    case = read_case(path)
    run = replay_case(case, device)
    found = run.case
    if as_json:
        print_json(
            {"version": 1, "file": str(path), "operations": run.operations, "broken": _words(found) if found else None}
        )
    elif found is None:
        expected = f"; the file says that {case.check} broke" if case.check else ""
        console().print(f"{run.operations:,} operations: every promise held{expected}")
    else:
        console().print(f"seed={found.seed}  {found.check}: {found.words}")
        console().print(f"  after {run.operations:,} of {len(case.operations):,} operations")
    return EXIT_BROKEN if found is not None else 0


def _read_config(path: Path, catalog: Catalog) -> Mapping[str, Any]:
    """The sections of a storage's config file, checked."""
    sections = read_toml(path)
    places = Places.in_file(path, name=path.name)
    config = structure(StorageConfig, sections, places)
    settle_logs(config.logs)
    if not config.layers:
        raise ConfigError(f"{path.name}: layers: a run needs [[layers]]; declare some")
    catalog = catalog.under(config.plugins, source=places)
    try:
        catalog.find("backends", config.backend.name)  # found, not made: --device chooses what runs
    except PluginError as error:
        raise PluginError(f"{places.place('backend')}: {error}") from None
    make_policies(catalog, config.policies, places)
    check_eviction(catalog, config.prefix, places)
    with places.planning():
        plan = plan_arena(declared_layers(config, catalog, places), config.arena)
        size_plan(plan, config.arena.memory, limits_of(config.arena, config.prefix, plan, source=places))
    return sections
