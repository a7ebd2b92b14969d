"""Small model configs of our own making, written where a test can point a command at them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "full_attention_interval": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
"""Three gated-delta layers and one of full attention: 128 B a token in full."""


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Write a config.json like QWEN3_NEXT with changes; a change to None leaves the key out."""

    def write(name: str = "config.json", **changes: Any) -> Path:
        merged = {**QWEN3_NEXT, **changes}
        path = tmp_path / name
        path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))
        return path

    return write
