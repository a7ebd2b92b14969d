"""What ends and floats share: live pages and holes between a first and a last page.

A page's life:  1. take    a hole, or a page beyond the span, becomes live.
                2. free    its id unbinds at once, and the page is a hole.
                3. absorb  holes at a frontier go back to the arena.
                4. move    a live page's bytes go to a hole; the id follows, the page is a hole.
                5. fix     a live page stays where it is, and its owner keeps it, until it is unfixed.
Always:  live + holes == stop - start     (checked by ``verify``)
"""

from abc import ABC, abstractmethod

import numpy as np

from kvarena.bands.grid import Grid
from kvarena.bands.unit_ids import UNOWNED, UnitIds
from kvarena.planning.snapshot import BandShot
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import LOW, Holes, IntArray

NONE_FIXED = np.empty(0, dtype=np.int64)


class Span(ABC):
    """The pages of one sub-pool. ``start`` and ``stop`` are pages: its two frontiers."""

    def __init__(self, grid: Grid, ids: UnitIds, holes: Holes) -> None:
        self.grid = grid
        self.ids = ids
        self.holes = holes
        self.start = self.stop = grid.first if grid.end is LOW else grid.stop
        self.fixed = NONE_FIXED
        self._named = (grid.name, grid.unit_bytes, grid.end)
        self._shot: BandShot | None = None

    @property
    def live(self) -> int:
        """How many pages have an id."""
        return self.ids.bound

    def shot(self) -> BandShot:
        """What pricing needs to know, counts and frontiers; kept until the band changes."""
        shot = self._shot
        if shot is None:
            live, fixed = self.ids.bound, self.fixed
            low, high = (int(fixed[0]), int(fixed[-1]) + 1) if len(fixed) else (0, 0)
            counts = (live, len(self.holes), self.start, self.stop, self.ids.id_count - live, 0, 0, 0, low, high)
            shot = self._shot = tuple.__new__(BandShot, self._named + counts)
        return shot

    def take(self, ids: IntArray, start: int, stop: int) -> IntArray:
        """Bind these ids to holes first, then to the pages that the span grows over, to ``[start, stop)``.

        The one place that hands out pages. The ids are nobody's: minted just now, or checked by ``check_unbound``.
        """
        if not self.ids.bound:
            self.start = self.stop = self._anchor(start)
        count, reused = len(ids), min(len(ids), len(self.holes))
        below, above = self.start - start, stop - self.stop
        exact = below >= 0 <= above and below + above == count - reused
        invariant("band.growth_is_what_holes_lack", exact, sub_pool=self.grid.name, asked=count, reused=reused)
        if not below and not above:
            return self.reuse(ids)
        self._shot = None
        parts = [self.reuse(ids[:reused])] if reused else []
        for first, size in ((start, below), (self.stop, above)):
            if size:
                self.ids.bind_run(ids[reused : reused + size], first)
                parts.append(np.arange(first, first + size))
                reused += size
        self.start, self.stop = start, stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def reuse(self, ids: IntArray) -> IntArray:
        """Bind ids that are nobody's to holes; there are as many."""
        self._shot = None
        pages = self.holes.take(len(ids))
        if len(pages) != len(ids):
            fail("band.hole_order_gave_too_few", sub_pool=self.grid.name, asked=len(ids), pages=pages)
        self.ids.bind(ids, pages)
        return pages

    def free(self, ids: IntArray) -> None:
        """The pages of these ids become holes; those at a frontier leave the span."""
        self._release(self.ids.unbind(ids))

    def free_among(self, ids: IntArray) -> None:
        """Free those of these ids that have a page here."""
        pages = self.ids.unbind_among(ids)
        if len(pages):
            self._release(pages)

    def check_free(self, ids: IntArray) -> None:
        """These ids can be freed: each is bound, named once, and not fixed. Nothing changes."""
        self.ids.check_bound(ids)
        if len(self.fixed):
            pages = self.ids.pages_of(ids)
            fixed = pages[np.isin(pages, self.fixed)]
            invariant("band.free_outside_reservation", not len(fixed), sub_pool=self.grid.name, fixed=fixed)

    def fix(self, ids: IntArray) -> None:
        """These pages stay where they are, and cannot be freed, until they are unfixed."""
        self.ids.check_bound(ids)
        pages = self.ids.pages_of(ids)
        invariant("band.fix_of_fixed_page", not np.isin(pages, self.fixed).any(), sub_pool=self.grid.name, pages=pages)
        self.fixed = np.sort(np.concatenate((self.fixed, pages)))
        self._shot = None

    def unfix(self, ids: IntArray) -> None:
        """These pages may move and be freed again."""
        self.ids.check_bound(ids)
        pages = self.ids.pages_of(ids)
        invariant("band.unfix_of_loose_page", np.isin(pages, self.fixed).all(), sub_pool=self.grid.name, pages=pages)
        self.fixed = np.setdiff1d(self.fixed, pages)
        self._shot = None

    @abstractmethod
    def absorb(self) -> None:
        """Give the holes at the frontiers back to the arena."""

    def moved(self, sources: IntArray, targets: IntArray) -> None:
        """The bytes of ``sources`` were copied into the holes ``targets``: rebind, and absorb what came free."""
        self._shot = None
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
        holes = np.sort(self.holes.inside(len(self.holes), self.start, self.stop))
        invariant(
            "band.holes_are_unowned", np.array_equal(holes, unowned), sub_pool=grid.name, holes=holes, free=unowned
        )
        owned = self.ids.owners_of(self.fixed)
        invariant("band.fixed_is_live", (owned != UNOWNED).all(), sub_pool=grid.name, fixed=self.fixed)
        kept, self._shot = self._shot, None
        invariant("band.stale_shot", kept in (None, self.shot()), sub_pool=grid.name, kept=kept, now=self._shot)

    @abstractmethod
    def _anchor(self, start: int) -> int:
        """Where an empty span begins to grow, when it takes the pages from ``start`` on."""

    def _release(self, pages: IntArray) -> None:
        self._shot = None
        self.holes.add(pages)
        self.absorb()
