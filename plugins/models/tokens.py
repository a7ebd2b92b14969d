"""Whole-model geometry of parts with rows per token: keys and values, latents, packed rows, indexer keys."""

from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.plugins.models.classes import HEAD_DIM, KV_HEADS
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import cut_or_repeat


@attrs.frozen
class Heads:
    """Keys and values per head. Ranks share the KV heads; beyond their count, heads are repeated."""

    query_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    gated: bool = False
    layout = "mha"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {
            "kv_heads": cut_or_repeat(self.kv_heads, tp, "KV heads"),
            "head_dim": self.head_dim,
            "v_head_dim": self.v_head_dim,
            "dtype": self.dtype,
        }

    def flops_per_row(self) -> float:
        return 2.0 * self.query_heads * (self.head_dim + self.v_head_dim)

    def weights(self, hidden_size: int) -> float:
        queries = self.query_heads * self.head_dim * (2 if self.gated else 1)
        return hidden_size * (
            queries + self.kv_heads * (self.head_dim + self.v_head_dim) + self.query_heads * self.v_head_dim
        )


@attrs.frozen
class LatentHeads:
    """One latent row per token for all heads (MLA), so it is whole on every rank."""

    query_heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    v_head_dim: int
    q_lora_rank: int
    dtype: str
    packed_bytes: int = 0

    @property
    def layout(self) -> str:
        """A packed row where the cache keeps codes and scales together, else plain items."""
        return "latent" if self.packed_bytes else "mla"

    def share(self, tp: int) -> Mapping[str, Any]:
        if self.packed_bytes:
            return {"row_bytes": self.packed_bytes}
        return {"kv_lora_rank": self.kv_lora_rank, "rope_dim": self.rope_dim, "dtype": self.dtype}

    def flops_per_row(self) -> float:
        """With the up-projections absorbed, as in decoding: every head reads the latent twice, the key once."""
        return 2.0 * self.query_heads * (2 * self.kv_lora_rank + self.rope_dim)

    def weights(self, hidden_size: int) -> float:
        query = self.query_heads * (self.nope_dim + self.rope_dim)
        into = hidden_size * self.q_lora_rank + self.q_lora_rank * query if self.q_lora_rank else hidden_size * query
        down = hidden_size * (self.kv_lora_rank + self.rope_dim)
        up = self.kv_lora_rank * self.query_heads * (self.nope_dim + self.v_head_dim)
        return into + down + up + self.query_heads * self.v_head_dim * hidden_size


@attrs.frozen
class SharedRow:
    """DeepSeek-V4: one packed row per token that is key and value of all heads, whole on every rank.

    ``projections`` is False for a further copy of rows in the same layer (the compressed ones).
    """

    query_heads: int
    head_dim: int
    row_bytes: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    projections: bool = True
    layout = "latent"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {"row_bytes": self.row_bytes}

    def flops_per_row(self) -> float:
        return 4.0 * self.query_heads * self.head_dim

    def weights(self, hidden_size: int) -> float:
        if not self.projections:
            return 2.0 * hidden_size * self.head_dim
        query = self.query_heads * self.head_dim
        out = query * self.o_lora_rank + self.o_groups * self.o_lora_rank * hidden_size
        return hidden_size * (self.q_lora_rank + self.head_dim) + self.q_lora_rank * query + out


@attrs.frozen
class IndexKeys:
    """A sparse-attention indexer's key per token, whole on every rank."""

    heads: int
    head_dim: int
    q_lora_rank: int
    layout = "index-key"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {"head_dim": self.head_dim}

    def flops_per_row(self) -> float:
        return 2.0 * self.heads * self.head_dim

    def weights(self, hidden_size: int) -> float:
        return self.q_lora_rank * self.heads * self.head_dim + hidden_size * (self.head_dim + self.heads)


def heads_of(config: Fields, dtype: str, *, gated: bool = False) -> Heads:
    """The attention heads of a config, or of one layer of it.

    Absent fields mean what they mean to the model class: ``head_dim`` its constant or hidden_size /
    num_attention_heads, ``num_key_value_heads`` its constant or the query heads, ``v_head_dim`` head_dim.

    Raises:
        ConfigError: a field is missing or the hidden size does not divide.
    """
    query_heads = config.whole("num_attention_heads")
    head_dim = _head_dim(config, query_heads)
    return Heads(
        query_heads=query_heads,
        kv_heads=config.whole("num_key_value_heads", default=_kv_heads(config, query_heads)),
        head_dim=head_dim,
        v_head_dim=config.whole("v_head_dim", default=head_dim),
        dtype=dtype,
        gated=gated,
    )


def _head_dim(config: Fields, query_heads: int) -> int:
    if config.get("head_dim", "attention_head_dim") is not None:
        return config.whole("head_dim", "attention_head_dim")
    if config.model_type in HEAD_DIM and "head_dim" not in config.data:
        return HEAD_DIM[config.model_type]
    hidden = config.whole("hidden_size")
    if hidden % query_heads:
        raise config.error("head_dim", f"missing, and {hidden} hidden over {query_heads} heads is not whole")
    return hidden // query_heads


def _kv_heads(config: Fields, query_heads: int) -> int | None:
    """What an absent KV head count means; None where it would make no sense and must be given."""
    if "num_key_value_heads" in config.data:
        return query_heads
    by_class = KV_HEADS.get(config.model_type, query_heads)
    return None if query_heads % by_class else by_class
