"""Whose a page is. A page has one owner: the request that took it, or whoever it was handed over to, a cache say."""

from collections.abc import Iterable

import numpy as np

from kvarena.storage.advance import Retirement
from kvarena.storage.iteration_ids import Maps
from kvarena.storage.requests import UNBOUND
from kvarena.terms.doors import line, whole
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray
from kvarena.terms.ranges import merge


class Ownership:
    """Pages that change hands, and what each row still owns.

    A page's owner:  1. a row       it was taken for its request.
                     2. a stranger  ``hand_over``: the row reads it still; ``free_pages`` frees it.
    Always:  what the rows own + what was handed over == what is live, per sub-pool     (checked by ``verify``)
    """

    def __init__(self, maps: Maps, retirements: tuple[Retirement, ...]) -> None:
        self._maps = maps
        self._retirements = retirements
        owner = maps.chain.plan.owner
        self._owner = owner
        self.version = 0
        self._counted = tuple(pool for pool in retirements if not pool.in_order)
        self._slots_column = maps.chain.plan.names.index(maps.slots_name) if maps.slots_name is not None else -1
        self._is_handed = np.zeros(maps.chain.bands[owner].grid.id_count if owner is not None else 0, dtype=np.bool_)

    def held(self) -> IntArray:
        """The units that each row owns, int64 (sub-pools in chain order, rows)."""
        table, slots = self._maps.table, self._maps.slots_name
        held: IntArray = np.maximum(table.retired, table.handed)
        np.subtract(table.page_counts, held, out=held)
        for pool in self._counted:
            held[pool.column] = table.page_counts - table.handed - table.retired[pool.column]
        if slots is not None:
            held[self._slots_column] = table.slots_held
        return held

    def handed_over(self) -> IntArray:
        """The ids of every page that was handed over and not freed, rising."""
        return np.flatnonzero(self._is_handed)

    def units(self, ids: IntArray) -> tuple[int, ...]:
        """What freeing these page ids would bring back, per sub-pool in chain order: what a cache calls evictable.

        A window has let go of pages that fell out of it before they were handed over.
        """
        chain, slots = self._maps.chain, self._maps.slots_name
        return tuple(0 if name == slots else len(band.ids.bound_among(ids)) for name, band in chain.bands.items())

    def hand_over(self, row: int, tokens: int) -> IntArray:
        """The pages of a row's first ``tokens`` belong to the caller from here on; the row goes on reading them.

        Returns their ids, those handed over before left out.

        Raises:
            InvariantError: the tokens end inside a page, or lie beyond what the row has written.
        """
        self._maps.check_current()
        table, size = self._maps.table, self._maps.paging.tokens
        tokens = whole(tokens, "ownership.hand_over: tokens")
        invariant("storage.hand_over_of_free_row", table.is_open(np.array([row])), row=row)
        if table.away.count:
            table.away.check_none(np.array([row]), asked_by="ownership.hand_over", drafting=True)
        stop, length = min(tokens // size, int(table.page_counts[row])), int(table.lengths[row])
        invariant("storage.hand_over_splits_a_page", tokens % size == 0, tokens=tokens, page_tokens=size)
        invariant("storage.hand_over_beyond_the_row", 0 <= tokens <= length, tokens=tokens, length=length)
        handed = int(table.handed[row])
        taken = table.pages[row, handed:stop]
        for pool, gone in self._gone(taken):
            table.retired[pool.column, row] -= gone
        table.handed[row] = max(handed, stop)
        table.any_handed = True
        self.version += 1
        ids: IntArray = taken[taken != UNBOUND]
        self._is_handed[ids] = True
        return ids

    def free_pages(self, ids: IntArray) -> None:
        """Pages that were handed over come back, in every sub-pool that still has them.

        Raises:
            InvariantError: one of them was not handed over, or is named twice; nothing has changed.
        """
        count, ids = len(self._is_handed), line(ids, "ownership.free_pages: ids")
        if not len(ids):
            return
        invariant("storage.free_of_unknown_page", 0 <= ids.min() <= ids.max() < count, ids=ids, ids_in_all=count)
        invariant("storage.free_of_page_not_handed_over", self._is_handed[ids].all(), ids=ids)
        invariant("storage.free_of_page_twice", len(np.unique(ids)) == len(ids), ids=ids)
        if self._owner is not None:
            self._maps.chain.free_all({self._owner: ids})
        self._is_handed[ids] = False

    def free_rows(self, row: int, pieces: Iterable[range]) -> None:
        """Give back a request's last rows: ``pieces`` of positions, merged first, that end at its length.

        A page comes back, once, when none of its rows is left; the request's length is then where they began.

        Raises:
            InvariantError: the pieces leave rows behind them, reach into pages that were handed over, or end so low
                that the next query would need rows that retired; nothing has changed.
        """
        table, size = self._maps.table, self._maps.paging.tokens
        pieces = list(pieces)
        invariant("storage.free_of_free_row", table.is_open(np.array([row])), row=row)
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
        lost = [pool.name for pool in self._retirements if stop > handed and pool.retired_too_much(table, row, start)]
        invariant("storage.free_below_what_retired", not lost, row=row, length=start, sub_pools=lost)
        ids = table.pages[row, stop:count]
        gone = self._gone(ids)
        if self._owner is not None:
            self._maps.chain.free_all({self._owner: ids[ids != UNBOUND]})
        for pool, pages in gone:
            table.retired[pool.column, row] -= pages
        for pool in self._retirements:
            if pool.in_order:
                table.retired[pool.column, row] = min(int(table.retired[pool.column, row]), stop)
        table.shorten(row, stop, start)

    def verify(self) -> None:
        """The sum of the class holds, and no page handed over is a row's own."""
        chain, table = self._maps.chain, self._maps.table
        held, positions = self.held(), np.arange(table.pages_per_row)
        own = (positions >= table.handed[:, None]) & (positions < table.page_counts[:, None]) & (table.pages != UNBOUND)
        invariant("storage.page_has_two_owners", not self._is_handed[table.pages[own]].any())
        for column, name in enumerate(chain.plan.names):
            ids = chain.bands[name].ids
            if name == self._maps.slots_name:
                bound, handed = (table.slots != UNBOUND) & ids.is_bound(table.slots), 0
            else:
                bound, handed = own & ids.is_bound(table.pages), len(ids.bound_among(self.handed_over()))
            rows = held[column]
            invariant("storage.held_is_what_is_bound", np.array_equal(bound.sum(axis=1), rows), sub_pool=name)
            live = ids.bound
            invariant("storage.all_that_lives_is_owned", rows.sum() + handed == live, sub_pool=name, live=live)

    def _gone(self, ids: IntArray) -> list[tuple[Retirement, int]]:
        """How many of a row's own pages have retired already, per sub-pool that only counts them."""
        bands = self._maps.chain.bands
        return [(pool, len(ids) - len(bands[pool.name].ids.bound_among(ids))) for pool in self._counted]
