"""How an empty arena is laid out: its two ends, what its sinks leave, and how many units of each kind it may hold."""

from collections.abc import Mapping, Sequence

from kvarena.planning.plan import Plan, SubPool
from kvarena.terms.errors import PlanError
from kvarena.terms.ports import HIGH, LOW, End
from kvarena.terms.units import align_down, align_up

PAGES_MAX = 2**31 - 1
"""The most pages of one sub-pool: ids travel to the device as int32."""


def ends(plan: Plan) -> Mapping[str, End]:
    """The sub-pools whose bands are anchored; the others float, or have no bytes.

    The first with bytes is anchored low, the last high; one alone is low if it holds slots, else high.
    """
    backed = [pool for pool in plan.sub_pools if pool.unit_bytes]
    anchored = {backed[-1].name: HIGH} if backed else {}
    if len(backed) > 1 or (backed and backed[0].is_slots):
        anchored[backed[0].name] = LOW
    return anchored


def usable_range(plan: Plan, arena_bytes: int) -> range:
    """The bytes that the chain may hand out: above the state sink, below the lowest token sink.

    Slot 0 is the state sink. Each token grid's top page is its sink; those pages overlap each other
    at the top of the arena, and never a state.
    """
    slots = plan.slots
    low = slots.unit_bytes if slots else 0
    tops = [align_down(arena_bytes, pool.unit_bytes) - pool.unit_bytes for pool in plan.token_pools if pool.unit_bytes]
    return range(low, max(low, min(tops, default=arena_bytes)))


def check_countable(pool: SubPool, pages: int) -> None:
    """A sub-pool has no more pages, or ids, than an int32 can number.

    Raises:
        PlanError: it would.
    """
    if pages > PAGES_MAX:
        raise PlanError(
            f"sub-pool {pool.name!r} would have {pages:,} pages of {pool.unit_bytes:,} B; at most {PAGES_MAX:,} "
            "can be numbered: raise the page size, or give it less memory",
            setting="memory",
        )


def packs(plan: Plan, arena_bytes: int, units: Sequence[int]) -> bool:
    """Whether an empty arena serves these units per sub-pool, in chain order, each on its own grid and within its cap.

    Packed to the left, the last band ends on its own grid too, so its anchor at the high end changes nothing.
    """
    usable = usable_range(plan, arena_bytes)
    position = usable.start
    for pool, count in zip(plan.sub_pools, units, strict=True):
        if count:
            if pool.cap is not None and count > pool.cap:
                return False
            position = align_up(position, pool.unit_bytes) + count * pool.unit_bytes
    return position <= usable.stop
