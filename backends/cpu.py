"""A device in the machine's own memory: a numpy arena, read and written through torch views of it."""

import mmap
import sys
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

COPY_SLICE_BYTES = 16 << 10
"""Units from this size on are copied slice by slice; smaller ones are gathered and scattered."""
ZERO_SLICE_BYTES = 1 << 20
"""Units from this size on are zeroed slice by slice; smaller ones by one scatter."""
TEMP_BYTES = 256 << 10
"""The most bytes gathered at once: what stays in the cache until it is scattered."""


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
        if unit_bytes < COPY_SLICE_BYTES:
            self._gather(unit_bytes, sources, targets)
            return
        arena = memoryview(self._arena)
        for source, target, size in _runs(unit_bytes, sources, targets):
            arena[target : target + size] = arena[source : source + size]

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units."""
        if not unit_bytes or not len(pages):
            return
        if unit_bytes < ZERO_SLICE_BYTES:
            self._units(unit_bytes)[pages] = np.zeros((), dtype=f"V{unit_bytes}")
            return
        for start, _, size in _runs(unit_bytes, pages, pages):
            self._arena[start : start + size] = 0

    def close(self) -> None:
        """Let go of the arena: the memory is free once the last view is gone."""
        self._arena = np.empty(0, dtype=np.uint8)
        self._map = None
        self.arena_bytes = 0

    def _units(self, unit_bytes: int) -> Any:
        """The arena as an array of opaque units."""
        return self._arena[: self.arena_bytes // unit_bytes * unit_bytes].view(f"V{unit_bytes}")

    def _gather(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Small units: a bounded number at a time into a buffer and out again."""
        units = self._units(unit_bytes)
        count = max(1, TEMP_BYTES // unit_bytes)
        for first in range(0, len(sources), count):
            units[targets[first : first + count]] = units.take(sources[first : first + count])


def _runs(unit_bytes: int, sources: IntArray, targets: IntArray) -> list[tuple[int, int, int]]:
    """Pairs whose pages follow each other, joined: (source byte, target byte, bytes)."""
    breaks = ((np.diff(sources) != 1) | (np.diff(targets) != 1)).nonzero()[0] + 1
    first = np.concatenate(([0], breaks))
    sizes = np.diff(np.concatenate((first, [len(sources)]))) * unit_bytes
    starts = zip(sources[first] * unit_bytes, targets[first] * unit_bytes, sizes, strict=True)
    return [(int(source), int(target), int(size)) for source, target, size in starts]
