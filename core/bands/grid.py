"""Where each sub-pool's pages lie in one arena: its grid, its sink, and the end it is anchored to."""

import attrs

from kvarena.planning.packing import check_countable, ends, usable_range
from kvarena.planning.plan import Plan, SubPool
from kvarena.terms.errors import PlanError
from kvarena.terms.ports import End
from kvarena.terms.units import ceil_div, format_bytes


@attrs.frozen
class Grid:
    """The grid of one sub-pool: page p is bytes ``[p * unit_bytes, (p + 1) * unit_bytes)`` of the arena.

    ``first`` to ``stop``: the pages that may be handed out. ``end``: where the band is anchored, None for a
    float or a sub-pool without bytes. ``sink_page``: what unbound ids read; never handed out. ``cap``: the most pages
    that may be live at once, where something else than the bytes limits them.
    """

    name: str
    unit_bytes: int
    end: End | None
    first: int
    stop: int
    page_count: int
    sink_page: int
    id_count: int
    zero_on_take: bool
    cap: int | None = None

    def why_no_more(self, left: int) -> str:
        """What limits a band of which so many more units may be live."""
        if self.cap is None or self.cap >= self.id_count:
            return f"{self.name} has {left} ids left"
        return f"{self.name} has {left} units left under its cap of {self.cap}"


def chain_grids(plan: Plan, arena_bytes: int, slot_count: int) -> tuple[Grid, ...]:
    """The grid of every sub-pool, in chain order.

    Raises:
        PlanError: a sub-pool has more than 2^31 - 1 pages, or no page beside the sinks.
    """
    usable = usable_range(plan, arena_bytes)
    ids = {pool.name: slot_count if pool.is_slots else plan.owner_ids(arena_bytes) for pool in plan.sub_pools}
    anchored = ends(plan)
    return tuple(
        _grid(pool, arena_bytes, usable, id_count=ids[pool.name], end=anchored.get(pool.name))
        for pool in plan.sub_pools
    )


def _grid(pool: SubPool, arena_bytes: int, usable: range, *, id_count: int, end: End | None) -> Grid:
    unit = pool.unit_bytes
    pages = arena_bytes // unit if unit else id_count
    check_countable(pool, max(pages, id_count))
    if not unit:
        return Grid(pool.name, 0, None, 0, id_count, id_count + 1, id_count, id_count, zero_on_take=False)
    first, stop = ceil_div(usable.start, unit), usable.stop // unit
    if stop <= first:
        raise PlanError(
            f"an arena of {arena_bytes:,} B ({format_bytes(arena_bytes)}) holds no page of sub-pool {pool.name!r} "
            f"({unit:,} B) beside the sinks; give it more memory"
        )
    sink = 0 if pool.is_slots else pages - 1
    return Grid(pool.name, unit, end, first, stop, pages, sink, id_count, pool.zero_on_take, pool.cap)
