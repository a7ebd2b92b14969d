"""What ends and floats share: live pages and holes between a first and a last page.

A page's life:  1. take    a hole, or a page beyond the span, becomes live.
                2. free    its id unbinds at once, and the page is a hole.
                3. absorb  holes at a frontier go back to the arena.
                4. move    a live page's bytes go to a hole; the id follows, the page is a hole.
Always:  live + holes == stop - start     (checked by ``verify``)
"""

from abc import ABC, abstractmethod

import numpy as np

from kvarena.bands.grid import Grid
from kvarena.bands.unit_ids import UNOWNED, UnitIds
from kvarena.planning.snapshot import BandShot
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import LOW, Holes, IntArray


class Span(ABC):
    """The pages of one sub-pool. ``start`` and ``stop`` are pages: its two frontiers."""

    def __init__(self, grid: Grid, ids: UnitIds, holes: Holes) -> None:
        self.grid = grid
        self.ids = ids
        self.holes = holes
        self.start = self.stop = grid.first if grid.end is LOW else grid.stop

    @property
    def live(self) -> int:
        """How many pages have an id."""
        return self.ids.bound

    def shot(self) -> BandShot:
        """What pricing needs to know: counts and frontiers."""
        grid, live = self.grid, self.ids.bound
        return BandShot(
            grid.name, grid.unit_bytes, grid.end, live, len(self.holes), self.start, self.stop, grid.id_count - live
        )

    def take(self, ids: IntArray, start: int, stop: int) -> IntArray:
        """Bind these ids to holes first, then to the pages that the span grows over, to ``[start, stop)``.

        The one place that hands out pages. ``ids`` were checked by ``check_unbound``.
        """
        if not self.ids.bound:
            self.start = self.stop = self._anchor(start)
        reused = min(len(ids), len(self.holes))
        below, above = self.start - start, stop - self.stop
        invariant(
            "band.growth_is_what_holes_lack",
            below >= 0 <= above and below + above == len(ids) - reused,
            sub_pool=self.grid.name, below=below, above=above, asked=len(ids), reused=reused,
        )  # fmt: skip
        pages = self.holes.take(reused)
        if below or above:
            grown = np.concatenate((np.arange(start, self.start), np.arange(self.stop, stop)))
            pages = np.concatenate((pages, grown)) if reused else grown
            self.start, self.stop = start, stop
        self.ids.bind(ids, pages)
        return pages

    def free(self, ids: IntArray) -> None:
        """The pages of these ids become holes; those at a frontier leave the span."""
        self.holes.add(self.ids.unbind(ids))
        self.absorb()

    @abstractmethod
    def absorb(self) -> None:
        """Give the holes at the frontiers back to the arena."""

    def moved(self, sources: IntArray, targets: IntArray) -> None:
        """The bytes of ``sources`` were copied into the holes ``targets``: rebind, and absorb what came free."""
        self.ids.rebind(sources, targets)
        self.holes.remove(targets)
        self.holes.add(sources)
        self.absorb()

    def verify(self) -> None:
        """The sum holds, the maps agree, and every hole is an unowned page of the span."""
        grid = self.grid
        self.ids.verify()
        invariant(
            "band.sum", self.live + len(self.holes) == self.stop - self.start,
            sub_pool=grid.name, live=self.live, holes=len(self.holes), start=self.start, stop=self.stop,
        )  # fmt: skip
        invariant(
            "band.outside_its_grid", grid.first <= self.start <= self.stop <= grid.stop,
            sub_pool=grid.name, start=self.start, stop=self.stop, first=grid.first, end=grid.stop,
        )  # fmt: skip
        owners = self.ids.owners_of(slice(self.start, self.stop))
        unowned = (owners == UNOWNED).nonzero()[0] + self.start
        holes = np.sort(self.holes.nearest(len(self.holes)))
        invariant(
            "band.holes_are_unowned", np.array_equal(holes, unowned), sub_pool=grid.name, holes=holes, free=unowned
        )

    @abstractmethod
    def _anchor(self, start: int) -> int:
        """Where an empty span begins to grow, when it takes the pages from ``start`` on."""

    def _drop_top(self) -> None:
        """Absorb the holes below the upper frontier."""
        self.stop -= self.holes.drop_below(self.stop)

    def _drop_bottom(self) -> None:
        """Absorb the holes above the lower frontier."""
        self.start += self.holes.drop_above(self.start)
