"""Mirrors in memory: written at once to staging, read from it when the turn comes. Both devices have them."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvarena.backends.cpu import CpuDevice
from kvarena.backends.host import HostDevice
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Device

PATIENCE_S = 30


@pytest.fixture(params=[CpuDevice, HostDevice])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device: Device = request.param()
    device.reserve(64)
    yield device
    device.close()


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    device.reserve(64)
    yield device
    device.close()


def waits(gate: threading.Event) -> Callable[[], None]:
    """Work that stands there until it is let go."""

    def work() -> None:
        gate.wait(PATIENCE_S)

    return work


def test_updates_are_written_in_order_and_read_in_any_shape(device: Device) -> None:
    """All zero at first; whichever slot they go through; read as int64; int32 to its last value."""
    stream, mirror = device.stream("forward"), device.mirror(10, 3, 4)
    assert mirror.size == 10
    mirror.apply(stream, 0, np.array([1, 9]), np.array([-(2**31), 2**31 - 1]))
    mirror.apply(stream, 2, np.array([9, 0, 3, 4]), np.array([7, 8, 9, 10]))
    mirror.apply(stream, 1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    device.synchronize(device.record(stream))
    read = mirror.read(np.array([[0, 1, 2], [3, 4, 9]]))
    assert read.dtype == np.int64
    assert read.tolist() == [[8, -(2**31), 0], [9, 10, 7]]
    assert mirror.read(np.empty((2, 0), dtype=np.int64)).shape == (2, 0)
    assert int(mirror.read(np.array(9))) == 7


def test_an_update_that_does_not_fit_is_refused_whole(device: Device) -> None:
    """Slot, count, positions, values and pairs, each by name; the next right update through the slot is fine."""
    stream, mirror = device.current(), device.mirror(10, 2, 4)
    wrong = [
        ("mirror.slot_inside", 2, [1], [1]),
        ("mirror.slot_inside", -1, [1], [1]),
        ("mirror.update_fits_its_slot", 0, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        ("mirror.update_pairs", 0, [1, 2], [1]),
        ("mirror.positions_inside", 0, [1, 10], [1, 1]),
        ("mirror.positions_inside", 0, [-1, 1], [1, 1]),
        ("mirror.values_are_int32", 0, [1, 2], [1, 2**31]),
        ("mirror.values_are_int32", 0, [1, 2], [-(2**31) - 1, 1]),
        ("mirror.values_are_int32", 0, [1, 2], [2**63 - 1, 1]),
    ]
    for name, slot, positions, values in wrong:
        with pytest.raises(InvariantError, match=name.replace(".", r"\.")):
            mirror.apply(stream, slot, np.array(positions), np.array(values))
    for position in (10, -1):
        with pytest.raises(InvariantError, match=r"mirror\.positions_inside"):
            mirror.read(np.array([[0, position]]))
    assert not mirror.read(np.arange(10)).any()
    mirror.apply(stream, 0, np.array([1]), np.array([5]))
    assert mirror.read(np.arange(3)).tolist() == [0, 5, 0]
    with pytest.raises(InvariantError, match=r"mirror\.staging"):
        device.mirror(10, 0, 4)
    with pytest.raises(InvariantError, match=r"mirror\.size"):
        device.mirror(2**31 + 1, 1, 4)


def test_staging_is_filled_at_once_and_read_in_turn(cpu: CpuDevice) -> None:
    """What was applied is what was there at the call; work that is before it still reads the old integers."""
    stream, mirror = cpu.stream("forward"), cpu.mirror(4, 2, 4)
    gate, seen = threading.Event(), list[list[int]]()
    positions, values = np.array([1, 2]), np.array([10, 20])
    everything = np.arange(4)
    cpu.run(stream, waits(gate), (), ())
    cpu.run(stream, lambda: seen.append(mirror.read(everything).tolist()), (), ())
    mirror.apply(stream, 0, positions, values)
    cpu.run(stream, lambda: seen.append(mirror.read(everything).tolist()), (), ())
    mirror.apply(stream, 1, positions[::-1], values)
    cpu.run(stream, lambda: seen.append(mirror.read(everything).tolist()), (), ())
    positions[:], values[:] = 0, 99
    assert mirror.read(everything).tolist() == [0, 0, 0, 0]
    gate.set()
    cpu.synchronize(cpu.record(stream))
    assert seen == [[0, 0, 0, 0], [0, 10, 20, 0], [0, 20, 10, 0]]


def test_a_slot_is_not_overwritten_under_its_update(cpu: CpuDevice) -> None:
    """A second update through a slot that is still in use is refused, and the first one arrives whole."""
    stream, mirror = cpu.stream("forward"), cpu.mirror(4, 2, 4)
    gate = threading.Event()
    cpu.run(stream, waits(gate), (), ())
    mirror.apply(stream, 0, np.array([1]), np.array([10]))
    with pytest.raises(InvariantError, match=r"mirror\.staging_in_use: slot=0"):
        mirror.apply(stream, 0, np.array([2]), np.array([20]))
    gate.set()
    cpu.synchronize(cpu.record(stream))
    assert mirror.read(np.arange(4)).tolist() == [0, 10, 0, 0]
    mirror.apply(stream, 0, np.array([2]), np.array([20]))
    cpu.synchronize(cpu.record(stream))
    assert mirror.read(np.arange(4)).tolist() == [0, 10, 20, 0]


def fails() -> None:
    """Work that fails."""
    raise ValueError("seven is not eight")


def test_a_failed_stream_takes_no_update(cpu: CpuDevice) -> None:
    """The call raises; the slot is as free as before, for a stream that works."""
    broken, mirror = cpu.stream("broken"), cpu.mirror(4, 1, 4)
    cpu.run(broken, fails, (), ())
    with pytest.raises(KvarenaError, match="ValueError"):
        cpu.synchronize(cpu.record(broken))
    with pytest.raises(KvarenaError, match="stream 'broken' failed"):
        mirror.apply(broken, 0, np.array([1]), np.array([10]))
    mirror.apply(cpu.current(), 0, np.array([1]), np.array([11]))
    assert mirror.read(np.array([1])).tolist() == [11]
