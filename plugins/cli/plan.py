"""``kvarena plan``: what a model's memory is made of, and what a budget gives. No GPU, no weights, no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.catalog import Catalog
from kvarena.planning.sizing import size_plan
from kvarena.plugins.cli.budget import read_budget
from kvarena.plugins.cli.compare import compare
from kvarena.plugins.cli.context import AMOUNT, DTYPE, FILE, catalog_of, json_option
from kvarena.plugins.cli.kv_option import kv_layout_option
from kvarena.plugins.cli.plain import print_json
from kvarena.plugins.cli.plan_report import Planned, document, show
from kvarena.plugins.cli.plan_source import arena_of, places_of, read_source
from kvarena.plugins.models.kv_layout import KvLayout

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
@click.option("--dtype", type=DTYPE, help="Type of keys and values. [default: the config's]")
@kv_layout_option
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
    kv_layout = KvLayout.named(options.get("kv_layout"), "--kv-layout", catalog)
    source = read_source(config, catalog, tp=options["tp"], dtype=options["dtype"], kv_layout=kv_layout)
    arena, places = arena_of(source, options), places_of(source, options)
    with places.planning():
        plan = plan_arena(source.layers, arena)
        budget = read_budget(source, options)
        sizing = size_plan(plan, budget.bytes, limits_of(arena, source.prefix, plan, source=places))
    lengths = tuple(dict.fromkeys((sizing.context_tokens, max(1, sizing.context_tokens // SHORTER))))
    ways = compare(plan, sizing, lengths) if comparing else ()
    return Planned(source, plan, budget, sizing, ways, page_tokens_asked=options["page_size"])
