"""What a token of a published model costs stands beside sums by hand."""

from pathlib import Path

import numpy as np
import pytest

from kvarena.plugins.models import ModelSpec, read_config, read_model
from kvarena.plugins.replay.cost import CostModel, ModelCost
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.terms.errors import ConfigError
from kvarena.terms.lifetimes import Full, Lifetime, Window

DATA = Path(__file__).parents[2] / "data" / "models"


def published(name: str, tp: int = 1) -> ModelSpec:
    return read_model(read_config(DATA / f"{name}.json"), tp=tp)


def row_flops(cost: ModelCost) -> dict[tuple[Lifetime, int | None], float]:
    """FLOPs for a pair of a token and a row, by what is kept and how much of it is read."""
    return {(pool.lifetime, pool.rows_max): pool.flops_per_row for pool in cost.pools}


def attention_flops(cost: ModelCost, position: int) -> float:
    """FLOPs of the token at a position, beside those of the weights."""
    flops = CostModel(cost).work(np.array([position]), np.array([position + 1])).flops
    return flops - cost.flops_per_token


def test_attention_flops_by_hand() -> None:
    """4 * heads * head_dim per row and layer: 32 layers of 32 heads of 128 in Llama 3.1 8B; a token sees itself."""
    spec = published("llama-3.1-8b")
    cost = model_cost(spec)

    assert spec.active_parameters is not None
    assert cost.flops_per_token == 2 * spec.active_parameters
    assert attention_flops(cost, 999) == 1000 * 32 * 4 * 32 * 128


def test_windows_clip_what_a_query_reads() -> None:
    """Beyond the window a longer context costs a window layer nothing: half of gpt-oss stops at 128 rows."""
    cost = model_cost(published("gpt-oss-20b"))
    layers = 12 * 4 * 64 * 64

    assert row_flops(cost) == {(Full(), None): layers, (Window(128), None): layers}
    assert attention_flops(cost, 99) == layers * 200
    assert attention_flops(cost, 9_999) == layers * (10_000 + 128)


def test_rates_and_top_k_clip_what_a_query_reads() -> None:
    """DeepSeek-V4 reads a window, at most 512 entries of 4 tokens, all entries of 128, and every indexer key."""
    row, key = 4 * 64 * 512, 2 * 64 * 128
    chosen, others = 21 * row / 4, 20 * row / 128 + 21 * key / 4
    cost = model_cost(published("deepseek-v4-flash"))

    assert row_flops(cost) == {(Window(128), None): 43 * row, (Full(), 4 * 512): chosen, (Full(), None): others}
    assert attention_flops(cost, 65_535) == 128 * 43 * row + 2048 * chosen + 65_536 * others


def test_sharing_layers_still_compute() -> None:
    """A layer that reads another's rows attends to them: all 35 layers of Gemma 3n count, 20 of them own rows."""
    cost = model_cost(published("gemma-3n-e4b"))

    assert sum(pool.flops_per_row for pool in cost.pools) == 35 * 4 * 8 * 256
    assert attention_flops(cost, 99) == 100 * 35 * 4 * 8 * 256
    for pool in cost.pools:
        assert pool.read_bytes == pool.entry_bytes * 35 / 20


def test_states_cost_the_same_at_any_length() -> None:
    """A pure Mamba's token costs its weights and its state's items, whatever came before."""
    cost = model_cost(published("mamba-codestral-7b-v0.1"))

    assert attention_flops(cost, 1) == attention_flops(cost, 1_000_000) == cost.pools[0].flops_per_row > 0


def test_ranks_share_the_work() -> None:
    """Eight ranks each hold and compute an eighth."""
    one, eight = (model_cost(published("llama-3.1-70b", tp)) for tp in (1, 8))

    assert one.weights_bytes == 8 * eight.weights_bytes
    assert one.flops_per_token == 8 * eight.flops_per_token
    assert attention_flops(one, 500) == 8 * attention_flops(eight, 500)


def test_a_config_that_does_not_say_enough_is_refused() -> None:
    """Falcon-H1's file lacks its vocabulary: the user is told to give the parameters."""
    with pytest.raises(ConfigError, match=r"give them with --parameters"):
        model_cost(published("falcon-h1-0.5b"))
