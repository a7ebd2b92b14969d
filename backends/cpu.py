"""A device in the machine's own memory: one mapping, read and written through torch views of it."""

import mmap
import sys
from collections import deque
from itertools import repeat, starmap
from typing import Any

import attrs
import numpy as np

from kvarena.terms.errors import KvarenaError, MissingExtraError
from kvarena.terms.fields import DTYPE_BYTES
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import FieldView, IntArray
from kvarena.terms.units import align_up, format_bytes

try:
    import torch
except ImportError as error:
    raise MissingExtraError('torch (backend = "cpu")', "torch") from error

CACHE_LINE = 64
FEW_PAIRS = 16
"""So many pairs are moved one by one at once: less work than to look how."""
CALL_BYTES = 8 << 10
"""What one move of a run costs beyond its bytes, as bytes copied in that time."""
PAGE_BYTES = 256
"""What one page costs when it is gathered and scattered, likewise."""
TEMP_BYTES = 256 << 10
"""The most bytes gathered at once: what stays in the cache until it is scattered."""
WARM_RUNS = 256
"""How many runs are warmed and then moved."""
WARM_RUN_BYTES = 16 << 10
"""Runs from this mean size on are not warmed: the first fetch is a small part of them."""
WARM_UNIT_BYTES = 512
"""Units from this size on are worth warming before they are gathered."""
PIECE_BYTES = 256 << 10
"""The most bytes moved by one call: beyond the cache nearest a core, the C library copies slower."""
ZERO_RUN_BYTES = 64 << 10
"""Runs from this mean size on are filled one by one; shorter ones are scattered page by page."""
ZERO_SEARCH_BYTES = 1 << 20
"""Lists of smaller pages are searched for runs from so many bytes on."""


