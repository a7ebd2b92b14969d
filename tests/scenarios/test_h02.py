"""H02: a latent row is whole on every tensor-parallel rank, in bytes and in what a budget holds."""

import attrs
import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.planning.plan import plan_storage
from kvarena.plugins.models import read_model
from kvarena.terms.layers import Layer
from kvarena.terms.lifetimes import Full

LAYERS = 61
PAGE_TOKENS = 64
BUDGET = 10 * 1024**3
RANKS = (1, 2, 4, 8)
LATENT = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 8192,
}


@pytest.fixture(scope="module")
def catalog():
    return Catalog.installed()


def full_of(catalog, config, tp, dtype="bfloat16"):
    """The full-attention sub-pool of one rank, in pages of 64 tokens."""
    spec = read_model(config, tp=tp, dtype=dtype, catalog=catalog)
    plan = plan_storage(spec.layers, page_tokens=PAGE_TOKENS)
    assert plan.names == ("full",)
    return plan["full"]


@pytest.mark.req("PLN-1")
@pytest.mark.parametrize("tp", RANKS)
def test_a_bf16_latent_costs_the_same_at_every_degree(catalog, tp):
    """1,152 bytes a layer, 70,272 a token, 4,497,408 a page; 10 GiB hold 2,387 whole pages on each rank."""
    full = full_of(catalog, LATENT, tp)

    assert full.entry_bytes == 1152 * LAYERS == 70_272
    assert full.unit_bytes == 4_497_408
    assert BUDGET // full.unit_bytes == 2387
    assert BUDGET // full.unit_bytes * PAGE_TOKENS == 152_768


@pytest.mark.parametrize("tp", RANKS)
def test_a_sink_paid_from_the_budget_costs_one_page(catalog, tp):
    """The top page of the grid is the sink: 2,386 pages, 152,704 tokens, are left to hand out."""
    pages = BUDGET // full_of(catalog, LATENT, tp).unit_bytes - 1

    assert (pages, pages * PAGE_TOKENS) == (2386, 152_704)


@pytest.mark.parametrize("tp", RANKS)
def test_a_one_byte_latent_has_no_scale_in_its_row(catalog, tp):
    """576 items of one byte: scales that live outside the cache are not charged to the page."""
    assert full_of(catalog, LATENT, tp, "fp8").entry_bytes == 35_136


def test_a_packed_row_is_as_long_as_it_is_declared(catalog):
    """656 bytes a layer, scales inside: 40,016 a token."""
    latent = catalog.load("layouts", "latent")(656)
    part = attrs.evolve(read_model(LATENT, catalog=catalog).layers[0].parts[0], layout=latent, lifetime=Full())
    plan = plan_storage([Layer(index, (part,)) for index in range(LAYERS)], page_tokens=PAGE_TOKENS)

    assert plan["full"].entry_bytes == 40_016
    assert plan["full"].unit_bytes == 40_016 * PAGE_TOKENS


def test_plain_attention_is_shared_by_head(catalog):
    """Eight KV heads: all on one rank, one on each of eight."""
    assert full_of(catalog, PLAIN, 1).entry_bytes == 249_856
    assert full_of(catalog, PLAIN, 8).entry_bytes == 31_232
