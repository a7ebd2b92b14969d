"""Promises of a replay: the loop's own figures, the same every time, under pressure too, and by the command line."""

import json
from pathlib import Path

import attrs
import numpy as np
import pytest

from kvarena.assembly.config import SettingError
from kvarena.plugins.cli.main import run
from kvarena.plugins.models import read_model
from kvarena.plugins.replay.cost import CostModel, ModelCost, PoolCost
from kvarena.plugins.replay.gpus import load_gpu
from kvarena.plugins.replay.keys import TraceKeys
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.plugins.replay.replay import ReplaySettings, replay, requests_of
from kvarena.plugins.replay.report import spread
from kvarena.plugins.replay.trace_rows import TraceRow
from kvarena.plugins.replay.traces import Trace, TraceOptions, read_trace
from kvarena.plugins.serving.port import Request
from kvarena.terms.errors import ConfigError, PlanError
from kvarena.terms.lifetimes import Full, Window

DATA = Path(__file__).parents[2] / "data" / "traces"
MIB = 1 << 20
LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GEMMA = {
    **LLAMA,
    "model_type": "gemma3_text",
    "head_dim": 32,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
TOKEN_BYTES = 4 * 2 * 4 * 32 * 2
"""Of LLAMA: layers, keys and values, heads, items, bytes."""


BURST = Trace("made.jsonl", "made", tuple(TraceRow(line, 0.0, 100, 60) for line in range(16)))
"""Sixteen requests at once, of 160 rows and 320 KiB each."""


def _trace(*rows: TraceRow) -> Trace:
    return Trace("made.jsonl", "made", rows)


def _replay(config=LLAMA, trace=None, **settings):
    trace = trace or read_trace(DATA / "azure.csv", TraceOptions(output_max=20))
    return replay(read_model(config), trace, ReplaySettings(**{"memory": 64 * MIB, **settings}))


def test_a_request_alone_takes_the_times_of_its_steps():
    """Its first token comes after its prefill chunks, each priced by the cost model, the rest one step each."""
    row = TraceRow(1, 5.0, 100, 3)
    document = _replay(trace=_trace(row), chunk_tokens=64, step_tokens=64)

    gpu, cost = load_gpu("h100"), CostModel(model_cost(read_model(LLAMA)))
    spans = [(0, 64), (64, 100), (100, 101), (101, 102)]
    first, second, third, fourth = (_seconds(cost, gpu, span) for span in spans)
    assert document["steps"] == 4
    assert document["latency"]["time_to_first_token"]["max"] == pytest.approx(first + second)
    assert document["latency"]["time_per_token"]["max"] == pytest.approx((third + fourth) / 2)
    assert document["throughput"]["seconds"] == pytest.approx(5 + first + second + third + fourth)
    assert document["throughput"]["tokens_forwarded"] == 102
    assert document["bands"][0]["peak"] == 7


def _seconds(cost, gpu, span):
    start, stop = np.array(span, dtype=np.int64)[:, None]
    return cost.work(start, stop).seconds(gpu)


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["full", "window and full"])
@pytest.mark.parametrize("fraction", [1.0, 0.1])
def test_the_same_replay_gives_the_same_document(config, fraction):
    """Also where requests wait and are retracted: nothing depends on the wall clock or on chance."""
    settings = {"trace": BURST, "memory": 2 * MIB, "output_fraction": fraction, "chunk_tokens": 64, "step_tokens": 128}
    first, second = _replay(config, **settings), _replay(config, **settings)

    assert json.dumps(first) == json.dumps(second)
    assert first["requests"]["waited"] > 0
    assert (first["requests"]["retractions"] > 0) == (fraction < 1)


def test_a_tight_arena_makes_requests_wait_and_still_serves_them():
    """Charged in full nobody is retracted; charged a tenth some are, and all are done in the end."""
    careful = _replay(trace=BURST, memory=2 * MIB)["requests"]
    eager = _replay(trace=BURST, memory=2 * MIB, output_fraction=0.1)["requests"]

    assert careful["done"] == eager["done"] == 16
    assert careful["waited"] > 0
    assert careful["retractions"] == 0
    assert eager["retractions"] >= eager["retracted"] > 0


