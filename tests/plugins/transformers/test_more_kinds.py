"""Kinds of memory beyond the table of tiny models: states or windows alone, index keys, shared keys, chunks."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig
from kvarena.plugins.transformers import ArenaCache
from kvarena.plugins.transformers.geometry import probe_layers
from kvarena.plugins.transformers.runner import ModelRunner
from kvarena.plugins.transformers.verify import verify

BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
SHAPES = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "deepseek_v32": {**LATENT, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 2},
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 256,
        "hidden_size_per_layer_input": 8,
    },
    "mistral": {"sliding_window": 16},
    "llama4_text": {"head_dim": 16, "attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 128},
}


def build(name):
    """A small model of this kind with random weights."""
    config = AutoConfig.for_model(name, **{**BASE, **SHAPES[name]})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module", params=sorted(SHAPES))
def model(request):
    """One small model of each kind."""
    return build(request.param)


def test_generate_answers_alike(model, prompts):
    """A batch in beams and a prefill in chunks: the tokens of transformers' own cache."""
    # generate cannot chunk a prefill where no layer counts tokens, with any cache
    chunked = {} if model.config.model_type == "mamba2" else {"prefill_chunk_size": 16}
    for inputs in ({"num_beams": 2}, chunked):
        settings = {"input_ids": prompts[:2], "max_new_tokens": 8, "do_sample": False, **inputs}
        expected = model.generate(**settings, past_key_values=DynamicCache(config=model.config))
        with ArenaCache(model.config, memory="4MiB", page_tokens=8) as cache:
            assert torch.equal(model.generate(**settings, past_key_values=cache), expected)
            assert cache.storage is not None


def test_the_loop_serves_it(model, prompts):
    """The runner finds every part's place in the plan."""
    arena = ArenaConfig(memory="1MiB", page_tokens=8, max_running=2, context_tokens=64)
    storage = build_storage(probe_layers(model), StorageConfig(arena=arena))
    runner = ModelRunner(model, storage)
    requests = [Request(at, 0.0, 20 + at, 6, tuple(prompts[at, : 20 + at].tolist())) for at in range(3)]
    serving = ServingConfig(chunk_tokens=16, step_tokens=16, keep_forwards=True)
    report = Scheduler(storage, runner, serving).run(requests)

    assert verify(model, report, runner.tokens).equal
    assert report.count("done") == 3
    storage.release()


def test_windows_alone_run_far_beyond_their_arena(prompts):
    """An arena of a dozen pages: 96 tokens need more pages than it has, and one sequence never holds them at once."""
    model = build("mistral")
    settings = {"input_ids": prompts[:1], "max_new_tokens": 60, "do_sample": False}
    expected = model.generate(**settings, past_key_values=DynamicCache(config=model.config))
    with ArenaCache(model.config, memory="56KiB", page_tokens=4) as cache:
        assert torch.equal(model.generate(**settings, past_key_values=cache), expected)
        storage = cache.storage
        assert storage.plan.names == ("window-16",)
        page_count = storage.sizing.arena_bytes // storage.plan["window-16"].unit_bytes
        assert storage.requests.page_counts[0] > 1.5 * page_count
