"""The physical ids of one step: translated once per sub-pool, on the host, from the host's maps."""

from collections.abc import Iterator, Mapping

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.storage.advance import spread
from kvarena.storage.requests import UNBOUND, RequestTable
from kvarena.terms.errors import nearest
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.paging import Paging
from kvarena.terms.ports import IntArray


class Maps:
    """What a step's ids are read from: the chain's maps and the request rows."""

    def __init__(self, chain: Chain, table: RequestTable) -> None:
        self.chain = chain
        self.table = table
        self.names = tuple(pool.name for pool in chain.plan.token_pools)
        self.paging = Paging(chain.plan.page_tokens)
        self.slots_name = chain.plan.slots.name if chain.plan.slots else None
        self.is_current = True
        self.is_released = False

    def check_current(self) -> None:
        """Stop a part of a storage that was resized or released since: it speaks of an arena that is no more."""
        invariant("storage.used_after_release", not self.is_released)
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
        if name not in self.names:
            raise KeyError(f"no token sub-pool {name!r}; {nearest(name, self.names)}")
        self.check_epoch(epoch, name)
        return self.chain.pages(name, ids)


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
        self._writes: tuple[IntArray, IntArray] | None = None
        self._touched: IntArray | None = None
        self._slots: IntArray | None = None
        self._pages: dict[str, IntArray] = {}
        self._to_the_end = to_the_end

    def check_present(self, maps: Maps) -> None:
        """Stop where pages were taken, freed or moved since the step, or where it was another storage's."""
        invariant("storage.ids_of_another_storage", maps.chain is self._maps.chain)
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
            self._slots = maps.chain.pages(maps.slots_name, maps.table.slots[self.rows])
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

    def write_pages(self, name: str) -> IntArray:
        """The physical page of each new token in this sub-pool, row-major."""
        known = self._pages.get(name)
        if known is None:
            known = self._pages[name] = self._maps.pages(name, self._written()[0], self._epoch)
        return known

    def written_pages(self, name: str) -> IntArray:
        """The physical pages of this sub-pool in which new tokens lie; one may stand more than once."""
        known = self._pages.get(name)
        if known is not None:
            return known
        if self._touched is None:
            if self._are_single():
                self._touched = self._written()[0]
            else:
                table, paging = self._maps.table, self._maps.paging
                first = paging.pages(self.starts)
                counts = (paging.covering(self.lengths) - first) * (self.lengths > self.starts)
                self._touched = table.flat[spread(self.rows * table.pages_per_row + first, counts, counts.cumsum())]
        return self._maps.pages(name, self._touched, self._epoch)

    def write_offsets(self) -> IntArray:
        """The place of each new token inside its page, row-major, the same in every sub-pool."""
        return self._written()[1]

    def write_ids(self, name: str) -> IntArray:
        """The physical token of each new token in this sub-pool, row-major."""
        return self._maps.paging.physical(self.write_pages(name), self.write_offsets())

    def read_ids(self, name: str) -> IntArray:
        """The physical token at each position, shape (rows, tokens of the longest row), whole pages of it.

        Positions beyond a row's length lie in its last page or in the sink's.
        """
        pages, tokens = self.tables[name], self.page_tokens
        if tokens == 1:
            return pages
        return (pages[:, :, None] * tokens + np.arange(tokens)).reshape(len(pages), -1)

    def _written(self) -> tuple[IntArray, IntArray]:
        """The virtual page and the offset of each new token, row-major: the same in every sub-pool."""
        if self._writes is None:
            maps, table, rows = self._maps, self._maps.table, self.rows
            if not maps.names:
                nothing = np.empty(0, dtype=np.int64)
                self._writes = nothing, nothing
            elif self._are_single():  # each writes one token, into its last page
                self._writes = table.tails[rows], maps.paging.offsets(self.starts)
            else:  # a row has whole pages, so its tokens can be numbered through all rows
                first = rows * (table.pages_per_row * self.page_tokens)
                first += self.starts
                counts = self.lengths - self.starts
                tokens = spread(first, counts, counts.cumsum())
                self._writes = table.flat[maps.paging.pages(tokens)], maps.paging.offsets(tokens)
        return self._writes

    def _are_single(self) -> bool:
        """Whether each row has one new token, in its last page."""
        ones: IntArray = self._maps.table.ones
        return self._to_the_end and (self.lengths - self.starts).tobytes() == ones[: len(self.rows)].tobytes()