def test_bands_never_exceed_the_arena():
    """Peaks are in whole units and, for one band, the arena bounds them."""
    document = _replay(trace=BURST, memory=2 * MIB, output_fraction=0.1)

    (band,) = document["bands"]
    assert band["unit_bytes"] == 16 * TOKEN_BYTES
    assert 0 < band["mean"] <= band["peak"]
    assert band["peak_bytes"] <= document["arena"]["arena_bytes"] <= 2 * MIB


def test_a_request_that_no_arena_holds_is_refused_by_itself():
    """The others are served; the refusal says why."""
    trace = _trace(TraceRow(1, 0.0, 100, 5), TraceRow(2, 0.0, 5000, 5))
    document = _replay(trace=trace, context_tokens=1000)

    assert document["requests"] == {
        "total": 2, "done": 1, "refused": 1, "failed": 0, "aborted": 0, "clipped": 0,
        "retracted": 0, "retractions": 0, "preemptions": 0, "waited": 0,
    }  # fmt: skip
    assert document["refusals"][0]["request"] == 1
    assert "5,004 rows" in document["refusals"][0]["reason"]


def test_the_context_is_the_longest_request_or_the_models_limit():
    """A trace longer than the model can be is not an error: what is too long is refused."""
    trace = _trace(TraceRow(1, 0.0, 100, 5), TraceRow(2, 0.0, 3000, 5))

    assert _replay(trace=trace)["arena"]["context_tokens"] == 3004
    short = _replay({**LLAMA, "max_position_embeddings": 2048}, trace)
    assert (short["arena"]["context_tokens"], short["requests"]["refused"]) == (2048, 1)


def test_a_budget_under_the_floor_is_refused():
    """Before anything runs, with the terms and their bytes."""
    with pytest.raises(PlanError, match="cannot hold one request"):
        _replay(memory=1000)


def test_timings_are_there_only_when_asked_for():
    """Wall times would make two runs differ."""
    assert "timings" not in _replay()
    timings = _replay(with_timings=True)["timings"]
    assert timings["requests_per_second"] > 0
    assert 0 < timings["allocator_us_per_step"] < timings["loop_us_per_step"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"chunk_tokens": 0}, "must be a whole number >= 1, not 0"),
        ({"max_running": -1}, "must be a whole number >= 1, not -1"),
        ({"step_tokens": 100, "chunk_tokens": 512}, "is 100, less than one chunk"),
        ({"output_fraction": 0.0}, "is 0.0; it must be above 0"),
        ({"forwards_in_flight": -1}, "must be a whole number >= 0, not -1"),
        ({"checkpoint_tokens": 0}, "must be a whole number >= 1, not 0"),
        ({"strategy": "none"}, "unknown value 'none'; choose one of: extra_buffer"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, says):
    """The error names the setting; who read it says where it stood."""
    with pytest.raises(SettingError, match=says) as error:
        ReplaySettings(memory=MIB, **wrong)
    assert error.value.setting == next(iter(wrong))


def _shared(prompts: int = 4) -> Trace:
    """Requests one after another, the first 300 tokens of each in the blocks 1 to 3 of 100 tokens."""
    rows = [TraceRow(line, 100.0 * line, 340, 20, (1, 2, 3, 10 + line), 100) for line in range(prompts)]
    return _trace(*rows)


@pytest.mark.parametrize(
    ("config", "settings", "cached"),
    [
        (LLAMA, {"page_tokens": 16}, 3 * 288),
        (LLAMA, {"page_tokens": 1}, 3 * 300),
        (GEMMA, {"page_tokens": 16}, 2 * 288),
    ],
    ids=["pages of 16", "pages of 1", "window and full"],
)
def test_with_a_prefix_cache_what_the_trace_says_is_shared_is_not_computed_again(config, settings, cached):
    """Three of four start behind the shared blocks, to the page; without the cache all is forwarded.

    With a window the first leaves no rows that are needed there: the second makes the landing, for the others.
    """
    plain = _replay(config, _shared(), **settings)
    shared = _replay(config, _shared(), prefix_cache=True, **settings)

    assert (plain["cache"], plain["prefix"]) == (None, None)
    assert shared["cache"]["cached_tokens"] == cached
    assert shared["cache"]["prompt_tokens"] == 4 * 340
    assert shared["throughput"]["tokens_forwarded"] == plain["throughput"]["tokens_forwarded"] - cached
    assert shared["requests"]["done"] == 4
    assert shared["latency"]["time_to_first_token"]["p50"] < plain["latency"]["time_to_first_token"]["p50"]


