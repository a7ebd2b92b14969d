"""Keys and values kept by a layout that a user named: through its codec, under pressure, equal to the reference."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from hands import make_request, sharing

from kvarena import Field
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, Choice, StorageConfig
from kvarena.assembly.loader import make_eviction
from kvarena.planning.plan import plan_storage
from kvarena.plugins.models import read_model
from kvarena.plugins.models.kv_layout import KvLayout
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig
from kvarena.plugins.transformers import ArenaCache
from kvarena.plugins.transformers.geometry import probe_layers
from kvarena.plugins.transformers.keeping import Keeping
from kvarena.plugins.transformers.runner import ModelRunner
from kvarena.plugins.transformers.verify import CodecCache, verify
from kvarena.storage.routed import views_of
from kvarena.terms.errors import ConfigError, KvarenaError, PluginError

EXAMPLE = Path(__file__).parents[3] / "examples" / "kvarena-int8" / "kvarena_int8.py"
SERVING = ServingConfig(chunk_tokens=16, step_tokens=48, output_fraction=0.25, keep_forwards=True)


def example():
    """The module of the example package, which need not be installed."""
    spec = importlib.util.spec_from_file_location("kvarena_int8", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


int8 = example()


@attrs.frozen
class Odd:
    """A layout of two fields whose codec does what the test says."""

    name = "odd"
    kv_heads: int
    head_dim: int
    codec = None

    def fields(self):
        return Field("a", "float32", (self.kv_heads, self.head_dim)), Field("b", "float32", (self.kv_heads,))


@attrs.frozen
class Shrinking:
    """Keys and values as they are, but for what the codec takes off each time."""

    name = "shrinking"
    kv_heads: int
    head_dim: int
    codec = SimpleNamespace(encode=lambda k, v: (k, v), decode=lambda fields: [0.9 * rows for rows in fields])

    def fields(self):
        return tuple(Field(name, "float32", (self.kv_heads, self.head_dim)) for name in ("keys", "values"))


MADE = {"int8-heads": int8.Int8Heads, "odd": Odd, "shrinking": Shrinking}


class Offers:
    """A catalog that has the layouts of this file beside those that are installed."""

    def load(self, kind, name):
        return MADE[name] if name in MADE else Catalog.installed().load(kind, name)


def named(name="int8-heads", **settings):
    """What ``kv_layout`` says in a config."""
    return KvLayout(Offers(), Choice(name, settings), "run.toml: kv_layout")


def kept(model, layout=None):
    return Keeping.of(probe_layers(model), layout or named())


def storage_for(keeping, memory="1MiB", **settings):
    """A small arena, pages of 8 tokens, prefixes shared, two forwards in flight."""
    arena = ArenaConfig(memory=memory, page_tokens=8, max_running=6, context_tokens=128, forwards_in_flight=2)
    return build_storage(keeping.layers, StorageConfig(arena=arena, prefix=sharing(16), **settings))


def answers(model, cache, prompts, **settings):
    """Greedy tokens and the logits behind them, for a batch that is padded on the left."""
    mask = torch.ones_like(prompts)
    mask[0, :20] = 0
    found = model.generate(
        input_ids=prompts * mask, attention_mask=mask, past_key_values=cache, max_new_tokens=9, do_sample=False,
        return_dict_in_generate=True, output_logits=True, **settings,
    )  # fmt: skip
    return found.sequences, torch.stack(found.logits)


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize("name", ["lfm3", "gpt_oss", "falcon_h1", "qwen3_next"])
def test_generate_loses_what_the_codec_loses_and_nothing_else(tiny, prompts, name):
    """Full attention, windows and hybrids: the very logits of transformers' layers behind the same codec."""
    model = tiny(name)
    tokens, logits = answers(model, CodecCache(model.config, kept(model)), prompts)
    with ArenaCache(model.config, memory="4MiB", page_tokens=8, kv_layout=named()) as cache:
        found = answers(model, cache, prompts)

    assert torch.equal(found[0], tokens)
    assert torch.equal(found[1], logits)
    assert not torch.equal(logits, answers(model, None, prompts)[1])


def test_the_arena_holds_codes_and_scales(tiny, prompts):
    """Each row is encoded once, from what the model wrote: also those that the first forward left behind."""
    model, layout = tiny("llama"), int8.Int8Heads(2, 16)
    rows = torch.randn(1, 2, 24, 16, generator=torch.Generator().manual_seed(2))
    with ArenaCache(model.config, memory="1MiB", page_tokens=8, kv_layout=named()) as cache:
        for layer in range(4):
            cache.update(rows[:, :, :20], -rows[:, :, :20], layer)
        for layer in range(4):
            keys, values = cache.update(rows[:, :, 20:], -rows[:, :, 20:], layer)
        views, table = views_of(cache.storage, "full"), cache.storage.translate(np.array([0])).tables["full"]
        held = [views[3, "kv", field.name][table[0]].flatten(0, 1)[:24].clone() for field in layout.fields()]

    expected = layout.codec.encode(rows[0].transpose(0, 1), -rows[0].transpose(0, 1))
    assert all(map(torch.equal, held, expected))
    assert torch.equal(keys, layout.codec.decode(held)[0].transpose(0, 1)[None])
    assert torch.equal(values, -keys)


