"""A device on a GPU: one allocation, read and written through torch views, moved by kernels and copy engines."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import attrs
import numpy as np
import torch

from kvarena.backends.gpu_kernels import AUTO, TORCH, TRITON, Kernels, TorchKernels, choose
from kvarena.backends.gpu_mirror import GpuMirror
from kvarena.backends.gpu_streams import GpuStreams
from kvarena.backends.gpu_uploads import Uploads, Use
from kvarena.backends.page_lists import are_inside, host_rows, last_writes, rounds_of, run_sizes, run_starts
from kvarena.backends.views import typed_view
from kvarena.terms.errors import KvarenaError
from kvarena.terms.events import event_log
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import FieldView, IntArray, Mirror, Stream, Touch
from kvarena.terms.units import format_bytes

_log = event_log()

Run = tuple[int, int, int]
"""Where a run of pages is read and written, and how long it is, in bytes."""
FEW_RUNS = 4
"""So many runs go to the copy engines one by one, at most: cheaper than to send their pages to a kernel."""
RUN_BYTES = 256 << 10
"""To and from the host, runs from this mean size on go to the copy engines however many there are."""
NO_BYTES = torch.empty(0, dtype=torch.uint8)


@attrs.define(eq=False)
class GpuDevice(GpuStreams):
    """The arena is one allocation, made once: its base never moves, and views of it stay good until ``close``.

    ``device``: the number of the device. ``kernels``: ``triton``, ``torch``, or ``auto``, which is Triton's where they
    work when the arena is reserved. What a call names is checked and copied when it is called; the rest is the
    stream's. Everything is called by one thread.
    """

    holds_bytes = True
    device: int = attrs.field(default=0, validator=attrs.validators.ge(0), kw_only=True)
    kernels: str = attrs.field(default=AUTO, validator=attrs.validators.in_((AUTO, TRITON, TORCH)), kw_only=True)
    arena_bytes: int = attrs.field(default=0, init=False)
    chosen: Kernels = attrs.field(factory=TorchKernels, init=False, repr=False)
    why: str = attrs.field(default="", init=False, repr=False)
    """Why these kernels run, in words."""
    _whole: torch.Tensor = attrs.field(default=NO_BYTES, init=False, repr=False)
    _arena: torch.Tensor = attrs.field(default=NO_BYTES, init=False, repr=False)
    _uploads: Uploads | None = attrs.field(default=None, init=False, repr=False)
    _held: deque[tuple[Any, Any]] = attrs.field(factory=deque, init=False, repr=False)
    """Memory of the host that a copy reads or writes, until the event behind it has come."""
    _pinned: WeakValueDictionary[int, Any] = attrs.field(factory=WeakValueDictionary, init=False, repr=False)
    """What ``host_memory`` gave, by its address: a kernel may go there, and nowhere else on the host."""

    def open_kernels(self) -> tuple[Kernels, str]:
        """The kernels that work here, and why these.

        Raises:
            KvarenaError: Triton's are wanted, and do not work here.
        """
        return choose(self.platform, self.kernels)

    def reserve(self, arena_bytes: int) -> None:
        """Get the arena, zeroed, and choose the kernels.

        Raises:
            KvarenaError: the device has not as much memory, or lacks the kernels that the config names.
        """
        invariant("device.reserved_once", self._uploads is None, arena_bytes=self.arena_bytes)
        self.platform.memory().check(self.platform.name, arena_bytes)
        self.chosen, self.why = self.open_kernels()
        if self.chosen.name != TRITON and self.kernels != TORCH:
            _log.warning("device.kernels_fall_back", backend=self.platform.name, why=self.why)
        self._whole = self.platform.zeros(arena_bytes, torch.uint8)
        self._uploads = Uploads(self.platform)
        self.platform.synchronize()
        self._arena, self.arena_bytes = self._whole, arena_bytes

    def resize(self, arena_bytes: int) -> None:
        """Move the top inside what was reserved: what lies above stays the device's, and comes back as zeros.

        All streams are waited for.

        Raises:
            KvarenaError: more than was reserved; nothing has changed.
        """
        if arena_bytes > len(self._whole):
            raise KvarenaError(
                f"{self.words} reserved {format_bytes(len(self._whole))} and cannot grow to "
                f"{format_bytes(arena_bytes)} without moving the base; reserve the largest size first"
            )
        self.platform.synchronize()
        self._whole[arena_bytes:].zero_()
        self.platform.synchronize()
        self._arena, self.arena_bytes = self._whole[:arena_bytes], arena_bytes

    def view(self, field: FieldView) -> torch.Tensor:
        """A tensor of shape ``(pages, rows, *shape)`` over the arena.

        Raises:
            KvarenaError: torch has no such dtype, or the items do not lie on multiples of their size.
        """
        return typed_view(self._arena, field)

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units; no target is also a later source of the same call. One copy or one kernel, mostly."""
        invariant("device.copy_pairs", len(sources) == len(targets), sources=len(sources), targets=len(targets))
        if not unit_bytes or not len(sources):
            return
        sources, targets = self._checked(unit_bytes, sources), self._checked(unit_bytes, targets)
        handle = self.handle(stream)
        for read, written in rounds_of(sources, targets):
            first = run_starts(read, written)
            if len(first) <= FEW_RUNS:
                runs = _runs(first, unit_bytes, read, written)
                self.platform.put(handle, self._move, self._arena, self._arena, runs)
            else:
                self._send(handle, partial(self.chosen.copy, unit_bytes, self._arena, self._arena), read, written)

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units: by runs where these are few, else one kernel."""
        if not unit_bytes or not len(pages):
            return
        pages, handle = self._checked(unit_bytes, pages), self.handle(stream)
        first = run_starts(pages)
        if len(first) <= FEW_RUNS:
            runs = _runs(first, unit_bytes, pages, pages)
            self.platform.put(handle, _zero, self._arena, runs)
        else:
            self._send(handle, partial(self.chosen.zero, unit_bytes, self._arena), pages)

    def warm(self, units_bytes: Sequence[int]) -> None:
        """Launch the kernels for units of each size once, over no pages: they are compiled, and loaded."""
        for unit_bytes in units_bytes:
            if 0 < unit_bytes <= self.arena_bytes:
                self._warm(unit_bytes, self._arena, self._arena)
        self.platform.synchronize()

    def mirror(self, size: int, slots: int, slot_entries: int) -> Mirror:
        """Host integers in memory of the device; each update is one upload and one kernel."""
        return GpuMirror(self, self.chosen, size, (slots, slot_entries))

    def host_memory(self, unit_bytes: int, count: int) -> Any:
        """Page-locked memory, zero, as a numpy array: it lives as long as somebody holds it, or work on it.

        Raises:
            KvarenaError: the system does not lock as much.
        """
        memory = self.platform.pinned(unit_bytes * count, torch.uint8)
        if self.chosen.reaches_host and 0 < unit_bytes <= min(len(memory), self.arena_bytes):
            self._warm(unit_bytes, self._arena, memory)
            self._warm(unit_bytes, memory, self._arena)
            self.platform.synchronize()
        host = memory.numpy().reshape(count, unit_bytes)
        if len(memory):
            self._pinned[host.ctypes.data] = host
        return host

    def save(self, stream: Stream, pages: Touch, host: Any, places: IntArray) -> None:
        """Copy pages of the arena to ``host[places]``."""
        self._across(stream, pages, host, places, saves=True)

    def load(self, stream: Stream, host: Any, places: IntArray, pages: Touch) -> None:
        """Copy ``host[places]`` to pages of the arena."""
        self._across(stream, pages, host, places, saves=False)

    def close(self) -> None:
        """Wait for all work and let go of the arena: the memory is free once the last view is gone.

        Raises:
            KvarenaError: work on the device failed; the device is closed all the same.
        """
        try:
            self.platform.synchronize()
        finally:
            self._is_closed = True
            self._whole = self._arena = NO_BYTES
            self._uploads, self.arena_bytes = None, 0
            self._held.clear()

    # -- inside

    def _across(self, stream: Stream, pages: Touch, host: Any, places: IntArray, *, saves: bool) -> None:
        """Between the arena and the host: by runs where these are few or long, else by a kernel, to pinned memory."""
        unit_bytes, count = pages.unit_bytes, len(places)
        invariant("device.copy_pairs", len(pages.pages) == count, pages=len(pages.pages), places=count)
        if not unit_bytes or not count:
            return
        at, there = host_rows(host, unit_bytes, places, is_written=saves), torch.from_numpy(host.reshape(-1))
        here, handle = self._checked(unit_bytes, pages.pages), self.handle(stream)
        read, written = last_writes(here, at) if saves else last_writes(at, here)
        source, target = (self._arena, there) if saves else (there, self._arena)
        first, reaches = run_starts(read, written), self.chosen.reaches_host and host.ctypes.data in self._pinned
        if not reaches or len(first) <= FEW_RUNS or len(first) * RUN_BYTES <= len(read) * unit_bytes:
            self.platform.put(handle, self._move, source, target, _runs(first, unit_bytes, read, written))
        else:
            self._send(handle, partial(self.chosen.copy, unit_bytes, source, target), read, written)
        while self._held and self.platform.has_come(self._held[0][0]):
            self._held.popleft()
        self._held.append((self.platform.record(handle), host))

    def _checked(self, unit_bytes: int, pages: IntArray) -> IntArray:
        """The pages, copied: all inside the arena."""
        pages = np.array(pages, dtype=np.int64)
        count = self.arena_bytes // unit_bytes
        if not are_inside(pages, count):
            fail("device.pages_inside", unit_bytes=unit_bytes, pages=count)
        return pages

    def _send(self, handle: Any, use: Use, *lists: IntArray) -> None:
        assert self._uploads is not None
        self._uploads.send(handle, use, *lists)

    def _warm(self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor) -> None:
        self.platform.put(self.platform.current(), self.chosen.warm, unit_bytes, source, target)

    def _move(self, source: torch.Tensor, target: torch.Tensor, runs: Sequence[Run]) -> None:
        for start, place, size in runs:
            self.platform.move(target[place : place + size], source[start : start + size])


def _zero(arena: torch.Tensor, runs: Sequence[Run]) -> None:
    for start, _, size in runs:
        arena[start : start + size].zero_()


def _runs(first: IntArray, unit_bytes: int, read: IntArray, written: IntArray) -> list[Run]:
    """Runs of pages, by their bytes."""
    sizes = run_sizes(first, len(read)) * unit_bytes
    starts, places = read[first] * unit_bytes, written[first] * unit_bytes
    return list(zip(starts.tolist(), places.tolist(), sizes.tolist(), strict=True))
