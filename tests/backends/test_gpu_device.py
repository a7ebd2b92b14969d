"""The GPU device on memory of the host: what a device promises, on streams that are done at once and on late ones."""

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from gpu_scenes import STEPS, play_steps
from gpu_toys import NEEDS_TRITON, Blind, ToyDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.backends.cpu import CpuDevice
from kvarena.backends.gpu_kernels import Kernels
from kvarena.backends.gpu_platform import Memory
from kvarena.backends.gpu_uploads import ENTRIES, SLOTS, Uploads
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.fields import DTYPE_BYTES
from kvarena.terms.ports import Device, FieldView, Touch

KINDS = pytest.mark.parametrize(
    "settings_of",
    [
        pytest.param({"kernels": "triton"}, marks=NEEDS_TRITON),
        {"kernels": "torch"},
        {"kernels": "torch", "lag": 5},
    ],
    ids=str,
)


def device_of(arena_bytes: int, **settings: Any) -> ToyDevice:
    device = ToyDevice(**{"kernels": "torch", **settings})
    device.reserve(arena_bytes)
    return device


def raw(device: Device, arena_bytes: int) -> Any:
    """The arena's bytes."""
    return device.view(FieldView("uint8", (), 1, 0, 1, arena_bytes)).numpy().reshape(-1)


def test_it_is_a_device_and_is_reserved_once() -> None:
    """Every operation of the port is there; a second arena would leave the first one's views behind."""
    device = device_of(64)
    assert isinstance(device, Device)
    assert (device.holds_bytes, device.has_streams, device.why) == (True, True, "as the config asks")
    with pytest.raises(InvariantError, match=r"device\.reserved_once"):
        device.reserve(64)


@pytest.mark.req("BLD-1")
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_views_of_every_dtype_are_the_arena(dtype: str) -> None:
    """The same strides as on the cpu: page p, row r of a field is at byte p * unit + offset + r * bytes."""
    item = DTYPE_BYTES[dtype]
    unit, arena = 16 * item, 5 * 16 * item + item // 2 + 1
    field = FieldView(dtype, (2, 3), 2, 2 * item, unit, 5)
    device, cpu = device_of(arena), CpuDevice()
    cpu.reserve(arena)
    view, other = device.view(field), cpu.view(field)
    assert (view.shape, view.stride(), view.dtype) == (other.shape, other.stride(), other.dtype)
    view[3, 1], other[3, 1] = torch.ones(2, 3).to(view.dtype), torch.ones(2, 3).to(view.dtype)
    assert np.array_equal(raw(device, arena), raw(cpu, arena))
    with pytest.raises(InvariantError, match=r"device\.view_inside"):
        device.view(attrs.evolve(field, pages=6))


@KINDS
@settings(max_examples=25)
@given(unit=st.integers(1, 80) | st.sampled_from([1024, 4100, 20_001]), steps=STEPS)
def test_the_same_calls_leave_the_same_bytes_as_on_the_cpu(
    settings_of: dict[str, Any], unit: int, steps: list[tuple[str, str, int, int]]
) -> None:
    """Copies, runs, blocks that slide, zeroes, saves and loads on two streams in order, compared byte for byte."""
    arena, host = play_steps(ToyDevice(**settings_of), unit, steps)
    arena_cpu, host_cpu = play_steps(CpuDevice(), unit, steps)
    assert np.array_equal(arena, arena_cpu)
    assert np.array_equal(host, host_cpu)


def copies_on_a_late_stream(lag: int) -> bool:
    """More scattered copies than there are slots, on a stream that is late; whether the bytes came out right."""
    device, unit = device_of(400 * 8, lag=lag), 8
    arena, expected = raw(device, 400 * 8).reshape(400, 8), np.empty((400, 8), dtype=np.uint8)
    rng = np.random.default_rng(lag)
    arena[:] = rng.integers(0, 256, arena.shape, dtype=np.uint8)
    expected[:] = arena
    for _ in range(2 * SLOTS + 3):
        order = rng.permutation(400)
        sources, targets = order[:20], order[20:40]
        device.copy_pages(device.stream("memory"), unit, sources, targets)
        expected[targets] = expected[sources]
    device.synchronize(device.record(device.stream("memory")))
    return bool(np.array_equal(arena, expected))


@pytest.mark.parametrize("lag", range(4))
def test_a_ring_that_is_full_is_waited_for_and_never_overwritten(lag: int) -> None:
    """Each copy has its own lists to the end."""
    assert copies_on_a_late_stream(lag)


