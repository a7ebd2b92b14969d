"""``kvarena plan``: what a model's memory is made of, and what a budget gives. No GPU, no weights, no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvarena.assembly.catalog import Catalog
from kvarena.planning.charges import DEFAULT_CONTEXT_TOKENS, Limits
from kvarena.planning.sizing import size_plan
from kvarena.plugins.cli.budget import read_budget
from kvarena.plugins.cli.compare import compare
from kvarena.plugins.cli.context import AMOUNT, FILE, catalog_of, json_option
from kvarena.plugins.cli.plain import print_json
from kvarena.plugins.cli.plan_report import Planned, document, show
from kvarena.plugins.cli.plan_source import Source, plan_of, read_source

AT_LEAST_0, AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)
CONTEXT = click.IntRange(min=1, max=1 << 24)

SHORTER = 8
"""``--compare`` also counts at one eighth of the context: what a pool cut for long requests does with short ones."""


@click.command()
@click.argument("config", type=FILE)
@click.option("--memory", type=AMOUNT, help="Bytes for everything kvarena keeps on the device (80GiB).")
@click.option("--gpu-memory", type=AMOUNT, help="Bytes of the whole card; weights and a reserve are taken off.")
@click.option("--weights", default="auto", show_default=True, help="With --gpu-memory: bytes of the weights, or auto.")
@click.option("--utilization", type=float, default=0.9, show_default=True, help="With --gpu-memory: the usable share.")
@click.option("--page-size", type=int, help="Tokens a page. [default: 16, raised to what every rate divides]")
@click.option("--tp", type=AT_LEAST_1, default=1, show_default=True, help="Tensor-parallel ranks; one is planned.")
@click.option("--dtype", help="Type of keys and values. [default: the config's]")
@click.option("--context", type=CONTEXT, help="Tokens of the longest request. [default: 32768, or the model's if less]")
@click.option("--unit-align", type=AT_LEAST_1, help="Pad pages and slots to a multiple of so many bytes. [default: 1]")
@click.option("--owner", type=click.Choice(["any", "required"]), help="required: refuse a model without full layers.")
@click.option("--max-running", type=AT_LEAST_1, help="The most requests that run at once. [default: all that fit]")
@click.option("--state-slots", type=AT_LEAST_1, help="State slots, instead of so many per request.")
@click.option("--state-share", type=float, help="State slots by their share of the arena, between 0 and 1.")
@click.option("--slots-per-request", type=AT_LEAST_1, help="State slots of one request. [default: 1]")
@click.option("--scratch-slots", type=AT_LEAST_0, help="Scratch state slots per request, for drafts. [default: 0]")
@click.option("--compare", "comparing", is_flag=True, help="Beside a static split, and one page size for all kinds.")
@json_option
@click.pass_context
def plan(ctx: click.Context, /, config: Path, as_json: bool, comparing: bool, **options: Any) -> None:
    """Plan the memory of the model in CONFIG: a config.json, a model folder, or a .toml that declares layers.

    Says what each kind of memory costs, what a budget gives, and which term binds.
    """
    planned = planned_from(config, catalog_of(ctx), options, comparing=comparing)
    if as_json:
        print_json(document(planned))
    else:
        show(planned)


def planned_from(config: Path, catalog: Catalog, options: Mapping[str, Any], *, comparing: bool) -> Planned:
    """Read, plan and size, by the options of the command line.

    Raises:
        KvarenaError: the config, the options or the budget say something impossible.
    """
    source = read_source(config, catalog, tp=options["tp"], dtype=options["dtype"])
    plan = plan_of(source, options)
    budget = read_budget(source, options)
    limits = limits_of(source, options)
    sizing = size_plan(plan, budget.bytes, limits)
    lengths = tuple(dict.fromkeys((limits.context_tokens, max(1, limits.context_tokens // SHORTER))))
    ways = compare(plan, sizing, lengths) if comparing else ()
    return Planned(source, plan, budget, sizing, ways, page_tokens_asked=options["page_size"])


def limits_of(source: Source, options: Mapping[str, Any]) -> Limits:
    """What the command line fixes of the sizing, and a TOML file's ``[arena]`` where it is silent.

    The context of a config.json is what the model could reach, so it only shortens the usual one; that of an
    ``[arena]`` is what its storage will be built for.
    """
    arena = source.declared.arena if source.declared else None
    names = {
        "max_running": "max_running",
        "state_slots": "state_slots",
        "state_share": "state_share",
        "slots_per_request": "slots_per_request",
        "scratch_slots": "scratch_slots_per_request",
    }
    given = {setting: options[name] for name, setting in names.items() if options[name] is not None}
    declared = {setting: getattr(arena, setting) for setting in (*names.values(), "mirrors")} if arena else {}
    if arena:
        declared["in_flight"] = arena.forwards_in_flight
    own = source.context_max or DEFAULT_CONTEXT_TOKENS
    context = options["context"] or (own if arena else min(DEFAULT_CONTEXT_TOKENS, own))
    return Limits(context_tokens=context, **{**declared, **given})
