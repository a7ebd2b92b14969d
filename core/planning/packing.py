"""How an empty arena is laid out: what its sinks leave, and whether so many units of each kind fit."""

from collections.abc import Sequence

from kvarena.planning.plan import Plan, SubPool
from kvarena.terms.units import align_down, align_up


def usable_range(plan: Plan, arena_bytes: int) -> range:
    """The bytes that the chain may hand out: above the state sink, below the lowest token sink.

    Slot 0 is the state sink. Each token grid's top page is its sink; those pages overlap each other
    at the top of the arena, and never a state.
    """
    slots = plan.slots
    low = slots.unit_bytes if slots else 0
    tops = [
        align_down(arena_bytes, pool.unit_bytes) - pool.unit_bytes for pool in plan.token_pools if pool.unit_bytes
    ]
    return range(low, max(low, min(tops, default=arena_bytes)))


def packs(plan: Plan, arena_bytes: int, units: Sequence[int]) -> bool:
    """Whether an empty arena serves these units per sub-pool, in chain order, each on its own grid."""
    usable = usable_range(plan, arena_bytes)
    position = usable.start
    for pool, count in zip(plan.sub_pools, units, strict=True):
        if count:
            position = align_up(position, pool.unit_bytes) + count * pool.unit_bytes
    return position <= _top(plan.sub_pools, usable, units)


def _top(pools: Sequence[SubPool], usable: range, units: Sequence[int]) -> int:
    """Where the last band's grid ends below the sinks; the whole range where it holds nothing."""
    last = max((index for index, pool in enumerate(pools) if pool.unit_bytes), default=None)
    if last is None or not units[last]:
        return usable.stop
    return align_down(usable.stop, pools[last].unit_bytes)
