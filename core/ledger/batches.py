"""Pages that nobody owns and that forwards may still touch, in batches by the newest such forward."""

from collections import deque
from typing import NamedTuple

import numpy as np

from kvarena.terms.invariants import fail
from kvarena.terms.ports import IntArray

NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


class Settled(NamedTuple):
    """Whole batches that were taken out, and the newest forward that one of them waits for; 0 where there is none."""

    pages: IntArray
    forward: int


class Batches:
    """Pages keyed by forward, the oldest first. A second batch of one key joins the first.

    Always: ``count`` is the sum of all batches, and keys rise.
    """

    def __init__(self) -> None:
        self.count = 0
        self._batches: deque[tuple[int, list[IntArray]]] = deque()

    def __len__(self) -> int:
        return self.count

    def add(self, forward: int, pages: IntArray) -> None:
        """These pages wait for this forward, the newest that may touch them."""
        batches = self._batches
        newest, parts = batches[-1] if batches else (0, [])
        if newest == forward:
            parts.append(pages)
        elif newest < forward:
            batches.append((forward, [pages]))
        else:
            fail("ledger.batch_keys_rise", newest=newest, forward=forward)
        self.count += len(pages)

    def through(self, forward: int) -> IntArray:
        """Take out every batch that waits for this forward or an older one."""
        parts: list[IntArray] = []
        while self._batches and self._batches[0][0] <= forward:
            parts += self._batches.popleft()[1]
        return self._out(parts)

    def oldest(self, count: int) -> Settled:
        """Take out whole batches, the oldest first, until they have ``count`` pages or none is left."""
        parts: list[IntArray] = []
        forward = found = 0
        while self._batches and found < count:
            forward, batch = self._batches.popleft()
            parts += batch
            found += sum(map(len, batch))
        return Settled(self._out(parts), forward)

    def some(self, count: int) -> IntArray:
        """Take out the ``count`` oldest pages, whichever forwards they wait for; there are as many."""
        parts: list[IntArray] = []
        while count:
            forward, batch = self._batches.popleft()
            pages = np.concatenate(batch)
            parts.append(pages[:count])
            if len(pages) > count:
                self._batches.appendleft((forward, [pages[count:]]))
            count -= len(parts[-1])
        return self._out(parts)

    def pages(self) -> IntArray:
        """All pages, the oldest batch first; nothing changes."""
        parts = [part for _, batch in self._batches for part in batch]
        return np.concatenate(parts) if parts else NO_PAGES

    def forwards(self) -> list[int]:
        """The keys, rising."""
        return [forward for forward, _ in self._batches]

    def _out(self, parts: list[IntArray]) -> IntArray:
        pages = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NO_PAGES
        self.count -= len(pages)
        return pages
