"""A packed row whose inside only its kernels know: codes, rotated keys and scales in one run of bytes."""

import attrs
from attrs import validators

from kvarena.terms.fields import Field


@attrs.frozen
class Latent:
    """A token's packed row: ``row`` of (row_bytes,) bytes.

    656 bytes: FlashMLA's fp8 row of DeepSeek-V3.2 (512 codes, 4 float32 scales, 64 bfloat16 rotated items).
    584 bytes: DeepSeek-V4's row (448 codes, 64 bfloat16 rotated items, 7 scales and one byte of padding).
    """

    name = "latent"
    row_bytes: int = attrs.field(validator=validators.ge(1))

    def fields(self) -> tuple[Field, ...]:
        """``row`` of one token."""
        return (Field("row", "uint8", (self.row_bytes,)),)
