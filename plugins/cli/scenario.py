"""``kvarena scenario``: run scenario files on the simulated device, and say which line broke which promise."""

import sys
from pathlib import Path
from typing import Any

import click

from kvarena.plugins.cli.context import FILE, catalog_of, json_option
from kvarena.plugins.cli.output import console, print_json
from kvarena.plugins.stress.scenario.file import TIMINGS, read_scenario
from kvarena.plugins.stress.scenario.run import AWAITING, FAILED, PASSED, Report, run_scenario

EXIT_FAILED = 1


@click.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--timing", "timings", type=click.Choice(TIMINGS), multiple=True, help="Only so; several may be given.")
@click.option("-v", "--verbose", is_flag=True, help="Print each step and what came of it.")
@json_option
@click.pass_context
def scenario(
    ctx: click.Context, /, files: tuple[Path, ...], timings: tuple[str, ...], verbose: bool, as_json: bool
) -> None:
    """Run scenario files: a chain, operations, and what is expected of each, in every order in which work may land.

    Exits with 1 where a scenario fails. One that awaits a capability is listed apart and counts as neither.
    """
    catalog, out = catalog_of(ctx), console()
    read = [read_scenario(file) for file in files]
    told = (lambda line: out.print(f"  {line}")) if verbose and not as_json else None
    reports = []
    for each in read:
        report = run_scenario(each, catalog, timings=timings, told=told)
        reports.append(report)
        if not as_json:
            for line in lines_of(report):
                out.print(line)
    if as_json:
        print_json({"scenarios": [document(report) for report in reports]})
    else:
        counts = {fate: sum(report.fate == fate for report in reports) for fate in (PASSED, FAILED, AWAITING)}
        out.print(", ".join(f"{count} {fate}" for fate, count in counts.items() if count))
    if any(report.fate == FAILED for report in reports):
        sys.exit(EXIT_FAILED)


def lines_of(report: Report) -> list[str]:
    """A report for people: its fate, and what went wrong."""
    lines = [f"{report.fate}: {report.path}: {report.title} ({report.runs} runs, {report.steps} steps)"]
    lines += [f"  {failure}" for failure in report.failures]
    lines += [f"  awaits {capability}" for capability in report.awaits]
    return lines


def document(report: Report) -> dict[str, Any]:
    """A report for programs."""
    return {
        "file": report.path, "title": report.title, "fate": report.fate, "runs": report.runs, "steps": report.steps,
        "failures": [
            {"place": failure.place, "variant": failure.variant, "step": failure.step, "words": failure.words}
            for failure in report.failures
        ],
        "awaits": list(report.awaits),
    }  # fmt: skip