def test_a_tight_arena_evicts_and_gives_the_same_document_twice():
    """Under every policy, with forwards in flight and without."""
    for eviction in ("lru", "lfu", "priority", "worth"):
        for in_flight in (0, 2):
            ways = {"memory": 2 * MIB, "prefix_cache": True, "eviction": eviction, "forwards_in_flight": in_flight}
            first, second = (_replay(trace=_shared(12), cache_outputs=True, **ways) for _ in range(2))
            assert json.dumps(first) == json.dumps(second)
            assert first["requests"]["done"] == 12
            assert first["cache"]["evictions"] > 0
            assert first["prefix"] == {
                "strategy": "extra_buffer", "grid_tokens": None, "eviction": {"name": eviction}, "cache_outputs": True,
            }  # fmt: skip


def test_pages_that_are_moved_take_time_on_the_gpu():
    """Read and written at its bandwidth, before the next forward; not where moves are free."""
    ways = {"trace": BURST, "memory": 2 * MIB, "output_fraction": 0.1, "config": GEMMA}
    priced, free = _replay(**ways), _replay(**ways, moves_take_time=False)

    assert priced["pages_moved"] > 0
    assert priced["throughput"]["seconds"] > free["throughput"]["seconds"]


def test_keys_are_equal_just_where_the_trace_says_so():
    """By block and place; a block's end that a prompt does not reach, and what is generated, is its own."""
    keys = TraceKeys(kept=2)
    one, other = (Request(number, 0.0, 10, 5, prefix_ids=(1, 2 + number), block_tokens=4) for number in range(2))
    alone = Request(2, 0.0, 10, 5)

    first, second = keys.of(one, 12), keys.of(other, 12)
    assert (first[:4] == second[:4]).all()
    assert not set(first[4:].tolist()) & set(second[4:].tolist())
    assert (first[8:] < 0).all()
    assert len(set(first.tolist())) == 12
    assert (keys.of(alone, 3) < 0).all()
    assert (keys.of(one, 3) == first[:3]).all()


def test_prefix_ids_of_different_sessions_differ():
    """Ids local to a session become global ones; those of a whole file stay; equal blocks stay equal."""
    rows = (
        TraceRow(1, 0.0, 130, 1, (1, 2), 64, "a"),
        TraceRow(2, 0.0, 130, 1, (1, 3), 64, "a"),
        TraceRow(1, 0.0, 130, 1, (1, 2), 64, "b"),
    )
    first, second, third = (request.prefix_ids for request in requests_of(rows))

    assert first[0] == second[0]
    assert len({*first, *second, *third}) == 5
    (plain,) = requests_of((TraceRow(1, 0.0, 600, 1, (7, 9), 512),))
    assert plain.prefix_ids == (7, 9)


def test_percentiles_are_values_that_occurred():
    """The least value with so many per cent of the values at or below it; values that are missing do not count."""
    marks = spread([*map(float, range(1, 101)), None])

    assert marks == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert spread([None]) is None


def test_the_cost_of_a_model_is_that_of_its_layers():
    """Per sub-pool: bytes of a token over its layers, and 2 FLOPs per head and item, for keys and for values."""
    cost = model_cost(read_model(GEMMA))

    entry, flops = 2 * 4 * 32 * 2, 2 * 8 * (32 + 32)
    assert set(cost.pools) == {
        PoolCost(Window(128), 3 * entry, 3 * flops, None, 3 * entry),
        PoolCost(Full(), entry, flops, None, entry),
    }
    halved = model_cost(read_model(GEMMA, tp=2))
    assert halved.weights_bytes == cost.weights_bytes / 2
    assert halved.pools[0].flops_per_row == cost.pools[0].flops_per_row / 2
    assert halved.pools[0].entry_bytes == cost.pools[0].entry_bytes / 2


def test_a_model_without_parameter_counts_is_refused():
    """Time is never guessed silently: the flag that gives the count is named."""
    spec = attrs.evolve(read_model(LLAMA), parameters=None)
    with pytest.raises(ConfigError, match="--parameters"):
        model_cost(spec)
    assert isinstance(model_cost(attrs.evolve(spec, parameters=10**6)), ModelCost)


