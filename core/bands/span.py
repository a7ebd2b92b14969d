"""What ends and floats share: the pages of one sub-pool between a first and a last page, and the life of each.

A page's life:  1. take     a hole, a page that waits for a forward, or a page beyond the span becomes live.
                2. free     its id unbinds at once. The page is a hole; under a recorded forward it is *pending*.
                3. process  the forward is over: its pending pages are holes. Or a take settles them: the allocator's
                            stream waits for the forward, the host does not.
                4. absorb   holes at a frontier go back to the arena.
                5. move     a live page's bytes go to a hole; the id follows. The page is a hole; while a forward may
                            still read it, it is *vacated*.
                6. fix, pin a live page stays where it is: until ``unfix``, or until the use that pinned it is over. A
                            pinned page that its owner frees is *reserved*: nobody gets it before the use is over.
Always:  live + holes + pending + vacated + reserved == stop - start     (checked by ``verify``)
"""

from abc import ABC, abstractmethod

import numpy as np

from kvarena.bands.grid import Grid
from kvarena.bands.still import Still
from kvarena.bands.unit_ids import UNOWNED, UnitIds
from kvarena.ledger.batches import Batches
from kvarena.ledger.clearance import FORWARD, Actor
from kvarena.ledger.ledger import Ledger
from kvarena.planning.snapshot import BandShot
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import among
from kvarena.terms.ports import LOW, Holes, IntArray


