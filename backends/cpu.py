"""A device in the machine's own memory: one mapping, read and written through torch views, moved by worker threads."""

import mmap
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from kvarena.backends.cpu_copies import NO_BYTES, Copies, mapped
from kvarena.backends.cpu_streams import WorkerStreams, tell_all
from kvarena.backends.page_lists import host_rows
from kvarena.backends.staged_mirror import StagedMirror
from kvarena.backends.views import typed_view
from kvarena.terms.errors import KvarenaError, MissingExtraError
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import FieldView, IntArray, Mirror, Stream, Touch
from kvarena.terms.units import align_up, format_bytes

try:
    import torch
except ImportError as error:
    raise MissingExtraError('torch (backend = "cpu")', "torch") from error


@attrs.define(eq=False)
class CpuDevice(WorkerStreams):
    """The arena is one anonymous mapping: page-aligned, zero, committed as it is touched.

    ``huge_pages`` asks the system for large pages, which halves the cost of scattered copies.
    What a call names is checked and copied when it is called; the bytes are touched when the work's turn comes.
    """

    name = "cpu"
    holds_bytes = True
    huge_pages: bool = True
    arena_bytes: int = attrs.field(default=0, init=False)
    _copies: Copies = attrs.field(factory=Copies, init=False, repr=False)

    def reserve(self, arena_bytes: int) -> None:
        """Get the arena, zeroed.

        Raises:
            KvarenaError: the system has no such mapping to give.
        """
        invariant("device.reserved_once", self._copies.mapping is None, arena_bytes=self.arena_bytes)
        mapping = mapped(arena_bytes, huge_pages=self.huge_pages)
        self._copies.mapping = mapping
        self._copies.arena = np.frombuffer(mapping, dtype=np.uint8)[:arena_bytes]
        self.arena_bytes = arena_bytes

    def resize(self, arena_bytes: int) -> None:
        """Move the top inside what was reserved; memory above it goes back to the system, and returns as zeros.

        All streams are waited for.

        Raises:
            KvarenaError: more than was reserved, or work on a stream failed; nothing has changed.
        """
        mapping = self._copies.mapping
        reserved = len(mapping) if mapping is not None else 0
        if arena_bytes > reserved:
            raise KvarenaError(
                f"backend 'cpu' reserved {format_bytes(reserved)} and cannot grow to {format_bytes(arena_bytes)} "
                "without moving the base; reserve the largest size first"
            )
        tell_all(self._drain())
        if mapping is None:
            return
        whole = np.frombuffer(mapping, dtype=np.uint8)
        page_stop = min(align_up(arena_bytes, mmap.PAGESIZE), reserved)
        whole[arena_bytes:page_stop] = 0
        if page_stop < reserved:
            mapping.madvise(mmap.MADV_DONTNEED, page_stop, reserved - page_stop)
        self._copies.arena = whole[:arena_bytes]
        self.arena_bytes = arena_bytes

    def view(self, field: FieldView) -> "torch.Tensor":
        """A tensor of shape ``(pages, rows, *shape)`` over the arena.

        Raises:
            KvarenaError: torch has no such dtype, or the items do not lie on multiples of their size.
        """
        return typed_view(torch.from_numpy(self._copies.arena), field)

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units; no target is also a later source of the same call."""
        invariant("device.copy_pairs", len(sources) == len(targets), sources=len(sources), targets=len(targets))
        if not unit_bytes or not len(sources):
            return
        checked, is_kept = self._copies.checked, stream is not self._inline
        read, written = checked(unit_bytes, sources, is_kept=is_kept), checked(unit_bytes, targets, is_kept=is_kept)
        self._do(stream, "copy_pages", self._copies.copy, unit_bytes, read, written)

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units."""
        if not unit_bytes or not len(pages):
            return
        written = self._copies.checked(unit_bytes, pages, is_kept=stream is not self._inline)
        self._do(stream, "zero_pages", self._copies.zero, unit_bytes, written)

    def stream(self, name: str) -> Stream:
        """The stream of this name, warm from the start.

        Raises:
            KvarenaError: the device was closed.
        """
        stream = WorkerStreams.stream(self, name)
        self._do(stream, "warm", self._copies.warm)
        return stream

    def warm(self, units_bytes: Sequence[int]) -> None:
        """Give every stream's thread, and the caller's, the buffer for small units. Nothing compiles here."""
        sizes = tuple(units_bytes)
        streams: list[Stream] = [self._inline, *self._workers]
        for stream in streams:
            self._do(stream, "warm", self._copies.warm, sizes)
        tell_all(self._drain())

    def mirror(self, size: int, slots: int, slot_entries: int) -> Mirror:
        """Host integers in an array of int32; each update is scattered on the stream it was given to."""
        return StagedMirror(size, slots, slot_entries, self._do)

    def host_memory(self, unit_bytes: int, count: int) -> Any:
        """Page-aligned memory outside the arena, zero: it lives as long as somebody holds it.

        Raises:
            KvarenaError: the system has no such mapping to give.
        """
        size = unit_bytes * count
        return np.frombuffer(mapped(size, huge_pages=self.huge_pages), dtype=np.uint8)[:size].reshape(count, unit_bytes)

    def save(self, stream: Stream, pages: Touch, host: Any, places: IntArray) -> None:
        """Copy pages of the arena to ``host[places]``."""
        if self._has_pairs(pages, places):
            unit_bytes, is_kept = pages.unit_bytes, stream is not self._inline
            read = self._copies.checked(unit_bytes, pages.pages, is_kept=is_kept)
            written = host_rows(host, unit_bytes, places, is_written=True, is_kept=is_kept)
            self._do(stream, "save", self._copies.save, unit_bytes, read, host, written)

    def load(self, stream: Stream, host: Any, places: IntArray, pages: Touch) -> None:
        """Copy ``host[places]`` to pages of the arena."""
        if self._has_pairs(pages, places):
            unit_bytes, is_kept = pages.unit_bytes, stream is not self._inline
            read = host_rows(host, unit_bytes, places, is_written=False, is_kept=is_kept)
            written = self._copies.checked(unit_bytes, pages.pages, is_kept=is_kept)
            self._do(stream, "load", self._copies.load, unit_bytes, host, read, written)

    def close(self) -> None:
        """Wait for all work, end all streams and let go of the arena: the memory is free once the last view is gone.

        Raises:
            KvarenaError: work failed and nobody was told; the device is closed all the same.
        """
        failures = self._end()
        self._copies.arena, self._copies.mapping = NO_BYTES, None
        self.arena_bytes = 0
        tell_all(failures)

    def _has_pairs(self, pages: Touch, places: IntArray) -> bool:
        """Whether there is a page to copy; each has its place."""
        invariant("device.copy_pairs", len(pages.pages) == len(places), pages=len(pages.pages), places=len(places))
        return bool(pages.unit_bytes and len(places))