def test_late_streams_show_a_slot_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself: a ring that always hands out its first slot is caught."""
    monkeypatch.setattr(Uploads, "_free", lambda uploads: 0)
    assert not copies_on_a_late_stream(0)


def test_a_list_longer_than_a_slot_takes_several() -> None:
    """In order; the pages of a later piece may be an earlier one's."""
    pages, unit = 2 * ENTRIES + 1000, 4
    device = device_of(pages * unit)
    arena = raw(device, pages * unit).reshape(pages, unit)
    arena[:] = np.random.default_rng(0).integers(0, 256, arena.shape, dtype=np.uint8)
    before, order = arena.copy(), np.random.default_rng(1).permutation(pages)
    zeroed = order[: ENTRIES + 300]
    device.zero_pages(device.current(), unit, zeroed)
    before[zeroed] = 0
    assert np.array_equal(arena, before)


def test_writes_to_one_page_leave_the_last_one() -> None:
    """As one copy after another would; a page onto itself is left alone."""
    device, unit = device_of(80), 8
    raw(device, 80)[:] = np.arange(80)
    device.copy_pages(device.current(), unit, np.array([0, 1, 2, 4, 8]), np.array([5, 5, 6, 4, 9]))
    found = raw(device, 80).reshape(10, 8)
    assert found[:, 0].tolist() == [0, 8, 16, 24, 32, 8, 16, 56, 64, 64]
    host = device.host_memory(unit, 1)
    device.save(device.current(), Touch(unit, np.array([1, 2]), "full"), host, np.array([0, 0]))
    assert host[0, 0] == 16


@pytest.mark.parametrize("wrong", [-1, 8, 2**40])
def test_a_page_outside_the_arena_is_caught_before_a_byte_changes(wrong: int) -> None:
    """As source, target, page to zero, to save or to load, and as a place of the host."""
    device = device_of(100 * 64)
    device.resize(8 * 64 + 63)
    raw(device, 8 * 64)[:] = 5
    host, good, bad = device.host_memory(64, 8), np.array([0, 1]), np.array([2, wrong])
    for sources, targets in ((good, bad), (bad, good)):
        with pytest.raises(InvariantError, match=r"device\.pages_inside"):
            device.copy_pages(device.current(), 64, sources, targets)
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.zero_pages(device.current(), 64, bad)
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.save(device.current(), Touch(64, bad, "full"), host, good)
    with pytest.raises(InvariantError, match=r"device\.places_inside"):
        device.load(device.current(), host, bad, Touch(64, good, "full"))
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        device.copy_pages(device.current(), 64, good, good[:1])
    with pytest.raises(InvariantError, match=r"device\.host_memory: expected='uint8 \(count, 64\)"):
        device.load(device.current(), np.zeros((8, 32), dtype=np.uint8), good, Touch(64, good, "full"))
    assert (raw(device, 8 * 64) == 5).all()
    assert not host.any()


def test_nothing_to_do_is_fine() -> None:
    """No pages, or units without bytes: nothing is asked of the device."""
    device = device_of(64)
    none, asked = np.empty(0, dtype=np.int64), len(device.calls)
    device.copy_pages(device.current(), 8, none, none)
    device.zero_pages(device.current(), 8, none)
    device.copy_pages(device.current(), 0, np.arange(3), np.arange(3))
    device.zero_pages(device.current(), 0, np.arange(3))
    device.save(device.current(), Touch(8, none, "full"), device.host_memory(8, 0), none)
    assert [call for call in device.calls[asked:] if call != "allocation"] == []


@pytest.mark.req("SIZ-5")
def test_the_top_moves_and_bytes_that_come_back_are_zero() -> None:
    """The base stays; beyond what was reserved is refused with both sizes and changes nothing."""
    device = device_of(10_000, lag=1)
    base = raw(device, 10_000).ctypes.data
    raw(device, 10_000)[:] = 9
    device.resize(4_000)
    with pytest.raises(InvariantError, match=r"device\.view_inside"):
        raw(device, 4_001)
    device.resize(10_000)
    assert raw(device, 10_000).ctypes.data == base
    assert raw(device, 4_000).all()
    assert not raw(device, 10_000)[4_000:].any()
    with pytest.raises(KvarenaError, match=r"reserved 9\.77 KiB and cannot grow to 19\.53 KiB without moving the base"):
        device.resize(20_000)
    assert device.arena_bytes == 10_000


