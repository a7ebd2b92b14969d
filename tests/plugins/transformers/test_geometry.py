"""What a model caches, learned from what it wrote."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvarena.planning.plan import plan_storage
from kvarena.plugins.transformers.geometry import layers_of, learned_layers, plain_cache, probe_layers
from kvarena.plugins.transformers.tiny import TINY, tiny_config
from kvarena.terms.errors import KvarenaError
from kvarena.terms.fields import Field
from kvarena.terms.lifetimes import Full, State, Window


def test_lfm3_is_a_state_full_attention_and_a_window(tiny):
    """Shapes, types and lifetimes of all three kinds."""
    layers = probe_layers(tiny("lfm3"))
    state, full, _, window = (layer.parts[0] for layer in layers)

    assert (state.role, state.lifetime, state.layout.fields()) == (
        "state",
        State(),
        (Field("conv0", "float32", (64, 7)),),
    )
    rows = (Field("k", "float32", (2, 16)), Field("v", "float32", (2, 16)))
    assert (full.role, full.lifetime, full.layout.fields()) == ("kv", Full(), rows)
    assert (window.role, window.lifetime, window.layout.fields()) == ("kv", Window(16), rows)


def test_keys_and_values_may_differ(tiny):
    """Kimi Linear caches one latent of 32 as keys and its rope part of 8 as values."""
    part = probe_layers(tiny("kimi_linear"))[2].part("kv")

    assert part.layout.fields() == (Field("k", "float32", (1, 32)), Field("v", "float32", (1, 8)))


def test_one_layer_may_hold_both(tiny):
    """Falcon-H1: attention and state in every layer."""
    layers = probe_layers(tiny("falcon_h1"))

    assert all({part.role for part in layer.parts} == {"kv", "state"} for layer in layers)


def test_the_dtype_is_what_was_written(tiny):
    """A model cast after loading caches in its own dtype, whatever its config says."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config("qwen3_next"), dtype=torch.bfloat16)
    fields = {field.dtype for layer in probe_layers(model) for part in layer.parts for field in part.layout.fields()}

    assert "bfloat16" in fields


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_plan_keeps_everything_that_was_learned(tiny, name):
    """A runner that has the plan alone finds every layer's parts again."""
    layers = probe_layers(tiny(name))
    found = layers_of(plan_storage(layers), len(layers))

    for ours, learned in zip(found, layers, strict=True):
        assert {part.role: part for part in ours.parts} == {part.role: part for part in learned.parts}


def test_an_untouched_cache_teaches_nothing():
    """Without a forward there is nothing to learn from, and it says so."""
    with pytest.raises(KvarenaError, match="cached nothing"):
        learned_layers(plain_cache(tiny_config("llama")).layers)
