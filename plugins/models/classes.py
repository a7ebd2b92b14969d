"""What the model classes of transformers take for granted where a config leaves it out.

A config saved by transformers omits what equals the class default, so these are part of its meaning
(Gemma 3's published text config has no head counts at all). Read from transformers 5.24.
"""

from collections.abc import Mapping

HEAD_DIM: Mapping[str, int] = {
    "afmoe": 128,
    "ernie4_5": 128,
    "gemma": 256,
    "gemma2": 256,
    "gemma3_text": 256,
    "gemma3n_text": 256,
    "gemma4_text": 256,
    "glm": 128,
    "glm4": 128,
    "gpt_oss": 64,
    "lfm3": 128,
    "llama4_text": 128,
    "mimo_v2_flash": 192,
    "minimax_m2": 128,
    "ministral3": 128,
    "nemotron_h": 128,
    "qwen3": 128,
    "qwen3_5_moe_text": 256,
    "qwen3_5_text": 256,
    "qwen3_next": 256,
    "seed_oss": 128,
    "step3p5": 128,
}
"""Head sizes; elsewhere hidden_size / num_attention_heads."""

KV_HEADS: Mapping[str, int] = {
    "bamba": 8,
    "ernie4_5": 2,
    "ernie4_5_moe": 4,
    "exaone4": 32,
    "falcon_h1": 8,
    "gemma": 16,
    "gemma2": 4,
    "gemma3_text": 4,
    "gemma3n_text": 2,
    "gemma4_text": 4,
    "glm": 2,
    "glm4": 2,
    "glm4_moe": 8,
    "gpt_oss": 8,
    "jamba": 8,
    "lfm2": 8,
    "lfm2_moe": 8,
    "lfm3": 4,
    "llama4_text": 8,
    "mimo_v2_flash": 4,
    "minimax": 8,
    "minimax_m2": 8,
    "ministral": 8,
    "ministral3": 8,
    "mistral": 8,
    "mixtral": 8,
    "nemotron_h": 8,
    "phimoe": 8,
    "qwen2": 32,
    "qwen2_moe": 16,
    "qwen3": 32,
    "qwen3_5_moe_text": 2,
    "qwen3_5_text": 4,
    "qwen3_moe": 4,
    "qwen3_next": 2,
    "seed_oss": 8,
    "smollm3": 4,
    "starcoder2": 2,
    "step3p5": 8,
}
"""KV head counts; elsewhere, and where the config says null, as many as query heads."""

TIED = (
    "cohere",
    "ernie4_5",
    "falcon_mamba",
    "gemma",
    "lfm2",
    "lfm3",
    "recurrent_gemma",
    "smollm3",
    "starcoder2",
    "zamba2",
)
"""Beginnings of model types whose output head is the embedding table."""
