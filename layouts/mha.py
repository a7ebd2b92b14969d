"""Keys and values per head: multi-head, grouped-query and multi-query attention."""

import attrs
from attrs import validators

from kvarena.terms.fields import Field, dtype_name


@attrs.frozen
class Mha:
    """A token's keys and values: ``k`` of (kv_heads, head_dim), ``v`` of (v_kv_heads, v_head_dim).

    Values have the heads, size and dtype of the keys unless told otherwise (MiMo-V2 has keys of 192 and
    values of 128). With tensor parallelism the heads are those of one rank.
    """

    name = "mha"
    kv_heads: int = attrs.field(validator=validators.ge(1))
    head_dim: int = attrs.field(validator=validators.ge(1))
    v_head_dim: int | None = attrs.field(default=None, kw_only=True, validator=validators.optional(validators.ge(0)))
    dtype: str = attrs.field(default="bfloat16", kw_only=True, converter=dtype_name)
    v_dtype: str | None = attrs.field(default=None, kw_only=True, converter=attrs.converters.optional(dtype_name))
    v_kv_heads: int | None = attrs.field(default=None, kw_only=True, validator=validators.optional(validators.ge(0)))

    def fields(self) -> tuple[Field, ...]:
        """``k`` and ``v`` of one token."""
        v_heads = self.kv_heads if self.v_kv_heads is None else self.v_kv_heads
        v_dim = self.head_dim if self.v_head_dim is None else self.v_head_dim
        return (
            Field("k", self.dtype, (self.kv_heads, self.head_dim)),
            Field("v", self.v_dtype or self.dtype, (v_heads, v_dim)),
        )
