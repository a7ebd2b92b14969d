"""What a cache and a request share: pages and state slots that outlive their request, or were there before it."""

import numpy as np
import numpy.typing as npt

from kvarena.storage.advance import Retirement
from kvarena.storage.growth import Growth
from kvarena.storage.iteration_ids import Maps
from kvarena.storage.ownership import Ownership
from kvarena.terms.answers import Refused
from kvarena.terms.doors import line, whole
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import all_of, any_of
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray


class Sharing:
    """Pages and slots of a stranger, a prefix cache say, and the rows that read them.

    A page's way:  1. hand over  (``ownership``) a row's first pages are the cache's; the row reads them still.
                   2. start      another row reads them from its start. Its windows let go of none of them.
                   3. adopt      a row that has the same tokens reads the cache's pages in the stead of its own.
                   4. free in    one sub-pool has them no more; or ``ownership.free_pages``: none has.
    A slot's way:  1. hand over  a row's place is empty.
                   2. take       and has another slot, when one can be had.
                   3. free       what was handed over comes back.
    Always:  a page or slot is one row's own or a stranger's, and lives     (``Ownership.verify``)
    Whoever may still touch what comes back is waited for, as at any free.
    """

    def __init__(self, maps: Maps, growth: Growth, ownership: Ownership, retirements: tuple[Retirement, ...]) -> None:
        self._maps = maps
        self._growth = growth
        self._ownership = ownership
        self._retirements = retirements
        self._owner = maps.chain.plan.owner

    @property
    def may_refuse(self) -> bool:
        """Whether a page or slot is reserved anywhere, so that what was handed over may have to stay."""
        return self._maps.chain.usage.any_fixed

    # -- pages

    def start(self, row: int, ids: IntArray, tokens: int) -> None:
        """An empty row begins with these pages, which were handed over and stay where they are; it is so long.

        Args:
            ids: int64 (pages,), in the order of positions; -1 where no sub-pool needs the page at this length.
            tokens: whole pages of them. Where nothing is kept per token, ``ids`` has no page and any length will do.

        Raises:
            KvarenaError: a row cannot hold so many tokens; nothing has changed.
            InvariantError: the row is free, not empty, or waits for a copy; a page was not handed over, or stands
                twice; a sub-pool lacks a page that a query at this length needs; nothing has changed.
        """
        self._maps.check_current()
        table, size = self._maps.table, self._maps.paging.tokens
        ids, tokens = line(ids, "sharing.start: ids"), whole(tokens, "sharing.start: tokens")
        if not table.is_open(row):
            fail("storage.start_of_free_row", row=row)
        if table.away.count:
            table.away.check_none(np.array([row]), asked_by="sharing.start")
        if table.lengths[row] or table.page_counts[row]:
            fail("storage.start_of_used_row", row=row, length=int(table.lengths[row]))
        self._ownership.pages.check_read(ids, asked_by="sharing.start")
        if self._owner is None:
            ids = ids[ids != UNBOUND]
        if tokens < 0 if self._owner is None else tokens != len(ids) * size:
            fail("storage.start_splits_a_page", tokens=tokens, pages=len(ids), page_tokens=size)
        self._growth.check_length(tokens)
        if lacking := self._lacking(ids, tokens):
            fail("storage.start_without_its_pages", row=row, tokens=tokens, sub_pools=lacking)
        table.put(row, ids, tokens, shared=True)

    def can_start(self, ids: IntArray, tokens: int) -> bool:
        """Whether every sub-pool has the pages that a query at this length needs, of a sequence with these ids.

        Args:
            ids: int64 (pages,), a row's or handed over, in the order of positions; -1 where there is none. tokens:
                whole pages of them.

        Raises:
            KvarenaError: the ids are no such array, or the tokens no count.
        """
        ids, tokens = line(ids, "sharing.can_start: ids"), whole(tokens, "sharing.can_start: tokens")
        return not self._lacking(ids, tokens)

    def adopt(self, row: int, ids: IntArray) -> None:
        """The row reads these pages, handed over by another with the same tokens, in the stead of its own.

        Its own pages from the first that was not handed over or shared are replaced, one for one. Where a window has a
        page of the row's and none of the stranger's, the page is the stranger's from here on, without a copy; the rest
        of the row's own come back.

        Args:
            ids: int64 (pages,), in the order of positions; -1 only where the row's own page retired everywhere.

        Raises:
            InvariantError: the row is free or waits for a copy, or has not written so many tokens; a page was not
                handed over, stands twice, or is missing; one of the row's own is reserved; a forward is launched and
                not recorded; nothing has changed.
        """
        table, chain, size = self._maps.table, self._maps.chain, self._maps.paging.tokens
        ids = line(ids, "sharing.adopt: ids")
        self._check_closed("sharing.adopt")
        self._ownership.check_gives(row, asked_by="sharing.adopt")
        first, length = int(table.handed[row]), int(table.lengths[row])
        stop = first + len(ids)
        invariant("storage.adopt_beyond_the_row", stop * size <= length, row=row, pages=stop, length=length)
        self._ownership.pages.check_read(ids, asked_by="sharing.adopt")
        own = table.pages[row, first:stop]
        missing = (ids == UNBOUND) & (own != UNBOUND)
        invariant("storage.adopt_without_a_page", not any_of(missing), row=row, positions=missing.nonzero()[0])
        if self._owner is None or not len(ids):
            return
        mine, gone = own[own != UNBOUND], self._ownership.gone_of(own)
        moves: dict[str, IntArray] = {}
        for name in [pool.name for pool in self._retirements if not pool.mints]:
            only_mine = (self.bound(name, own) & ~self.bound(name, ids)).nonzero()[0]
            if len(only_mine):
                moves[name] = only_mine
        if moves:  # what is checked before a free has to hold before the first of these too
            chain.minters[self._owner].check_free(mine)
        for name, only_mine in moves.items():
            chain.rebind(name, own[only_mine], ids[only_mine])
        chain.free_all({self._owner: mine})
        self._ownership.forget(row, gone)
        table.hand(row, stop, np.where(own == UNBOUND, UNBOUND, ids))  # what retired here is not read again

    def free_in(self, sub_pool: str, ids: IntArray) -> None:
        """The rows of handed-over pages come back in one sub-pool; the others keep theirs, and the ids.

        Raises:
            KvarenaError: there is no such sub-pool.
            InvariantError: it mints the ids, or keeps slots; an id was not handed over, is named twice, or has no page
                there; nothing has changed.
        """
        self._maps.check_current()
        chain, ids = self._maps.chain, line(ids, "sharing.free_in: ids")
        band = chain.bands[sub_pool].ids
        if sub_pool in chain.minters:
            fail("storage.free_in_the_minter", sub_pool=sub_pool, cure="free_pages, or free_slots")
        self._ownership.pages.check_freed(ids)
        if not all_of(band.is_bound(ids)):
            fail("chain.window_segment_bound", sub_pool=sub_pool, ids=ids)
        chain.free(sub_pool, ids)

    def bound(self, sub_pool: str, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each id, page or slot, has a page in this sub-pool; -1 has none.

        Raises:
            InvariantError: an id is beyond those of the sub-pool.
        """
        known = self._maps.chain.bands[sub_pool].ids
        try:
            return known.is_bound(ids)
        except IndexError:
            fail("storage.bound_of_unknown_id", sub_pool=sub_pool, ids=ids, id_count=known.id_count)

    # -- state slots

    def hand_over_slot(self, row: int, at: int) -> int:
        """The slot in the row's place ``at`` belongs to the caller from here on; the place is empty.

        Returns its id. A forward that is recorded may still write it: whoever reads it comes behind.

        Raises:
            KvarenaError: the model keeps no state, or a row has no such place.
            InvariantError: the row is free or waits for a copy, the place is empty, or a forward is launched and not
                recorded; nothing has changed.
        """
        return int(self.hand_over_slots(np.array([row]), at)[0])

    def hand_over_slots(self, rows: IntArray, at: int) -> IntArray:
        """The same for several rows, int64 (rows,), each named once. Returns the ids, parallel to them."""
        rows = line(rows, "sharing.hand_over_slots: rows")
        self._check_closed("sharing.hand_over_slots")
        self._ownership.check_gives(rows, asked_by="sharing.hand_over_slots")
        table, at = self._maps.table, self._place(at)
        slots = table.slot_columns[at][rows]
        if any_of(empty := slots == UNBOUND):
            fail("storage.hand_over_of_empty_place", row=rows[empty], at=at)
        table.put_slots(rows, at, UNBOUND)
        self._ownership.slots.add(slots)
        return slots

    def take_slot(self, row: int, at: int) -> int | Refused:
        """A new slot in the row's place ``at``, which is empty.

        Returns:
            Its id; or the refusal, and nothing has changed. Id 0 is falsy too: ask for the type.

        Raises:
            KvarenaError: the model keeps no state, or a row has no such place.
            InvariantError: the row is free or waits for a copy, or the place is not empty; nothing has changed.
        """
        slots = self.take_slots(np.array([row]), at)
        return slots if isinstance(slots, Refused) else int(slots[0])

    def take_slots(self, rows: IntArray, at: int) -> IntArray | Refused:
        """The same for several rows, int64 (rows,), each named once: all of them or none. Returns the ids."""
        table, at, rows = self._maps.table, self._place(at), line(rows, "sharing.take_slots: rows")
        self._ownership.check_gives(rows, asked_by="sharing.take_slots")
        if any_of(full := table.slot_columns[at][rows] != UNBOUND):
            fail("storage.take_into_full_place", row=rows[full], at=at)
        taken = self._maps.chain.take_new(str(self._maps.slots_name), len(rows))
        if isinstance(taken, Refused):
            return taken
        table.put_slots(rows, at, taken.ids)
        return taken.ids

    def free_slots(self, ids: IntArray) -> None:
        """Slots that were handed over come back.

        Raises:
            InvariantError: one of them was not handed over, or is named twice; nothing has changed.
        """
        self._maps.check_current()
        ids = line(ids, "sharing.free_slots: ids")
        if not len(ids):
            return
        self._ownership.slots.check_freed(ids)
        self._maps.chain.free_all({str(self._maps.slots_name): ids})
        self._ownership.slots.drop(ids)

    # -- inside

    def _check_closed(self, asked_by: str) -> None:
        """No forward is open: what it reads and writes is found by the rows until it is recorded."""
        steps = self._maps.chain.ledger.steps
        invariant("forwards.change_before_record", not steps.is_open, asked=asked_by, launched=steps.launched)

    def _lacking(self, ids: IntArray, tokens: int) -> list[str]:
        """The sub-pools that have not all pages that a query at this length needs."""
        return [pool.name for pool in self._retirements if self._lacks(pool, ids, tokens)]

    def _lacks(self, pool: Retirement, ids: IntArray, tokens: int) -> bool:
        """Whether a sub-pool has no page for one of these ids that a query at this length needs."""
        if pool.mints and not self._ownership.ids_retire:  # then each id has its page there
            return bool(len(ids) and ids[ids.argmin()] < 0)
        return not all_of(self.bound(pool.name, pool.needed(tokens, ids)))

    def _place(self, at: int) -> int:
        """A place of a row for a slot."""
        count, at = self._maps.table.slots.shape[1], whole(at, "the place of a state slot")
        if not 0 <= at < count:
            places = f"{count} places, 0 to {count - 1}" if count else "none, the model keeps no state"
            raise KvarenaError(f"a row has no place {at} for a state slot: {places}")
        return at
