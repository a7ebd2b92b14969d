"""Whole units, moved and zeroed in memory by any number of threads at once, each with a buffer of its own."""

import mmap
import sys
import threading
from collections import deque
from collections.abc import Sequence
from itertools import repeat, starmap
from typing import Any

import numpy as np

from kvarena.backends.page_lists import are_inside, run_sizes, run_starts
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail
from kvarena.terms.ports import IntArray
from kvarena.terms.units import format_bytes

CACHE_LINE = 64
FEW_PAIRS = 16
"""So many pairs are moved one by one at once: less work than to look how."""
CALL_BYTES = 8 << 10
"""What one move of a run costs beyond its bytes, as bytes copied in that time."""
PAGE_BYTES = 256
"""What one page costs when it is gathered and scattered, likewise."""
TEMP_BYTES = 256 << 10
"""The most bytes gathered at once: what stays in the cache until it is scattered. No unit that is gathered is wider."""
WARM_RUNS = 256
"""How many runs are warmed and then moved."""
WARM_RUN_BYTES = 16 << 10
"""Runs from this mean size on are not warmed: the first fetch is a small part of them."""
WARM_UNIT_BYTES = 512
"""Units from this size on are worth warming before they are gathered."""
PIECE_BYTES = 256 << 10
"""The most bytes moved by one call: beyond the cache nearest a core, the C library copies slower."""
HOLD_BYTES = 4 << 20
"""About the most bytes moved before another thread may run: a move keeps the interpreter, unlike all else here."""
ZERO_RUN_BYTES = 64 << 10
"""Runs from this mean size on are filled one by one; shorter ones are scattered page by page."""
ZERO_SEARCH_BYTES = 1 << 20
"""Lists of smaller pages are searched for runs from so many bytes on."""
NO_BYTES: Any = np.empty(0, dtype=np.uint8)


