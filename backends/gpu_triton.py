"""The kernels: copy pages, zero pages, write an update, translate rows. Four, and each a few lines of Triton.

Numbers of pages are int32; whatever is multiplied by a unit is int64 first, so that no offset overflows.
"""

import torch
import triton
import triton.language as tl

from kvarena.backends.gpu_tables import TABLE_NUMBERS, TablePlan
from kvarena.backends.gpu_words import words_of

BLOCK = tl.constexpr(1024)
"""Numbers that one program moves."""
FIELDS = tl.constexpr(TABLE_NUMBERS)
"""Numbers that describe a table."""

NO_FLOATS = {"enable_fp_fusion": False}
"""No kernel has a float in it; saying so spares a warning."""
FEW = 64
"""Page numbers that a launch over no pages is given."""


@triton.jit(do_not_specialize=["count"])
def copy_units(source, target, lists, count, words):
    """Pair i: unit ``lists[i]`` of the source to unit ``lists[count + i]`` of the target, of so many words."""
    parts = (words + BLOCK - 1) // BLOCK
    pair = tl.program_id(0) // parts
    at = (tl.program_id(0) % parts) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.where(pair < count, words, 0)
    read = tl.load(lists + pair).to(tl.int64) * words
    written = tl.load(lists + count + pair).to(tl.int64) * words
    tl.store(target + written + at, tl.load(source + read + at, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["count"])
def zero_units(target, lists, count, words):
    """Zeros over the units ``lists[i]``."""
    parts = (words + BLOCK - 1) // BLOCK
    pair = tl.program_id(0) // parts
    at = (tl.program_id(0) % parts) * BLOCK + tl.arange(0, BLOCK)
    written = tl.load(lists + pair).to(tl.int64) * words
    zeros = tl.full((BLOCK,), 0, target.dtype.element_ty)
    tl.store(target + written + at, zeros, mask=at < tl.where(pair < count, words, 0))


@triton.jit(do_not_specialize=["count"])
def write_update(mirror, staged, count):
    """``staged[count + i]`` at place ``staged[i]`` of the mirror."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = tl.load(staged + at, mask=at < count, other=0).to(tl.int64)
    tl.store(mirror + places, tl.load(staged + count + at, mask=at < count), mask=at < count)


@triton.jit(do_not_specialize=["width"])
def translate_rows(mirror, tables, out, batch_at, width):
    """Row by row of the batch, table by table: the ids that stand in the mirror, each through its map."""
    place = tl.program_id(0).to(tl.int64)
    table = tables + tl.program_id(1) * FIELDS
    own = tl.load(table)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < own) & (at < width)
    row = tl.load(mirror + batch_at + place).to(tl.int64)
    ids = tl.load(mirror + tl.load(table + 1) + row * tl.load(table + 2) + at, mask=inside, other=0).to(tl.int64)
    entries = tl.where(ids < 0, tl.load(table + 4), tl.load(table + 3) + ids)
    found = tl.load(mirror + entries, mask=inside, other=0)
    tl.store(out + tl.load(table + 5) + place * own + at, found, mask=inside)


class TritonKernels:
    """The kernels, each one launch."""

    name = "triton"

    def __init__(self, *, reaches_host: bool = True) -> None:
        self.reaches_host = reaches_host

    def copy(
        self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor, lists: torch.Tensor, count: int
    ) -> None:
        """Units ``lists[:count]`` of the source to ``lists[count:]`` of the target, all at once."""
        (read, words), (written, _) = words_of(source, unit_bytes), words_of(target, unit_bytes)
        copy_units[(count * _parts(words),)](read, written, lists, count, words, **NO_FLOATS)

    def zero(self, unit_bytes: int, target: torch.Tensor, lists: torch.Tensor, count: int) -> None:
        """Zeros over the units ``lists[:count]``."""
        written, words = words_of(target, unit_bytes)
        zero_units[(count * _parts(words),)](written, lists, count, words, **NO_FLOATS)

    def warm(self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """One launch of each over no units, on the memory itself: a kernel is compiled for where its pointers point."""
        lists = torch.zeros(FEW, dtype=torch.int32, device=target.device)
        (read, words), (written, _) = words_of(source, unit_bytes), words_of(target, unit_bytes)
        copy_units[(1,)](read, written, lists, 0, words, **NO_FLOATS)
        zero_units[(1,)](written, lists, 0, words, **NO_FLOATS)

    def scatter(self, mirror: torch.Tensor, staged: torch.Tensor, count: int) -> None:
        """``staged[count:]`` at the places ``staged[:count]``."""
        write_update[(triton.cdiv(count, BLOCK.value),)](mirror, staged, count, **NO_FLOATS)

    def translate(self, mirror: torch.Tensor, plan: TablePlan, rows: int, width: int) -> None:
        """The first rows of the batch, in every table, up to this width."""
        grid = (rows, len(plan.lookups), triton.cdiv(width, BLOCK.value))
        translate_rows[grid](mirror, plan.numbers, plan.out, plan.batch_at, width, **NO_FLOATS)


def _parts(words: int) -> int:
    """Programs for a unit."""
    return int(triton.cdiv(words, BLOCK.value))