def test_an_arena_that_does_not_fit_is_refused_with_its_sizes() -> None:
    """Before anything is allocated: what is asked for, what is free, and of how much."""
    with pytest.raises(KvarenaError, match=r"cannot reserve 141.*GiB on H200 \(cuda:0\): 100.*139.*are free; lower"):
        Memory("H200 (cuda:0)", 100 << 30, 139 << 30).check("cuda", 141 << 30)
    device = ToyDevice(kernels="torch")
    with pytest.raises(KvarenaError, match=r"backend 'toy' cannot reserve 512\.00 GiB on a toy \(cpu\)"):
        device.reserve(1 << 39)
    assert "allocation" not in device.calls


def test_streams_are_by_name_and_in_order() -> None:
    """Work on a stream comes after what it waits for; another device's streams and events are none of ours."""
    device, done = device_of(64, lag=3), list[str]()
    a, b = device.stream("a"), device.stream("b")
    assert device.stream("a") is a
    assert (a.name, device.current().name) == ("a", "current")
    device.run(a, lambda: done.append("a"), (), ())
    event = device.record(a)
    device.wait(b, event)
    device.run(b, lambda: done.append("b"), (), ())
    device.synchronize(device.record(b))
    assert done == ["a", "b"]
    assert event.done()
    device.wait(device.current(), device.record(a))
    device.run(device.current(), lambda: done.append("current"), (), ())
    assert done[2:] == ["current"]
    own = device.platform.record(a.handle)  # an engine's, which it recorded by torch
    device.synchronize(device.adopt(own))
    assert device.adopt(own).done()
    other, cpu = device_of(64), CpuDevice()
    with pytest.raises(InvariantError, match=r"device\.stream_of_its_own"):
        device.record(other.stream("a"))
    with pytest.raises(InvariantError, match=r"device\.event_of_its_own"):
        device.synchronize(cpu.record(cpu.current()))


def test_a_closed_device_gives_nothing() -> None:
    """All work is waited for, then the arena is gone, and so are its streams."""
    device, done = device_of(64, lag=2), list[int]()
    device.run(device.stream("forward"), lambda: done.append(1), (), ())
    device.close()
    assert done == [1]
    assert device.arena_bytes == 0
    with pytest.raises(KvarenaError, match="backend 'toy' was closed and has no stream 'late' to give"):
        device.stream("late")
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.zero_pages(device.current(), 8, np.array([0]))


@attrs.define(eq=False)
class NearDevice(ToyDevice):
    """A device whose kernels do not reach the host."""

    def open_kernels(self) -> tuple[Kernels, str]:
        return Blind(self.calls), "blind"


@NEEDS_TRITON
def test_host_memory_out_of_a_kernels_reach_goes_run_by_run() -> None:
    """The same bytes, by as many copies as there are runs; where kernels reach it, by one launch."""
    places, pages = np.arange(0, 40, 2), np.arange(39, -1, -2)
    found = []
    for device in (NearDevice(kernels="torch"), device_of(40 * 8, kernels="triton")):
        if device.arena_bytes == 0:
            device.reserve(40 * 8)
        raw(device, 320)[:] = np.arange(320) % 251
        host, asked = device.host_memory(8, 40), len(device.calls)
        device.save(device.current(), Touch(8, pages, "full"), host, places)
        found.append((host.copy(), device.calls[asked:].count("move"), device.calls[asked:].count("upload")))
    assert np.array_equal(found[0][0], found[1][0])
    assert [counts for _, *counts in found] == [[20, 0], [0, 1]]


@NEEDS_TRITON
def test_a_kernel_goes_to_no_memory_but_the_devices_own() -> None:
    """An array that ``host_memory`` did not give, or a part of one, is copied run by run: the same bytes."""
    device, pages = device_of(40 * 8, kernels="triton"), np.arange(39, -1, -2)
    raw(device, 320)[:] = np.arange(320) % 251
    whole = device.host_memory(8, 41)
    expected = raw(device, 320).reshape(40, 8)[pages]
    for host, moves in ((np.zeros((20, 8), dtype=np.uint8), 20), (whole[21:], 20), (whole, 0)):
        asked = len(device.calls)
        device.save(device.current(), Touch(8, pages, "full"), host, np.arange(20))
        assert device.calls[asked:].count("move") == moves
        assert np.array_equal(host[:20], expected)


def test_memory_of_the_host_lives_as_long_as_work_on_it() -> None:
    """A copy that is still to come holds the memory it reads, though nobody else does."""
    device = device_of(8 * 8, lag=7)
    host = device.host_memory(8, 8)
    host[:] = 7
    device.load(device.stream("load"), host, np.arange(8), Touch(8, np.arange(8), "full"))
    del host
    device.synchronize(device.record(device.stream("load")))
    assert (raw(device, 64) == 7).all()
