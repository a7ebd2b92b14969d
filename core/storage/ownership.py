"""Whose a page is. A page has one owner: the request that took it, or whoever it was handed over to, a cache say."""

from collections.abc import Iterable

import numpy as np

from kvarena.storage.advance import Retirement, never_retires, places_of
from kvarena.storage.handed import Handed
from kvarena.storage.iteration_ids import Maps
from kvarena.terms.doors import line, whole
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import among
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray
from kvarena.terms.ranges import merge


class Ownership:
    """Pages that change hands, and what each row still owns.

    A page's owner:  1. a row       it was taken for its request.
                     2. a stranger  ``hand_over``: the row reads it still; ``free_pages`` frees it.
    A state slot's is a row's place, or a stranger (``Sharing``).
    Always:  what the rows own + what was handed over == what is live, per sub-pool     (checked by ``verify``)
    """

    def __init__(self, maps: Maps, retirements: tuple[Retirement, ...]) -> None:
        self._maps = maps
        self._retirements = retirements
        owner = maps.chain.plan.owner
        self._owner = owner
        self.pages = Handed(maps.chain.bands, owner)
        self.slots = Handed(maps.chain.bands, maps.slots_name)
        self.ids_retire = bool(retirements) and not never_retires(retirements[-1])
        self._counted = tuple(pool for pool in retirements if not pool.in_order)
        self._slots_column = maps.chain.plan.names.index(maps.slots_name) if maps.slots_name is not None else -1

    @property
    def open_count(self) -> int:
        """How many rows are open."""
        return self._maps.table.open_count

    @property
    def version(self) -> int:
        """Grows with every change of what rows have or have handed over."""
        return self._maps.table.version

    def held(self) -> IntArray:
        """The units that each row owns, int64 (sub-pools in chain order, rows)."""
        return self._counts(self._maps.table.handed)

    def charged(self) -> IntArray:
        """What each row has taken of its charge, int64 (sub-pools in chain order, rows).

        Where pages never retire: all that it took, handed over since or not, since it needs no other in their stead.
        Elsewhere what it owns: behind what it handed over it may come to hold as much again.
        """
        return self._counts(self._maps.table.shared)

    def handed_over(self) -> IntArray:
        """The ids of every page that was handed over and not freed, rising."""
        return self.pages.ids()

    def units(self, ids: IntArray) -> tuple[int, ...]:
        """What freeing these page ids would bring back, per sub-pool in chain order: what a cache calls evictable.

        A window has let go of pages that fell out of it before they were handed over.
        """
        chain, slots = self._maps.chain, self._maps.slots_name
        return tuple(0 if name == slots else len(band.ids.bound_among(ids)) for name, band in chain.bands.items())

    def hand_over(self, row: int, tokens: int) -> IntArray:
        """The pages of a row's first ``tokens`` belong to the caller from here on; the row goes on reading them.

        Returns their ids, those handed over before, or shared at its start, left out.

        Raises:
            InvariantError: the tokens end inside a page, or lie beyond what the row has written.
        """
        table, size = self._maps.table, self._maps.paging.tokens
        tokens = whole(tokens, "ownership.hand_over: tokens")
        self.check_gives(row, asked_by="ownership.hand_over")
        stop, length, first = min(tokens // size, int(table.page_counts[row])), table.lengths[row], table.handed[row]
        if tokens % size:
            fail("storage.hand_over_splits_a_page", tokens=tokens, page_tokens=size)
        if not 0 <= tokens <= length:
            fail("storage.hand_over_beyond_the_row", tokens=tokens, length=int(length))
        if stop <= first:
            return np.empty(0, dtype=np.int64)
        taken = table.pages[row, first:stop]
        if self._counted:
            self.forget(row, self.gone_of(taken))
        table.hand(row, stop)
        ids: IntArray = taken[taken != UNBOUND] if self.ids_retire else taken.copy()
        self.pages.add(ids)
        return ids

    def check_gives(self, rows: int | IntArray, *, asked_by: str) -> None:
        """Each row is open, named once, waits for no load or receive, and may give pages or slots away.

        Nothing changes.
        """
        self._maps.check_current()
        table = self._maps.table
        if not table.is_open(rows):
            fail("storage.hand_over_of_free_row", row=_one_of(rows), asked_by=asked_by)
        if isinstance(rows, np.ndarray) and len(rows) > 1 and not table.are_distinct(rows):
            fail("storage.hand_over_repeats_a_row", row=rows, asked_by=asked_by)
        if table.away.count:
            table.away.check_none(np.atleast_1d(rows), asked_by=asked_by, drafting=True)

    def gone_of(self, ids: IntArray) -> list[tuple[int, int]]:
        """How many of a row's own pages have retired already, per column of a sub-pool that only counts them."""
        bands = self._maps.chain.bands
        return [(pool.column, len(ids) - len(bands[pool.name].ids.bound_among(ids))) for pool in self._counted]

    def forget(self, row: int, gone: list[tuple[int, int]]) -> None:
        """Pages of a row that retired are its own no more."""
        for column, pages in gone:
            self._maps.table.retired[column, row] -= pages

    def free_pages(self, ids: IntArray) -> None:
        """Pages that were handed over come back, in every sub-pool that still has them.

        Where ids retire, as in a model of windows alone, a request may read on that needs them no more: its row names
        them no more either.

        Raises:
            InvariantError: one of them was not handed over, or is named twice; nothing has changed.
        """
        ids = line(ids, "ownership.free_pages: ids")
        if not len(ids):
            return
        self.pages.check_freed(ids)
        if self._owner is not None:
            self._maps.chain.free_all({self._owner: ids})
            if self.ids_retire:
                self._unlist(ids)
        self.pages.drop(ids)

    def free_rows(self, row: int, pieces: Iterable[range]) -> None:
        """Give back a request's last rows: ``pieces`` of positions, merged first, that end at its length.

        A page comes back, once, when none of its rows is left; the request's length is then where they began.

        Raises:
            InvariantError: the pieces leave rows behind them, reach into pages that were handed over, or end so low
                that the next query would need rows that retired; nothing has changed.
        """
        table, size = self._maps.table, self._maps.paging.tokens
        pieces = list(pieces)
        invariant("storage.free_of_free_row", table.is_open(row), row=row)
        if table.away.count:
            table.away.check_none(np.array([row]), asked_by="ownership.free_rows")
        invariant("storage.free_of_rows_with_gaps", all(piece.step == 1 for piece in pieces), row=row, pieces=pieces)
        merged = merge(pieces)
        if not merged:
            return
        length, start = int(table.lengths[row]), merged[0].start
        tail = len(merged) == 1 and merged[0].stop == length
        invariant("storage.free_leaves_rows_behind", tail, row=row, pieces=merged, length=length)
        handed = int(table.handed[row])
        own = start >= handed * size
        invariant("storage.free_straddles_an_owner", own, row=row, pieces=merged, handed_over_tokens=handed * size)
        count = int(table.page_counts[row])
        stop = min(-(-start // size), count)
        lost = [
            pool.name
            for pool in self._retirements
            if (stop > handed or pool.mints) and pool.retired_too_much(table, row, start)
        ]
        invariant("storage.free_below_what_retired", not lost, row=row, length=start, sub_pools=lost)
        ids = table.pages[row, stop:count]
        gone = self.gone_of(ids)
        if self._owner is not None:
            self._maps.chain.free_all({self._owner: ids[ids != UNBOUND]})
        self.forget(row, gone)
        for pool in self._retirements:
            if pool.in_order:
                table.retired[pool.column, row] = min(int(table.retired[pool.column, row]), stop)
        table.shorten(row, stop, start)

    def verify(self) -> None:
        """The sum of the class holds, and no page handed over is a row's own."""
        chain, table = self._maps.chain, self._maps.table
        held, positions = self.held(), np.arange(table.pages_per_row)
        own = (positions >= table.handed[:, None]) & (positions < table.page_counts[:, None]) & (table.pages != UNBOUND)
        invariant("storage.page_has_two_owners", not self.pages.any_of(table.pages[own]))
        invariant("storage.slot_has_two_owners", not self.slots.any_of(table.slots[table.slots != UNBOUND]))
        staying = [pool.column for pool in self._retirements if never_retires(pool)]
        held[staying] -= table.retired[staying]  # none, or the sum below does not hold
        for column, name in enumerate(chain.plan.names):
            ids = chain.bands[name].ids
            if name == self._maps.slots_name:
                bound, theirs = (table.slots != UNBOUND) & ids.is_bound(table.slots), self.slots.ids()
            else:
                bound, theirs = own & ids.is_bound(table.pages), self.handed_over()
            rows, handed = held[column], len(ids.bound_among(theirs))
            invariant("storage.held_is_what_is_bound", np.array_equal(bound.sum(axis=1), rows), sub_pool=name)
            live = ids.bound
            invariant("storage.all_that_lives_is_owned", rows.sum() + handed == live, sub_pool=name, live=live)

    def _counts(self, others: IntArray) -> IntArray:
        """What each row has, where pages never retire without ``others`` of them: of its own, or of its charge.

        Sub-pool by sub-pool: the counts of one stand side by side, and numpy is quickest with these.
        """
        table = self._maps.table
        counts: IntArray = np.empty_like(table.retired)
        for pool in self._retirements:
            mine, gone = counts[pool.column], table.retired[pool.column]
            if never_retires(pool):
                gone = others
            elif not pool.in_order:
                gone = np.add(gone, table.handed, out=mine)
            elif table.any_handed:
                gone = np.maximum(gone, table.handed, out=mine)
            np.subtract(table.page_counts, gone, out=mine)
        if self._slots_column >= 0:
            counts[self._slots_column] = table.slots_held
        return counts

    def _unlist(self, ids: IntArray) -> None:
        """Rows that started on these pages, or handed them over, have no id in their stead."""
        table, minter = self._maps.table, self._retirements[-1]
        rows = np.flatnonzero(table.handed)
        gone = table.retired[minter.column][rows] if minter.in_order else np.zeros_like(rows)
        places = places_of(table, rows, gone, table.handed[rows])
        listed = places[among(table.flat[places], ids)]
        table.flat[listed] = UNBOUND
        if table.changed is not None:
            table.changed.append(listed)


def _one_of(rows: int | IntArray) -> int | IntArray:
    """A row as a number, where there is one."""
    return rows if not isinstance(rows, np.ndarray) or len(rows) != 1 else int(rows[0])
