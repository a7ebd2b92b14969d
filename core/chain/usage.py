"""Uses of pages that outlast a call (reservations, copies, transfers): what they keep in place, and until when."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kvarena.bands.id_band import IdBand
from kvarena.bands.span import Span
from kvarena.chain.minters import Bands
from kvarena.ledger.clearance import Hazard
from kvarena.ledger.ledger import Ledger
from kvarena.ledger.uses import Pages, Use, Waiter
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import among
from kvarena.terms.ports import Event, IntArray


class Usage:
    """The open uses of one chain, as its bands feel them.

    A use whose hazard keeps its pages out of every choice (see the table) pins them: they do not move, and a page that
    its owner frees is reserved until the use is over. A use that a stream does is waited for where it matters.
    A use that is *held* is a receive whose page ids nobody has been told: compaction leaves its bands alone, relief may
    move its pages where nothing else serves.
    """

    def __init__(self, bands: Bands, ledger: Ledger, changed: Callable[[], None]) -> None:
        """``changed`` is called when what a question would answer may have changed."""
        self.waiter: Waiter | None = None
        self.any_fixed = False
        self.is_waiting = False
        self._bands = bands
        self._ledger = ledger
        self._changed = changed
        self._pinning: dict[Use, Mapping[str, IntArray]] = {}
        self._held: dict[Use, None] = {}  # in the order in which they came, the same on every rank

    @property
    def pins(self) -> bool:
        """Whether a use keeps pages in place."""
        return bool(self._pinning)

    @property
    def may_wait(self) -> bool:
        """Whether every page that a use keeps in place could be moved, after the host has waited for what it must."""
        return self.waiter is not None or len(self._held) == len(self._pinning)

    def holds(self, name: str) -> bool:
        """Whether a receive that is not published has pages of this sub-pool."""
        return any(name in use.pages for use in self._held)

    # -- reservations

    def fix(self, name: str, ids: IntArray) -> None:
        """Keep these ids' pages where they are, whoever is short: until ``unfix`` they neither move nor are freed."""
        band = self._span(name, ids)
        band.still.fix(band.ids.pages_of(ids))
        self.any_fixed = True
        self._changed()

    def unfix(self, name: str, ids: IntArray) -> None:
        """These ids' pages may move and be freed again."""
        band = self._span(name, ids)
        band.still.unfix(band.ids.pages_of(ids))
        self.any_fixed = any(len(other.still.fixed) for other in self._bands.values() if not isinstance(other, IdBand))
        self._changed()

    def is_kept_by_id(self, name: str, ids: IntArray) -> bool:
        """Whether whoever keeps one of these ids' pages finds it by its id: a reservation, a receive not published."""
        band = self._bands[name]
        if isinstance(band, IdBand) or not (self.any_fixed or self._held):
            return False
        held = [use.pages[name].pages for use in self._held if name in use.pages]
        return bool(among(band.ids.pages_of(ids), np.concatenate((band.still.fixed, *held))).any())

    # -- uses

    def record(
        self, hazard: Hazard, ids: Mapping[str, IntArray], event: Event | None = None, *, held: bool = False
    ) -> Use:
        """A use of the pages of these ids, where they are now, begins; a stream that does it gives its ``event``.

        Raises:
            InvariantError: an id has no page, or the hazard is in no column of the table; nothing has changed.
        """
        invariant("chain.call_from_a_waiter", not self.is_waiting, asked="record")
        pages = {}
        for name, some in ids.items():
            band = self._bands[name]
            if not isinstance(band, IdBand) and len(some):
                band.ids.check_bound(some)
                pages[name] = Pages(band.grid.unit_bytes, np.sort(band.ids.pages_of(some)))
        keeps = self._ledger.clearance.keeps_pages(hazard)
        invariant("ledger.use_without_an_end", keeps or event is not None, hazard=hazard.name)
        use = self._ledger.uses.record(hazard, pages, event)
        if keeps:
            self._pinning[use] = dict(ids)
            if held:
                self._held[use] = None
            self._pin(use, {name: mine.pages for name, mine in pages.items()})
        return use

    def publish(self, use: Use) -> None:
        """Whoever makes this use has been told its pages: they move no more."""
        invariant("chain.call_from_a_waiter", not self.is_waiting, asked="publish")
        invariant("ledger.publish_of_unknown_use", use in self._held, use=str(use))
        del self._held[use]
        self._changed()

    def end(self, use: Use) -> None:
        """The use is over: what it kept is free. Where a stream does it, the next writers still wait its event.

        Raises:
            InvariantError: it is not open; nothing has changed.
        """
        self._ledger.uses.end(use)
        if use.event is not None:
            self._ledger.timeline.wait(use.event)
        if use in self._pinning:
            del self._pinning[use]
            self._held.pop(use, None)
            self._unpin(use)

    # -- relief

    def wait_for_all(self) -> None:
        """The host waits until every use that keeps pages is over, held ones aside, and ends it here.

        The waiter may end uses, and nothing else of this chain: the take that waits goes on with what it knows.

        Raises:
            KvarenaError: the waiter's deadline has passed; it names what is still under way.
        """
        waited: Sequence[Use] = [use for use in self._pinning if use not in self._held]
        if waited and self.waiter is not None:
            self._ledger.timeline.read_on_host()
            self.is_waiting = True
            try:
                self.waiter.wait(waited)
            finally:
                self.is_waiting = False
        for use in waited:
            if use in self._ledger.uses:  # a waiter may have ended it by the storage's own verb
                self.end(use)

    def lift(self) -> None:
        """Let the pages of held uses move, until ``lower``: nobody has been told where they are."""
        for use in self._held:
            self._pinning[use] = {name: self._still_there(use, name, ids) for name, ids in self._pinning[use].items()}
            self._unpin(use)
            self._ledger.uses.move(use, {})

    def lower(self) -> None:
        """Keep the pages of held uses where they are now; those that lost their owner are nobody's concern any more."""
        for use in self._held:
            pages = {name: np.sort(self._bands[name].ids.pages_of(ids)) for name, ids in self._pinning[use].items()}
            moved = {name: Pages(self._bands[name].grid.unit_bytes, mine) for name, mine in pages.items()}
            self._ledger.uses.move(use, moved)
            self._pin(use, pages)

    def _still_there(self, use: Use, name: str, ids: IntArray) -> IntArray:
        """Those of these ids that have a page of this use: others were freed, and may have been minted again since."""
        if name not in use.pages:
            return ids[:0]
        return ids[among(self._bands[name].ids.pages_of(ids), use.pages[name].pages)]

    def _span(self, name: str, ids: IntArray) -> Span:
        """The band of these ids, each of which has a page there."""
        band = self._bands[name]
        if isinstance(band, IdBand):
            fail("id_band.fix_of_id_without_page", sub_pool=name, ids=ids)
        band.ids.check_bound(ids)
        return band

    def _pin(self, use: Use, pages: Mapping[str, IntArray]) -> None:
        for name, mine in pages.items():
            band = self._bands[name]
            if not isinstance(band, IdBand):
                band.still.pin(use.number, mine)
        self._changed()

    def _unpin(self, use: Use) -> None:
        for name in use.pages:
            band = self._bands[name]
            if not isinstance(band, IdBand):
                loose = band.still.unpin(use.number)
                if len(loose):
                    band.let_go(loose)
        self._changed()
