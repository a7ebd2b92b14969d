"""Lists of pages on their way to a GPU: a ring of pinned memory, and a slot on the device for each of it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from kvarena.backends.gpu_platform import Platform
from kvarena.terms.ports import IntArray

SLOTS = 32
ENTRIES = 4096
"""Pages of one list in a slot; a longer list takes several slots, in order."""
LISTS_MAX = 2

Use = Callable[[torch.Tensor, int], None]
"""Launches a kernel over lists that are on the device, one behind the other, each of so many numbers."""


class Uploads:
    """The ring. Nothing is allocated after it is made.

    A slot's life:  1. filled   the lists stand in pinned memory; whoever gave them may change its own.
                    2. sent     its turn on the stream came: one copy to the device, then the kernels that read it.
                    3. free     the event behind those kernels has come.
    A slot that is free is taken at once. Where none is, the host waits for the one that was taken first.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        entries = SLOTS * LISTS_MAX * ENTRIES
        self._pinned = platform.pinned(entries, torch.int32).view(SLOTS, -1)
        self._numbers: Any = self._pinned.numpy()
        self._device = platform.zeros(entries, torch.int32).view(SLOTS, -1)
        self._events: list[Any] = [None] * SLOTS
        self._next = 0

    def send(self, stream: Any, use: Use, *lists: IntArray) -> None:
        """Put the lists, as long as each other, and their use on a stream."""
        for parts in _parts(lists):
            slot, count = self._free(), len(parts[0])
            for at, part in enumerate(parts):
                self._numbers[slot, at * count : (at + 1) * count] = part
            self._platform.put(stream, self._launch, slot, len(parts) * count, partial(use, self._device[slot], count))
            self._events[slot] = self._platform.record(stream, self._events[slot])

    def _launch(self, slot: int, numbers: int, use: Callable[[], None]) -> None:
        self._platform.upload(self._device[slot, :numbers], self._pinned[slot, :numbers])
        use()

    def _free(self) -> int:
        """A slot whose last use has ended, in the order in which they were taken."""
        has_come, events = self._platform.has_come, self._events
        for step in range(SLOTS):
            slot = (self._next + step) % SLOTS
            if events[slot] is None or has_come(events[slot]):
                break
        else:
            slot = self._next
            self._platform.synchronize(events[slot])
        self._next = (slot + 1) % SLOTS
        return slot


def _parts(lists: tuple[IntArray, ...]) -> Iterator[list[IntArray]]:
    """The lists in pieces that fit a slot."""
    for first in range(0, len(lists[0]), ENTRIES):
        yield [np.asarray(one[first : first + ENTRIES]) for one in lists]
