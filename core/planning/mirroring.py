"""How large the device's copies of id maps and request rows are: what sizing charges, and what is built."""

from collections.abc import Mapping

import attrs

from kvarena.planning.plan import Plan
from kvarena.terms.units import ceil_div

ID_BYTES = 4
"""Bytes of one id in a device mirror (int32)."""


@attrs.frozen
class MirrorShape:
    """One line of integers: a map per sub-pool, the page ids of each request row, its slots.

    A map has an entry for each id and a last one for what is unbound. There is one row more than requests run, for the
    padding of a batch. ``updates`` of up to ``update_entries`` each are staged; a longer one is split.
    """

    ids: Mapping[str, int]
    rows: int
    pages_per_row: int
    slots_per_row: int
    updates: int
    update_entries: int

    @property
    def map_entries(self) -> int:
        """The integers of all maps."""
        return sum(self.ids.values()) + len(self.ids)

    @property
    def row_entries(self) -> int:
        """The integers of all request rows."""
        return self.rows * (self.pages_per_row + self.slots_per_row)

    @property
    def staging_bytes(self) -> int:
        """A place and a value for each entry of each update."""
        return self.updates * self.update_entries * 2 * ID_BYTES


def mirror_shape(
    plan: Plan, *, arena_bytes: int, running: int, row_pages: int, slots_per_request: int, in_flight: int
) -> MirrorShape:
    """The mirrors of a plan in an arena where so many requests run, each of at most so many pages.

    An update without a split has room for one page of every running request, taken and retired in every sub-pool, and
    for one request of the longest context that came or went; but never for more than a quarter of the mirror.
    """
    slots = plan.slots
    ids = {
        pool.name: arena_bytes // pool.unit_bytes if pool.is_slots else plan.owner_ids(arena_bytes)
        for pool in plan.sub_pools
    }
    rows = running + 1
    pages = row_pages if plan.token_pools else 0
    shape = MirrorShape(ids, rows, pages, slots_per_request if slots else 0, in_flight + 1, 0)
    turnover = 2 * (len(ids) + 1) * (rows + pages)
    quarter = ceil_div(shape.map_entries + shape.row_entries, 4)
    return attrs.evolve(shape, update_entries=min(turnover, quarter))
