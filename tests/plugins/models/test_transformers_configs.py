"""What transformers' own configs say, defaults filled in, is read as its cache reads it."""

from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "mixtral": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    "qwen3": {"head_dim": 16},
    "phi3": {},
    "gemma2": {"head_dim": 16, "sliding_window": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 16, "num_hidden_layers": 6},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_text": {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_oss": {"head_dim": 16, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere2": {"sliding_window": 16},
    "olmo3": {"sliding_window": 16},
    "exaone4": {"sliding_window": 16},
    "smollm3": {},
    "llama4_text": {"head_dim": 16},
    "mimo_v2_flash": {},
    "qwen3_next": {**LINEAR, "head_dim": 16},
    "qwen3_5_text": LINEAR,
    "olmo_hybrid": {},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_heads": 4,
        "linear_head_dim": 16,
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1},
    "jamba": {"num_hidden_layers": 8, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "granitemoehybrid": {**MAMBA2, "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 2},
    "nemotron_h": {
        "hybrid_override_pattern": "M*M-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
        "head_dim": 16,
    },
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm3": {
        "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
        "sliding_window": 16,
        "head_dim": 16,
    },
    "recurrent_gemma": {"lru_width": 64, "attention_window_size": 16, "head_dim": 16},
    "minimax": {"head_dim": 16},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "deepseek_v3": {},
    "deepseek_v32": {},
}
WORDS = {
    "DynamicLayer": {"full", "mla"},
    "DynamicIndexedLayer": {"mla+index"},
    "DynamicSlidingWindowLayer": {"window", "chunk"},
    "LinearAttentionLayer": {"state"},
    "LinearAttentionAndFullAttentionLayer": {"full+state"},
    "DummyLayer": {"none", "shared"},
}
"""Which of our kinds each layer of transformers' cache stands for."""


@pytest.mark.parametrize("family", TINY)
def test_kinds_are_those_of_its_cache(family: str, read: Any) -> None:
    """For each family, ``config.to_dict()`` gives the layers that ``DynamicCache`` makes of the same config."""
    config = transformers.AutoConfig.for_model(family, **{**BASE, **TINY[family]})
    cache = transformers.DynamicCache(config=config)

    spec = read(config.to_dict())

    kinds = [kind.split(":")[0] for kind in spec.layer_kinds]
    seen = [type(layer).__name__ for layer in cache.layers]
    assert len(kinds) == len(seen)
    assert all(kind in WORDS[name] for kind, name in zip(kinds, seen, strict=True)), list(zip(kinds, seen, strict=True))


@pytest.mark.parametrize("family", TINY)
def test_windows_are_those_of_its_cache(family: str, read: Any) -> None:
    """A window layer's length is the one that transformers' cache keeps to."""
    config = transformers.AutoConfig.for_model(family, **{**BASE, **TINY[family]})
    cache = transformers.DynamicCache(config=config)

    spec = read(config.to_dict())

    for layer, theirs in zip(spec.layers, cache.layers, strict=True):
        if layer.kind in ("window", "chunk"):
            assert layer.parts[0].lifetime.entries(10**6) <= theirs.sliding_window
            assert layer.parts[0].lifetime.rank[1] == -theirs.sliding_window


def test_every_family_is_known(catalog: Any) -> None:
    """None of these families falls back to reading by fields."""
    assert set(TINY) <= set(catalog.names("models"))
