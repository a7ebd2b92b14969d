"""The drop-in: a model must not be able to tell an ``ArenaCache`` from transformers' own."""

import copy
import gc
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, DynamicCache

from kvarena.plugins.transformers import TINY, ArenaCache, ArenaFullError, build_tiny
from kvarena.plugins.transformers.geometry import CACHE_ARGUMENT
from kvarena.storage.routed import views_of
from kvarena.terms.errors import ConfigError, KvarenaError, PlanError

NEW_TOKENS = 9
FAMILIES = sorted(TINY)


def left_padded(prompts):
    """Three prompts of 17, 32 and 37 tokens, padded on the left as ``generate`` wants them."""
    mask = torch.ones_like(prompts)
    mask[0, :20] = 0
    mask[1, :5] = 0
    return {"input_ids": prompts * mask, "attention_mask": mask}


def generate(model, cache, **inputs):
    """Greedy tokens and the logits behind them."""
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **inputs}
    found = model.generate(**settings, past_key_values=cache, return_dict_in_generate=True, output_logits=True)
    return found.sequences, torch.stack(found.logits)


def forward_chunks(model, cache, tokens, chunks):
    """Forward the tokens chunk by chunk; the logits of each chunk's last token."""
    logits, start = [], 0
    with torch.inference_mode():
        for size in chunks:
            piece = tokens[:, start : start + size]
            logits.append(model(input_ids=piece, **{CACHE_ARGUMENT: cache}, use_cache=True).logits[:, -1])
            start += size
    return torch.stack(logits)


def vm_bytes() -> int:
    """The address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


@pytest.mark.parametrize("name", FAMILIES)
def test_generate_answers_one_sequence_and_a_padded_batch_alike(tiny, prompts, name):
    """Same tokens, and the very same logits, for every family; windows roll over several times."""
    model = tiny(name)
    for inputs in ({"input_ids": prompts[2:]}, left_padded(prompts)):
        expected = generate(model, DynamicCache(config=model.config), **inputs)
        with ArenaCache(model.config, memory="4MiB", page_tokens=8) as cache:
            tokens, logits = generate(model, cache, **inputs)
            assert cache.storage is not None, "the arena was never used"

        assert torch.equal(tokens, expected[0])
        assert torch.equal(logits, expected[1])


@pytest.mark.parametrize("name", FAMILIES)
def test_chunked_prefill_gives_the_same_logits(tiny, prompts, name):
    """Chunks of 20, 17, 10 and 1 tokens, longer than a page and than a window, then decoding."""
    model = tiny(name)
    tokens = torch.cat([prompts, prompts.flip(0)], dim=-1)[:, :54]
    chunks = (20, 17, 10, 1, 1, 5)
    expected = forward_chunks(model, DynamicCache(config=model.config), tokens, chunks)
    with ArenaCache(model.config, memory="4MiB", page_tokens=8) as cache:
        assert torch.equal(forward_chunks(model, cache, tokens, chunks), expected)


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_any_page_size_serves(tiny, prompts, page_tokens):
    """A page of one token, and one as long as the window."""
    model = tiny("lfm3")
    expected = generate(model, DynamicCache(config=model.config), **left_padded(prompts))
    with ArenaCache(model.config, memory="4MiB", page_tokens=page_tokens) as cache:
        assert torch.equal(generate(model, cache, **left_padded(prompts))[1], expected[1])


@pytest.mark.parametrize("name", ["lfm3", "falcon_h1", "gemma3_text"])
def test_beams_are_reordered(tiny, prompts, name):
    """Beam search drops, repeats and permutes sequences at every step."""
    model = tiny(name)
    inputs = {**left_padded(prompts), "num_beams": 3}
    expected = generate(model, DynamicCache(config=model.config), **inputs)
    with ArenaCache(model.config, memory="4MiB", page_tokens=4) as cache:
        assert torch.equal(generate(model, cache, **inputs)[0], expected[0])


def test_a_batch_is_repeated_and_selected(tiny, prompts):
    """``batch_repeat_interleave`` and ``batch_select_indices`` give what reordering transformers' own cache gives."""
    model = tiny("lfm3")

    def tour(cache, repeat, select):
        forward_chunks(model, cache, prompts[:2], (30,))
        repeat(2)
        first = forward_chunks(model, cache, prompts[:, :4].repeat(2, 1)[:4], (3, 1))
        select(torch.tensor([3, 1, 1]))
        return first, forward_chunks(model, cache, prompts, (1, 20))

    plain = DynamicCache(config=model.config)
    expected = tour(plain, lambda _: plain.reorder_cache(torch.tensor([0, 0, 1, 1])), plain.reorder_cache)
    with ArenaCache(model.config, memory="4MiB", page_tokens=8, max_running=4) as cache:
        found = tour(cache, cache.batch_repeat_interleave, cache.batch_select_indices)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_a_conversation_goes_on_in_the_same_cache(tiny, prompts):
    """A second ``generate`` with the longer prompt continues from what is cached."""
    model = tiny("lfm3")
    plain, arena = DynamicCache(config=model.config), ArenaCache(model.config, memory="4MiB")
    for cache in (plain, arena):
        cache.turn = generate(model, cache, input_ids=prompts[:1])[0]
        cache.turn = torch.cat([cache.turn, prompts[1:2]], dim=-1)
        cache.turn = generate(model, cache, input_ids=cache.turn)[0]

    assert torch.equal(arena.turn, plain.turn)


