"""The physical ids of one step: translated once per sub-pool, on the host, from the host's maps."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.storage.requests import RequestTable, slots_of
from kvarena.terms.errors import nearest
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.numbers import UNBOUND, constant, first, spread
from kvarena.terms.paging import Paging
from kvarena.terms.ports import IntArray

ONE = constant(1)
BULK = 8192
"""From so many new tokens on they are found page by page: more calls, and each over fewer numbers."""


class Maps:
    """What a step's ids are read from: the chain's maps and the request rows."""

    def __init__(self, chain: Chain, table: RequestTable) -> None:
        self.chain = chain
        self.table = table
        self.names = tuple(pool.name for pool in chain.plan.token_pools)
        self.paging = Paging(chain.plan.page_tokens)
        self._unit_ids = {name: chain.bands[name].ids for name in self.names}
        self.slots_name = chain.plan.slots.name if chain.plan.slots else None
        self.is_current = True
        self.is_released = False

    def check_current(self) -> None:
        """Stop a part of a storage that was resized or released since: it speaks of an arena that is no more."""
        if self.is_released:
            fail("storage.used_after_release")
        self.check_arena()

    def check_arena(self) -> None:
        """Stop where the storage was resized since: for work of a forward, which a release waits for."""
        if not self.is_current:
            fail("storage.part_from_before_a_resize", cure="take it from the storage again")

    def check_epoch(self, epoch: int, name: str) -> None:
        """Stop where pages were taken, freed or moved since."""
        if self.chain.epoch != epoch:
            fail("storage.ids_outlived_their_step", sub_pool=name)

    def check_states(self, rows: IntArray, *, asked_by: str) -> None:
        """Each of these rows has the slots that forwards write."""
        if self.table.stateless:
            empty = rows[(self.table.slots[rows, : self.table.live_slots] == UNBOUND).any(axis=1)]
            invariant("storage.row_lacks_its_state", not len(empty), rows=empty, asked_by=asked_by)

    def pages(self, name: str, ids: IntArray, epoch: int) -> IntArray:
        """The pages of these ids in a token sub-pool, of ids that were read at ``epoch``."""
        maps = self._unit_ids.get(name)
        if maps is None:
            raise KeyError(f"no token sub-pool {name!r}; {nearest(name, self.names)}")
        if self.chain.epoch != epoch:
            self.check_epoch(epoch, name)
        return maps.pages_of(ids)


class Tables(Mapping[str, IntArray]):
    """Page tables by sub-pool, each translated at its first use and kept.

    ``tables["full"]`` has shape (rows, pages): the physical page at each page position, the sink's where
    none is bound.
    """

    def __init__(self, maps: Maps, rows: IntArray, width: int) -> None:
        self._maps = maps
        self._rows = rows
        self._width = width
        self._epoch = maps.chain.epoch
        self._known: dict[str, IntArray] = {}

    def __getitem__(self, name: str) -> IntArray:
        known = self._known.get(name)
        if known is None:
            ids = self._maps.table.pages[self._rows, : self._width]
            known = self._known[name] = self._maps.pages(name, ids, self._epoch)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps.names)

    def __len__(self) -> int:
        return len(self._maps.names)


class IterationIds:
    """Where the tokens ``[starts, lengths)`` of these rows are written, and where all before are read.

    Valid until the next call that takes, frees or moves pages: a page may move between two steps, and ids
    that are asked for first after it stop with an InvariantError. int64 throughout; ``rows``, ``starts`` and
    ``lengths`` have shape (rows,). A *physical token* is page * page_tokens + place in the page.
    """

    def __init__(
        self, maps: Maps, rows: IntArray, starts: IntArray, lengths: IntArray, *, to_the_end: bool = True
    ) -> None:
        """``to_the_end``: the new tokens are the last that each row has pages for, and none of them has retired."""
        self.rows = rows
        self.starts = starts
        self.lengths = lengths
        self.page_tokens = maps.paging.tokens
        self._maps = maps
        self._epoch = maps.chain.epoch
        self._tables: Tables | None = None
        self._written: Written | None = None
        self._slots: IntArray | None = None
        self._pages: dict[str, IntArray] = {}
        self._to_the_end = to_the_end

    def check_present(self, maps: Maps) -> None:
        """Stop where pages were taken, freed or moved since the step, or where it was another storage's."""
        if maps.chain is not self._maps.chain:
            fail("storage.ids_of_another_storage")
        maps.check_epoch(self._epoch, "all")

    @property
    def tables(self) -> Tables:
        """The page table of each token sub-pool."""
        if self._tables is None:
            self._maps.check_epoch(self._epoch, "tables")
            width = -(-int(self.lengths.max(initial=0)) // self.page_tokens)
            self._tables = Tables(self._maps, self.rows, width)
        return self._tables

    @property
    def slots(self) -> IntArray | None:
        """The physical state slots, shape (rows, places of a row); None where the model has no state.

        Column 0 is the live slot, what a forward reads and writes; a place that is empty reads as the sink.
        """
        maps = self._maps
        if maps.slots_name is None:
            return None
        maps.check_epoch(self._epoch, maps.slots_name)
        if self._slots is None:
            self._slots = maps.chain.pages(maps.slots_name, slots_of(maps.table, self.rows))
        return self._slots

    @property
    def live_slots(self) -> IntArray | None:
        """The columns of ``slots`` that forwards write; those behind them wait for copies."""
        slots = self.slots
        return None if slots is None else slots[:, : self._maps.table.live_slots]

    def write_positions(self) -> tuple[IntArray, IntArray]:
        """For each new token, row-major: the index into ``rows`` and the position in its sequence."""
        counts = self.lengths - self.starts
        return np.arange(len(counts)).repeat(counts), spread(self.starts, counts, counts.cumsum())

    def written_pages(self, name: str) -> IntArray:
        """The physical pages of this sub-pool in which new tokens lie, row-major; one may stand more than once."""
        known = self._pages.get(name)
        if known is None:
            known = self._pages[name] = self._maps.pages(name, self._places(by_page=True).ids, self._epoch)
        return known

    def write_pages(self, name: str) -> IntArray:
        """The physical page of each new token in this sub-pool, row-major."""
        counts, pages = self._places().counts, self.written_pages(name)
        return pages if counts is None else pages.repeat(counts)

    def write_offsets(self) -> IntArray:
        """The place of each new token inside its page, row-major, the same in every sub-pool."""
        written = self._places()
        if written.counts is None:
            return written.offsets
        offsets = written.offsets.repeat(written.counts)
        offsets += first(len(offsets))
        return offsets

    def write_ids(self, name: str) -> IntArray:
        """The physical token of each new token in this sub-pool, row-major."""
        written = self._places()
        ids = self._maps.paging.physical(self.written_pages(name), written.offsets)
        if written.counts is not None:
            ids = ids.repeat(written.counts)
            ids += first(len(ids))
        return ids

    def read_ids(self, name: str) -> IntArray:
        """The physical token at each position, shape (rows, tokens of the longest row), whole pages of it.

        Positions beyond a row's length lie in its last page or in the sink's.
        """
        pages, tokens = self.tables[name], self.page_tokens
        if tokens == 1:
            return pages
        return (pages[:, :, None] * tokens + np.arange(tokens)).reshape(len(pages), -1)

    def _places(self, *, by_page: bool = False) -> "Written":
        """Where the new tokens lie, before any sub-pool is asked. ``by_page``: nobody asks of each yet."""
        known = self._written
        if known is None:
            known = self._written = self._find(by_page=by_page)
        return known

    def _find(self, *, by_page: bool) -> "Written":
        maps, table, rows, starts = self._maps, self._maps.table, self.rows, self.starts
        paging, new = maps.paging, self.lengths - starts
        if not maps.names or not len(rows):
            return Written(rows[:0], None, rows[:0])
        if self._to_the_end and new.tobytes() == table.ones[: len(rows)].tobytes():  # a token each, in its last page
            return Written(table.tails[rows], None, paging.offsets(starts))
        ends = new.cumsum()
        if paging.tokens == 1 or not (by_page or ends[-1] >= BULK):
            # a row has whole pages, so its tokens can be numbered through all rows
            tokens = spread(paging.starts(table.firsts[rows]) + starts, new, ends)
            return Written(table.flat[paging.pages(tokens)], None, paging.offsets(tokens))
        return self._by_page(rows, starts, new)

    def _by_page(self, rows: IntArray, starts: IntArray, new: IntArray) -> "Written":
        table, paging = self._maps.table, self._maps.paging
        some = new.nonzero()[0]
        if len(some) < len(rows):
            rows, starts, new = rows[some], starts[some], new[some]
        before, offsets = paging.pages(starts), paging.offsets(starts)
        many = paging.covering(starts + new) - before
        ends = many.cumsum()
        ids = table.flat[spread(table.firsts[rows] + before, many, ends)]
        # every page is full, but for what lies before a row's first token and behind its last
        counts = np.full(len(ids), paging.tokens)
        counts[ends - many] -= offsets
        counts[ends - ONE] -= paging.offsets(-starts - new)
        # a running number of all new tokens, added to these, is the place of each in its page
        from_zero = counts - counts.cumsum()
        from_zero[ends - many] += offsets
        return Written(ids, counts, from_zero)


class Written(NamedTuple):
    """The virtual pages in which new tokens lie, row-major, and where in them.

    Of a page that has one token alone, ``counts`` being None, ``offsets`` is its place in the page. Else ``counts`` new
    tokens lie in each, and the place of a token is ``offsets`` of its page plus its number among all new tokens.
    """

    ids: IntArray
    counts: IntArray | None
    offsets: IntArray
