"""Which kernels a GPU device runs: Triton's where they work here, else torch's own operations, and why."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from kvarena.backends.gpu_platform import Platform
from kvarena.backends.gpu_tables import TablePlan
from kvarena.backends.gpu_words import words_of
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import Lookup

try:
    from kvarena.backends.gpu_triton import TritonKernels
except ImportError:  # said by whoever chooses
    TritonKernels: Any = None  # type: ignore[no-redef]

AUTO, TRITON, TORCH = "auto", "triton", "torch"
ROOM_BYTES = 64 << 20
"""About the most bytes that torch's operations hold of a copy at once."""
PROBE_UNITS = (24, 4096)


class Kernels(Protocol):
    """Work of the device, on the stream that is current, over numbers that are on the device.

    ``reaches_host``: whether ``copy`` takes pinned memory of the host as well.
    """

    name: str
    reaches_host: bool

    def copy(
        self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor, lists: torch.Tensor, count: int
    ) -> None:
        """Units ``lists[:count]`` of the source to ``lists[count:]`` of the target, in any order or at once."""
        ...

    def zero(self, unit_bytes: int, target: torch.Tensor, lists: torch.Tensor, count: int) -> None:
        """Zeros over the units ``lists[:count]``."""
        ...

    def warm(self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """Make ready what copies between these and zeroes of the target need; no unit changes."""
        ...

    def scatter(self, mirror: torch.Tensor, staged: torch.Tensor, count: int) -> None:
        """``staged[count:]`` at the places ``staged[:count]``, none of them twice."""
        ...

    def translate(self, mirror: torch.Tensor, plan: TablePlan, rows: int, width: int) -> None:
        """The first rows of the batch, in every table, up to this width."""
        ...


class TorchKernels:
    """The same by torch's operations: several launches each, and they hold a copy of what they move."""

    name = TORCH
    reaches_host = False

    def copy(
        self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor, lists: torch.Tensor, count: int
    ) -> None:
        """Gather and scatter, a bounded number of units at a time."""
        (read, words), (written, _) = words_of(source, unit_bytes), words_of(target, unit_bytes)
        reads, writes = lists[:count].long(), lists[count : 2 * count].long()
        units, places = _units(read, words), _units(written, words)
        step = max(1, ROOM_BYTES // unit_bytes)
        for first in range(0, count, step):
            part = slice(first, first + step)
            places.index_copy_(0, writes[part], units.index_select(0, reads[part]))

    def zero(self, unit_bytes: int, target: torch.Tensor, lists: torch.Tensor, count: int) -> None:
        """Fill rows of units."""
        written, words = words_of(target, unit_bytes)
        _units(written, words).index_fill_(0, lists[:count].long(), 0)

    def warm(self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """Nothing compiles."""

    def scatter(self, mirror: torch.Tensor, staged: torch.Tensor, count: int) -> None:
        """Put values at places."""
        mirror.index_copy_(0, staged[:count].long(), staged[count : 2 * count])

    def translate(self, mirror: torch.Tensor, plan: TablePlan, rows: int, width: int) -> None:
        """Gather ids, look each up, table by table."""
        numbers = mirror[plan.batch_at : plan.batch_at + rows].long()
        for one, table in zip(plan.lookups, plan.arrays(), strict=True):
            columns = torch.arange(min(width, one.width), device=mirror.device)
            ids = mirror.take(one.rows_at + numbers[:, None] * one.row_entries + columns).long()
            table[:rows, : len(columns)] = mirror.take(torch.where(ids < 0, one.unbound_at, one.map_at + ids))


def choose(platform: Platform, wanted: str, make: Callable[[], Kernels] | None = TritonKernels) -> tuple[Kernels, str]:
    """The kernels to run, and in words why these. Triton's are tried first: a compiler may be missing, or a driver old.

    Raises:
        KvarenaError: Triton's are wanted, and do not work here.
    """
    if wanted == TORCH:
        return TorchKernels(), "as the config asks"
    if make is None:
        why = "triton is not installed; run: pip install 'kvarena[gpu]'"
    else:
        try:
            kernels = make()
            probe(platform, kernels)
            kernels.reaches_host = _reaches_host(platform, kernels)
            return kernels, "they were tried when the arena was reserved"
        except Exception as error:  # whatever a compiler, a linker or a driver stops with
            why = f"triton's kernels do not work here: {type(error).__name__}: {error}"
    if wanted == TRITON:
        raise KvarenaError(f"backend {platform.name!r}: {why}; or set [backend] kernels = 'auto'")
    return TorchKernels(), why


def probe(platform: Platform, kernels: Kernels) -> None:
    """Each kernel once, on a few bytes, against what it should do.

    Raises:
        KvarenaError: one does something else.
    """
    for unit_bytes in PROBE_UNITS:
        units = torch.arange(4 * unit_bytes, device=platform.device).to(torch.uint8).view(4, unit_bytes)
        expected = units.clone()
        expected[3], expected[0], expected[1] = units[1], units[2], 0
        lists = torch.tensor([1, 2, 3, 0, 1], dtype=torch.int32, device=platform.device)
        flat = units.view(-1)
        platform.put(platform.current(), kernels.copy, unit_bytes, flat, flat, lists, 2)
        platform.put(platform.current(), kernels.zero, unit_bytes, flat, lists[4:].clone(), 1)
        _compare(units, expected, f"units of {unit_bytes} B")
    mirror = torch.arange(10, 30, dtype=torch.int32, device=platform.device)
    staged = torch.tensor([0, 3, 4, 5, 1, -1, 2, 0], dtype=torch.int32, device=platform.device)
    platform.put(platform.current(), kernels.scatter, mirror, staged, 4)
    lookup = Lookup(width=2, rows_at=1, row_entries=2, map_at=10, unbound_at=19)
    plan = TablePlan.open(platform, 1, 0, [lookup])
    platform.put(platform.current(), kernels.translate, mirror, plan, 1, 2)
    _compare(plan.arrays()[0], torch.tensor([[29, 22]], dtype=torch.int32), "a table")


def _compare(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if not torch.equal(found.cpu(), expected.cpu()):
        raise KvarenaError(f"{what} came out wrong")


def _reaches_host(platform: Platform, kernels: Kernels) -> bool:
    """Whether a kernel can read and write pinned memory. Where it cannot, pages go to the host run by run."""
    there = platform.pinned(64, torch.uint8)
    there[:32] = torch.from_numpy(np.arange(32, dtype=np.uint8))
    lists = platform.zeros(2, torch.int32)
    lists[1] = 1
    try:
        platform.put(platform.current(), kernels.copy, 32, there, there, lists, 1)
        platform.synchronize()
    except ValueError:  # Triton looks at pointers before it launches
        return False
    return bool(torch.equal(there[:32], there[32:]))


def _units(memory: torch.Tensor, words: int) -> torch.Tensor:
    """Words as rows of units."""
    return memory[: len(memory) // words * words].view(-1, words)
