"""The table of tiny models."""

import pytest
import torch
from transformers import DynamicCache

from kvarena.plugins.transformers.geometry import probe_layers
from kvarena.plugins.transformers.tiny import TINY, build_tiny, load_model
from kvarena.terms.errors import ConfigError

KINDS = {
    "bamba": {"state", "full"},
    "falcon_h1": {"state", "full"},
    "gemma3_text": {"window-16", "full"},
    "gpt_oss": {"window-16", "full"},
    "granitemoehybrid": {"state", "full"},
    "jamba": {"state", "full"},
    "kimi_linear": {"state", "full"},
    "lfm2": {"state", "full"},
    "lfm3": {"state", "window-16", "full"},
    "llama": {"full"},
    "nemotron_h": {"state", "full"},
    "olmo_hybrid": {"state", "full"},
    "qwen3_next": {"state", "full"},
    "recurrent_gemma": {"window-16"},
}


@pytest.mark.parametrize("name", sorted(TINY))
def test_each_family_keeps_its_kinds_of_memory(tiny, name):
    """Lfm3 has all three: a short convolution's state, a window and full attention."""
    layers = probe_layers(tiny(name))

    assert {part.lifetime.name for layer in layers for part in layer.parts} == KINDS[name]


def test_the_same_seed_gives_the_same_weights_and_leaves_the_generator_alone():
    """A run repeats; building a model must not change what the caller draws next."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = build_tiny("llama", seed=3)

    assert torch.equal(torch.rand(3), expected)
    again, other = build_tiny("llama", seed=3), build_tiny("llama", seed=4)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.dtype == torch.float32
    assert not first.training


def test_an_unknown_name_names_the_nearest():
    """A typing error is told with its cure."""
    with pytest.raises(ConfigError, match=r"'lfm33'.*did you mean 'lfm3'"):
        build_tiny("lfm33")
    with pytest.raises(ConfigError, match=r"neither a tiny model nor a folder.*did you mean 'qwen3_next'"):
        load_model("qwen3-next")


@pytest.mark.parametrize("name", sorted(TINY))
def test_tokens_depend_on_what_is_cached(tiny, prompts, name):
    """Losing the cached rows must show in the next tokens, or no comparison could fail."""
    model = tiny(name)

    def tokens(spoil: bool) -> list[int]:
        cache = DynamicCache(config=model.config)
        found, step = [], prompts[:1]
        with torch.inference_mode():
            for at in range(16):
                step = model(input_ids=step, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)
                found.append(int(step))
                if spoil and at == 2:
                    spoil_cache(cache)
        return found

    assert tokens(spoil=False) != tokens(spoil=True)


def spoil_cache(cache) -> None:
    """Zero the attention layers' values."""
    for layer in cache.layers:
        if getattr(layer, "values", None) is not None:
            layer.values.zero_()
