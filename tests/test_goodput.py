"""What the goodput benchmark stands on: the mix, a request alone, the four memories, and the search for a scale."""

import importlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvarena.planning.packing import packs
from kvarena.planning.plan import Plan, capped, plan_storage
from kvarena.plugins.models import read_model
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import load_gpu
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.plugins.replay.replay import ReplaySettings, replay
from kvarena.plugins.replay.trace_rows import TraceRow
from kvarena.plugins.replay.traces import Trace
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import DONE, FAILED, Served

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
MODELS = ("gpt-oss-120b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b")


def model_of(name: str) -> ModelSpec:
    """A model of the benchmark."""
    config = json.loads((ROOT / "tests" / "data" / "models" / f"{name}.json").read_text(encoding="utf-8"))
    return read_model(config, source=name)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, found as it finds its own helpers."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("goodput")


@pytest.fixture
def traces(benchmark: Any) -> Any:
    """The small slices."""
    return benchmark.Traces(BENCHMARKS / "data")


RATES = {"chats": 10.0, "documents": 4.0, "agents": 2.0}


def test_the_mix_has_three_phases_one_after_the_other(benchmark: Any, traces: Any) -> None:
    """As many requests as the rates say, each inside its phase; documents are long, sessions come in pieces of six."""
    mix = benchmark.Mix(traces, RATES)
    begin = 0.0
    for phase, seconds in benchmark.SECONDS.items():
        found = [arrival for arrival in mix.arrivals if arrival.phase == phase]
        assert abs(len(found) - RATES[phase] * seconds) < 6
        assert all(begin <= arrival.start < begin + seconds for arrival in found)
        begin += seconds
        if phase == "documents":
            assert min(arrival.row.prompt_tokens for arrival in found) >= 16384
        if phase == "agents":
            assert [len({arrival.row.session for arrival in found[at : at + 6]}) for at in range(0, len(found), 6)] == [
                1
            ] * (len(found) // 6)
            assert all(0 < later.delay - one.delay <= 4 for one, later in pairwise(found) if later.delay)
    assert all(arrival.row.prompt_tokens + arrival.row.output_tokens <= 131072 for arrival in mix.arrivals)


def test_a_scale_brings_arrivals_nearer_and_leaves_a_session_its_gaps(benchmark: Any, traces: Any) -> None:
    """Twice the scale is half the time between arrivals; inside a session nothing changes."""
    mix = benchmark.Mix(traces, RATES)
    for arrival, slow, fast in zip(mix.arrivals, mix.at(0.5), mix.at(1.0), strict=True):
        assert slow.arrival == pytest.approx(2 * arrival.start + arrival.delay)
        assert fast.arrival == pytest.approx(arrival.start + arrival.delay)
        assert (slow.prompt_tokens, slow.prefix_ids) == (fast.prompt_tokens, fast.prefix_ids)


def test_prefixes_are_shared_as_the_traces_say_and_no_further(benchmark: Any, traces: Any) -> None:
    """A trace that began anew, and another piece of a session, share nothing with what came before."""
    mix = benchmark.Mix(traces, {**RATES, "documents": 10.0})
    owners: dict[int, str] = {}
    shared = 0
    for arrival, request in zip(mix.arrivals, mix.at(1.0), strict=True):
        if arrival.phase == "chats":
            assert request.prefix_ids is None
            continue
        shared += sum(block in owners for block in request.prefix_ids or ())
        assert {owners.setdefault(block, str(arrival.row.session)) for block in request.prefix_ids or ()} == {
            str(arrival.row.session)
        }
    assert shared > 1000
    assert {"documents 0", "documents 1", "agent 0", "agent 1"} <= set(owners.values())


@pytest.mark.parametrize("name", MODELS)
def test_a_request_alone_takes_what_a_replay_of_it_alone_takes(benchmark: Any, name: str) -> None:
    """The times that goodput is measured against are those of the same loop and cost model with one request."""
    spec, gpu = model_of(name), load_gpu(str(BENCHMARKS / "machine.toml"))
    serving = benchmark.SERVING
    alone = benchmark.Alone(CostModel(model_cost(spec)), gpu, serving.chunk_tokens)
    for prompt, output in ((700, 40), (5000, 3), (2048, 1)):
        row = TraceRow(line=1, arrival=0.0, prompt_tokens=prompt, output_tokens=output)
        settings = ReplaySettings(
            memory=8 << 30,
            gpu=gpu,
            chunk_tokens=serving.chunk_tokens,
            step_tokens=serving.step_tokens,
            moves_take_time=False,
        )
        latency = replay(spec, Trace("one", "made", (row,)), settings)["latency"]
        found = alone.unloaded(row)
        assert found.first == pytest.approx(latency["time_to_first_token"]["max"])
        assert found.per_token == pytest.approx((latency["time_per_token"] or {"max": 0})["max"])


@pytest.mark.parametrize("name", MODELS)
def test_every_memory_has_the_same_bytes(benchmark: Any, name: str) -> None:
    """A split's pools fit beside each other and leave less than two units; a page's units are whole pages; sinks."""
    spec = model_of(name)
    plan, arena = plan_storage(spec.layers), benchmark.ARENA_BYTES
    for share in (0.02, 0.3, 0.9):
        caps = benchmark.split(plan, share).caps
        units = tuple(caps[pool.name] for pool in plan.sub_pools)
        held = sum(pool.unit_bytes * count for pool, count in zip(plan.sub_pools, units, strict=True))
        assert packs(capped(plan, caps), arena, units)
        assert arena - held < 3 * sum(pool.unit_bytes for pool in plan.sub_pools)
    padded = plan_of(spec, benchmark.one_page(plan))
    page = min(pool.unit_bytes for pool in padded.sub_pools)
    assert all(pool.unit_bytes % page == 0 for pool in padded.sub_pools)
    assert all(pool.unit_bytes >= pool.unpadded_bytes for pool in padded.sub_pools)
    free = benchmark.clairvoyant(spec)
    storage = free.open(spec, 4096)
    assert storage.plan.page_tokens == 1
    assert len(storage.chain.usable) >= arena
    assert len(storage.chain.usable) - arena < 2 * sum(pool.unit_bytes for pool in storage.plan.sub_pools)
    storage.release()


@pytest.mark.parametrize(("name", "tokens", "groups"), [(MODELS[0], 16, 1), (MODELS[1], 1056, 3), (MODELS[2], 1888, 3)])
def test_one_page_size_is_what_vllm_plans(benchmark: Any, name: str, tokens: int, groups: int) -> None:
    """Windows and full attention alike share a page as it is; a state makes pages of a thousand tokens and more."""
    spec = model_of(name)
    padded = plan_of(spec, benchmark.one_page(plan_storage(spec.layers)))
    first, full = padded.sub_pools
    assert padded.page_tokens == tokens
    assert first.unit_bytes == groups * full.unit_bytes


def plan_of(spec: ModelSpec, memory: Any) -> Plan:
    """The plan that a memory's storage has."""
    return plan_storage(spec.layers, page_tokens=memory.page_tokens, unit_align=memory.unit_align)


def test_in_time_means_whole_and_both_times_kept(benchmark: Any) -> None:
    """Five times to the first token, three times per token after it; a request that failed or was clipped is late."""
    request = Request(0, 10.0, 100, 11)
    served = Served(request, DONE, generated=11, admitted_at=10.0, first_token_at=15.0, finished_at=45.0)
    assert benchmark.in_time(served, 1.0, 1.0)
    assert not benchmark.in_time(served, 0.99, 1.0)
    assert not benchmark.in_time(served, 1.0, 0.99)
    assert not benchmark.in_time(attrs.evolve(served, clipped=True), 1.0, 1.0)
    assert not benchmark.in_time(attrs.evolve(served, fate=FAILED), 1.0, 1.0)
    assert benchmark.in_time(attrs.evolve(served, generated=1, finished_at=15.0), 1.0, 0.0)


@pytest.mark.parametrize("top", [0, 3, 17, 40, 41, 55, 120])
@pytest.mark.parametrize("start", [0, 20, 41, 90])
def test_the_search_finds_the_highest_scale_that_is_good(benchmark: Any, top: int, start: int) -> None:
    """From wherever it begins; no scale is replayed twice."""
    asked: list[int] = []

    class Toy(benchmark.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._played = {}

        def _play(self, memory: Any, scale: float) -> Any:
            asked.append(benchmark.step_of(scale))
            return asked[-1]

    assert Toy().highest(benchmark.KVARENA, start, lambda step: step <= top) == top
    assert len(asked) == len(set(asked)) < 20


@pytest.mark.parametrize("peak", [0.03, 0.275, 0.62])
def test_the_best_split_is_searched(benchmark: Any, peak: float) -> None:
    """The cut that carries the most is found between those tried first, and each that cannot win is tried once."""
    asked: dict[str, int] = {}

    class Toy(benchmark.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._played = {}
            self.plan = plan_storage(model_of(MODELS[1]).layers)

        def _play(self, memory: Any, scale: float) -> Any:
            asked[memory.name] = asked.get(memory.name, 0) + 1
            share = memory.caps["state"] * self.plan.sub_pools[0].unit_bytes / benchmark.ARENA_BYTES
            return benchmark.step_of(scale) <= 60 - 60 * abs(share - peak)

    memory, step = Toy().best_split(30, bool)
    share = memory.caps["state"] * plan_storage(model_of(MODELS[1]).layers).sub_pools[0].unit_bytes
    assert abs(share / benchmark.ARENA_BYTES - peak) < 0.03
    assert step >= 58
    assert sum(asked.values()) < 45
