"""What a codec promises: each row by itself, into the fields that its layout declares, and back."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvarena.plugins.conformance.arena import REASON, WITHOUT_TORCH
from kvarena.plugins.conformance.base import Conformance, needs
from kvarena.terms.fields import Layout

try:
    import torch
except ImportError:  # its promises are skipped, and say so
    torch = None

ROWS = 5
SEED = 7


class CodecPromises(Conformance):
    """The promises of ``layout.codec``: ``encode(k, v)`` gives one tensor a field, ``decode(fields)`` keys and values.

    How keys and values are shaped is learned from what zeros decode to.
    """

    @pytest.fixture
    def codec_tolerance(self) -> float:
        """How far a value may be off, as a share of the largest of its row; 0 where nothing is lost."""
        return 0.01

    @pytest.fixture
    def codec(self, layout: Layout) -> Any:
        """The layout's codec."""
        if WITHOUT_TORCH:
            pytest.skip(REASON)
        codec = getattr(layout, "codec", None)
        if codec is None:
            self._fail(layout, 'it has no codec; give it one, or write declines = ("codec",)')
        return codec

    @needs("codec")
    def test_zeros_decode_to_numbers(self, layout: Layout, codec: Any) -> None:
        """A page that was zeroed and not written yet decodes to finite keys and values, a row for each of its rows."""
        for name, side in zip("kv", codec.decode(zeros_of(layout)), strict=True):
            if side.shape[0] != ROWS or not torch.isfinite(side.float()).all():
                self._fail(layout, f"{ROWS} rows of zeros decode to {name} of shape {tuple(side.shape)}: {side}")

    @needs("codec")
    def test_encodes_into_the_declared_fields(self, layout: Layout, codec: Any) -> None:
        """``encode`` gives one tensor a field, in their order, of its dtype and of shape (rows, *shape)."""
        encoded, fields = codec.encode(*drawn(layout, codec)), layout.fields()
        if len(encoded) != len(fields):
            self._fail(layout, f"its codec encodes into {len(encoded)} tensors, and it has {len(fields)} fields")
        for field, tensor in zip(fields, encoded, strict=True):
            declared = (getattr(torch, field.dtype), (ROWS, *field.shape))
            if (tensor.dtype, tuple(tensor.shape)) != declared:
                found = f"{tensor.dtype} {tuple(tensor.shape)}, not {declared[0]} {declared[1]}"
                self._fail(layout, f"its codec encodes field {field.name!r} as {found}")

    @needs("codec")
    def test_decodes_what_it_encoded(self, layout: Layout, codec: Any, codec_tolerance: float) -> None:
        """What is decoded has the shape and dtype of what was encoded, and its values within the tolerance."""
        given = drawn(layout, codec)
        for name, before, after in zip("kv", given, codec.decode(codec.encode(*given)), strict=True):
            if (after.dtype, after.shape) != (before.dtype, before.shape):
                found = f"{after.dtype} {tuple(after.shape)}"
                self._fail(layout, f"{name} of {before.dtype} {tuple(before.shape)} decodes to {found}")
            largest = before.double().abs().reshape(ROWS, -1).amax(1)
            off = (after.double() - before.double()).abs().reshape(ROWS, -1).amax(1)
            worst = float((off / largest).max())
            if not worst <= codec_tolerance:
                self._fail(layout, f"{name} is off by {worst:.3g} of its row's largest value; {codec_tolerance} may be")

    @needs("codec")
    def test_encodes_each_row_by_itself(self, layout: Layout, codec: Any) -> None:
        """A row's codes are the same whichever rows are encoded with it, in any number of leading dimensions."""
        k, v = drawn(layout, codec)
        together = codec.encode(k, v)
        for row in range(ROWS):
            alone = codec.encode(k[row : row + 1], v[row : row + 1])
            if not same([one[row : row + 1] for one in together], alone):
                self._fail(layout, f"row {row} is encoded otherwise beside {ROWS - 1} others than alone")
        if not same([one[None] for one in together], codec.encode(k[None], v[None])):
            self._fail(layout, "rows under one more leading dimension are encoded otherwise")

    @needs("codec")
    def test_encodes_alike_every_time(self, layout: Layout, codec: Any) -> None:
        """The same keys and values have the same codes every time: ranks agree, and a prefix may be shared."""
        k, v = drawn(layout, codec)
        if not same(codec.encode(k, v), codec.encode(k.clone(), v.clone())):
            self._fail(layout, "the same keys and values are encoded otherwise a second time")

    @needs("codec")
    def test_leaves_what_it_is_given(self, layout: Layout, codec: Any) -> None:
        """Neither ``encode`` nor ``decode`` writes into the tensors that it is given."""
        given = drawn(layout, codec)
        kept = [one.clone() for one in given]
        encoded = codec.encode(*given)
        if not same(given, kept):
            self._fail(layout, "its codec's encode writes into the keys or values that it is given")
        kept = [one.clone() for one in encoded]
        codec.decode(encoded)
        if not same(encoded, kept):
            self._fail(layout, "its codec's decode writes into the fields that it is given")


def zeros_of(layout: Layout) -> list[Any]:
    """Rows of zeros, a tensor a field."""
    return [torch.zeros((ROWS, *field.shape), dtype=getattr(torch, field.dtype)) for field in layout.fields()]


def drawn(layout: Layout, codec: Any) -> tuple[Any, Any]:
    """Random keys and values of the shapes and dtypes that zeros decode to, rows of them larger and smaller."""
    k, v = codec.decode(zeros_of(layout))
    rng = torch.Generator().manual_seed(SEED)
    scale = torch.tensor([1.0, 0.01, 30.0, 1.0, 3.0])
    sides = [
        torch.randn(side.shape, generator=rng, dtype=torch.float32) * scale.reshape(-1, *[1] * (side.dim() - 1))
        for side in (k, v)
    ]
    return sides[0].to(k.dtype), sides[1].to(v.dtype)


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether both are made of the same tensors, to the bit."""
    return len(one) == len(other) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape)
        and torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )
