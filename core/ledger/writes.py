"""Which pages the forwards that may still run write, as far as they said."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kvarena.ledger.batches import NO_PAGES
from kvarena.terms.members import among
from kvarena.terms.ports import IntArray


class WriteSet(NamedTuple):
    """What one forward writes: pages by sub-pool, and the sub-pools in which nobody can say."""

    forward: int
    pages: Mapping[str, IntArray]
    unknown: frozenset[str]


class Writes:
    """The write sets of the forwards that are not retired, the oldest first. Always: one for each of them."""

    def __init__(self) -> None:
        self._sets: deque[WriteSet] = deque()

    def __len__(self) -> int:
        return len(self._sets)

    def __iter__(self) -> Iterator[WriteSet]:
        return iter(tuple(self._sets))

    def add(self, writes: WriteSet) -> None:
        """A forward was recorded."""
        self._sets.append(writes)

    def retire(self, forward: int) -> None:
        """This forward and all before it are retired."""
        while self._sets and self._sets[0].forward <= forward:
            self._sets.popleft()

    def are_unknown(self, name: str) -> bool:
        """Whether any page of this sub-pool may be written."""
        return any(name in one.unknown for one in self._sets)

    def pages(self, name: str) -> IntArray:
        """The pages of a sub-pool that are said to be written."""
        parts = [one.pages[name] for one in self._sets if name in one.pages]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NO_PAGES

    def newest(self, name: str, pages: IntArray) -> int:
        """The newest forward that may write one of these pages; 0 where there is none."""
        for one in reversed(self._sets):
            if name in one.unknown or (name in one.pages and among(pages, one.pages[name]).any()):
                return one.forward
        return 0