@pytest.fixture
def model(tmp_path):
    """A config.json on disk."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    return str(file)


def test_the_command_prints_the_same_json_twice(model, capsys):
    """One document on stdout, and nothing else there."""
    command = ["replay", "--model", model, "--memory", "32MiB", "--trace", str(DATA / "mooncake.jsonl"), "--json"]
    command += ["--length-scale", "0.05", "--limit", "12", "--output-fraction", "0.2"]
    assert run(command) == 0
    first = capsys.readouterr().out
    assert run(command) == 0

    assert capsys.readouterr().out == first
    document = json.loads(first)
    assert document["version"] == 1
    assert document["trace"] == {
        "file": "mooncake.jsonl", "format": "mooncake", "requests": 12, "skipped": 0, "skipped_rows": [],
    }  # fmt: skip
    assert document["requests"]["done"] == 12


def test_the_command_shares_prefixes_and_says_how_far(model, capsys):
    """The options reach the cache, and the page has a line for it."""
    command = [
        "replay",
        "--model",
        model,
        "--memory",
        "64MiB",
        "--trace",
        str(DATA / "mooncake.jsonl"),
        "--prefix-cache",
    ]
    command += ["--length-scale", "0.05", "--eviction", "worth", "--forwards-in-flight", "0"]
    assert run(command) == 0
    assert "tokens were there" in capsys.readouterr().out
    assert run([*command, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["prefix"]["eviction"] == {"name": "worth"}
    assert document["loop"]["forwards_in_flight"] == 0
    assert document["cache"]["cached_tokens"] > 0


def test_the_command_prints_tables_for_a_person(model, capsys):
    """Requests by fate, latencies, bands, and what was skipped."""
    command = [
        "replay",
        "--model",
        model,
        "--memory",
        "64MiB",
        "--trace",
        str(DATA / "burstgpt.csv"),
        "--on-bad",
        "skip",
    ]
    assert run([*command, "--timings"]) == 0

    out = capsys.readouterr().out
    for text in (
        "43 done, 0 refused",
        "4 rows skipped",
        "time to first token",
        "full",
        "line 22",
        "allocator_us_per_step",
    ):
        assert text in out


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--trace", str(DATA / "burstgpt.csv")], "burstgpt.csv: line 22"),
        (["--trace", "gone.csv"], "gone.csv: cannot read it"),
        (["--trace", str(DATA / "azure.csv"), "--memory", "80GG"], "not an amount of bytes"),
        (["--trace", str(DATA / "azure.csv"), "--gpu", "h10"], "did you mean 'h100'"),
        (["--trace", str(DATA / "azure.csv"), "--format", "azur"], "did you mean 'azure'"),
        (["--trace", str(DATA / "azure.csv"), "--limit", "0"], "--limit is 0"),
        (["--trace", str(DATA / "azure.csv"), "--chunk-tokens", "0"], "--chunk-tokens must be a whole number >= 1"),
        (["--trace", str(DATA / "azure.csv"), "--step-tokens", "9"], "--step-tokens is 9, less than one chunk"),
        (["--trace", str(DATA / "azure.csv"), "--forwards-in-flight", "-1"], "--forwards-in-flight must be a whole"),
        (["--trace", str(DATA / "azure.csv"), "--strategy", "x"], "--strategy unknown value 'x'"),
        (["--trace", str(DATA / "azure.csv"), "--prefix-cache"], "do not say which prefixes they share"),
        (["--trace", str(DATA / "mooncake.jsonl"), "--prefix-cache", "--eviction", "lruu"], "did you mean 'lru'"),
        (["--trace", str(DATA / "azure.csv"), "--parameters", "-3"], "--parameters is -3"),
        (["--trace", str(DATA / "azure.csv"), "--parameters", "10", "--active-parameters", "11"], "more than the 10"),
    ],
)
def test_bad_input_is_one_error_and_exit_code_2(model, capsys, extra, says):
    """No traceback, nothing on stdout."""
    memory = [] if "--memory" in extra else ["--memory", "64MiB"]
    assert run(["replay", "--model", model, *memory, *extra]) == 2

    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


def test_a_range_of_the_trace_is_replayed(model, capsys):
    """The options of the reader reach it."""
    command = ["replay", "--model", model, "--memory", "64MiB", "--trace", str(DATA / "azure.csv"), "--json"]
    assert run([*command, "--start", "4", "--stop", "9", "--output-max", "5"]) == 0

    document = json.loads(capsys.readouterr().out)
    rows = read_trace(DATA / "azure.csv", TraceOptions(start=4, stop=9, output_max=5)).rows
    assert document["requests"]["done"] == len(rows)
    assert document["throughput"]["output_tokens"] == sum(row.output_tokens for row in rows)
