"""A mirror in memory: host integers as int32, written through a ring of staging slots."""

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import IntArray, Stream

INT32_HALF = 1 << 31
MOST = np.maximum.reduce
UNSIGNED = np.uint64

Put = Callable[..., None]
"""Called with a stream, a title, work and its arguments: run it in its turn."""


class StagedMirror:
    """The integers, and one staging slot for each update that may be under way.

    An update's life:  1. applied   its positions and values stand in the slot; whoever applied it may change its own.
                       2. scattered its turn on the stream came: they are read from the slot; the slot is free again.
    """

    def __init__(self, size: int, slots: int, slot_entries: int, put: Put) -> None:
        check_shape(size, slots, slot_entries)
        self.size = size
        self._slot_entries = slot_entries
        self._values: npt.NDArray[np.int32] = np.zeros(size, dtype=np.int32)
        self._staging: npt.NDArray[np.int32] = np.zeros((slots, 2, slot_entries), dtype=np.int32)
        self._in_use = [False] * slots
        self._put = put

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        """Write ``values`` at ``positions`` through the slot, when the turn comes; the slot is filled now.

        Raises:
            InvariantError: positions or values that do not fit, or a slot that is in use; nothing has changed.
        """
        positions, values = np.asarray(positions, dtype=np.int64), np.asarray(values, dtype=np.int64)
        count = len(positions)
        check_update((len(self._in_use), self._slot_entries), self.size, slot, positions, values)
        if self._in_use[slot]:
            fail_in_use(slot)
        staging = self._staging[slot]
        staging[0, :count] = positions
        staging[1, :count] = values
        self._in_use[slot] = True
        try:
            self._put(stream, "mirror update", self._scatter, slot, count)
        except BaseException:
            self._in_use[slot] = False
            raise

    def read(self, positions: IntArray) -> IntArray:
        """What stands at these positions, any shape.

        Raises:
            InvariantError: a position outside.
        """
        positions = np.asarray(positions, dtype=np.int64)
        check_positions(positions, self.size)
        found: IntArray = self._values.take(positions, mode="clip").astype(np.int64) if positions.size else positions
        return found

    def _scatter(self, slot: int, count: int) -> None:
        positions, values = self._staging[slot, :, :count]
        self._values[positions] = values
        self._in_use[slot] = False


def check_shape(size: int, slots: int, slot_entries: int) -> None:
    """A mirror that can be: its places have numbers of 32 bits, and its ring has slots."""
    invariant("mirror.size", 0 <= size <= INT32_HALF, size=size)
    invariant("mirror.staging", slots > 0 and slot_entries >= 0, slots=slots, slot_entries=slot_entries)


def check_update(ring: tuple[int, int], size: int, slot: int, positions: IntArray, values: IntArray) -> None:
    """An update, whole, before anything changes. ``ring``: how many slots there are, and the entries of one."""
    count, (slots, slot_entries) = len(positions), ring
    if not 0 <= slot < slots:
        fail("mirror.slot_inside", slot=slot, slots=slots)
    if positions.shape != (count,) or values.shape != (count,):
        fail("mirror.update_pairs", positions=positions.shape, values=values.shape)
    if count > slot_entries:
        fail("mirror.update_fits_its_slot", entries=count, slot_entries=slot_entries)
    check_positions(positions, size)
    if count and MOST((values + INT32_HALF).view(UNSIGNED)) >= 2 * INT32_HALF:
        fail("mirror.values_are_int32", least=int(values.min()), most=int(values.max()))


def check_positions(positions: IntArray, size: int) -> None:
    """No position below 0, which is a huge unsigned one, or beyond the end."""
    if positions.size and MOST(positions.view(UNSIGNED), axis=None) >= size:
        fail("mirror.positions_inside", least=int(positions.min()), most=int(positions.max()), size=size)


def fail_in_use(slot: int) -> NoReturn:
    """A slot is filled under an update that has not ended.

    Raises:
        InvariantError: always.
    """
    fail("mirror.staging_in_use", slot=slot, cure="wait for the update that is in it")
