"""The physical ids of one step: translated once per sub-pool, on the host, from the host's maps."""

from collections.abc import Callable, Iterator, Mapping

import attrs
import numpy as np

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
        if name not in self._names:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = self._translate(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@attrs.frozen(eq=False)
class IterationIds:
    """Where the tokens ``[starts, lengths)`` of these rows are written, and where all before are read.

    Valid until the next call that takes, frees or moves pages: a page may move between two steps, and a table
    that is asked for first after it stops with an InvariantError.
    ``slots`` has shape (rows, slots per request), or None where the model has no state.
    """

    rows: IntArray
    starts: IntArray
    lengths: IntArray
    page_tokens: int
    tables: Tables
    slots: IntArray | None

    def write_positions(self) -> tuple[IntArray, IntArray]:
        """For each new token, row-major: the index into ``rows`` and the position in its sequence."""
        counts = self.lengths - self.starts
        index = np.repeat(np.arange(len(counts)), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return index, np.arange(len(index)) - first + np.repeat(self.starts, counts)

    def write_pages(self, name: str) -> IntArray:
        """The physical page of each new token in this sub-pool, row-major."""
        index, positions = self.write_positions()
        return self.tables[name][index, positions // self.page_tokens]

    def write_offsets(self) -> IntArray:
        """The place of each new token inside its page, row-major, the same in every sub-pool."""
        return self.write_positions()[1] % self.page_tokens
