"""The GPU kernels, under Triton's interpreter and as torch's operations: the same bytes as a plain loop."""

import importlib
import mmap
from typing import Any

import numpy as np
import pytest
import torch
from gpu_toys import INTERPRETED, KERNELS, NEEDS_TRITON, HostPlatform
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.backends.gpu_kernels import TorchKernels, choose, probe
from kvarena.backends.gpu_tables import TablePlan
from kvarena.backends.gpu_words import words_of
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import Lookup

BOTH = pytest.mark.parametrize("kind", ["torch", pytest.param("triton", marks=NEEDS_TRITON)])
UNITS = st.integers(1, 70) | st.sampled_from([96, 100, 1022, 1024, 2047, 4096, 8192, 8200, 16_384, 20_001])


def bytes_of(count: int, seed: int) -> torch.Tensor:
    """Random bytes, which differ from 0 mostly."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8))


def numbers(*lists: Any) -> torch.Tensor:
    """Lists one behind the other, as they come to a device; what lies behind them is none of the kernel's."""
    return torch.from_numpy(np.concatenate([*lists, [-1, 1 << 30]]).astype(np.int32))


@BOTH
@settings(max_examples=20)
@given(UNITS, st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_units_are_copied_and_zeroed_like_a_plain_loop(kind: str, unit: int, count: int, seed: int) -> None:
    """Any unit size, also where the arena ends inside of a unit; nothing else changes."""
    kernels, pages = KERNELS[kind](), 20
    order = np.random.default_rng(seed).permutation(pages)
    sources, targets, zeroed = order[:count], order[count : 2 * count], order[2 * count : 2 * count + 2]
    arena = bytes_of(pages * unit + seed % unit, seed)
    expected = arena.clone()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        expected[target * unit : (target + 1) * unit] = arena[source * unit : (source + 1) * unit]
    for page in zeroed.tolist():
        expected[page * unit : (page + 1) * unit] = 0
    kernels.copy(unit, arena, arena, numbers(sources, targets), count)
    kernels.zero(unit, arena, numbers(zeroed), len(zeroed))
    assert torch.equal(arena, expected)


@BOTH
@pytest.mark.slow
def test_thousands_of_pages_in_one_launch(kind: str) -> None:
    """Each pair has its own program, or several."""
    kernels, pages, unit = KERNELS[kind](), 1100, 24
    order = np.random.default_rng(unit).permutation(2 * pages)
    arena = bytes_of(2 * pages * unit, unit)
    expected = arena.clone().view(-1, unit)
    expected[order[pages:]] = arena.view(-1, unit)[order[:pages]]
    kernels.copy(unit, arena, arena, numbers(order[:pages], order[pages:]), pages)
    assert torch.equal(arena.view(-1, unit), expected)


@BOTH
def test_two_memories_are_told_apart(kind: str) -> None:
    """Units go from one memory to another: their numbers count from the beginning of each."""
    kernels, unit = KERNELS[kind](), 48
    here, there = bytes_of(10 * unit, 1), bytes_of(7 * unit, 2)
    before = there.clone()
    kernels.copy(unit, here, there, numbers([9, 0], [0, 6]), 2)
    assert torch.equal(there[:unit], here[9 * unit :])
    assert torch.equal(there[6 * unit :], here[:unit])
    assert torch.equal(there[unit : 6 * unit], before[unit : 6 * unit])


@BOTH
def test_what_is_warm_has_changed_nothing(kind: str) -> None:
    """The launch that compiles is over no pages."""
    arena = bytes_of(1000, 3)
    before = arena.clone()
    KERNELS[kind]().warm(40, arena, arena)
    assert torch.equal(arena, before)


@BOTH
@pytest.mark.parametrize("count", [0, 1, 5, 1024, 1500])
def test_an_update_is_written_where_it_says(kind: str, count: int) -> None:
    """Places and values lie packed, one behind the other; the last of int32 is a value too."""
    rng = np.random.default_rng(count)
    places, values = rng.permutation(3000)[:count], rng.integers(-(2**31), 2**31, count)
    mirror = torch.arange(3000, dtype=torch.int32)
    expected = mirror.clone()
    expected[places] = torch.from_numpy(values.astype(np.int32))
    if count:
        KERNELS[kind]().scatter(mirror, numbers(places, values), count)
    assert torch.equal(mirror, expected)


@BOTH
@settings(max_examples=15)
@given(
    st.integers(1, 6),
    st.integers(0, 12),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_rows_are_translated_like_on_the_host(kind: str, rows: int, width: int, widths: list[int], seed: int) -> None:
    """Every table, each of its own width and map; unbound ids read the map's last place; the rest stays as it was."""
    rng, ids, row_entries, all_rows = np.random.default_rng(seed), 13, 11, 8
    maps = [rng.integers(0, 2**31, ids + 1) for _ in widths]
    table = rng.integers(-1, ids, (all_rows, row_entries))
    batch = rng.integers(0, all_rows, rows)
    mirror = np.concatenate([*maps, table.reshape(-1), batch]).astype(np.int32)
    rows_at = len(widths) * (ids + 1)
    lookups = [
        Lookup(own, rows_at, row_entries, number * (ids + 1), number * (ids + 1) + ids)
        for number, own in enumerate(widths)
    ]
    plan = TablePlan.open(HostPlatform(), rows, len(mirror) - rows, lookups)
    plan.out.fill_(-7)
    asked = min(width, max(widths))
    if asked:
        KERNELS[kind]().translate(torch.from_numpy(mirror), plan, rows, asked)
    for own, found, values in zip(widths, plan.arrays(), maps, strict=True):
        filled = min(own, asked)
        expected = np.where(table[batch] < 0, values[ids], values[table[batch]])[:, :filled]
        np.testing.assert_array_equal(found[:, :filled].numpy(), expected.astype(np.int32))
        assert (found[:, filled:] == -7).all()


@NEEDS_TRITON
def test_a_wide_table_takes_several_programs() -> None:
    """More columns than one program fills."""
    width, ids = 2500, 2600
    values = np.random.default_rng(5).permutation(ids + 1)
    table = np.random.default_rng(6).integers(-1, ids, (3, width))
    mirror = np.concatenate([values, table.reshape(-1), [2, 0]]).astype(np.int32)
    plan = TablePlan.open(HostPlatform(), 2, len(mirror) - 2, [Lookup(width, ids + 1, width, 0, ids)])
    INTERPRETED.TritonKernels().translate(torch.from_numpy(mirror), plan, 2, width)
    np.testing.assert_array_equal(plan.arrays()[0].numpy(), values[table[[2, 0]]])


FAR_BYTES = 192 << 30


@NEEDS_TRITON
def test_offsets_reach_to_the_end_of_the_largest_arena() -> None:
    """Pages beyond 2 and 4 GiB, up to 192 GiB: page number times unit is counted in 64 bits.

    The memory is only named, not used: a tensor of its first bytes has its address, and kernels go by that.
    """
    unit = 4096
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        mapping = mmap.mmap(-1, FAR_BYTES, flags=flags)
    except OSError as error:
        pytest.skip(f"the system names no 192 GiB: {error}")
    first = torch.from_numpy(np.frombuffer(mapping, dtype=np.uint8, count=unit))
    far = [(1 << 31) // unit, (1 << 32) // unit + 1, (1 << 36) // unit + 3, FAR_BYTES // unit - 1]
    for number, page in enumerate(far):
        mapping[page * unit : (page + 1) * unit] = bytes([number + 1]) * unit
    targets = [page - 2 for page in far]
    kernels = INTERPRETED.TritonKernels()
    kernels.copy(unit, first, first, numbers(far, targets), len(far))
    kernels.zero(unit, first, numbers(far[:2]), 2)
    for number, (page, target) in enumerate(zip(far, targets, strict=True)):
        assert mapping[target * unit : (target + 1) * unit] == bytes([number + 1]) * unit
        assert mapping[page * unit] == (0 if number < 2 else number + 1)


@NEEDS_TRITON
@pytest.mark.req("CMP-7")
def test_no_number_that_varies_makes_another_kernel() -> None:
    """Triton compiles anew for a 1 or a multiple of 16, unless it is told not to look: at counts and widths it is."""
    module = importlib.import_module("kvarena.backends.gpu_triton")
    if not hasattr(module.copy_units, "params"):
        pytest.skip("TRITON_INTERPRET is set, so nothing is compiled")
    varies = {"count", "width"}
    for kernel in (module.copy_units, module.zero_units, module.write_update, module.translate_rows):
        told = {param.name: param.do_not_specialize for param in kernel.params}
        assert {name for name, is_told in told.items() if is_told} == varies & told.keys()


@pytest.mark.parametrize(("unit", "words"), [(16, 2), (24, 3), (12, 3), (6, 3), (7, 7), (1, 1), (20_002, 10_001)])
def test_units_are_made_of_the_widest_words(unit: int, words: int) -> None:
    """8, 4, 2 or 1 bytes, whichever divides the unit; a tail that is no word is left out."""
    memory = torch.zeros(10 * unit + 7, dtype=torch.uint8)
    found, count = words_of(memory, unit)
    assert count == words
    assert found.element_size() * words == unit
    assert len(found) >= 10 * words


class Wrong(TorchKernels):
    """Kernels that zero nothing, as a driver's fault might have it."""

    def zero(self, unit_bytes: int, target: torch.Tensor, lists: torch.Tensor, count: int) -> None:
        """Nothing."""


@NEEDS_TRITON
def test_kernels_are_tried_before_they_are_trusted() -> None:
    """What compiles nothing, is not installed or comes out wrong is not used, and the reason is kept."""
    platform = HostPlatform()
    kernels, why = choose(platform, "auto", INTERPRETED.TritonKernels)
    assert (kernels.name, kernels.reaches_host) == ("triton", True)
    for make, reason in (
        (None, "triton is not installed; run: pip install 'kvarena[gpu]'"),
        (Wrong, "units of 24 B came out wrong"),
        (lambda: 1 // 0, "ZeroDivisionError"),
    ):
        kernels, why = choose(platform, "auto", make)  # type: ignore[arg-type]
        assert kernels.name == "torch"
        assert reason in why
        with pytest.raises(KvarenaError, match="set \\[backend\\] kernels = 'auto'"):
            choose(platform, "triton", make)  # type: ignore[arg-type]
    assert choose(platform, "torch", INTERPRETED.TritonKernels)[0].name == "torch"
    probe(platform, TorchKernels())


class OutOfReach(TorchKernels):
    """Kernels to which pinned memory is out of reach, as Triton says it."""

    seen = 0

    def copy(
        self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor, lists: torch.Tensor, count: int
    ) -> None:
        """Refuse copies of 32 bytes, which is what the probe of pinned memory makes."""
        if unit_bytes == 32:
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        super().copy(unit_bytes, source, target, lists, count)


def test_memory_of_the_host_may_be_out_of_reach() -> None:
    """Then kernels serve the arena alone."""
    assert choose(HostPlatform(), "auto", OutOfReach)[0].reaches_host is False
