"""The compressed row of multi-head latent attention."""

import attrs
from attrs import validators

from kvarena.terms.fields import Field, dtype_name


@attrs.frozen
class Mla:
    """A token's latent row: ``latent`` of (kv_lora_rank + rope_dim,), shared by all heads.

    The first ``kv_lora_rank`` items are the compressed keys and values, the rest the rotated key
    (DeepSeek-V2, section 2.1). One row per token however many heads there are, so it is whole on every
    tensor-parallel rank.
    """

    name = "mla"
    kv_lora_rank: int = attrs.field(validator=validators.ge(1))
    rope_dim: int = attrs.field(validator=validators.ge(0))
    dtype: str = attrs.field(default="bfloat16", kw_only=True, converter=dtype_name)

    def fields(self) -> tuple[Field, ...]:
        """``latent`` of one token."""
        return (Field("latent", self.dtype, (self.kv_lora_rank + self.rope_dim,)),)
