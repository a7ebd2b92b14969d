"""The key that a sparse-attention indexer keeps per token."""

import attrs
from attrs import validators

from kvarena.terms.fields import Field
from kvarena.terms.units import ceil_div


@attrs.frozen
class IndexKey:
    """A token's indexer key: ``key`` of (head_dim,) in fp8 and ``scale``, one float32 per block of items.

    132 bytes for a key of 128 (DeepSeek-V3.2, lightning indexer), whatever the dtype of the cache beside it.
    """

    name = "index-key"
    head_dim: int = attrs.field(validator=validators.ge(1))
    scale_block: int = attrs.field(default=128, validator=validators.ge(1))

    def fields(self) -> tuple[Field, ...]:
        """``key`` and ``scale`` of one token."""
        return (
            Field("key", "float8_e4m3fn", (self.head_dim,)),
            Field("scale", "float32", (ceil_div(self.head_dim, self.scale_block),)),
        )