def test_rows_are_encoded_once(tiny, prompts):
    """A codec that takes a tenth of the values off at each passing takes it off once, also from the first rows."""
    model = tiny("lfm3")
    layout = named("shrinking")
    expected = answers(model, CodecCache(model.config, kept(model, layout)), prompts)
    with ArenaCache(model.config, memory="4MiB", page_tokens=8, kv_layout=layout) as cache:
        found = answers(model, cache, prompts)

    assert torch.equal(found[1], expected[1])


def test_beams_are_reordered_as_codes(tiny, prompts):
    """Copies of sequences are copies of bytes: beam search gives what it gives behind the codec alone."""
    model = tiny("gemma3_text")
    expected = answers(model, CodecCache(model.config, kept(model)), prompts, num_beams=3)
    with ArenaCache(model.config, memory="4MiB", page_tokens=4, kv_layout=named()) as cache:
        assert torch.equal(answers(model, cache, prompts, num_beams=3)[0], expected[0])


class Served:
    """Five requests behind two shared beginnings, in an arena that is too small for them."""

    def __init__(self, model, keeping, memory, spoil=None):
        self.model, self.keeping = model, keeping
        self.storage = storage_for(keeping, memory)
        self.runner = ModelRunner(model, self.storage, keeping=keeping)
        cache = PrefixTree(self.storage, make_eviction(Catalog.installed(), self.storage.prefix))
        heads = [make_request(90 + at, 32, 1).prompt for at in range(2)]
        requests = [make_request(number, 4 + 3 * number, 10) for number in range(6)]
        for at, request in enumerate(requests):
            prompt = (*heads[at % 2], *request.prompt)
            requests[at] = attrs.evolve(request, prompt=prompt, prompt_tokens=len(prompt), arrival=0.03 * at)
        loop = Scheduler(self.storage, self.runner, SERVING, cache=cache)
        self.report = loop.run(requests, lambda at: spoil and spoil(at.steps, self.storage))

    def verdict(self, keeping):
        return verify(self.model, self.report, self.runner.tokens, keeping=keeping)


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize(("name", "memory"), [("gpt_oss", "32KiB"), ("lfm3", "44KiB")])
def test_pressure_changes_no_token(tiny, name, memory):
    """Waits, evictions, shared pages, moves and retractions: tokens equal the reference's that has the same codec."""
    model = tiny(name)
    served = Served(model, kept(model), memory)
    report = served.report

    assert report.count("done") == 6
    assert report.cache.cached_tokens >= 32
    assert report.cache.evictions >= 1
    assert report.retractions + report.waits >= 1
    assert served.storage.chain.counters.moves >= 1
    verdict = served.verdict(served.keeping)
    assert verdict.equal, str(verdict.difference)
    assert verdict.tokens == 60
    served.storage.release()


def test_the_judge_is_not_blind(tiny):
    """Without the codec the reference differs; with it, a scale that changed in the arena does."""
    model = tiny("gpt_oss")
    served = Served(model, kept(model), "1MiB")
    assert served.verdict(served.keeping).equal
    assert not served.verdict(None).equal
    served.storage.release()

    def spoil(steps, storage):
        if steps == 6:
            views_of(storage, "full")[1, "kv", "k_scale"].fill_(1.0)

    served = Served(model, kept(model), "1MiB", spoil)
    assert not served.verdict(served.keeping).equal
    served.storage.release()


@pytest.mark.parametrize("settings", [{}, {"scale_dtype": "float32"}])
def test_planning_and_serving_agree_to_the_byte(tiny, settings):
    """The plan from the config has the units of the arena that serves the model."""
    model = tiny("gpt_oss")
    spec = read_model(model.config.to_dict(), dtype="float32", kv_layout=named(**settings))
    storage = storage_for(kept(model, named(**settings)))
    planned = plan_storage(spec.layers, page_tokens=8)

    assert {pool.name: pool.unit_bytes for pool in planned.sub_pools} == {
        pool.name: pool.unit_bytes for pool in storage.plan.sub_pools
    }
    storage.release()


