"""What one request keeps in a recurrent layer: a window of convolution inputs and a matrix.

Sizes are those of one tensor-parallel rank; who shards decides them. ``columns`` is the kernel width
less one: the inputs that the next token's convolution still needs. Convolutions are kept in the model's
dtype, matrices in float32, since they accumulate over the whole sequence. States are zeroed on take: a
new request starts from zero.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import validators

from kvarena.terms.fields import Field, dtype_name


def _size() -> Any:
    return attrs.field(kw_only=True, validator=validators.ge(0))


def _dtype(default: str) -> Any:
    return attrs.field(default=default, kw_only=True, converter=dtype_name)


@attrs.frozen
class Mamba1:
    """``conv`` (channels, columns) and ``state`` (channels, state_size) (Mamba, Gu and Dao 2023; Jamba)."""

    name = "mamba1"
    channels: int = _size()
    columns: int = _size()
    state_size: int = _size()
    conv_dtype: str = _dtype("bfloat16")
    state_dtype: str = _dtype("float32")

    def fields(self) -> tuple[Field, ...]:
        """``conv`` and ``state`` of one request."""
        return (
            Field("conv", self.conv_dtype, (self.channels, self.columns)),
            Field("state", self.state_dtype, (self.channels, self.state_size)),
        )


@attrs.frozen
class Mamba2:
    """``conv`` (channels, columns) and ``state`` (heads, head_dim, state_size) (Mamba-2, Dao and Gu 2024).

    ``channels`` covers the inner width and the B and C of every group: heads * head_dim + 2 * groups * state_size.
    """

    name = "mamba2"
    channels: int = _size()
    columns: int = _size()
    heads: int = _size()
    head_dim: int = _size()
    state_size: int = _size()
    conv_dtype: str = _dtype("bfloat16")
    state_dtype: str = _dtype("float32")

    def fields(self) -> tuple[Field, ...]:
        """``conv`` and ``state`` of one request."""
        return (
            Field("conv", self.conv_dtype, (self.channels, self.columns)),
            Field("state", self.state_dtype, (self.heads, self.head_dim, self.state_size)),
        )


@attrs.frozen
class GatedDelta:
    """``conv`` (channels, columns) and ``state`` (heads, key_dim, value_dim) (Gated DeltaNet; Qwen3-Next).

    ``channels`` covers queries, keys and values: 2 * key_heads * key_dim + heads * value_dim.
    """

    name = "gated-delta"
    channels: int = _size()
    columns: int = _size()
    heads: int = _size()
    key_dim: int = _size()
    value_dim: int = _size()
    conv_dtype: str = _dtype("bfloat16")
    state_dtype: str = _dtype("float32")

    def fields(self) -> tuple[Field, ...]:
        """``conv`` and ``state`` of one request."""
        return (
            Field("conv", self.conv_dtype, (self.channels, self.columns)),
            Field("state", self.state_dtype, (self.heads, self.key_dim, self.value_dim)),
        )


@attrs.frozen
class Kda:
    """``conv`` (3 * heads * head_dim, columns), ``state`` (heads, head_dim, head_dim) (Kimi Delta Attention).

    The convolutions of queries, keys and values follow each other in one field.
    """

    name = "kda"
    columns: int = _size()
    heads: int = _size()
    head_dim: int = _size()
    conv_dtype: str = _dtype("bfloat16")
    state_dtype: str = _dtype("float32")

    def fields(self) -> tuple[Field, ...]:
        """``conv`` and ``state`` of one request."""
        return (
            Field("conv", self.conv_dtype, (3 * self.heads * self.head_dim, self.columns)),
            Field("state", self.state_dtype, (self.heads, self.head_dim, self.head_dim)),
        )


@attrs.frozen
class Lightning:
    """``state`` (heads, head_dim, head_dim), no convolution (Lightning Attention; MiniMax-01)."""

    name = "lightning"
    heads: int = _size()
    head_dim: int = _size()
    state_dtype: str = _dtype("float32")

    def fields(self) -> tuple[Field, ...]:
        """``state`` of one request."""
        return (Field("state", self.state_dtype, (self.heads, self.head_dim, self.head_dim)),)


@attrs.frozen
class RgLru:
    """``conv`` (channels, columns) and ``state`` (channels,) (Griffin, De et al. 2024; RecurrentGemma)."""

    name = "rg-lru"
    channels: int = _size()
    columns: int = _size()
    conv_dtype: str = _dtype("bfloat16")
    state_dtype: str = _dtype("float32")

    def fields(self) -> tuple[Field, ...]:
        """``conv`` and ``state`` of one request."""
        return (
            Field("conv", self.conv_dtype, (self.channels, self.columns)),
            Field("state", self.state_dtype, (self.channels,)),
        )


@attrs.frozen
class ShortConv:
    """``conv`` (channels, columns) and nothing else (gated short convolutions; LFM2)."""

    name = "short-conv"
    channels: int = _size()
    columns: int = _size()
    conv_dtype: str = _dtype("bfloat16")

    def fields(self) -> tuple[Field, ...]:
        """``conv`` of one request."""
        return (Field("conv", self.conv_dtype, (self.channels, self.columns)),)


def _named_tensors(tensors: Mapping[str, Any] | Sequence[Field]) -> tuple[Field, ...]:
    if not isinstance(tensors, Mapping):
        return tuple(tensors)
    return tuple(
        Field(name, spec["dtype"], spec["shape"]) if isinstance(spec, Mapping) else Field(name, *spec)
        for name, spec in tensors.items()
    )


@attrs.frozen
class Tensors:
    """Any named tensors: ``Tensors({"conv": ("bfloat16", (64, 3)), "state": ("float32", (4, 16, 16))})``.

    For a state that no other layout describes, from Python or from TOML
    (``tensors = [{name = "conv", dtype = "bfloat16", shape = [64, 3]}]``).
    """

    name = "tensors"
    tensors: tuple[Field, ...] = attrs.field(converter=_named_tensors)

    @tensors.validator
    def _names_differ(self, _: object, tensors: tuple[Field, ...]) -> None:
        names = [field.name for field in tensors]
        if len(set(names)) != len(names):
            raise ValueError(f"tensors: the names {names} repeat; give each tensor its own")

    def fields(self) -> tuple[Field, ...]:
        """The tensors, in the order given."""
        return self.tensors
