"""Promises of the cost model: its sums can be redone by hand, and the presets and the user's tables are read."""

import numpy as np
import pytest

from kvarena.plugins.replay.cost import CostModel, ModelCost, PoolCost, Work
from kvarena.plugins.replay.gpus import Gpu, load_gpu, preset_names
from kvarena.terms.errors import ConfigError
from kvarena.terms.lifetimes import Chunk, Full, State, Window

PLAIN = Gpu("plain", 1e12, 1e9, 0.5, 0.5, 100)


def _work(model: ModelCost, *spans: tuple[int, int]) -> Work:
    starts, stops = np.array(spans, dtype=np.int64).T
    return CostModel(model).work(starts, stops)


def _seen(lifetime, start: int, stop: int) -> tuple[set[int], int]:
    """The rows that queries start..stop-1 see, and the pairs, from the definition of ``retired``."""
    rows: set[int] = set()
    pairs = 0
    for query in range(start, stop):
        gone = {row for part in lifetime.retired(0, query) for row in part}
        seen = (set(range(query)) - gone) | {query}
        rows, pairs = rows | seen, pairs + len(seen)
    return rows, pairs


def test_a_decode_step_reads_weights_and_rows():
    """One token: all weights, the rows before it and its own, one row written."""
    model = ModelCost(weights_bytes=1000, flops_per_token=20, pools=(PoolCost(Full(), 8, 3),))

    assert _work(model, (100, 101), (10, 11)) == Work(
        flops=2 * 20 + 3 * (101 + 11), bytes=1000 + 8 * (101 + 11) + 8 * 2
    )


@pytest.mark.parametrize("lifetime", [Full(), Window(16), Chunk(16), Window(1)])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 40), (15, 17), (16, 48), (37, 38), (5, 15)])
def test_a_chunk_reads_each_row_once_and_pairs_by_the_lifetime(lifetime, start, stop):
    """Bytes count rows that any query of the chunk sees; FLOPs count pairs of a query and a row."""
    rows, pairs = _seen(lifetime, start, stop)
    work = _work(ModelCost(0, 0, (PoolCost(lifetime, 1, 1),)), (start, stop))

    assert work == Work(flops=pairs, bytes=len(rows) + stop - start)


def test_sparse_attention_reads_at_most_its_rows():
    """A query reads rows_max rows; the queries of a chunk read different ones until there are no more."""
    model = ModelCost(0, 0, (PoolCost(Full(), 1, 1, rows_max=8),))

    assert _work(model, (1000, 1001)) == Work(flops=8, bytes=7 + 2)
    assert _work(model, (1000, 1010)) == Work(flops=80, bytes=70 + 20)
    assert _work(model, (20, 60)) == Work(flops=320, bytes=20 + 80)
    assert _work(model, (0, 4)) == Work(flops=1 + 2 + 3 + 4, bytes=8)


def test_long_sequences_extend_the_tables():
    """A sum over a million rows is exact, after short sequences came first."""
    cost = CostModel(ModelCost(0, 0, (PoolCost(Full(), 0, 1),)))
    cost.work(np.array([0]), np.array([10]))

    assert cost.work(np.array([0]), np.array([10**6])).flops == 10**6 * (10**6 + 1) // 2


def test_a_state_is_read_and_written_once_per_request():
    """The length of a sequence does not matter to its state, the tokens of the chunk do to its FLOPs."""
    work = _work(ModelCost(0, 0, (PoolCost(State(), 50, 2),)), (0, 10), (5000, 5001))

    assert work == Work(flops=2 * 11, bytes=2 * 50 * 2)


def test_experts_are_read_as_tokens_ask_for_them():
    """One token reads its active share, many tokens approach all weights, a dense model always reads all."""
    experts = ModelCost(weights_bytes=100, flops_per_token=0, active_share=0.25)

    assert experts.weights_read(0) == 0
    assert experts.weights_read(1) == pytest.approx(25)
    assert experts.weights_read(2) == pytest.approx(25 + 75 * 0.25)
    assert experts.weights_read(1000) == pytest.approx(100)
    assert ModelCost(100, 0).weights_read(1) == 100


def test_seconds_are_the_longer_of_both_and_the_constant():
    """Compute-bound and memory-bound steps, each with the overhead on top."""
    assert Work(flops=1e12, bytes=1e3).seconds(PLAIN) == pytest.approx(2 + 1e-4)
    assert Work(flops=1e3, bytes=1e9).seconds(PLAIN) == pytest.approx(2 + 1e-4)


def test_presets_are_named_and_faster_memory_decodes_faster():
    """The three presets; H200 differs from H100 in bandwidth alone."""
    assert set(preset_names()) == {"h100", "h200", "mi300x"}
    h100, h200 = load_gpu("h100"), load_gpu("h200")
    assert (h100.peak_flops, h100.bandwidth) == (h200.peak_flops, 3.35e12)
    decode = Work(flops=1e9, bytes=16e9)
    assert decode.seconds(h200) < decode.seconds(h100)


def test_a_users_table_may_start_from_a_preset(tmp_path):
    """By path where it is the only one, else by path and name; unnamed values come from the base."""
    file = tmp_path / "mine.toml"
    file.write_text('[slow]\nbase = "h100"\nbandwidth = 1e12\n')
    assert load_gpu(str(file)) == load_gpu(f"{file}:slow")
    assert load_gpu(str(file)).bandwidth == 1e12
    assert load_gpu(str(file)).peak_flops == load_gpu("h100").peak_flops

    file.write_text('[slow]\nbase = "h100"\n[fast]\nbase = "h200"\n')
    with pytest.raises(ConfigError, match="2 accelerators; say which"):
        load_gpu(str(file))
    assert load_gpu(f"{file}:fast").bandwidth == 4.8e12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[a]\nbase = "h10"\n', "a.base: no preset 'h10'; did you mean 'h100'"),
        ('[a]\nbase = "h100"\nbandwith = 1\n', "a.bandwith: unknown key; did you mean 'bandwidth'"),
        ("[a]\nbandwidth = 1\n", "a.peak_flops: is missing; give it, or a base"),
        ('[a]\nbase = "h100"\ncompute_efficiency = 1.5\n', r"must be in \(0, 1\]"),
        ('[a]\nbase = "h100"\nbandwidth = 0\n', "a.bandwidth: must be positive"),
        ('[a]\nbase = "h100"\nbandwidth = "fast"\n', "a.bandwidth: must be a number, not 'fast'"),
        ('[a]\nbase = "h100"\nbandwidth = inf\n', "a.bandwidth: must be positive and finite"),
        ('[a]\nbase = "h100"\nbandwidth = nan\n', "a.bandwidth: must be a number"),
        (f'[a]\nbase = "h100"\nbandwidth = 1{"0" * 400}\n', "a.bandwidth: "),
        ('[a]\nbase = ["h100"]\n', "a.base: no preset"),
        ("bandwidth = 1\n", "bandwidth: unknown key"),
        ("version = 2\n", "version 2"),
        ("[a", "is no TOML"),
        ("", "0 accelerators"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(tmp_path, text, says):
    """Unknown and missing keys, values out of range, broken files."""
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_gpu(str(file))
    assert "mine.toml" in str(caught.value)


def test_an_unknown_gpu_is_refused():
    """A typing error gets the nearest preset, a missing file its reason."""
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        load_gpu("h1000")
    with pytest.raises(ConfigError, match=r"gone\.toml: there is no such file"):
        load_gpu("gone.toml")
