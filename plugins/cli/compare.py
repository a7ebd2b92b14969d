"""What the same bytes would hold without one arena: two other ways to cut them, by rules that are written here.

Static split: each kind gets a pool of its own, once, in proportion to what one request of the context
length holds of each kind. Nothing moves between pools, so the scarcest pool decides.

One page size: pages of one size for all kinds, as vLLM plans hybrid models. Layers of a kind form groups of
equal size (the fewest layers of any kind, or the most where that is less than a quarter more); a page holds
one group's tokens, or its states. Pages are as large as the largest kind needs, and hold at least a layer's
state; a smaller kind puts more tokens into a page, in whole multiples, and the rest is padding. All groups
draw pages from one pool.

Both get the arena's bytes: rows and id maps are charged to all alike, and a cap on running requests holds for
all. Tokens are counted beside the windows and slots of as many requests as one arena serves at the context length.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import attrs

from kvarena.planning.charges import most
from kvarena.planning.demand import Demand, decode_demand, decode_peak_pages
from kvarena.planning.packing import packs, usable_range
from kvarena.planning.plan import Plan, SubPool
from kvarena.planning.sizing import Sizing
from kvarena.terms.units import align_up, ceil_div

NEAR_ENOUGH = Fraction(5, 4)
"""vLLM pads all kinds to the most layers of any when that is less than this times the fewest."""


@attrs.frozen
class Way:
    """One way to cut the bytes: ``concurrency`` requests of each length fit, by length in tokens.

    ``tokens``: the most tokens of the longest-lived kind. ``note``: how it cuts the bytes.
    """

    name: str
    tokens: int
    concurrency: dict[int, int]
    note: str


def compare(plan: Plan, sizing: Sizing, lengths: tuple[int, ...]) -> tuple[Way, ...]:
    """One arena, a static split and one padded page size, each over the same bytes.

    ``lengths`` are those that concurrency is counted at; the first is the context that the static split
    is cut for, and that tokens are counted at.
    """
    return (
        _one_arena(plan, sizing, lengths),
        _static_split(plan, sizing, lengths),
        _one_page_size(plan, sizing, lengths),
    )


def _demand(plan: Plan, sizing: Sizing, length: int) -> Demand:
    """What one request of this length holds, as the storage will charge it."""
    limits = sizing.limits
    return decode_demand(plan, length, slots_per_request=limits.slots_per_request, grid=limits.grid)


def _rows_max(sizing: Sizing) -> int:
    """How many requests may run at the most: what the user caps, and no other limit."""
    return sizing.limits.max_running or sizing.arena_bytes


def _one_arena(plan: Plan, sizing: Sizing, lengths: tuple[int, ...]) -> Way:
    arena, primary = sizing.arena_bytes, plan.primary

    def holds(length: int) -> Callable[[int], bool]:
        units = _demand(plan, sizing, length)
        return lambda count: packs(plan, arena, tuple(count * unit for unit in units))

    def beside(pages: int) -> tuple[int, ...]:
        """So many pages of the primary, beside the windows and slots of the requests served."""
        served = [sizing.concurrency * units for units in _demand(plan, sizing, lengths[0])]
        return tuple(
            pages if pool is primary else units if pool.is_slots else min(units, pages)
            for pool, units in zip(plan.sub_pools, served, strict=True)
        )

    concurrency = {length: most(holds(length), _rows_max(sizing)) for length in lengths}
    pages = most(lambda count: packs(plan, arena, beside(count)), arena // primary.unit_bytes) if primary else 0
    return Way("one arena", pages * plan.page_tokens, concurrency, "any kind takes any free byte")


def _static_split(plan: Plan, sizing: Sizing, lengths: tuple[int, ...]) -> Way:
    needs = _demand(plan, sizing, lengths[0])
    bytes_each = [pool.unit_bytes * units for pool, units in zip(plan.sub_pools, needs, strict=True)]
    usable = len(usable_range(plan, sizing.arena_bytes))
    pools = [
        usable * size // sum(bytes_each) // pool.unit_bytes if size else 0
        for pool, size in zip(plan.sub_pools, bytes_each, strict=True)
    ]

    def count(length: int) -> int:
        units = _demand(plan, sizing, length)
        fits = (have // unit for have, unit, size in zip(pools, units, bytes_each, strict=True) if unit and size)
        return min(_rows_max(sizing), *fits)

    primary = plan.primary
    pages = pools[plan.sub_pools.index(primary)] if primary else 0
    shares = " · ".join(
        f"{pool.name} {100 * size / sum(bytes_each):.1f} %"
        for pool, size in zip(plan.sub_pools, bytes_each, strict=True)
        if size
    )
    return Way("static split", pages * plan.page_tokens, {length: count(length) for length in lengths}, shares)


def _one_page_size(plan: Plan, sizing: Sizing, lengths: tuple[int, ...]) -> Way:
    kinds = [pool for pool in plan.sub_pools if pool.unit_bytes]
    fewest, most_layers = min(len(pool.layers) for pool in kinds), max(len(pool.layers) for pool in kinds)
    group = most_layers if most_layers < NEAR_ENOUGH * fewest else fewest
    groups = {pool.name: ceil_div(len(pool.layers), group) for pool in kinds}
    widest = max(_layer_bytes(pool) * (pool.page_tokens or 1) for pool in kinds if not pool.is_slots or len(kinds) == 1)
    state = _layer_bytes(plan.slots) if plan.slots else Fraction(0)
    page = math.ceil(widest * max(1, math.ceil(state / widest)))
    tokens = {pool.name: _page_tokens(pool, page) for pool in kinds}
    slots, grid = sizing.limits.slots_per_request, sizing.limits.grid
    pages = sizing.arena_bytes // (page * group)

    def needs(length: int) -> dict[str, int]:
        return {
            pool.name: groups[pool.name] * (slots if pool.is_slots else _peak(pool, tokens[pool.name], length, grid))
            for pool in kinds
        }

    concurrency = {length: min(_rows_max(sizing), pages // sum(needs(length).values())) for length in lengths}
    primary, served = plan.primary, needs(lengths[0])

    def holds(count: int) -> bool:
        """Whether so many pages of the primary's tokens fit beside the windows and slots of those served."""
        length = count * tokens[primary.name] if primary else 0
        rest = (
            sizing.concurrency * served[pool.name]
            if pool.is_slots
            else min(groups[pool.name] * ceil_div(length, tokens[pool.name]), sizing.concurrency * served[pool.name])
            for pool in kinds
            if pool is not primary
        )
        return (count * groups[primary.name] if primary else 0) + sum(rest) <= pages

    held = most(holds, pages) * tokens[primary.name] if primary else 0
    sizes = " · ".join(f"{name} {count:,} tokens" for name, count in tokens.items() if not plan[name].is_slots)
    note = f"a page is {page * group:,} B, {group} layers" + (f": {sizes}" if sizes else "")
    return Way("one page size", held, concurrency, note)


def _peak(pool: SubPool, page_tokens: int, length: int, grid: int | None) -> int:
    """The most such pages that a sequence of this length holds of a kind; checkpoints lie at the ends of pages."""
    return decode_peak_pages(pool.lifetime, page_tokens, length, grid=grid and align_up(grid, page_tokens))


def _page_tokens(pool: SubPool, page_bytes: int) -> int:
    """How many tokens of one layer a page holds, in whole multiples of the plan's page; 1 for a state."""
    if pool.page_tokens is None:
        return 1
    return math.floor(page_bytes / (_layer_bytes(pool) * pool.page_tokens)) * pool.page_tokens


def _layer_bytes(pool: SubPool) -> Fraction:
    """The most bytes that one layer keeps here per token, or per request for slots."""
    totals: dict[int, Fraction] = {}
    for placed in pool.placed:
        totals[placed.layer] = totals.get(placed.layer, Fraction(0)) + Fraction(placed.bytes, pool.page_tokens or 1)
    return max(totals.values(), default=Fraction(0))
