"""Keys and values as int8 codes, with one scale per head beside them."""

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import validators

from kvarena import Field

LARGEST = 127
SCALES = (2.0**-24, 65504.0)  # what float16 can hold: a head of zeros has no scale of 0
CASTS = {"float16": "half", "float32": "float"}
"""The types that a scale may have, and the method that casts a tensor to each."""


@attrs.frozen
class HeadCodec:
    """Rounds each head of (..., heads, dim) to codes from -127 to 127 of its own scale, (..., heads)."""

    scale_dtype: str

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        """The k codes, the v codes, the k scales, the v scales."""
        (k_codes, k_scale), (v_codes, v_scale) = self._rounded(k), self._rounded(v)
        return k_codes, v_codes, k_scale, v_scale

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]:
        """The keys and values that the codes stand for, in float32."""
        k_codes, v_codes, k_scale, v_scale = fields
        return k_codes * k_scale.float().unsqueeze(-1), v_codes * v_scale.float().unsqueeze(-1)

    def _rounded(self, rows: Any) -> tuple[Any, Any]:
        rows = rows.float()
        scale = (rows.abs().amax(-1) / LARGEST).clamp(*SCALES)
        scale = getattr(scale, CASTS[self.scale_dtype])()
        codes = (rows / scale.float().unsqueeze(-1)).round().clamp(-LARGEST, LARGEST)
        return codes.char(), scale


@attrs.frozen
class Int8Heads:
    """One token: its k codes, its v codes, then their scales, one per head."""

    name = "int8-heads"
    kv_heads: int = attrs.field(validator=validators.ge(1))
    head_dim: int = attrs.field(validator=validators.ge(1))
    scale_dtype: str = attrs.field(default="float16", validator=validators.in_(sorted(CASTS)))

    @property
    def codec(self) -> HeadCodec:
        """What a runner encodes and decodes with."""
        return HeadCodec(self.scale_dtype)

    def fields(self) -> tuple[Field, ...]:
        """The fields of one token, the same at every call."""
        codes, scales = (self.kv_heads, self.head_dim), (self.kv_heads,)
        return (
            Field("k", "int8", codes),
            Field("v", "int8", codes),
            Field("k_scale", self.scale_dtype, scales),
            Field("v_scale", self.scale_dtype, scales),
        )
