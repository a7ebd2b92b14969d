"""Mirrors and tables of a GPU device: packed updates, and one kernel that translates everything."""

from typing import Any

import numpy as np
import pytest
from gpu_toys import NEEDS_TRITON, ToyDevice

from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import Lookup, TableMirror

KINDS = pytest.mark.parametrize(
    "settings_of",
    [
        pytest.param({"kernels": "triton"}, marks=NEEDS_TRITON),
        {"kernels": "torch"},
        {"kernels": "torch", "lag": 5},
    ],
    ids=str,
)


def device_of(**settings: Any) -> ToyDevice:
    device = ToyDevice(**{"kernels": "torch", **settings})
    device.reserve(64)
    return device


@KINDS
def test_updates_are_written_in_order_and_read_in_any_shape(settings_of: dict[str, Any]) -> None:
    """All zero at first; whichever slot they go through; read as int64; int32 to its last value."""
    device = device_of(**settings_of)
    stream, mirror = device.stream("forward"), device.mirror(10, 3, 4)
    assert mirror.size == 10
    assert isinstance(mirror, TableMirror)
    positions, values = np.array([9, 0, 3, 4]), np.array([7, 8, 9, 10])
    mirror.apply(stream, 0, np.array([1, 9]), np.array([-(2**31), 2**31 - 1]))
    mirror.apply(stream, 2, positions, values)
    positions[:], values[:] = 0, 99  # the slot was filled at the call
    mirror.apply(stream, 1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    device.synchronize(device.record(stream))
    read = mirror.read(np.array([[0, 1, 2], [3, 4, 9]]))
    assert read.dtype == np.int64
    assert read.tolist() == [[8, -(2**31), 0], [9, 10, 7]]
    assert mirror.read(np.empty((2, 0), dtype=np.int64)).shape == (2, 0)
    assert int(mirror.read(np.array(9))) == 7


def test_an_update_that_does_not_fit_is_refused_whole() -> None:
    """By the names that other devices say; the next right update through the slot is fine."""
    device = device_of()
    stream, mirror = device.current(), device.mirror(10, 2, 4)
    for name, slot, positions, values in (
        ("slot_inside", 2, [1], [1]),
        ("update_fits_its_slot", 0, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        ("update_pairs", 0, [1, 2], [1]),
        ("positions_inside", 0, [1, 10], [1, 1]),
        ("positions_inside", 0, [-1, 1], [1, 1]),
        ("values_are_int32", 0, [1, 2], [1, 2**31]),
    ):
        with pytest.raises(InvariantError, match=rf"mirror\.{name}"):
            mirror.apply(stream, slot, np.array(positions), np.array(values))
    with pytest.raises(InvariantError, match=r"mirror\.positions_inside"):
        mirror.read(np.array([10]))
    with pytest.raises(InvariantError, match=r"mirror\.positions_inside"):
        mirror.tables(2, 9, [Lookup(1, 0, 1, 0, 1)])
    assert not mirror.read(np.arange(10)).any()
    mirror.apply(stream, 0, np.array([1]), np.array([5]))
    assert mirror.read(np.arange(3)).tolist() == [0, 5, 0]
    with pytest.raises(InvariantError, match=r"mirror\.staging"):
        device.mirror(10, 0, 4)


def test_a_slot_is_not_overwritten_under_its_update() -> None:
    """A second update through a slot that is still in use is refused, and the first one arrives whole."""
    device = device_of(lag=11)
    device.platform.restless = False  # type: ignore[attr-defined]
    mirror, forward = device.mirror(4, 2, 4), device.stream("forward")
    mirror.apply(forward, 0, np.array([1]), np.array([10]))
    with pytest.raises(InvariantError, match=r"mirror\.staging_in_use: slot=0"):
        mirror.apply(forward, 0, np.array([2]), np.array([20]))
    device.synchronize(device.record(forward))
    assert mirror.read(np.arange(4)).tolist() == [0, 10, 0, 0]
    mirror.apply(forward, 0, np.array([2]), np.array([20]))
    device.synchronize(device.record(forward))
    assert mirror.read(np.arange(4)).tolist() == [0, 10, 20, 0]


@KINDS
def test_tables_are_filled_where_they_stand(settings_of: dict[str, Any]) -> None:
    """Rows of the batch, each id through its map; arrays stay where they are, call after call."""
    device = device_of(**settings_of)
    forward = device.stream("forward")
    mirror = device.mirror(20, 1, 20)
    tables = mirror.tables(2, 18, [Lookup(3, 8, 4, 0, 7), Lookup(1, 16, 1, 0, 7)])  # type: ignore[attr-defined]
    places = [array.data_ptr() for array in tables.arrays]
    maps, rows, slots = [70, 71, 72, 73, 74, 75, 76, 77], [0, 2, -1, 1, 3, -1, 5, 6], [4, -1]
    for batch, first in (([1, 0], [[73, 77, 75], [70, 72, 77]]), ([0, 0], [[70, 72, 77]] * 2)):
        mirror.apply(forward, 0, np.arange(20), np.array([*maps, *rows, *slots, *batch]))
        device.run(forward, lambda: tables.translate(2, 3), (), ())
        device.synchronize(device.record(forward))
        assert tables.arrays[0].tolist() == first
        assert tables.arrays[1].tolist() == [[77 if row else 74] for row in batch]
    assert [array.data_ptr() for array in tables.arrays] == places
    tables.translate(0, 3)
    tables.translate(2, 0)
    assert tables.arrays[0].tolist() == first