@attrs.define
class CpuDevice:
    """The arena is one anonymous mapping: page-aligned, zero, committed as it is touched.

    ``huge_pages`` asks the system for large pages, which halves the cost of scattered copies.
    """

    name = "cpu"
    holds_bytes = True
    huge_pages: bool = True
    arena_bytes: int = attrs.field(default=0, init=False)
    _map: mmap.mmap | None = attrs.field(default=None, init=False, repr=False)
    _arena: Any = attrs.field(factory=lambda: np.empty(0, dtype=np.uint8), init=False, repr=False)

    def reserve(self, arena_bytes: int) -> None:
        """Get the arena, zeroed.

        Raises:
            KvarenaError: the system has no such mapping to give.
        """
        invariant("device.reserved_once", self._map is None, arena_bytes=self.arena_bytes)
        try:
            self._map = mmap.mmap(-1, max(1, arena_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise KvarenaError(
                f"backend 'cpu' cannot reserve {format_bytes(arena_bytes)}: {error}; ask for less memory"
            ) from error
        if self.huge_pages and sys.platform == "linux":
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._arena = np.frombuffer(self._map, dtype=np.uint8)[:arena_bytes]
        self.arena_bytes = arena_bytes

    def resize(self, arena_bytes: int) -> None:
        """Move the top inside what was reserved; memory above it goes back to the system, and returns as zeros.

        Raises:
            KvarenaError: more than was reserved.
        """
        reserved = len(self._map) if self._map is not None else 0
        if arena_bytes > reserved:
            raise KvarenaError(
                f"backend 'cpu' reserved {format_bytes(reserved)} and cannot grow to {format_bytes(arena_bytes)} "
                "without moving the base; reserve the largest size first"
            )
        if self._map is None:
            return
        whole = np.frombuffer(self._map, dtype=np.uint8)
        page_stop = min(align_up(arena_bytes, mmap.PAGESIZE), reserved)
        whole[arena_bytes:page_stop] = 0
        if page_stop < reserved:
            self._map.madvise(mmap.MADV_DONTNEED, page_stop, reserved - page_stop)
        self._arena = whole[:arena_bytes]
        self.arena_bytes = arena_bytes

    def view(self, field: FieldView) -> "torch.Tensor":
        """A tensor of shape ``(pages, rows, *shape)`` over the arena.

        Raises:
            KvarenaError: torch has no such dtype, or the items do not lie on multiples of their size.
        """
        item = DTYPE_BYTES[field.dtype]
        dtype = getattr(torch, field.dtype, None)
        if dtype is None:
            raise KvarenaError(f"torch {torch.__version__} has no dtype {field.dtype!r}; install a newer one")
        if field.unit_bytes % item or field.offset_bytes % item:
            raise KvarenaError(
                f"units of {field.unit_bytes} B with a {field.dtype} at byte {field.offset_bytes}: items of {item} B "
                f"must lie on multiples of {item}; choose a unit_align that is one"
            )
        invariant("device.view_inside", field.pages * field.unit_bytes <= self.arena_bytes, field=field)
        whole = torch.from_numpy(self._arena[: self.arena_bytes // item * item]).view(dtype)
        strides = [1]
        for size in reversed(field.shape):
            strides.append(strides[-1] * size)
        shape = (field.pages, field.rows, *field.shape)
        stride = (field.unit_bytes // item, *reversed(strides))
        return torch.as_strided(whole, shape, stride, field.offset_bytes // item if field.pages else 0)

    def copy_pages(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units; no target is also a later source of the same call."""
        invariant("device.copy_pairs", len(sources) == len(targets), sources=len(sources), targets=len(targets))
        if not unit_bytes or not len(sources):
            return
        sources, targets = self._inside(unit_bytes, sources), self._inside(unit_bytes, targets)
        if len(sources) <= FEW_PAIRS:
            pairs = zip((targets * unit_bytes).tolist(), (sources * unit_bytes).tolist(), repeat(unit_bytes))
            deque(starmap(self._mapping.move, pairs), maxlen=0)
            return
        if len(sources) * unit_bytes <= TEMP_BYTES and unit_bytes < CALL_BYTES:
            self._gather(unit_bytes, sources, targets)
            return
        first = _run_starts(sources, targets)
        if len(first) * CALL_BYTES > len(sources) * (PAGE_BYTES + unit_bytes):
            self._gather(unit_bytes, sources, targets)
            return
        sizes = _run_sizes(first, len(sources)) * unit_bytes
        self._move(*_pieces(sources[first] * unit_bytes, targets[first] * unit_bytes, sizes))

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units."""
        if not unit_bytes or not len(pages):
            return
        pages = self._inside(unit_bytes, pages)
        total = len(pages) * unit_bytes
        if unit_bytes >= ZERO_RUN_BYTES or total >= ZERO_SEARCH_BYTES:
            first = _run_starts(pages)
            if len(first) * ZERO_RUN_BYTES <= total:
                starts, sizes = pages[first] * unit_bytes, _run_sizes(first, len(pages)) * unit_bytes
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                    self._arena[start : start + size].fill(0)
                return
        self._units(unit_bytes).put(pages, np.zeros(1, dtype=f"V{unit_bytes}"), mode="clip")

    def close(self) -> None:
        """Let go of the arena: the memory is free once the last view is gone."""
        self._arena = np.empty(0, dtype=np.uint8)
        self._map = None
        self.arena_bytes = 0

    def _units(self, unit_bytes: int) -> Any:
        """The arena as an array of opaque units."""
        return self._arena[: self.arena_bytes // unit_bytes * unit_bytes].view(f"V{unit_bytes}")

    @property
    def _mapping(self) -> mmap.mmap:
        """The mapping of a device that holds pages."""
        assert self._map is not None
        return self._map

    def _inside(self, unit_bytes: int, pages: IntArray) -> IntArray:
        """The pages, checked: no read or write below checks them again. A negative one is a huge unsigned one."""
        pages = np.asarray(pages, dtype=np.int64)
        count = self.arena_bytes // unit_bytes
        last = int(np.maximum.reduce(pages.view(np.uint64)))
        invariant("device.pages_inside", last < count, unit_bytes=unit_bytes, pages=count)
        return pages

    def _warm(self, starts: IntArray) -> None:
        """Read a byte of each place, so that the memory's answers overlap instead of being waited for one by one."""
        self._arena.take(starts, mode="clip")

    def _gather(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Small units: a bounded number at a time into a buffer and out again."""
        units = self._units(unit_bytes)
        count = min(len(sources), max(1, TEMP_BYTES // unit_bytes))
        temp = _aligned(count * unit_bytes).view(f"V{unit_bytes}")
        for first in range(0, len(sources), count):
            read, written = sources[first : first + count], targets[first : first + count]
            gathered = temp[: len(read)]
            if unit_bytes >= WARM_UNIT_BYTES:
                self._warm(read * unit_bytes)
            units.take(read, out=gathered, mode="clip")
            if unit_bytes >= WARM_UNIT_BYTES:
                self._warm(written * unit_bytes)
            units.put(written, gathered, mode="clip")

    def _move(self, sources: IntArray, targets: IntArray, sizes: IntArray) -> None:
        """Places by their bytes: each is read and written in one go, also onto itself."""
        is_worth_warming = int(sizes.sum()) < len(sizes) * WARM_RUN_BYTES
        for first in range(0, len(sizes), WARM_RUNS):
            part = slice(first, first + WARM_RUNS)
            if is_worth_warming:
                self._warm(sources[part])
            triples = zip(targets[part].tolist(), sources[part].tolist(), sizes[part].tolist(), strict=True)
            deque(starmap(self._mapping.move, triples), maxlen=0)


def _aligned(size: int) -> Any:
    """A buffer that begins on a cache line: one that does not can halve the speed of copies."""
    buffer = np.empty(size + CACHE_LINE, dtype=np.uint8)
    return buffer[-buffer.ctypes.data % CACHE_LINE :][:size]


def _run_starts(*lists: IntArray) -> IntArray:
    """Where a run begins: an index at which a list does not go on with the next page."""
    first = np.ones(len(lists[0]), dtype=np.bool_)
    first[1:] = lists[0][1:] - lists[0][:-1] != 1
    for pages in lists[1:]:
        first[1:] |= pages[1:] - pages[:-1] != 1
    return first.nonzero()[0]


def _run_sizes(first: IntArray, count: int) -> IntArray:
    """How many pages each run has, of so many in all."""
    sizes = np.empty_like(first)
    sizes[:-1] = first[1:] - first[:-1]
    sizes[-1] = count - first[-1]
    return sizes


def _pieces(sources: IntArray, targets: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Runs, cut: from the front, which is safe where a run overlaps its targets, as they can only lie before it."""
    if int(sizes.max()) <= PIECE_BYTES:
        return sources, targets, sizes
    counts = -(-sizes // PIECE_BYTES)
    first = np.cumsum(counts) - counts
    offsets = (np.arange(counts.sum()) - np.repeat(first, counts)) * PIECE_BYTES
    left = np.repeat(sizes, counts) - offsets
    return np.repeat(sources, counts) + offsets, np.repeat(targets, counts) + offsets, np.minimum(left, PIECE_BYTES)
