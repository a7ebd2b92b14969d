"""What fits the arena now, with what the cache could give back; asked and remembered, and then evicted for."""

from collections.abc import Callable
from operator import ge, sub
from typing import Any

from kvarena.chain.chain import Chain
from kvarena.planning.credit import credited
from kvarena.planning.demand import Demand
from kvarena.planning.pricing import feasible
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.ports import Cache

REFUSED_MAX = 16
"""So many refused demands are remembered, none of them above another."""

NO, NOW, AFTER = 0, 1, 2
"""Whether a demand fits: not at all, as the chain is, or once the cache has evicted."""


class Room:
    """The room for demands in one chain, beside one cache.

    Whether a demand fits once the cache has evicted depends, for one chain snapshot, on the demand less what is
    evictable alone, and a larger one never fits where a smaller one does not. So what was refused is remembered so:
    until the snapshot changes, whatever is promised or locked meanwhile.
    """

    def __init__(self, chain: Chain, cache: Cache | None) -> None:
        self.chain = chain
        self.cache = cache
        self._seen: ChainSnapshot | None = None
        self._refused: list[Demand] = []
        self._credited: tuple[ChainSnapshot, Demand, ChainSnapshot] | None = None

    def evictable(self) -> Demand | None:
        """What the cache could give back, per sub-pool; None without a cache."""
        return None if self.cache is None else tuple(self.cache.evictable())

    def look(self, wanted: Demand, reading: Any = None) -> int:
        """Does this fit, with the entry ``reading`` locked? Nothing changes, and nothing is evicted."""
        snapshot, evictable = self.chain.snapshot(), None
        if snapshot is not self._seen:
            self._seen = snapshot
            self._refused.clear()
        if self._refused:
            evictable = self.evictable()
            if self._is_refused(_net(wanted, evictable)):
                return NO
        if self.chain.feasible(wanted):
            return NOW
        evictable = evictable or self.evictable()
        if evictable is None or not self._fits_after(wanted, evictable):
            self._refuse(_net(wanted, evictable))
            return NO
        if reading is None or self.cache is None:
            return AFTER
        self.cache.lock(reading)
        try:
            kept = tuple(self.cache.evictable())
        finally:
            self.cache.unlock(reading)
        if kept == evictable or self._fits_after(wanted, kept):
            return AFTER
        self._refuse(_net(wanted, kept))
        return NO

    def make(self, wanted: Demand) -> bool:
        """Let the cache evict until this fits; whether it does. Nothing is evicted where it cannot."""
        found = self.look(wanted)
        if found == AFTER and self.cache is not None:
            self.cache.evict(lambda: self.chain.feasible(wanted))
            return self.chain.feasible(wanted)
        return found == NOW

    def fits_with(self, wanted: Demand, frees: Demand) -> bool:
        """Whether this would fit once so many live units per sub-pool were freed."""
        return feasible(credited(self.chain.snapshot(), frees), wanted)

    def fitting(self, held_back: Demand, evictable: Demand | None) -> Callable[[Demand], bool]:
        """Whether a charge fits beside what is held back, once what is evictable is gone."""
        after = self.chain.snapshot() if evictable is None else credited(self.chain.snapshot(), evictable)
        return lambda charge: feasible(after, tuple(a + b for a, b in zip(charge, held_back, strict=True)))

    def _fits_after(self, wanted: Demand, evictable: Demand) -> bool:
        """Whether this fits once all that is evictable is gone."""
        snapshot, kept = self.chain.snapshot(), self._credited
        if kept is None or kept[0] is not snapshot or kept[1] != evictable:
            kept = self._credited = (snapshot, evictable, credited(snapshot, evictable))
        return feasible(kept[2], wanted)

    def _is_refused(self, net: Demand) -> bool:
        """Whether this, or less of everything, was refused before."""
        return any(all(map(ge, net, refused)) for refused in self._refused)

    def _refuse(self, net: Demand) -> None:
        """This does not fit; what is above it need not be asked about, and is forgotten."""
        self._refused = [other for other in self._refused if not all(map(ge, other, net))]
        if len(self._refused) < REFUSED_MAX:
            self._refused.append(net)


def _net(wanted: Demand, evictable: Demand | None) -> Demand:
    """What is wanted beyond what is evictable."""
    return wanted if evictable is None else tuple(map(sub, wanted, evictable))
