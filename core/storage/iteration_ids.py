"""The physical ids of one step: translated once per sub-pool, on the host, from the host's maps."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.storage.requests import RequestTable
from kvarena.storage.tails import Tails
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


class Tables(Mapping[str, IntArray]):
    """Page tables by sub-pool, each translated at its first use and kept.

    ``tables["full"]`` has shape (rows, pages): the physical page at each page position, the sink's where
    none is bound.
    """

    def __init__(self, names: tuple[str, ...], translate: Callable[[str], IntArray]) -> None:
        self._names = names
        self._translate = translate
        self._known: dict[str, IntArray] = {}

    def __getitem__(self, name: str) -> IntArray:
        known = self._known.get(name)
        if known is None:
            if name not in self._names:
                raise KeyError(name)
            known = self._known[name] = self._translate(name)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Maps:
    """What a step's ids are read from: the chain's maps, the request rows and their tails."""

    def __init__(self, chain: Chain, table: RequestTable) -> None:
        self.chain = chain
        self.table = table
        self.tails = Tails(chain, table)
        self.names = tuple(pool.name for pool in chain.plan.token_pools)
        self.page_tokens = chain.plan.page_tokens
        self.slots_name = chain.plan.slots.name if chain.plan.slots else None


class IterationIds:
    """Where the tokens ``[starts, lengths)`` of these rows are written, and where all before are read.

    Valid until the next call that takes, frees or moves pages: a page may move between two steps, and ids
    that are asked for first after it stop with an InvariantError. int64 throughout; ``rows``, ``starts`` and
    ``lengths`` have shape (rows,). A *physical token* is page * page_tokens + place in the page.
    """

    def __init__(self, maps: Maps, rows: IntArray, starts: IntArray, lengths: IntArray) -> None:
        self.rows = rows
        self.starts = starts
        self.lengths = lengths
        self.page_tokens = maps.page_tokens
        self.tables = Tables(maps.names, self._table)
        self._maps = maps
        self._epoch = maps.chain.epoch
        self._positions: tuple[IntArray, IntArray] | None = None

    @property
    def slots(self) -> IntArray | None:
        """The physical state slots, shape (rows, slots per request); None where the model has no state."""
        maps = self._maps
        if maps.slots_name is None:
            return None
        self._check_epoch(maps.slots_name)
        return maps.chain.pages(maps.slots_name, maps.table.slots[self.rows])

    def write_positions(self) -> tuple[IntArray, IntArray]:
        """For each new token, row-major: the index into ``rows`` and the position in its sequence."""
        if self._positions is None:
            counts = self.lengths - self.starts
            index = np.repeat(np.arange(len(counts)), counts)
            first = np.repeat(self.starts - (np.cumsum(counts) - counts), counts)
            first += np.arange(len(index))
            self._positions = index, first
        return self._positions

    def write_pages(self, name: str) -> IntArray:
        """The physical page of each new token in this sub-pool, row-major."""
        maps, (index, positions) = self._maps, self.write_positions()
        self._check_epoch(name)
        places = self.rows[index] * maps.table.pages_per_row
        places += positions // self.page_tokens
        return maps.chain.pages(name, maps.table.flat[places])

    def write_offsets(self) -> IntArray:
        """The place of each new token inside its page, row-major, the same in every sub-pool."""
        return self.write_positions()[1] % self.page_tokens

    def write_ids(self, name: str) -> IntArray:
        """The physical token of each new token in this sub-pool, row-major."""
        if np.count_nonzero(self.lengths - self.starts == 1) == len(self.rows):
            self._check_epoch(name)
            return self._maps.tails.read(name, self.rows, self.starts)
        ids = self.write_pages(name)
        ids *= self.page_tokens
        ids += self.write_offsets()
        return ids

    def read_ids(self, name: str) -> IntArray:
        """The physical token at each position, shape (rows, tokens of the longest row), whole pages of it.

        Positions beyond a row's length lie in its last page or in the sink's.
        """
        pages, tokens = self.tables[name], self.page_tokens
        if tokens == 1:
            return pages
        return (pages[:, :, None] * tokens + np.arange(tokens)).reshape(len(pages), -1)

    def _table(self, name: str) -> IntArray:
        self._check_epoch(name)
        width = -(-int(self.lengths.max(initial=0)) // self.page_tokens)
        return self._maps.chain.pages(name, self._maps.table.pages[self.rows, :width])

    def _check_epoch(self, name: str) -> None:
        invariant("storage.ids_outlived_their_step", self._maps.chain.epoch == self._epoch, sub_pool=name)