def test_window_pages_go_back_while_full_pages_stay(tiny, prompts):
    """After hundreds of tokens a window of 16 holds a few pages of 4, full attention all of them."""
    model = tiny("lfm3")
    with ArenaCache(model.config, memory="4MiB", page_tokens=4) as cache:
        generate(model, cache, input_ids=prompts[:1], max_new_tokens=60)
        held = dict(zip(cache.storage.plan.names, cache.storage.ownership.held()[:, 0].tolist(), strict=True))

    length = 37 + 59
    assert held["full"] == -(-length // 4)
    assert held["window-16"] <= 16 // 4 + 1
    assert held["state"] == 1


def test_reset_gives_the_pages_back_and_takes_another_batch(tiny, prompts):
    """After ``reset`` nothing is held, and a batch of another size starts from nothing, arena at hand or not."""
    model = tiny("lfm3")
    expected = generate(model, DynamicCache(config=model.config), **left_padded(prompts))
    with ArenaCache(model.config, memory="4MiB", max_running=3) as cache:
        forward_chunks(model, cache, prompts[:2], (37,))
        cache.reset()
        generate(model, cache, input_ids=prompts[:1])
        cache.reset()
        assert not cache.storage.ownership.held().any()
        assert cache.get_seq_length() == 0
        assert torch.equal(generate(model, cache, **left_padded(prompts))[1], expected[1])


def test_grad_modes_may_change_between_forwards(tiny, prompts):
    """The arena's views are no inference tensors, and no graph is kept through them."""
    model = tiny("qwen3_next")
    plain, arena = DynamicCache(config=model.config), ArenaCache(model.config, memory="4MiB")
    for mode in (torch.inference_mode, torch.enable_grad, torch.inference_mode, torch.no_grad):
        for cache, mode_of_cache in ((arena, mode), (plain, torch.no_grad)):
            with mode_of_cache():
                cache.found = model(input_ids=prompts[:, :1], **{CACHE_ARGUMENT: cache}, use_cache=True).logits
        assert torch.equal(arena.found, plain.found)
    assert not any(view.requires_grad for pool in ("state", "full") for view in views_of(arena.storage, pool).values())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to count address space")
@pytest.mark.parametrize("way", ["close", "with", "del"])
def test_the_memory_goes_with_the_cache(tiny, prompts, way):
    """Closed, left or dropped: the arena is unmapped at once, without the collector's help."""
    model = tiny("lfm3")
    gc.collect()
    gc.disable()
    try:
        before = vm_bytes()
        cache = ArenaCache(model.config, memory="8GiB")
        generate(model, cache, input_ids=prompts[:1], max_new_tokens=3)
        assert vm_bytes() - before > 7 * 1024**3
        if way == "close":
            cache.close()
            cache.close()
        elif way == "with":
            with cache:
                cache.reset()
        else:
            del cache
        assert vm_bytes() - before < 1024**3
    finally:
        gc.enable()


def test_a_closed_cache_says_so(tiny, prompts):
    """Use after ``close`` is an error with a cure, not a crash."""
    model = tiny("llama")
    cache = ArenaCache(model.config, memory="4MiB")
    generate(model, cache, input_ids=prompts[:1], max_new_tokens=3)
    cache.close()

    assert cache.storage is None
    with pytest.raises(KvarenaError, match="closed"):
        forward_chunks(model, cache, prompts, (3,))


def test_a_full_arena_tells_the_sum(tiny, prompts):
    """Decoding beyond the budget ends in one error with what was asked and what there is."""
    model = tiny("llama")
    with (
        ArenaCache(model.config, memory="100KiB", page_tokens=8) as cache,
        pytest.raises(ArenaFullError, match=r"cannot grow.*full: asked 1, live \d+.*bytes free.*more memory") as caught,
    ):
        generate(model, cache, input_ids=prompts[:1], max_new_tokens=200)
    assert caught.value.refused is not None


def test_a_first_forward_beyond_the_budget_is_refused(tiny, prompts):
    """The budget holds before the arena is there."""
    model = tiny("llama")
    with pytest.raises(ArenaFullError, match="first forward alone caches"):
        forward_chunks(model, ArenaCache(model.config, memory="16KiB"), prompts, (37,))


def test_a_budget_below_one_sequence_is_refused(tiny, prompts):
    """The error has each term, as planning's does."""
    model = tiny("gemma3_text")
    with pytest.raises(PlanError, match="cannot hold one request"):
        forward_chunks(model, ArenaCache(model.config, memory="30KiB"), prompts[:1], (4, 1))


def test_more_sequences_than_rows_are_refused(tiny, prompts):
    """Copies need rows: ``max_running`` says how many there may be."""
    model = tiny("lfm3")
    cache = ArenaCache(model.config, memory="4MiB")
    expected = forward_chunks(model, cache, prompts, (4, 1))
    with pytest.raises(
        ArenaFullError, match=r"request rows asked for, none of 3 free \([0-9,]+ bytes free\);.*larger max_running"
    ):
        cache.batch_repeat_interleave(2)
    cache.reset()
    assert torch.equal(forward_chunks(model, cache, prompts, (4, 1)), expected)


def test_after_a_full_arena_a_reset_starts_anew(tiny, prompts):
    """A forward that failed leaves nothing behind: at the take-over, then in the arena."""
    model = tiny("qwen3_next")
    cache = ArenaCache(model.config, memory="150KiB", page_tokens=8, max_running=2)
    for sizes in ((480, 1), (37, 1, *[50] * 11)):
        with pytest.raises(ArenaFullError, match="cannot grow"):
            forward_chunks(model, cache, prompts[:1].repeat(1, 16), sizes)
        cache.reset()
        expected = forward_chunks(model, DynamicCache(config=model.config), prompts[:2], (20, 1, 1))
        assert torch.equal(forward_chunks(model, cache, prompts[:2], (20, 1, 1)), expected)
        cache.reset()


def test_what_cannot_be_done_is_refused_clearly(tiny, prompts):
    """Crop, a past record, a copy, another batch size, other shapes: one clear error each."""
    model = tiny("lfm3")
    cache = ArenaCache(model.config, memory="4MiB", max_running=8)
    forward_chunks(model, cache, prompts[:2], (4, 1))

    cache.crop(0)
    for call in (lambda: cache.crop(-1), cache.activate_past_recording, lambda: copy.deepcopy(cache)):
        with pytest.raises(KvarenaError, match="ArenaCache"):
            call()
    with pytest.raises(KvarenaError, match=r"batch of 3 meets a cache that holds 2 sequences.*reset"):
        cache.update(torch.zeros(3, 2, 1, 16), torch.zeros(3, 2, 1, 16), 1)
    with pytest.raises(KvarenaError, match=r"layer 1's 'k'.*float32 at first.*float16"):
        cache.update(torch.zeros(2, 2, 1, 16, dtype=torch.float16), torch.zeros(2, 2, 1, 16), 1)


@pytest.mark.parametrize(
    ("name", "value"), [("memory", "80GG"), ("page_tokens", 0), ("max_running", -1), ("context_tokens", 0)]
)
def test_a_setting_that_is_no_amount_is_refused(name, value):
    """Before any model runs, with the setting's name."""
    with pytest.raises(ConfigError, match=rf"ArenaCache: {name}.*{value}"):
        ArenaCache(AutoConfig.for_model("llama"), **{name: value})


def test_a_device_without_an_arena_is_refused():
    """The arena is on the cpu: a model elsewhere is told so instead of being copied to and fro in silence."""
    model = build_tiny("lfm2").to("meta")
    cache = ArenaCache(model.config, memory="4MiB")
    tokens = torch.zeros((1, 4), dtype=torch.long, device="meta")
    with pytest.raises(KvarenaError, match=r"layer 0 caches on meta.*model\.to\('cpu'\)"):
        forward_chunks(model, cache, tokens, (3, 1))


def test_an_unknown_kind_of_layer_is_named():
    """A cache class that has no place in an arena is refused when the cache is made."""
    config = AutoConfig.for_model("deepseek_v4", num_hidden_layers=4)
    with pytest.raises(KvarenaError, match=r"this 'deepseek_v4' model"):
        ArenaCache(config)


@pytest.mark.parametrize("config", [None, {}, "lfm3"])
def test_what_is_no_config_is_refused(config: object) -> None:
    """A model, a dict or nothing in its place is told at once, not at the first forward."""
    with pytest.raises(ConfigError, match=r"ArenaCache: config is a .*; give the model's own"):
        ArenaCache(config)