class Span(ABC):
    """The pages of one sub-pool. ``start`` and ``stop`` are pages: its two frontiers."""

    def __init__(self, grid: Grid, ids: UnitIds, holes: Holes, ledger: Ledger) -> None:
        self.grid = grid
        self.ids = ids
        self.holes = holes
        self.ledger = ledger
        self.start = self.stop = grid.first if grid.end is LOW else grid.stop
        self.pending = Batches()
        self.vacated = Batches()
        self.still = Still(grid.name, self._forget)
        self._named = (grid.name, grid.unit_bytes, grid.end)
        self._live_max = ids.id_count if grid.cap is None else min(ids.id_count, grid.cap)
        self._shot: BandShot | None = None

    @property
    def live(self) -> int:
        """How many pages have an id."""
        return self.ids.bound

    @property
    def room(self) -> int:
        """How many more pages may be live: as many as there are ids left for, and under the cap."""
        return self._live_max - self.ids.bound

    @property
    def free_count(self) -> int:
        """How many pages of the span can be had: holes, and those that wait for a forward."""
        return len(self.holes) + self.pending.count + self.vacated.count

    @property
    def waits(self) -> bool:
        """Whether pages wait for a forward."""
        return bool(self.pending.count or self.vacated.count)

    @property
    def _is_empty(self) -> bool:
        """Whether the span holds no page but holes: it may begin anew anywhere."""
        return not (self.ids.bound or self.pending.count or self.vacated.count or len(self.still.reserved))

    def shot(self, *, released: bool = False) -> BandShot:
        """What pricing needs to know, counts and frontiers; kept until the band changes.

        ``released``: as it will be once every use that pins pages is over.
        """
        shot = self._shot
        if shot is None or released:
            still, holes, live = self.still, len(self.holes), self.ids.bound
            immovable, reserved = still.immovable, len(still.reserved)
            if released:
                immovable, holes, reserved = still.fixed, holes + reserved, 0
            low, high = (int(immovable[0]), int(immovable[-1]) + 1) if len(immovable) else (0, 0)
            counts = live, holes, self.start, self.stop, self._live_max - live
            waiting = self.pending.count, self.vacated.count, reserved
            shot = tuple.__new__(BandShot, (*self._named, *counts, *waiting, low, high))
            if not released:
                self._shot = shot
        return shot

    # -- taking

    def take(self, ids: IntArray, start: int, stop: int, actors: tuple[Actor, ...] = (FORWARD,)) -> IntArray:
        """Bind these ids to pages of the span first, then to those that it grows over, to ``[start, stop)``.

        The one place that hands out pages. The ids are nobody's: minted just now, or checked by ``check_unbound``.
        ``actors`` are about to write the pages: the allocator's stream waits for forwards where theirs does not.
        """
        if self._is_empty:
            self.start = self.stop = self._anchor(start)
        count, below, above = len(ids), self.start - start, stop - self.stop
        reused, free = count - below - above, self.free_count
        exact = below >= 0 <= above and reused == min(count, free)
        invariant(
            "band.growth_is_what_is_lacking", exact, sub_pool=self.grid.name, asked=count, reused=reused, free=free
        )
        if not below and not above:
            return self.reuse(ids, actors)
        self._shot = None
        parts: list[IntArray] = []
        if reused:
            parts.append(self._choose(reused, reused - len(self.holes), actors))
            self.ids.bind(ids[:reused], parts[0])
        for first, size in ((start, below), (self.stop, above)):
            if size:
                self.ids.bind_run(ids[reused : reused + size], first)
                parts.append(np.arange(first, first + size))
                reused += size
        self.start, self.stop = start, stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def reuse(self, ids: IntArray, actors: tuple[Actor, ...] = (FORWARD,)) -> IntArray:
        """Bind ids that are nobody's to free pages of the span; there are as many."""
        self._shot = None
        lacking = len(ids) - len(self.holes)
        pages = self._choose(len(ids), lacking, actors)
        self.ids.bind(ids, pages)
        if lacking > 0:
            self.absorb()  # whole batches came free, and some of their pages may lie at a frontier
        return pages

    # -- freeing

    def free(self, ids: IntArray) -> None:
        """Unbind these ids: their pages are holes, or wait for what may still touch them."""
        self.let_go(self.ids.unbind(ids))

    def free_among(self, ids: IntArray) -> None:
        """Free those of these ids that have a page here."""
        pages = self.ids.unbind_among(ids)
        if len(pages):
            self.let_go(pages)

    def check_free(self, ids: IntArray) -> None:
        """These ids can be freed: each is bound, named once, and not fixed. Nothing changes."""
        self.ids.check_bound(ids)
        if len(self.still.fixed):
            pages = self.ids.pages_of(ids)
            fixed = pages[among(pages, self.still.fixed)]
            invariant("band.free_outside_reservation", not len(fixed), sub_pool=self.grid.name, fixed=fixed)

    def rebind(self, sources: IntArray, targets: IntArray) -> None:
        """The pages of these ids are the others' from here on. No page moves, and no count changes."""
        self.ids.bind(targets, self.ids.unbind(sources))

    def process(self, forward: int) -> bool:
        """This forward and all before it are over: what waited for them is holes. Whether anything did."""
        came_free = False
        for batches in (self.pending, self.vacated):
            if batches.count and len(pages := batches.through(forward)):
                self.holes.add(pages)
                came_free = True
        if came_free:
            self._shot = None
            self.absorb()
        return came_free

    def let_go(self, pages: IntArray) -> None:
        """Pages of the span have lost their owner: holes, unless a forward or a use may still touch them."""
        self._shot = None
        if self.still.pins:
            pages = self.still.reserve(pages)
        forward = self.ledger.steps.keying
        if not forward:
            self.holes.add(pages)
            self.absorb()
        elif len(pages):
            self.pending.add(forward, pages)

    @abstractmethod
    def absorb(self) -> None:
        """Give the holes at the frontiers back to the arena."""

    def verify(self) -> None:
        """The sum holds, the maps agree, and every unowned page of the span is what one list says."""
        grid = self.grid
        self.ids.verify()
        invariant("band.above_its_cap", self.room >= 0, sub_pool=grid.name, live=self.live, most=self._live_max)
        inside = self.still.reserved
        invariant(
            "band.sum", self.live + len(self.holes) + self.pending.count + self.vacated.count + len(inside)
            == self.stop - self.start,
            sub_pool=grid.name, live=self.live, holes=len(self.holes), start=self.start, stop=self.stop,
        )  # fmt: skip
        invariant(
            "band.outside_its_grid", grid.first <= self.start <= self.stop <= grid.stop,
            sub_pool=grid.name, start=self.start, stop=self.stop, first=grid.first, end=grid.stop,
        )  # fmt: skip
        owners = self.ids.owners_of(slice(self.start, self.stop))
        unowned = (owners == UNOWNED).nonzero()[0] + self.start
        holes = self.holes.inside(len(self.holes), self.start, self.stop)
        listed = np.sort(np.concatenate((holes, self.pending.pages(), self.vacated.pages(), inside)))
        agree = np.array_equal(listed, unowned)
        invariant("band.holes_are_unowned", agree, sub_pool=grid.name, listed=listed, unowned=unowned)
        fixed, reserved = self.still.fixed, self.still.reserved
        invariant("band.fixed_is_live", (self.ids.owners_of(fixed) != UNOWNED).all(), sub_pool=grid.name, fixed=fixed)
        dead = (self.ids.owners_of(reserved) == UNOWNED).all()
        invariant("band.reserved_is_unowned", dead, sub_pool=grid.name, reserved=reserved)
        kept, self._shot = self._shot, None
        invariant("band.stale_shot", kept in (None, self.shot()), sub_pool=grid.name, kept=kept, now=self._shot)

    # -- inside

    @abstractmethod
    def _anchor(self, start: int) -> int:
        """Where an empty span begins to grow, when it takes the pages from ``start`` on."""

    def _choose(self, count: int, lacking: int, actors: tuple[Actor, ...]) -> IntArray:
        """Pages of the span: holes and, where so many are lacking, vacated ones, then those of pending batches."""
        found = self._settled(lacking, actors) if lacking > 0 else None
        if found is not None:
            count -= len(found)
        pages = self.holes.take(count)
        if len(pages) != count:
            fail("band.hole_order_gave_too_few", sub_pool=self.grid.name, asked=count, pages=pages)
        return pages if found is None else np.concatenate((pages, found))

    def _settled(self, lacking: int, actors: tuple[Actor, ...]) -> IntArray | None:
        """Make holes of the oldest whole batches that have so many pages; or give vacated ones that need no wait."""
        found, vacated = None, min(lacking, self.vacated.count)
        if vacated and self.ledger.due_after_forward(actors):
            self._settle(self.vacated, vacated)
        elif vacated:
            found = self.vacated.some(vacated)
        if lacking > vacated:
            self._settle(self.pending, lacking - vacated)
        return found

    def _settle(self, batches: Batches, count: int) -> None:
        """Wait, on the allocator's stream, for the oldest whole batches that have so many pages: they are holes."""
        pages, forward = batches.oldest(count)
        if forward > self.ledger.steps.retired:
            self.ledger.settle(forward)
        self.holes.add(pages)

    def _forget(self) -> None:
        self._shot = None
