"""What fits the arena now, with what the cache could give back; asked and remembered, and then evicted for."""

from collections.abc import Callable
from operator import add, ge, mul, sub
from typing import Any

from kvarena.chain.chain import Chain
from kvarena.planning.credit import feasible_after
from kvarena.planning.demand import Demand
from kvarena.planning.pricing import serves, unheld_bytes
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
        self._saw: tuple[ChainSnapshot, Demand | None] | None = None
        self._refused_at: ChainSnapshot | None = None
        self._refused: list[Demand] = []

    def evictable(self) -> Demand | None:
        """What the cache could give back, per sub-pool; None without a cache."""
        return None if self.cache is None else tuple(self.cache.evictable())

    def saw(self) -> tuple[ChainSnapshot, Demand | None]:
        """What the look that has just found no room saw: the chain, and what was evictable."""
        return self._saw or (self.chain.snapshot(), self.evictable())

    def look(self, wanted: Demand, reading: Any = None) -> int:
        """Does this fit, with the entry ``reading`` locked? Nothing changes, and nothing is evicted."""
        snapshot, evictable = self.chain.snapshot(), None
        if snapshot is not self._refused_at:
            self._refused_at = snapshot
            self._refused.clear()
        elif self._refused:
            evictable = self.evictable()
            if self._is_refused(_net(wanted, evictable)):
                self._saw = snapshot, evictable
                return NO
        if serves(snapshot, wanted):
            return NOW
        if evictable is None:
            evictable = self.evictable()
        if evictable is None or not feasible_after(snapshot, wanted, evictable):
            self._refuse(_net(wanted, evictable))
            self._saw = snapshot, evictable
            return NO
        if reading is None or self.cache is None:
            return AFTER
        self.cache.lock(reading)
        try:
            kept = tuple(self.cache.evictable())
        finally:
            self.cache.unlock(reading)
        if kept == evictable or feasible_after(snapshot, wanted, kept):
            return AFTER
        self._refuse(_net(wanted, kept))
        self._saw = snapshot, evictable
        return NO

    def make(self, wanted: Demand) -> bool:
        """Let the cache evict until this fits; whether it does. Nothing is evicted where it cannot."""
        found = self.look(wanted)
        made = found == NOW or (found == AFTER and self._evict(wanted))
        if not made:
            self._saw = None
        return made

    def fits_after(self, wanted: Demand, frees: Demand | None) -> bool:
        """Whether this would fit once so many live units per sub-pool were freed."""
        return feasible_after(self.chain.snapshot(), wanted, frees)

    def fitting(self, held_back: Demand, evictable: Demand | None) -> Callable[[Demand], bool]:
        """Whether a charge fits beside what is held back, once what is evictable is gone."""
        return lambda charge: self.fits_after(tuple(map(add, charge, held_back)), evictable)

    def _evict(self, wanted: Demand) -> bool:
        """Let the cache evict, as long as something comes back; whether this fits then."""
        chain, cache, came = self.chain, self.cache, True
        while came and cache is not None:
            before, enough = chain.snapshot(), Enough(chain, wanted)
            cache.evict(enough)
            if serves(chain.snapshot(), wanted):
                return True
            came = enough.said and chain.snapshot() is not before
        return False

    def _is_refused(self, net: Demand) -> bool:
        """Whether this, or less of everything, was refused before."""
        for refused in self._refused:  # noqa: SIM110 - asked for every request that waits: a generator takes twice as long
            if all(map(ge, net, refused)):
                return True
        return False

    def _refuse(self, net: Demand) -> None:
        """This does not fit; what is above it need not be asked about, and is forgotten."""
        self._refused = [other for other in self._refused if not all(map(ge, other, net))]
        if len(self._refused) < REFUSED_MAX:
            self._refused.append(net)


class Enough:
    """Whether a demand fits once what a cache has chosen is free: what its ``evict`` asks after each piece.

    From counts alone, since nothing has come back yet: should a page be fixed, say, it may not fit then after all.
    """

    def __init__(self, chain: Chain, wanted: Demand) -> None:
        self.said = False
        """Whether the last answer was yes."""
        self._chain = chain
        self._wanted = wanted
        self._sizes = tuple(shot.unit_bytes for shot in chain.snapshot().bands)
        self._asked = sum(map(mul, wanted, self._sizes))
        self._seen: ChainSnapshot | None = None
        self._lacking = 0

    def __call__(self, units: Demand) -> bool:
        snapshot = self._chain.snapshot()
        if snapshot is not self._seen:
            self._seen, self._lacking = snapshot, self._asked - unheld_bytes(snapshot)
        enough = sum(map(mul, units, self._sizes)) >= self._lacking
        self.said = enough and feasible_after(snapshot, self._wanted, units)
        return self.said


def _net(wanted: Demand, evictable: Demand | None) -> Demand:
    """What is wanted beyond what is evictable."""
    return wanted if evictable is None else tuple(map(sub, wanted, evictable))
