"""A band at one end of the arena: anchored on one side, its frontier on the other."""

import numpy as np

from kvarena.bands.grid import Grid
from kvarena.bands.span import Span
from kvarena.bands.unit_ids import UNOWNED, UnitIds
from kvarena.ledger.batches import NO_PAGES
from kvarena.ledger.ledger import Ledger
from kvarena.terms.invariants import invariant
from kvarena.terms.members import among
from kvarena.terms.ports import LOW, Holes, IntArray

SCAN_PAGES = 1024
"""The first window of the search for pages to move; it doubles until enough are found."""


class Band(Span):
    """The pages of one sub-pool at an end of the arena (its grid names which)."""

    def __init__(self, grid: Grid, ids: UnitIds, holes: Holes, ledger: Ledger) -> None:
        super().__init__(grid, ids, holes, ledger)
        self._rising = grid.end is LOW

    @property
    def packed(self) -> range:
        """The pages that the span has once every page that may move is packed towards the end."""
        size, still = self.live + len(self.still.reserved), self.still.immovable
        if self._rising:
            stop = self.start + size
            return range(self.start, max(stop, int(still[-1]) + 1) if len(still) else stop)
        start = self.stop - size
        return range(min(start, int(still[0])) if len(still) else start, self.stop)

    def absorb(self) -> None:
        """Let the frontier retreat over holes."""
        if self._rising:
            self.stop -= self.holes.drop_below(self.stop)
        else:
            self.start += self.holes.drop_above(self.start)

    def closing_moves(self, limit: int) -> tuple[IntArray, IntArray]:
        """Sources and targets of up to ``limit`` moves that bring the frontier nearer.

        With a limit of at least the holes, every live page is packed towards the end around those that may not move.
        Sources are the live pages farthest out, beyond where the packed span ends, targets holes before it: none
        is both, and what may not move lies before it too.
        """
        packed = self.packed
        sources = self._farthest_live(min(limit, len(self.holes)), packed)
        targets = self.holes.inside(len(sources), packed.start, packed.stop)
        if len(targets) < len(sources):  # some of the room is vacated, and not to be had without a wait
            invariant("band.move_needs_a_hole", self.vacated.count, sub_pool=self.grid.name)
            sources = sources[: len(targets)]
        return sources, targets

    def idle_moves(self, limit: int) -> tuple[IntArray, IntArray]:
        """The same while forwards run, nobody being short: up to the first page that one of them may write.

        None in a band with pending pages, or where a forward's writes are not known.
        """
        steps, name = self.ledger.steps, self.grid.name
        if self.pending.count or steps.writes.are_unknown(name):
            return NO_PAGES, NO_PAGES
        sources, targets = self.closing_moves(limit)
        written = among(sources, steps.writes.pages(name)).nonzero()[0] if steps.reading else NO_PAGES
        if len(written):
            sources = sources[: written[0]]
        return sources, targets[: len(sources)]

    def moved(self, sources: IntArray, targets: IntArray) -> None:
        """The bytes of ``sources`` were copied into the holes ``targets``: rebind, and absorb what came free."""
        self._shot = None
        self.ids.rebind(sources, targets)
        self.holes.remove(targets)
        forward = self.ledger.steps.reading
        if forward:
            self.vacated.add(forward, sources)
        else:
            self.holes.add(sources)
        self.absorb()

    def _anchor(self, start: int) -> int:
        return self.grid.first if self._rising else self.grid.stop

    def _farthest_live(self, limit: int, packed: range) -> IntArray:
        """Up to ``limit`` live pages outside the packed span, from the frontier inwards."""
        rising = self._rising
        low, high = (packed.stop, self.stop) if rising else (self.start, packed.start)
        found: list[IntArray] = []
        width = max(SCAN_PAGES, 2 * limit)
        while limit and low < high:
            if rising:
                window = range(max(low, high - width), high)
                high = window.start
            else:
                window = range(low, min(high, low + width))
                low = window.stop
            owners = self.ids.owners_of(slice(window.start, window.stop))
            live = (owners != UNOWNED).nonzero()[0] + window.start
            found.append((live[::-1] if rising else live)[:limit])
            limit -= len(found[-1])
            width *= 2
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
