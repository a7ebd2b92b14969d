"""The models that a run can name: tiny shapes of hybrid families with random weights, or a folder on this disk.

A tiny model keeps the kinds of memory of its real family in a few layers of width 64: small enough to
check every token on a laptop.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from kvarena.plugins.transformers.folder import load_folder
from kvarena.terms.errors import ConfigError, nearest

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}

TINY: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA2, "mamba_n_heads": 4, "mamba_d_ssm": 64},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "gpt_oss": {"head_dim": 16, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {
        **_MAMBA2,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
    "jamba": {"num_hidden_layers": 8, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "kimi_linear": {
        "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm3": {
        "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
        "head_dim": 16,
        "sliding_window": 16,
    },
    "llama": {},
    "nemotron_h": {
        "hybrid_override_pattern": "M*M-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
        "head_dim": 16,
    },
    "olmo_hybrid": {},
    "qwen3_next": {
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "recurrent_gemma": {"head_dim": 16, "lru_width": 64, "attention_window_size": 16},
}
"""Settings by model type, over a base of 4 layers, hidden size 64, 4 heads of 2 KV heads, 256 words."""

INITIALIZER_RANGE = 0.2
"""Wider than the usual 0.02, so that tokens depend on what is cached: a lost page must show."""


def tiny_config(name: str) -> Any:
    """The transformers config of a tiny family.

    Raises:
        ConfigError: no such family; names the nearest.
    """
    if name not in TINY:
        raise ConfigError(f"no tiny model {name!r}; {nearest(name, TINY)}")
    settings = {**_BASE, "initializer_range": INITIALIZER_RANGE, **TINY[name]}
    return AutoConfig.for_model(name, **settings)


def build_tiny(name: str, seed: int = 0) -> PreTrainedModel:
    """A model with random float32 weights, ready to answer; the same seed gives the same weights.

    Raises:
        ConfigError: no such family; names the nearest.
    """
    config = tiny_config(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model.eval()


def load_model(name: str, seed: int = 0) -> PreTrainedModel:
    """The tiny model of this name, else the model in the folder of this name.

    Raises:
        ConfigError: it is neither; names the nearest tiny model.
    """
    if name in TINY:
        return build_tiny(name, seed)
    if not Path(name).exists():
        raise ConfigError(f"{name!r} is neither a tiny model nor a folder on this disk; {nearest(name, TINY)}")
    return load_folder(name)
