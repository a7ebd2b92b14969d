"""Bytes moved by several threads, to and from memory outside the arena, and without allocating."""

import mmap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.backends.cpu import CpuDevice
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import FieldView, Touch

KIB = 1 << 10
PATIENCE_S = 30
LIST_OBJECTS = 32 * KIB
"""Python integers, which are made of a bounded part of a list at a time."""


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    """Four MiB of bytes that tell where they were."""
    device = CpuDevice()
    device.reserve(4 << 20)
    raw(device)[:] = np.random.default_rng(0).integers(0, 256, device.arena_bytes, dtype=np.uint8)
    yield device
    device.close()


def raw(device: CpuDevice) -> Any:
    """The arena's bytes."""
    return device.view(FieldView("uint8", (), 1, 0, 1, device.arena_bytes)).numpy().reshape(-1)


def rows(device: CpuDevice, unit: int) -> Any:
    """The arena, a row for each unit."""
    return raw(device)[: device.arena_bytes // unit * unit].reshape(-1, unit)


def waits(gate: threading.Event | threading.Barrier) -> Callable[[], None]:
    """Work that stands there until it is let go."""

    def work() -> None:
        gate.wait(PATIENCE_S)

    return work


@pytest.mark.parametrize("unit", [24, 1024, 4096])
def test_streams_copy_at_once_and_none_spoils_anothers_bytes(device: CpuDevice, unit: int) -> None:
    """Four streams and the caller gather scattered pages of their own parts together, many times over."""
    actors = [device.stream(f"part {number}") for number in range(4)]
    count = device.arena_bytes // unit // 5
    before = rows(device, unit).copy()
    start, gone = threading.Barrier(5), []
    for part, stream in enumerate((*actors, device.current())):
        order = np.random.default_rng(part).permutation(count) + part * count
        sources, targets = order[: count // 2], order[count // 2 : count // 2 * 2]
        gone.append((sources, targets))
        device.run(stream, waits(start), (), ())
        for _ in range(10):
            device.copy_pages(stream, unit, sources, targets)
    for stream in actors:
        device.synchronize(device.record(stream))
    expected = before.copy()
    for sources, targets in gone:
        expected[targets] = before[sources]
    assert np.array_equal(rows(device, unit), expected)


@pytest.mark.req("CMP-7")
@pytest.mark.parametrize("unit", [64, 1024, 4096, 16 * KIB, 256 * KIB])
@pytest.mark.parametrize("run", [1, 8])
def test_a_warm_device_allocates_for_no_move(device: CpuDevice, unit: int, run: int) -> None:
    """Whatever the pages weigh, copying and zeroing them takes integers for lists of them and no more."""
    early = device.stream("early")
    device.warm([64, unit])
    streams = early, device.stream("late"), device.current()
    pages = min(1024, device.arena_bytes // unit) // run // 2 * 2
    order = (np.random.default_rng(1).permutation(pages)[:, None] * run + np.arange(run)).reshape(2, -1)
    list_bytes = order.nbytes
    for stream in streams:
        device.synchronize(device.record(stream))
    for stream in streams:
        tracemalloc.start()
        device.copy_pages(stream, unit, order[0], order[1])
        device.zero_pages(stream, unit, order[0])
        device.synchronize(device.record(stream))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < LIST_OBJECTS + 6 * list_bytes, (stream, unit, peak, list_bytes)


@pytest.mark.req("CMP-7")
def test_a_cold_stream_would_allocate(device: CpuDevice) -> None:
    """What the test above counts is there to be found: a thread that was never warmed takes a buffer for its move."""
    peaks = list[int]()

    def work() -> None:
        tracemalloc.start()
        device.copy_pages(device.current(), 1024, np.arange(64), np.arange(64, 128))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert min(peaks) > 256 * KIB


def test_warming_changes_no_byte_and_takes_any_size(device: CpuDevice) -> None:
    """Sizes that no arena holds, and none; an arena of nothing."""
    before = raw(device).copy()
    device.stream("memory")
    device.warm([0, 1, 24, 4096, 1 << 30])
    device.warm([])
    assert np.array_equal(raw(device), before)
    empty = CpuDevice()
    empty.warm([64])
    empty.reserve(0)
    empty.warm([64])
    empty.close()


def test_host_memory_is_aligned_zero_and_outside(device: CpuDevice) -> None:
    """Rows of one unit each; it outlives the device; what the system cannot give is refused."""
    host = device.host_memory(3000, 7)
    assert (host.shape, host.dtype) == ((7, 3000), np.uint8)
    assert host.ctypes.data % mmap.PAGESIZE == 0
    assert not host.any()
    host[6, 2999] = 1
    assert not np.shares_memory(host, raw(device))
    assert device.host_memory(0, 5).shape == (5, 0)
    assert device.host_memory(64, 0).shape == (0, 64)
    with pytest.raises(KvarenaError, match="cannot reserve"):
        device.host_memory(1 << 40, 1 << 22)


PLACES = st.lists(st.tuples(st.integers(0, 39), st.integers(0, 59), st.integers(1, 30)), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 24, 700, 4096, 9000, 70_000]), PLACES, st.booleans(), st.integers(0, 2**32 - 1))
def test_saved_and_loaded_like_a_plain_loop(
    unit: int, segments: list[tuple[int, int, int]], beside: bool, seed: int
) -> None:
    """Runs and single pages that may overlap in pages and in places: pair by pair, the last one wins."""
    pairs = [(p + i, q + i) for p, q, length in segments for i in range(length) if p + i < 40 and q + i < 60]
    pages, places = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    device = CpuDevice()
    device.reserve(40 * unit + unit // 2)
    raw(device)[:] = np.random.default_rng(seed).integers(0, 256, device.arena_bytes, dtype=np.uint8)
    stream = device.stream("host") if beside else device.current()
    host = device.host_memory(unit, 60)
    host_expected, arena = host.copy(), rows(device, unit)
    for page, place in pairs:
        host_expected[place] = arena[page]
    device.save(stream, Touch(unit, pages, "full"), host, places)
    device.synchronize(device.record(stream))
    assert np.array_equal(host, host_expected)

    host[:] = np.random.default_rng(seed + 1).integers(0, 256, host.shape, dtype=np.uint8)
    expected = arena.copy()
    for page, place in pairs:
        expected[page] = host[place]
    device.load(stream, host, places, Touch(unit, pages, "full"))
    device.synchronize(device.record(stream))
    assert np.array_equal(arena, expected)
    device.close()


@pytest.mark.parametrize("unit", [64, 4096, 20_000])
def test_a_round_trip_through_host_memory(device: CpuDevice, unit: int) -> None:
    """Saved, zeroed, loaded elsewhere: queued in a row on one stream, the lists written over by the caller at once."""
    stream, host = device.stream("host"), device.host_memory(unit, 64)
    count = min(50, device.arena_bytes // unit // 2)
    pages = np.random.default_rng(2).permutation(2 * count)
    sources, targets, places = pages[:count].copy(), pages[count:].copy(), np.arange(count)[::-1].copy()
    expected = rows(device, unit)[sources].copy()
    gate = threading.Event()
    device.run(stream, waits(gate), (), ())
    device.save(stream, Touch(unit, sources, "full"), host, places)
    device.zero_pages(stream, unit, sources)
    device.load(stream, host, places, Touch(unit, targets, "full"))
    kept = [array.copy() for array in (sources, targets)]
    for array in (sources, targets, places):
        array[:] = 0
    gate.set()
    device.synchronize(device.record(stream))
    assert np.array_equal(rows(device, unit)[kept[1]], expected)
    assert not rows(device, unit)[kept[0]].any()


def test_saves_and_loads_are_checked_when_they_are_given(device: CpuDevice) -> None:
    """Pages, places and the memory itself, by name, before a byte changes; nothing to do is fine."""
    stream, host = device.stream("host"), device.host_memory(64, 4)
    pages, none = np.array([1, 2]), np.empty(0, dtype=np.int64)
    frozen = host.copy()
    frozen.flags.writeable = False
    wrong = [
        ("device.copy_pairs", pages, host, np.array([1])),
        ("device.pages_inside", np.array([1, 1 << 16]), host, pages),
        ("device.places_inside", pages, host, np.array([1, 4])),
        ("device.places_inside", pages, host, np.array([1, -1])),
        ("device.host_memory:", pages, device.host_memory(65, 4), pages),
        ("device.host_memory:", pages, host.view(np.int8), pages),
        ("device.host_memory:", pages, np.zeros((4, 128), dtype=np.uint8)[:, ::2], pages),
        ("device.host_memory:", pages, None, pages),
    ]
    before = raw(device).copy()
    for name, touched, memory, places in wrong:
        with pytest.raises(InvariantError, match=name.replace(".", r"\.")):
            device.save(stream, Touch(64, touched, "full"), memory, places)
        with pytest.raises(InvariantError, match=name.replace(".", r"\.")):
            device.load(stream, memory, places, Touch(64, touched, "full"))
    with pytest.raises(InvariantError, match=r"device\.host_memory_is_writable"):
        device.save(stream, Touch(64, pages, "full"), frozen, pages)
    device.save(stream, Touch(64, none, "full"), host, none)
    device.load(stream, device.host_memory(0, 4), pages, Touch(0, pages, "full"))
    device.synchronize(device.record(stream))
    assert not host.any()
    assert np.array_equal(raw(device), before)
    device.load(stream, frozen, pages, Touch(64, pages, "full"))
    device.synchronize(device.record(stream))
    assert not rows(device, 64)[pages].any()
