"""A mirror on a GPU: one upload from pinned staging and one kernel an update, one kernel for all tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvarena.backends.gpu_kernels import Kernels
from kvarena.backends.gpu_platform import Platform
from kvarena.backends.gpu_streams import GpuStreams
from kvarena.backends.gpu_tables import TablePlan
from kvarena.backends.staged_mirror import check_positions, check_shape, check_update, fail_in_use
from kvarena.terms.ports import IntArray, Lookup, Stream
from kvarena.terms.units import align_up

ALIGNED = 64
"""Slots begin on multiples of so many numbers, so that a kernel is compiled for one alignment."""


class GpuMirror:
    """The integers, and one staging slot, pinned and on the device, for each update that may be under way.

    An update's life:  1. applied   its positions and values stand in pinned memory, packed one behind the other.
                       2. written   its turn on the stream came: one upload, one kernel; the slot is free again.
    """

    def __init__(self, streams: GpuStreams, kernels: Kernels, size: int, ring: tuple[int, int]) -> None:
        slots, entries = ring
        check_shape(size, slots, entries)
        self.size = size
        self._streams, self._kernels, self._ring = streams, kernels, ring
        self._platform = streams.platform
        room = align_up(max(1, 2 * entries), ALIGNED)
        self._values = self._platform.zeros(max(1, size), torch.int32)
        self._staged = self._platform.zeros(slots * room, torch.int32).view(slots, room)
        self._pinned = self._platform.pinned(slots * room, torch.int32).view(slots, room)
        self._numbers: Any = self._pinned.numpy()
        self._events: list[Any] = [None] * slots
        self._platform.put(self._platform.current(), self._scatter, 0, 1)  # compiled: 0 at place 0
        self._platform.synchronize()

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        """Write ``values`` at ``positions`` through the slot, when the turn comes; the slot is filled now.

        Raises:
            InvariantError: positions or values that do not fit, or a slot that is in use; nothing has changed.
        """
        positions, values = np.asarray(positions, dtype=np.int64), np.asarray(values, dtype=np.int64)
        count, platform = len(positions), self._platform
        check_update(self._ring, self.size, slot, positions, values)
        event = self._events[slot]
        if event is not None and not platform.has_come(event):
            fail_in_use(slot)
        handle = self._streams.handle(stream)
        if count:
            self._numbers[slot, :count] = positions
            self._numbers[slot, count : 2 * count] = values
            platform.put(handle, self._scatter, slot, count)
            self._events[slot] = platform.record(handle, event)

    def read(self, positions: IntArray) -> IntArray:
        """What stands at these positions, any shape. The host waits for it: for checks, not for kernels.

        Raises:
            InvariantError: a position outside.
        """
        positions = np.asarray(positions, dtype=np.int64)
        check_positions(positions, self.size)
        if not positions.size:
            return positions
        found = self._values.take(torch.from_numpy(positions.copy()).to(self._values.device))
        as_host: IntArray = found.cpu().numpy().astype(np.int64)
        return as_host

    def tables(self, rows: int, batch_at: int, lookups: Sequence[Lookup]) -> "GpuTables":
        """Tables of so many rows; the numbers of their rows stand in the mirror from ``batch_at`` on."""
        check_positions(np.arange(batch_at, batch_at + rows), self.size)
        plan = TablePlan.open(self._platform, rows, batch_at, lookups)
        return GpuTables(self._platform, self._kernels, self._values, plan)

    def _scatter(self, slot: int, count: int) -> None:
        staged = self._staged[slot]
        self._platform.upload(staged[: 2 * count], self._pinned[slot, : 2 * count])
        self._kernels.scatter(self._values, staged, count)


class GpuTables:
    """Tables of one mirror: tensors whose addresses stay, so that a captured graph may fill and read them."""

    def __init__(self, platform: Platform, kernels: Kernels, values: torch.Tensor, plan: TablePlan) -> None:
        self._platform, self._kernels, self._values, self._plan = platform, kernels, values, plan
        self.arrays: Sequence[Any] = plan.arrays()
        self.translate(1, max(one.width for one in plan.lookups))  # compiled, and loaded
        platform.synchronize()

    def translate(self, rows: int, width: int) -> None:
        """Fill the first rows, up to this width: one kernel on torch's current stream, nothing else."""
        if rows and width:
            put, kernels = self._platform.put, self._kernels
            put(self._platform.current(), kernels.translate, self._values, self._plan, rows, width)
