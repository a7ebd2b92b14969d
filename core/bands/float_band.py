"""A band between the ends: it grows to either side, never compacts, and moves only as a whole."""

from kvarena.bands.span import Span
from kvarena.bands.unit_ids import UNOWNED
from kvarena.terms.invariants import invariant
from kvarena.terms.members import among
from kvarena.terms.ports import IntArray


class FloatBand(Span):
    """The pages of one sub-pool somewhere between its neighbours. Empty, it is nowhere: others see through it."""

    def absorb(self) -> None:
        """Hand back the holes at both frontiers."""
        self.stop -= self.holes.drop_below(self.stop)
        self.start += self.holes.drop_above(self.start)

    def relocation(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Sources and targets that bring every live page into ``[start, stop)``: pages inside it stay.

        No target is a source: the others fill the pages of the block that this band does not own, which the
        order of the moves has made nobody's. The block covers every fixed page.
        """
        live = (self.ids.owners_of(slice(self.start, self.stop)) != UNOWNED).nonzero()[0] + self.start
        sources = live[(live < start) | (live >= stop)]
        free = self._unowned(start, stop)
        invariant(
            "float.block_is_too_small", len(sources) <= len(free), sub_pool=self.grid.name, start=start, stop=stop
        )
        return sources, free[: len(sources)]

    def relocated(self, start: int, stop: int, moves: tuple[IntArray, IntArray]) -> None:
        """The bytes were copied: the span is now ``[start, stop)``, its unowned pages are holes.

        They may lie at a frontier: the take that asked for the move fills them.
        """
        sources, targets = moves
        self._shot = None
        self.holes.remove(self.holes.inside(len(self.holes), self.start, self.stop))
        self.ids.rebind(sources, targets)
        self.start, self.stop = start, stop
        self.holes.add(self._unowned(start, stop))
        total = self.live + len(self.holes) + len(self.still.reserved)
        invariant("float.sum", total == stop - start, sub_pool=self.grid.name, live=self.live)

    def _anchor(self, start: int) -> int:
        return start

    def _unowned(self, start: int, stop: int) -> IntArray:
        """The pages of a block that are nobody's, rising. Nothing pends: it is a float that moves, or has moved."""
        free: IntArray = (self.ids.owners_of(slice(start, stop)) == UNOWNED).nonzero()[0] + start
        return free[~among(free, self.still.reserved)]