def test_a_wider_type_needs_no_codec(tiny, prompts):
    """Keys and values as float64: nothing is lost, so the tokens are those of transformers' own cache."""
    model = tiny("lfm3")
    expected = answers(model, None, prompts)
    with ArenaCache(model.config, memory="4MiB", kv_layout={"name": "mha", "dtype": "float64"}) as cache:
        found = answers(model, cache, prompts)
        assert views_of(cache.storage, "full")[1, "kv", "k"].dtype == torch.float64

    assert torch.equal(found[1], expected[1])
    assert Keeping.of(probe_layers(model), named("mha")).codec == ""


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("mhaa", {}, "no layout is named 'mhaa'; did you mean 'mha'?"),
        ("latent", {}, 'layout \'latent\' needs row_bytes, which a model does not tell; write { name = "latent", r'),
        ("latent", {"row_bytes": 64}, "has no codec and keeps row (64,) of uint8; the model writes k (2, 16) of"),
        ("mha", {"dtype": "bfloat16"}, "keeps k (2, 16) of bfloat16, v (2, 16) of bfloat16; the model writes"),
        ("mha", {"kv_heads": 4}, "kv_heads is 4, and a layer of this model has 2; leave it out"),
        ("int8-heads", {"scale_dtype": "int8"}, "scale_dtype: must be in ['float16', 'float32']"),
        ("int8-heads", {"scale": "float16"}, "scale: unknown key; did you mean 'scale_dtype'?"),
        ("odd", {}, "test_keeping.Odd) has no codec and keeps a (2, 16) of float32, b (2,) of float32"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused_by_name(tiny, name, settings, says):
    """One line: the place, what was found, what would do."""
    with pytest.raises(KvarenaError) as caught:
        kept(tiny("llama"), named(name, **settings))
    assert str(caught.value).startswith("run.toml: kv_layout: ")
    assert says in str(caught.value)


def test_values_of_another_size_need_a_layout_that_takes_it(tiny):
    """Keys of 32 and values of 8: a layout that is told the keys alone would cut the values."""
    with pytest.raises(ConfigError, match="takes no v_head_dim, and a layer of this model has values of 8 beside keys"):
        kept(tiny("kimi_linear"))


def test_a_model_without_keys_and_values_has_nothing_to_keep():
    """Naming a layout for it is a mistake, in a plan and in a run."""
    with pytest.raises(ConfigError, match="no layer of this model caches keys and values; leave it out"):
        Keeping.of((), named())
    mamba = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "state_size": 8, "conv_kernel": 4}
    with pytest.raises(ConfigError, match=r"config\.json has no keys and values per head; leave it out"):
        read_model(mamba, kv_layout=named())


def odd_codec(encode=None, decode=None):
    """A codec that keeps keys as they are, and what a test puts in its place."""
    return SimpleNamespace(
        encode=encode or (lambda k, v: (k, v[..., 0])),
        decode=decode or (lambda fields: (fields[0], fields[0])),
    )


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (odd_codec(encode=lambda k, v: (k,)), "encode gave 1 tensors for its 2 fields"),
        (odd_codec(encode=lambda k, v: (k, v)), "(1, 2, 2, 16) of float32 for 1 x 2 rows of its field 'b', which"),
        (odd_codec(encode=lambda k, v: (k.half(), v[..., 0])), "of float16 for 1 x 2 rows of its field 'a'"),
        (odd_codec(encode=lambda k, v: (k, None)), "encode gave a NoneType for"),
        (odd_codec(encode=lambda k, v: 1 / 0), "encode failed: ZeroDivisionError: division by zero"),
        (odd_codec(decode=lambda fields: (fields[0],)), "decode gave [(1, 2, 2, 16)], and the model writes"),
        (odd_codec(decode=lambda fields: fields), "decode gave [(1, 2, 2, 16), (1, 2, 2)], and the model writes"),
        (odd_codec(decode=lambda fields: fields[2]), "decode failed: IndexError"),
    ],
)  # fmt: skip
def test_a_codec_that_does_not_do_what_it_says_is_named(tiny, monkeypatch, codec, says):
    """Before a token is served: the layout, who brought it, what came."""
    monkeypatch.setattr(Odd, "codec", codec)
    with pytest.raises(PluginError) as caught:
        kept(tiny("llama"), named("odd"))
    assert re.match(r"layout 'odd' \([\w.]*test_keeping\.Odd\): its codec's ", str(caught.value))
    assert says in str(caught.value)


def test_a_runner_is_told_how_the_storage_keeps_rows(tiny):
    """Codes without their codec, and a codec without its codes, are refused before a forward."""
    model = tiny("llama")
    coded, plain = kept(model), Keeping.of(probe_layers(model))
    storage = storage_for(coded)
    with pytest.raises(KvarenaError, match=r"keeps keys and values as k, v, k_scale, v_scale; give the runner"):
        ModelRunner(model, storage)
    with pytest.raises(KvarenaError, match=r"as k of int8.*told k of float32, v of float32; build the storage from"):
        ModelRunner(model, storage, keeping=plain)
    with pytest.raises(KvarenaError, match="this 'llama' model has 4 layers that cache, and the runner was told of 3"):
        ModelRunner(model, storage, keeping=attrs.evolve(coded, layers=coded.layers[:3]))
    storage.release()


@pytest.mark.parametrize("value", [3, {"scale_dtype": "float32"}])
def test_what_names_no_layout_is_refused(tiny, value):
    """A number, or settings without a name."""
    with pytest.raises(ConfigError, match="ArenaCache: kv_layout: must be a name or a table with a name"):
        ArenaCache(tiny("llama").config, kv_layout=value)
