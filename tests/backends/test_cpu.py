"""The device in memory: views without copies, and units that move and vanish exactly."""

import builtins
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kvarena.backends.cpu as cpu
from kvarena.backends.cpu import CpuDevice
from kvarena.terms.errors import InvariantError, KvarenaError, MissingExtraError
from kvarena.terms.fields import DTYPE_BYTES
from kvarena.terms.ports import Device, FieldView


def device_of(arena_bytes: int) -> CpuDevice:
    device = CpuDevice()
    device.reserve(arena_bytes)
    return device


def raw(device: CpuDevice) -> np.ndarray:
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
    device.copy_pages(unit, sources, targets)
    assert np.array_equal(arena, expected)
    zeroed = rng.permutation(count)[:9]
    for page in zeroed:
        expected[page * unit : (page + 1) * unit] = 0
    device.zero_pages(unit, zeroed)
    assert np.array_equal(arena, expected)


@pytest.mark.parametrize("unit", [5, 17_000])
def test_a_target_may_be_an_earlier_source(unit: int) -> None:
    """A block that slides down by one page: each page is read before it is written."""
    device = device_of(200 * unit)
    arena = raw(device)
    arena[:] = np.random.default_rng(1).integers(0, 256, len(arena))
    before = arena.copy()
    device.copy_pages(unit, np.arange(11, 150), np.arange(10, 149))
    assert np.array_equal(arena[10 * unit : 149 * unit], before[11 * unit : 150 * unit])


def test_nothing_to_do_is_fine() -> None:
    """No pages, or units without bytes."""
    device = device_of(64)
    none = np.empty(0, dtype=np.int64)
    device.copy_pages(8, none, none)
    device.zero_pages(8, none)
    device.copy_pages(0, np.arange(3), np.arange(3))
    device.zero_pages(0, np.arange(3))
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