def mapped(size: int, *, huge_pages: bool) -> mmap.mmap:
    """So many bytes of memory: page-aligned, zero, committed as they are touched.

    Raises:
        KvarenaError: the system has no such mapping to give.
    """
    try:
        mapping = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        amount = format_bytes(size)
        raise KvarenaError(f"backend 'cpu' cannot reserve {amount}: {error}; ask for less memory") from error
    if huge_pages and sys.platform == "linux":
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class Copies:
    """The arena's bytes, and what moves them.

    ``checked`` looks at a list when a call names it; the other methods may run later, and look at nothing.
    """

    def __init__(self) -> None:
        self.mapping: mmap.mmap | None = None
        self.arena: Any = NO_BYTES
        self._zeros: Any = np.zeros(ZERO_RUN_BYTES, dtype=np.uint8)
        self._zeros.flags.writeable = False
        self._of_thread = threading.local()

    def checked(self, unit_bytes: int, pages: IntArray, *, is_kept: bool) -> IntArray:
        """The pages, all inside the arena.

        A list that is kept is copied: whoever gave it may write over it before the work's turn comes.
        """
        pages = np.array(pages, dtype=np.int64) if is_kept else np.asarray(pages, dtype=np.int64)
        count = len(self.arena) // unit_bytes
        if not are_inside(pages, count):
            fail("device.pages_inside", unit_bytes=unit_bytes, pages=count)
        return pages

    def warm(self, units_bytes: Sequence[int] = ()) -> None:
        """Give the calling thread its buffer, committed, and read the arena's first unit of each size through it."""
        temp = self._temp()
        for unit_bytes in units_bytes:
            if 0 < unit_bytes <= min(len(temp), len(self.arena)):
                self._units(unit_bytes).take([0], out=temp[:unit_bytes].view(f"V{unit_bytes}"), mode="clip")

    def copy(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy units inside the arena, one pair after another."""
        if len(sources) <= FEW_PAIRS and len(sources) * unit_bytes <= HOLD_BYTES:
            pairs = zip((targets * unit_bytes).tolist(), (sources * unit_bytes).tolist(), repeat(unit_bytes))
            deque(starmap(self._mapping.move, pairs), maxlen=0)
            return
        units = self._units(unit_bytes)
        if len(sources) * unit_bytes <= TEMP_BYTES and unit_bytes < CALL_BYTES:
            self._gather(units, units, sources, targets)
            return
        first = run_starts(sources, targets)
        if len(first) * CALL_BYTES > len(sources) * (PAGE_BYTES + unit_bytes):
            self._gather(units, units, sources, targets)
            return
        sizes = run_sizes(first, len(sources)) * unit_bytes
        self._move(*_pieces(sources[first] * unit_bytes, targets[first] * unit_bytes, sizes))

    def zero(self, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over units."""
        total = len(pages) * unit_bytes
        if unit_bytes >= ZERO_RUN_BYTES or total >= ZERO_SEARCH_BYTES:
            first = run_starts(pages)
            if len(first) * ZERO_RUN_BYTES <= total:
                starts, sizes = pages[first] * unit_bytes, run_sizes(first, len(pages)) * unit_bytes
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                    self.arena[start : start + size].fill(0)
                return
        self._units(unit_bytes).put(pages, self._zeros[:unit_bytes].view(f"V{unit_bytes}"), mode="clip")

    def save(self, unit_bytes: int, pages: IntArray, host: Any, places: IntArray) -> None:
        """Copy units of the arena to rows of memory outside it."""
        self._across(self._units(unit_bytes), _as_units(host), pages, places)

    def load(self, unit_bytes: int, host: Any, places: IntArray, pages: IntArray) -> None:
        """Copy rows of memory outside to units of the arena."""
        self._across(_as_units(host), self._units(unit_bytes), places, pages)

    @property
    def _mapping(self) -> mmap.mmap:
        """The mapping of an arena that has pages."""
        assert self.mapping is not None
        return self.mapping

    def _units(self, unit_bytes: int) -> Any:
        """The arena as an array of opaque units."""
        return self.arena[: len(self.arena) // unit_bytes * unit_bytes].view(f"V{unit_bytes}")

    def _temp(self) -> Any:
        """The calling thread's buffer. It begins on a cache line: one that does not can halve the speed of copies."""
        try:
            return self._of_thread.temp
        except AttributeError:
            buffer = np.empty(TEMP_BYTES + CACHE_LINE, dtype=np.uint8)
            buffer.fill(0)
            temp = self._of_thread.temp = buffer[-buffer.ctypes.data % CACHE_LINE :][:TEMP_BYTES]
            return temp

    def _across(self, sources: Any, targets: Any, read: IntArray, written: IntArray) -> None:
        """Between two memories: by runs where these are worth a call, else through the buffer."""
        first = run_starts(read, written)
        if len(read) > FEW_PAIRS and len(first) * CALL_BYTES > len(read) * (PAGE_BYTES + sources.itemsize):
            self._gather(sources, targets, read, written)
            return
        sizes = run_sizes(first, len(read))
        for start, place, count in zip(read[first].tolist(), written[first].tolist(), sizes.tolist(), strict=True):
            targets[place : place + count] = sources[start : start + count]

    def _warm_places(self, units: Any, pages: IntArray) -> None:
        """Read a byte of each place, so that the memory's answers overlap instead of being waited for one by one."""
        units.view(np.uint8).take(pages * units.itemsize, mode="clip")

    def _gather(self, sources: Any, targets: Any, reads: IntArray, writes: IntArray) -> None:
        """Small units: a bounded number at a time into a buffer and out again."""
        unit_bytes = sources.itemsize
        count = min(len(reads), TEMP_BYTES // unit_bytes)
        temp = self._temp()[: count * unit_bytes].view(sources.dtype)
        for first in range(0, len(reads), count):
            read, written = reads[first : first + count], writes[first : first + count]
            gathered = temp[: len(read)]
            if unit_bytes >= WARM_UNIT_BYTES:
                self._warm_places(sources, read)
            sources.take(read, out=gathered, mode="clip")
            if unit_bytes >= WARM_UNIT_BYTES:
                self._warm_places(targets, written)
            targets.put(written, gathered, mode="clip")

    def _move(self, sources: IntArray, targets: IntArray, sizes: IntArray) -> None:
        """Places by their bytes: each is read and written in one go, also onto itself."""
        mean = max(1, int(sizes.sum()) // len(sizes))
        count = min(WARM_RUNS, max(1, HOLD_BYTES // mean))
        for first in range(0, len(sizes), count):
            part = slice(first, first + count)
            if mean < WARM_RUN_BYTES:
                self.arena.take(sources[part], mode="clip")
            triples = zip(targets[part].tolist(), sources[part].tolist(), sizes[part].tolist(), strict=True)
            deque(starmap(self._mapping.move, triples), maxlen=0)


def _as_units(host: Any) -> Any:
    """Rows of bytes as opaque units."""
    return host.view(f"V{host.shape[1]}").reshape(-1)


def _pieces(sources: IntArray, targets: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Runs, cut: from the front, which is safe where a run overlaps its targets, as they can only lie before it."""
    if int(sizes.max()) <= PIECE_BYTES:
        return sources, targets, sizes
    counts = -(-sizes // PIECE_BYTES)
    first = np.cumsum(counts) - counts
    offsets = (np.arange(counts.sum()) - np.repeat(first, counts)) * PIECE_BYTES
    left = np.repeat(sizes, counts) - offsets
    return np.repeat(sources, counts) + offsets, np.repeat(targets, counts) + offsets, np.minimum(left, PIECE_BYTES)
