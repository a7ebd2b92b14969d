"""``kvarena trace``: record what the allocator decides, and find the first operation at which another version parts."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from kvarena.plugins.cli.context import FILE, catalog_of, json_option
from kvarena.plugins.cli.output import Progress, console, print_json
from kvarena.plugins.cli.stress import Seeds
from kvarena.plugins.stress.scenario.file import read_scenario
from kvarena.plugins.stress.trace import trace as traces
from kvarena.plugins.stress.trace.scenario import scripts_of
from kvarena.terms.errors import ConfigError

EXIT_DIVERGED = 1
PAGE_SIZES_MAX = 64
_SIZES = re.compile(r"[0-9]+(,[0-9]+)*")


class PageSizes(click.ParamType):  # type: ignore[type-arg]
    """``1,16,64``: tokens a page, each once."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The sizes in their order, or a usage error."""
        if isinstance(value, tuple):
            return value
        if not _SIZES.fullmatch(value):
            self.fail(f"{value!r} is no list of page sizes; write 1,16,64", param, ctx)
        sizes = tuple(dict.fromkeys(map(int, value.split(","))))
        if not all(1 <= size <= 1 << 12 for size in sizes) or len(sizes) > PAGE_SIZES_MAX:
            self.fail(f"{value!r}: at most {PAGE_SIZES_MAX} sizes from 1 to 4,096 tokens a page", param, ctx)
        return sizes


@click.group(invoke_without_command=True)
@click.pass_context
def trace(ctx: click.Context) -> None:
    """Record the allocator's decisions, and compare those of another version with them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@trace.command()
@click.argument("files", type=FILE, nargs=-1, metavar="[SCENARIO]...")
@click.option("--seeds", type=Seeds(), help="A seed, or a range of them: 0:20. By default 0:20 where no file is named.")
@click.option("--ops", type=click.IntRange(1, 1 << 30), default=200, show_default=True, help="Operations a seed.")
@click.option("--page-sizes", type=PageSizes(), default=(), help="Each seed at these: 1,16,64. By default at its own.")
@click.option("--device", default="host", show_default=True, help="The backend that seeds run on.")
@click.option("--out", type=FILE, required=True, help="The trace to write.")
@json_option
@click.pass_context
def record(
    ctx: click.Context,
    /,
    *,
    files: tuple[Path, ...],
    seeds: range | None,
    ops: int,
    page_sizes: tuple[int, ...],
    device: str,
    out: Path,
    as_json: bool,
) -> None:
    """Write a trace: seeded operations and scenario files, what came of each, and what the host decided."""
    catalog = catalog_of(ctx)
    if device not in catalog.names("backends"):
        raise ConfigError(
            f"--device {device}: no backend of this name; there are: {', '.join(catalog.names('backends'))}"
        )
    scripts = [script for file in files for script in scripts_of(read_scenario(file), catalog)]
    chosen: Sequence[int] = seeds if seeds is not None else range(0 if files else 20)
    count = len(chosen) * max(1, len(page_sizes)) + len(scripts)
    with Progress("runs", count, quiet=as_json) as progress:

        def told(runs: int, operations: int) -> None:
            progress.at(runs, f"{operations:,} operations")

        worlds = traces.worlds_of(chosen, page_sizes, catalog)
        runs, played = traces.record(out, worlds, scripts, operations=ops, catalog=catalog, device=device, told=told)
    if as_json:
        print_json({"version": 1, "trace": str(out), "runs": runs, "operations": played})
    else:
        console().print(f"{runs:,} runs, {played:,} operations in {out}; compare: kvarena trace compare --trace {out}")


@trace.command()
@click.option("--trace", "file", type=FILE, required=True, help="The trace that was recorded.")
@click.option("--with", "other", type=FILE, help="Another trace to compare it with. By default this version, live.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Divergences to print at most.")
@json_option
@click.pass_context
def compare(ctx: click.Context, /, *, file: Path, other: Path | None, limit: int, as_json: bool) -> int:
    """Play the operations of a trace again, here, and print where each run first comes out otherwise.

    Exit code 0: all alike. 1: a run has parted. 2: bad input.
    """
    equal, operations = 0, 0
    parted: list[traces.Divergence] = []
    kib = (file.stat().st_size if file.is_file() else 0) >> 10
    with Progress("KiB", kib, quiet=as_json) as progress:

        def told(done: int, size: int) -> None:
            progress.at(done >> 10, f"{equal:,} alike, {len(parted):,} parted")

        found = traces.beside(file, other, told) if other else traces.replay(file, catalog_of(ctx), told)
        for run in found:
            operations += run.operations
            if run.divergence is None:
                equal += 1
                continue
            parted.append(run.divergence)
            if not as_json and len(parted) <= limit:
                console().print(str(run.divergence))
    if as_json:
        listed = [attrs.asdict(each) for each in parted[:limit]]
        counts = {"runs": equal + len(parted), "equal": equal, "diverged": len(parted), "operations": operations}
        print_json({"version": 1, "trace": str(file), **counts, "divergences": listed})
    else:
        left = f" ({len(parted) - limit:,} of them not printed)" if len(parted) > limit else ""
        console().print(f"{equal:,} runs alike, {len(parted):,} parted{left}; {operations:,} operations were alike")
    return EXIT_DIVERGED if parted else 0
