"""What ``kvarena plan`` prints: tables for people, one document for programs, from the same figures."""

from fractions import Fraction
from typing import Any

import attrs

from kvarena.planning.demand import Demand, decode_demand
from kvarena.planning.packing import ends
from kvarena.planning.plan import DEFAULT_PAGE_TOKENS, Plan, SubPool
from kvarena.planning.sizing import Sizing
from kvarena.plugins.cli.budget import Budget
from kvarena.plugins.cli.compare import Way
from kvarena.plugins.cli.plain import lines, pairs, show_table
from kvarena.plugins.cli.plan_source import Source
from kvarena.plugins.models.summary import LENGTHS, exact, summarize
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ranges import spelled
from kvarena.terms.units import format_bytes


@attrs.frozen
class Planned:
    """Everything that one plan says: where from, what, how much, and how else it could be cut.

    ``page_tokens_asked`` is the page size that the user gave, None where kvarena chose it.
    """

    source: Source
    plan: Plan
    budget: Budget
    sizing: Sizing
    ways: tuple[Way, ...] = ()
    page_tokens_asked: int | None = None


def document(planned: Planned) -> dict[str, Any]:
    """What ``--json`` prints.

    The model's figures as ``summarize`` names them; ``sub_pools`` in chain order; ``budget`` and ``sizing`` in
    bytes of one rank; ``one_request_whole_entry_bytes`` counts only entries that are complete, where a part
    keeps one per k tokens; ``one_request_allocated_bytes`` counts whole pages, at the most a request holds.
    """
    plan, sizing, spec = planned.plan, planned.sizing, planned.source.spec
    return {
        **(summarize(spec, plan) if spec else {"layer_kinds": [layer.kind for layer in planned.source.layers]}),
        "source": planned.source.name,
        "dtype": spec.dtype if spec else None,
        "kv_layout": spec.kv_layout if spec else None,
        "tp": spec.tp if spec else 1,
        "context_max": planned.source.context_max,
        "parameters": spec.parameters if spec else None,
        "active_parameters": spec.active_parameters if spec else None,
        "page_tokens": plan.page_tokens,
        "owner": plan.owner,
        "prefix_tree_slots": list(plan.tree_slots),
        "sub_pools": [_pool_document(planned, pool) for pool in plan.sub_pools],
        "one_request_whole_entry_bytes": {str(n): whole_entry_bytes(plan, n) for n in LENGTHS},
        "one_request_allocated_bytes": {str(n): allocated_bytes(planned, n) for n in LENGTHS},
        "budget": attrs.asdict(planned.budget),
        "sizing": _sizing_document(sizing),
        "compare": [_way_document(way) for way in planned.ways] or None,
        "notes": [*planned.source.notes, *_page_notes(planned)],
    }


def _pool_document(planned: Planned, pool: SubPool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "band": _end(planned.plan, pool),
        "lifetime": _words(pool.lifetime),
        "allocates": "slots" if pool.is_slots else "pages",
        "layers": list(pool.layers),
        "unpadded_bytes_per_entry": exact(pool.entry_bytes),
        "padded_bytes_per_entry": exact(Fraction(pool.unit_bytes, pool.page_tokens or 1)),
        "unit_bytes": pool.unit_bytes,
        "unpadded_unit_bytes": pool.unpadded_bytes,
        "target_units": planned.sizing.units[pool.name],
        "zero_on_take": pool.zero_on_take,
    }


def _sizing_document(sizing: Sizing) -> dict[str, Any]:
    return {
        "budget_bytes": sizing.budget_bytes,
        "arena_bytes": sizing.arena_bytes,
        "fixed_bytes": dict(sizing.fixed),
        "sink_bytes": sizing.sink_bytes,
        "mirror_bytes": sizing.mirror_bytes,
        "host_bytes": sizing.host_bytes,
        "context_tokens": sizing.context_tokens,
        "concurrency": sizing.concurrency,
        "running": sizing.running,
        "tokens": sizing.tokens,
        "state_slots": sizing.state_slots,
        "scratch_slots": sizing.scratch_slots,
        "virtual_page_ids": sizing.id_count,
        "binds": sizing.binds,
    }


def _way_document(way: Way) -> dict[str, Any]:
    counts = {str(length): count for length, count in way.concurrency.items()}
    return {"way": way.name, "tokens": way.tokens, "concurrency": counts, "note": way.note}


def whole_entry_bytes(plan: Plan, length: int) -> int:
    """The bytes of the complete entries of a request: a part at rate 1/k has one per k whole tokens."""
    total = 0
    for pool in plan.sub_pools:
        rows = pool.lifetime.entries(length)
        for placed in pool.placed:
            tokens_per_entry = (pool.page_tokens or 1) // placed.rows
            total += placed.bytes // placed.rows * (rows // tokens_per_entry)
    return total


def allocated_bytes(planned: Planned, length: int) -> int:
    """The bytes of the pages and slots of a request that grows to ``length`` tokens, at the most it holds."""
    units = _units_at(planned, length)
    return sum(pool.unit_bytes * count for pool, count in zip(planned.plan.sub_pools, units, strict=True))


def _units_at(planned: Planned, length: int) -> Demand:
    limits = planned.sizing.limits
    return decode_demand(planned.plan, length, slots_per_request=limits.slots_per_request, grid=limits.grid)


