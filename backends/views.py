"""Typed views over an arena of bytes, wherever torch has it: nothing is copied."""

from typing import Any

from kvarena.terms.errors import KvarenaError
from kvarena.terms.fields import DTYPE_BYTES
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import FieldView

try:
    import torch
except ImportError:  # the backend that needs it says so, by its own name
    torch = None


def typed_view(arena: "torch.Tensor", field: FieldView) -> "torch.Tensor":
    """A tensor of shape ``(pages, rows, *shape)`` over an arena of uint8.

    Raises:
        KvarenaError: torch has no such dtype, or the items do not lie on multiples of their size.
    """
    item = DTYPE_BYTES[field.dtype]
    dtype: Any = getattr(torch, field.dtype, None)
    if dtype is None:
        raise KvarenaError(f"torch {torch.__version__} has no dtype {field.dtype!r}; install a newer one")
    if field.unit_bytes % item or field.offset_bytes % item:
        raise KvarenaError(
            f"units of {field.unit_bytes} B with a {field.dtype} at byte {field.offset_bytes}: items of {item} B "
            f"must lie on multiples of {item}; choose a unit_align that is one"
        )
    invariant("device.view_inside", field.pages * field.unit_bytes <= len(arena), field=field)
    whole = arena[: len(arena) // item * item].view(dtype)
    strides = [1]
    for size in reversed(field.shape):
        strides.append(strides[-1] * size)
    shape = (field.pages, field.rows, *field.shape)
    stride = (field.unit_bytes // item, *reversed(strides))
    return torch.as_strided(whole, shape, stride, field.offset_bytes // item if field.pages else 0)
