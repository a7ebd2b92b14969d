"""What one entry of a layer's memory is made of: named arrays of fixed type and shape.

A layout only *declares* fields; offsets, strides, pages and alignment are derived in ``planning``.
"""

import math
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import attrs

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}
_SHORT = {
    "fp64": "float64",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "float8": "float8_e4m3fn",
}
DTYPE_PATTERN = rf"^(torch\.)?({'|'.join([*DTYPE_BYTES, *_SHORT])})$"
"""What ``dtype_name`` reads, as a regular expression."""


def dtype_name(name: str) -> str:
    """The full name of a dtype: ``"bf16"`` and ``"torch.bfloat16"`` are ``"bfloat16"``.

    Raises:
        ValueError: no such dtype; the message lists those there are.
    """
    bare = str(name).removeprefix("torch.")
    full = _SHORT.get(bare, bare)
    if full not in DTYPE_BYTES:
        raise ValueError(f"unknown dtype {name!r}; known are {', '.join(DTYPE_BYTES)}")
    return full


DIMS_MAX = 32
"""A shape has no more sizes than numpy and torch take."""


def _shape(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sizes)


@attrs.frozen
class Field:
    """One named array of an entry, such as the keys of a token: ``Field("k", "bfloat16", (8, 128))``.

    An empty shape is one item; a shape with a 0 is a field of no bytes, which no layout may declare.
    """

    name: str = attrs.field()
    dtype: str = attrs.field(converter=dtype_name)
    shape: tuple[int, ...] = attrs.field(converter=_shape)

    @name.validator
    def _name_is_sane(self, _: object, name: Any) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"a field's name is a text, not {name!r}")

    @shape.validator
    def _shape_is_sane(self, _: object, shape: tuple[int, ...]) -> None:
        if any(not isinstance(size, int) or isinstance(size, bool) or size < 0 for size in shape):
            raise ValueError(f"field {self.name!r}: a shape is made of whole numbers >= 0, not {shape}")
        if len(shape) > DIMS_MAX:
            raise ValueError(f"field {self.name!r}: a shape has at most {DIMS_MAX} sizes, not {len(shape)}")

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return DTYPE_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of the whole field in one entry."""
        return self.item_bytes * math.prod(self.shape)


@runtime_checkable
class Layout(Protocol):
    """What a plugin writes to describe one entry: a token's row, or a request's state.

    A layout is a frozen, hashable value. Two optional attributes, read by ``zeroes_on_take``
    and by runners: ``zero_on_take`` (default True) and ``codec`` (default None), an object with
    ``encode(k, v)`` and ``decode(fields)`` that core never calls.
    """

    name: str

    def fields(self) -> tuple[Field, ...]:
        """The fields of one entry, the same at every call."""
        ...


def zeroes_on_take(layout: Layout) -> bool:
    """Whether pages of this layout are zeroed when handed out: yes, unless the layout declines."""
    return bool(getattr(layout, "zero_on_take", True))
