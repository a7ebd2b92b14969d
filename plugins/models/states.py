"""Whole-model geometry of recurrent layers, and how ranks share them.

Heads are split, never repeated: a state is written by every token, so two copies would both have to be
kept right. Groups of B and C are repeated where there are more ranks than groups.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import cut, cut_or_repeat
from kvarena.terms.errors import ConfigError
from kvarena.terms.fields import DTYPE_BYTES


def conv_dtype(config: Fields) -> str:
    """The dtype of convolution inputs: that of keys and values, unless that is quantised; then the model's."""
    if config.asked_dtype and DTYPE_BYTES[config.asked_dtype] >= 2:
        return config.asked_dtype
    return config.dtype("dtype", "torch_dtype", default="bfloat16")


def state_dtype(config: Fields) -> str:
    """The dtype of recurrent matrices: float32 unless the config says otherwise."""
    return config.dtype("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32")


class _NoRows:
    """States have no rows per token: a step costs the same at any length."""

    def flops_per_row(self) -> float:
        return 0.0


@attrs.frozen
class Mamba1State(_NoRows):
    """The convolution runs over the inner width alone."""

    width: int
    columns: int
    state_size: int
    dt_rank: int
    conv_dtype: str
    state_dtype: str
    layout = "mamba1"
    family = "mamba1"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {
            "channels": cut(self.width, tp, "Mamba channels"),
            "columns": self.columns,
            "state_size": self.state_size,
            "conv_dtype": self.conv_dtype,
            "state_dtype": self.state_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        return 3.0 * hidden_size * self.width + self.width * (2 * self.dt_rank + 3 * self.state_size)


@attrs.frozen
class Mamba2State(_NoRows):
    """The convolution runs over the inner width and the B and C of every group."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    columns: int
    conv_dtype: str
    state_dtype: str
    layout = "mamba2"
    family = "mamba2"

    def share(self, tp: int) -> Mapping[str, Any]:
        heads = cut(self.heads, tp, "Mamba heads")
        groups = cut_or_repeat(self.groups, tp, "Mamba groups")
        return {
            "channels": heads * self.head_dim + 2 * groups * self.state_size,
            "columns": self.columns,
            "heads": heads,
            "head_dim": self.head_dim,
            "state_size": self.state_size,
            "conv_dtype": self.conv_dtype,
            "state_dtype": self.state_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        width = self.heads * self.head_dim
        into = 2 * width + 2 * self.groups * self.state_size + self.heads
        return float(hidden_size * (into + width))


@attrs.frozen
class GatedDeltaState(_NoRows):
    """Gated DeltaNet: queries, keys and values share one convolution; a matrix per value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    columns: int
    conv_dtype: str
    state_dtype: str
    layout = "gated-delta"
    family = "gated_delta_net"

    def share(self, tp: int) -> Mapping[str, Any]:
        key_heads = cut(self.key_heads, tp, "linear key heads")
        value_heads = cut(self.value_heads, tp, "linear value heads")
        return {
            "channels": 2 * key_heads * self.key_dim + value_heads * self.value_dim,
            "columns": self.columns,
            "heads": value_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "conv_dtype": self.conv_dtype,
            "state_dtype": self.state_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return float(hidden_size * (2 * keys + 3 * values + 2 * self.value_heads))


@attrs.frozen
class KdaState(_NoRows):
    """Kimi Delta Attention: three convolutions, a matrix per head, low-rank gates."""

    heads: int
    head_dim: int
    columns: int
    conv_dtype: str
    state_dtype: str
    layout = "kda"
    family = "kda"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {
            "heads": cut(self.heads, tp, "KDA heads"),
            "head_dim": self.head_dim,
            "columns": self.columns,
            "conv_dtype": self.conv_dtype,
            "state_dtype": self.state_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        width = self.heads * self.head_dim
        return float(4 * hidden_size * width + 2 * self.head_dim * (hidden_size + width) + hidden_size * self.heads)


@attrs.frozen
class LightningState(_NoRows):
    """Lightning attention: a matrix per head, no convolution."""

    heads: int
    head_dim: int
    state_dtype: str
    layout = "lightning"
    family = "lightning_attention"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {
            "heads": cut(self.heads, tp, "lightning heads"),
            "head_dim": self.head_dim,
            "state_dtype": self.state_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        return 5.0 * hidden_size * self.heads * self.head_dim


@attrs.frozen
class RgLruState(_NoRows):
    """RG-LRU: a convolution and a vector; its gates are block-diagonal over the attention heads."""

    width: int
    columns: int
    blocks: int
    conv_dtype: str
    state_dtype: str
    layout = "rg-lru"
    family = "rg_lru"

    def share(self, tp: int) -> Mapping[str, Any]:
        if tp > 1:
            raise ConfigError(
                f"RG-LRU states of {self.width} channels in {self.blocks} blocks are not split over "
                f"tp = {tp} ranks by any engine; use tp = 1"
            )
        return {
            "channels": self.width,
            "columns": self.columns,
            "conv_dtype": self.conv_dtype,
            "state_dtype": self.state_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        return 3.0 * hidden_size * self.width + 2.0 * self.width * self.width / self.blocks


@attrs.frozen
class ShortConvState(_NoRows):
    """A gated short convolution: its inputs and nothing else."""

    width: int
    columns: int
    conv_dtype: str
    layout = "short-conv"
    family = "short_conv"

    def share(self, tp: int) -> Mapping[str, Any]:
        return {
            "channels": cut(self.width, tp, "convolution channels"),
            "columns": self.columns,
            "conv_dtype": self.conv_dtype,
        }

    def weights(self, hidden_size: int) -> float:
        return 4.0 * hidden_size * self.width
