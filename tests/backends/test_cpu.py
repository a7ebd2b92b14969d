"""The device in memory: views without copies, and units that move and vanish exactly."""

import builtins
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvarena.backends.cpu as cpu
from kvarena.backends.cpu import CpuDevice
from kvarena.terms.errors import InvariantError, KvarenaError, MissingExtraError
from kvarena.terms.fields import DTYPE_BYTES
from kvarena.terms.ports import Device, FieldView


def device_of(arena_bytes: int) -> CpuDevice:
    device = CpuDevice()
    device.reserve(arena_bytes)
    return device


def raw(device: CpuDevice) -> Any:
    """The arena's bytes."""
    return device.view(FieldView("uint8", (), 1, 0, 1, device.arena_bytes)).numpy().reshape(-1)


@pytest.mark.req("BLD-1")
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_views_of_every_dtype_read_and_write_the_arena(dtype: str) -> None:
    """Page p, row r of a field is at byte p * unit + offset + r * bytes; the arena is no multiple of the item."""
    item = DTYPE_BYTES[dtype]
    unit, offset, shape, rows = 16 * item, 2 * item, (2, 3), 2
    device = device_of(5 * unit + item // 2 + 1)
    view = device.view(FieldView(dtype, shape, rows, offset, unit, 5))
    assert view.shape == (5, rows, *shape)
    assert view.dtype == getattr(torch, dtype)
    assert not view.to(torch.float32).any()
    view[3, 1] = torch.ones(shape).to(view.dtype)
    start = 3 * unit + offset + 6 * item
    expected = torch.ones(6).to(view.dtype).view(torch.uint8).numpy()
    assert np.array_equal(raw(device)[start : start + 6 * item], expected)
    assert np.count_nonzero(raw(device)) == np.count_nonzero(expected)


def test_two_grids_share_the_bytes() -> None:
    """What one sub-pool's view writes, another's reads: there is one arena."""
    device = device_of(96)
    fours = device.view(FieldView("int32", (), 2, 0, 8, 12))
    threes = device.view(FieldView("int8", (), 6, 0, 6, 16))
    fours[1, 0] = 7
    assert threes[1, 2] == 7


def test_the_arena_begins_on_a_cache_line() -> None:
    """Vector loads and huge pages need it."""
    assert raw(device_of(1000)).ctypes.data % 64 == 0


def test_empty_fields_and_empty_grids_have_views() -> None:
    """A shape with a 0, and a grid without a page."""
    device = device_of(100)
    assert device.view(FieldView("float32", (0, 3), 1, 0, 8, 12)).shape == (12, 1, 0, 3)
    assert device.view(FieldView("float32", (3,), 1, 12, 400, 0)).shape == (0, 1, 3)


def test_items_must_lie_on_their_size() -> None:
    """A unit that no tensor can have as stride is refused with the cure; one beyond the arena is a mistake."""
    with pytest.raises(KvarenaError, match="unit_align"):
        device_of(100).view(FieldView("float32", (1,), 1, 0, 6, 10))
    with pytest.raises(InvariantError, match=r"device\.view_inside"):
        device_of(100).view(FieldView("uint8", (1,), 1, 0, 10, 11))


@pytest.mark.parametrize("unit", [1, 3, 8, 100, 4096, 16_383, 16_384, 20_001, 1 << 20])
def test_units_are_copied_whole_and_nothing_else_changes(unit: int) -> None:
    """Scattered pages and runs, small units and large, the unaligned tail of the arena too."""
    rng = np.random.default_rng(unit)
    count = 64
    device = device_of(count * unit + unit // 2)
    arena = raw(device)
    arena[:] = rng.integers(0, 256, len(arena))
    order = rng.permutation(count)
    sources = np.concatenate((np.sort(order[:10]), np.arange(40, 50))) if unit % 2 else order[:20]
    targets = np.setdiff1d(np.arange(count), sources)[:20]
    expected = arena.copy()
    for source, target in zip(sources, targets, strict=True):
        expected[target * unit : (target + 1) * unit] = arena[source * unit : (source + 1) * unit]
    device.copy_pages(device.current(), unit, sources, targets)
    assert np.array_equal(arena, expected)
    zeroed = rng.permutation(count)[:9]
    for page in zeroed:
        expected[page * unit : (page + 1) * unit] = 0
    device.zero_pages(device.current(), unit, zeroed)
    assert np.array_equal(arena, expected)


@pytest.mark.parametrize("unit", [5, 17_000])
def test_a_target_may_be_an_earlier_source(unit: int) -> None:
    """A block that slides down by one page: each page is read before it is written."""
    device = device_of(200 * unit)
    arena = raw(device)
    arena[:] = np.random.default_rng(1).integers(0, 256, len(arena))
    before = arena.copy()
    device.copy_pages(device.current(), unit, np.arange(11, 150), np.arange(10, 149))
    assert np.array_equal(arena[10 * unit : 149 * unit], before[11 * unit : 150 * unit])


UNITS = st.integers(1, 600) | st.sampled_from([1023, 1024, 2047, 4100, 8191, 8192, 16_384, 20_001, 70_003])
SEGMENTS = st.lists(
    st.tuples(st.integers(0, 39), st.integers(0, 39), st.sampled_from([1, 1, 1, 2, 5, 20, 39]), st.booleans()),
    min_size=1,
    max_size=12,
)


def pairs_of(segments: list[tuple[int, int, int, bool]], pages: int) -> list[tuple[int, int]]:
    """Single pairs and runs, rising and falling, less those that would read what an earlier pair wrote."""
    pairs: list[tuple[int, int]] = []
    written: set[int] = set()
    for source, target, length, falling in segments:
        for step in reversed(range(length)) if falling else range(length):
            pair = (source + step, target + step)
            if max(pair) < pages and pair[0] not in written:
                pairs.append(pair)
                written.add(pair[1])
    return pairs


@settings(max_examples=150)
@given(UNITS, SEGMENTS, st.integers(0, 2**32 - 1))
def test_lists_are_copied_and_zeroed_like_a_plain_loop(
    unit: int, segments: list[tuple[int, int, int, bool]], seed: int
) -> None:
    """Pages in order, one by one: sources read twice, targets that were sources, runs that overlap themselves."""
    pages = 40
    pairs = pairs_of(segments, pages)
    sources = np.array([source for source, _ in pairs], dtype=np.int64)
    targets = np.array([target for _, target in pairs], dtype=np.int64)
    device = device_of(pages * unit + unit // 3)
    arena = raw(device)
    arena[:] = np.random.default_rng(seed).integers(0, 256, len(arena))
    expected = arena.copy()
    for source, target in pairs:
        expected[target * unit : (target + 1) * unit] = expected[source * unit : (source + 1) * unit]
    device.copy_pages(device.current(), unit, sources, targets)
    assert np.array_equal(arena, expected)
    for target in targets:
        expected[target * unit : (target + 1) * unit] = 0
    device.zero_pages(device.current(), unit, targets)
    assert np.array_equal(arena, expected)


@pytest.mark.parametrize("unit", [24, 3000, 17_000])
@pytest.mark.parametrize("count", [40, 1500])
def test_long_scattered_lists_take_several_rounds(unit: int, count: int) -> None:
    """More than is gathered or warmed at once; lists may be views."""
    pages = 2 * count + 7
    device = device_of(pages * unit)
    arena = raw(device).reshape(pages, unit)
    arena[:] = np.random.default_rng(2).integers(0, 256, arena.shape, dtype=np.uint8)
    order = np.random.default_rng(3).permutation(pages)
    sources, targets = order[0 : 2 * count : 2], order[1 : 2 * count : 2]
    expected = arena.copy()
    expected[targets] = arena[sources]
    device.copy_pages(device.current(), unit, sources, targets)
    assert np.array_equal(arena, expected)
    expected[sources] = 0
    device.zero_pages(device.current(), unit, sources)
    assert np.array_equal(arena, expected)


@pytest.mark.parametrize("wrong", [-1, 8, 2**40])
def test_a_page_outside_the_arena_is_caught_before_a_byte_changes(wrong: int) -> None:
    """As source, as target and as a page to zero; also where more was reserved than the arena has now."""
    device = device_of(100 * 64)
    device.resize(8 * 64 + 63)
    raw(device)[:] = 5
    good, bad = np.array([0, 1]), np.array([2, wrong])
    for sources, targets in ((good, bad), (bad, good)):
        with pytest.raises(InvariantError, match=r"device\.pages_inside"):
            device.copy_pages(device.current(), 64, sources, targets)
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.zero_pages(device.current(), 64, bad)
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        device.copy_pages(device.current(), 64, good, good[:1])
    assert (raw(device) == 5).all()


def test_nothing_to_do_is_fine() -> None:
    """No pages, or units without bytes."""
    device = device_of(64)
    none = np.empty(0, dtype=np.int64)
    device.copy_pages(device.current(), 8, none, none)
    device.zero_pages(device.current(), 8, none)
    device.copy_pages(device.current(), 0, np.arange(3), np.arange(3))
    device.zero_pages(device.current(), 0, np.arange(3))
    assert not raw(device).any()


def test_the_top_moves_and_bytes_that_come_back_are_zero() -> None:
    """The base stays; beyond what was reserved is refused and changes nothing."""
    device = device_of(10_000)
    base = raw(device).ctypes.data
    raw(device)[:] = 9
    device.resize(4_000)
    assert len(raw(device)) == 4_000
    device.resize(10_000)
    assert raw(device).ctypes.data == base
    assert raw(device)[:4_000].all()
    assert not raw(device)[4_000:].any()
    with pytest.raises(KvarenaError, match="reserve the largest size first"):
        device.resize(10_001)
    assert device.arena_bytes == 10_000


def test_memory_is_committed_as_it_is_touched() -> None:
    """Reserving much costs little, and an arena that the system cannot give is refused."""
    device = device_of(2 << 30)
    raw(device)[-1] = 1
    device.close()
    with pytest.raises(KvarenaError, match="cannot reserve"):
        device_of(1 << 62)


def test_it_is_a_device_and_is_reserved_once() -> None:
    """A second arena would leave the first one's views behind."""
    device = device_of(64)
    assert isinstance(device, Device)
    with pytest.raises(InvariantError, match=r"device\.reserved_once"):
        device.reserve(64)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that installs it is in the message."""
    real = builtins.__import__

    def without_torch(name: str, *args: object, **kwargs: object) -> object:
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_torch)
    monkeypatch.delitem(sys.modules, "torch")
    spec = importlib.util.spec_from_file_location("cpu_without_torch", Path(cpu.__file__))
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(MissingExtraError, match=r"pip install 'kvarena\[torch\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