def show(planned: Planned) -> None:
    """Print the tables that a person reads."""
    plan, sizing, spec = planned.plan, planned.sizing, planned.source.spec
    title = planned.source.name
    if spec:
        kept = f" kept as {spec.kv_layout}" if spec.kv_layout else ""
        title = f"{spec.model_type}: {spec.num_layers} layers, {spec.dtype}{kept}, rank 1 of {spec.tp}"
        title += f"  ({planned.source.name})"
    lines(title, "", picture(plan), "")
    _show_bands(planned)
    fixed = " + ".join(f"{name} {format_bytes(size)}" for name, size in sizing.fixed.items() if size) or "nothing"
    facts = {
        "budget": f"{planned.budget.terms}",
        "arena": f"{format_bytes(sizing.arena_bytes)}, of which sinks hold {format_bytes(sizing.sink_bytes)}",
        "beside it": f"{fixed} (of these {format_bytes(sizing.mirror_bytes)} mirror ids on the device)",
        "host": f"{format_bytes(sizing.host_bytes)} for id maps and the request table",
        "tokens": f"{sizing.tokens:,} in pages of {plan.page_tokens}",
        "state slots": f"{sizing.state_slots:,}"
        + (f" + {sizing.scratch_slots:,} scratch" if sizing.scratch_slots else ""),
        "concurrency": f"{sizing.concurrency:,} requests of {sizing.context_tokens:,} tokens at once"
        + (f"; rows for {sizing.running:,}" if sizing.running != sizing.concurrency else ""),
        "binds": _binds(planned),
        "one request": _one_request(planned),
    }
    if not plan.slots:
        del facts["state slots"]
    if not plan.token_pools:
        del facts["tokens"]
    lines("", pairs(facts))
    if planned.ways:
        _show_ways(planned)
    for note in (*planned.source.notes, *_page_notes(planned)):
        lines(f"note: {note}")


def _show_bands(planned: Planned) -> None:
    rows = [
        [
            pool.name,
            _words(pool.lifetime),
            f"{len(pool.layers)} ({spelled(pool.layers, shown=4)})" if pool.layers else "none",
            _amount(pool.entry_bytes) + (" a slot" if pool.is_slots else " a token"),
            _amount(Fraction(pool.unit_bytes, pool.page_tokens or 1)),
            f"{pool.unit_bytes:,} B",
            f"{planned.sizing.units[pool.name]:,}",
        ]
        for pool in planned.plan.sub_pools
    ]
    columns = ["band", "keeps", "layers", "unpadded", "padded", "page or slot", "boot target"]
    show_table(columns, rows)


def _show_ways(planned: Planned) -> None:
    lengths = list(planned.ways[0].concurrency)
    lines("", "The same bytes, cut otherwise (requests at once, by length):", "")
    rows = [
        [way.name, f"{way.tokens:,}", *(f"{way.concurrency[length]:,}" for length in lengths), way.note]
        for way in planned.ways
    ]
    show_table(["way", "tokens", *(f"at {length:,}" for length in lengths), "how"], rows)


def picture(plan: Plan) -> str:
    """The chain in one line: ``[state →      ]   [← window-128 →]   [      ← full]``."""
    drawn = {"low": "[{} →      ]", "high": "[      ← {}]", "float": "[← {} →]", "ids": "({}: no bytes)"}
    return "   ".join(drawn[_end(plan, pool)].format(pool.name) for pool in plan.sub_pools)


def _end(plan: Plan, pool: SubPool) -> str:
    """Which end of the arena the pool's band is anchored to, or that it floats, or has no bytes."""
    end = ends(plan).get(pool.name)
    return end.name if end else "float" if pool.unit_bytes else "ids"


def _words(lifetime: Lifetime) -> str:
    if isinstance(lifetime, Full):
        return "every token"
    if isinstance(lifetime, Window):
        return f"last {lifetime.window:,} tokens"
    if isinstance(lifetime, Chunk):
        return f"chunk of {lifetime.chunk:,} tokens"
    if isinstance(lifetime, State):
        return "one slot a request"
    return lifetime.name


def _binds(planned: Planned) -> str:
    binds = planned.sizing.binds
    if binds in planned.plan.names:
        pool = planned.plan[binds]
        units = _units_at(planned, planned.sizing.context_tokens)
        need = units[planned.plan.sub_pools.index(pool)] * pool.unit_bytes
        return f"{binds}: one more request would take {format_bytes(need)} of it"
    return binds


def _one_request(planned: Planned) -> str:
    context = planned.sizing.context_tokens
    allocated = allocated_bytes(planned, context)
    text = f"{format_bytes(allocated)} in whole pages at {context:,} tokens"
    if any(placed.rows != (pool.page_tokens or 1) for pool in planned.plan.sub_pools for placed in pool.placed):
        text += f"; {whole_entry_bytes(planned.plan, context):,} B in whole entries"
    return text


def _page_notes(planned: Planned) -> tuple[str, ...]:
    """Why a page is larger than usual, where nobody asked for it."""
    plan = planned.plan
    chosen = planned.page_tokens_asked is None and plan.token_pools
    if chosen and plan.page_tokens > DEFAULT_PAGE_TOKENS and plan.page_tokens % DEFAULT_PAGE_TOKENS == 0:
        rates = sorted({plan.page_tokens // placed.rows for pool in plan.token_pools for placed in pool.placed} - {1})
        if rates:
            listed = ", ".join(f"1/{rate}" for rate in rates)
            return (
                f"pages hold {plan.page_tokens} tokens: {DEFAULT_PAGE_TOKENS} does not suit entries at rates {listed}",
            )
    return ()


def _amount(amount: Fraction) -> str:
    return f"{int(amount):,} B" if amount.denominator == 1 else f"{float(amount):,.2f} B"
