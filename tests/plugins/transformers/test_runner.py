"""Serving a model by the loop, overlapped and in lock step, with prefixes shared; the judge repeats every forward."""

import math

import attrs
import numpy as np
import pytest
import torch
from hands import make_storage, sharing

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig
from kvarena.assembly.loader import make_eviction
from kvarena.planning.demand import RequestShape, request_demand
from kvarena.planning.sizing import least_budget
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig
from kvarena.plugins.transformers.geometry import probe_layers
from kvarena.plugins.transformers.runner import ModelRunner
from kvarena.plugins.transformers.verify import Difference, verify
from kvarena.storage.routed import views_of
from kvarena.terms.errors import KvarenaError

SERVING = ServingConfig(chunk_tokens=16, step_tokens=48, output_fraction=0.25, keep_forwards=True)
FAMILIES = ["lfm3", "qwen3_next", "gemma3_text", "gpt_oss", "jamba", "kimi_linear", "falcon_h1"]


def make_requests(count, *, seed=0, longest=60, most=24, prefixes=0, every=0.01):
    """Requests with random prompts, two to a step; with ``prefixes``, behind one of so many beginnings of 32 tokens."""
    draw = np.random.default_rng(seed)
    lengths, outputs = draw.integers(5, longest, count), draw.integers(2, most, count)
    begins = draw.integers(3, 256, (prefixes, 32)).tolist()
    requests = []
    for number, (length, output) in enumerate(zip(lengths, outputs, strict=True)):
        prompt = tuple((begins[number % prefixes] if prefixes else []) + draw.integers(3, 256, int(length)).tolist())
        requests.append(Request(number, number * every, len(prompt), int(output), prompt))
    return requests


def memory_for(model, requests, count, prefix):
    """The bytes that hold so many requests as long as the longest."""
    arena = ArenaConfig(memory=1, page_tokens=8, max_running=6, context_tokens=128, forwards_in_flight=2)
    plan = plan_arena(probe_layers(model), arena)
    limits = limits_of(arena, prefix, plan)
    longest = max(requests, key=lambda request: request.rows)
    demand = request_demand(
        plan, RequestShape(longest.prompt_tokens, longest.output_tokens),
        chunk_tokens=SERVING.chunk_tokens, slots_per_request=limits.slots_per_request, grid=limits.grid,
    )  # fmt: skip
    return least_budget(plan, tuple(math.ceil(units * count) for units in demand), limits)


class Served:
    """A loop over a storage with the cache that its config asks for; ``run`` leaves nothing behind."""

    def __init__(self, model, storage, serving=SERVING):
        self.storage = storage
        self.runner = ModelRunner(model, storage)
        self.cache = None
        if storage.prefix.share:
            self.cache = PrefixTree(storage, make_eviction(Catalog.installed(), storage.prefix))
        self.loop = Scheduler(storage, self.runner, serving, cache=self.cache)

    def run(self, requests, on_step=None):
        """The report; what the cache holds at the end can be had back."""
        report = self.loop.run(requests, on_step)
        self.storage.verify()
        if self.cache is not None:
            self.cache.verify()
            self.cache.clear()
        assert all(band.live == 0 for band in self.storage.chain.snapshot().bands)
        return report


def serve(model, storage, requests, serving=SERVING):
    served = Served(model, storage, serving)
    return served.runner, served.run(requests)


@pytest.mark.parametrize("in_flight", [2, 0])
def test_pressure_changes_no_token(tiny, in_flight):
    """Requests wait, are retracted and recomputed, pages move: all tokens are those of transformers' cache."""
    model = tiny("lfm3")
    storage = make_storage(model, "80KiB", in_flight=in_flight, mirrors=False)
    requests = make_requests(8, longest=24, most=24)
    runner, report = serve(model, storage, requests)

    assert report.count("done") == len(requests)
    assert report.retractions >= 1
    assert report.waits >= 1
    assert storage.chain.counters.moves >= 1
    done = []
    verdict = verify(model, report, runner.tokens, on_request=done.append)
    assert verdict.equal, str(verdict.difference)
    assert verdict.tokens == sum(request.output_tokens for request in requests)
    assert verdict.requests == len(requests)
    assert done == list(range(1, 9))
    storage.release()


@pytest.mark.req("CKP-1")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_served_family_is_equal(tiny, name):
    """Overlapped, with prefixes shared, evicted, retracted, preempted and aborted: plain transformers' tokens."""
    model, prefix = tiny(name), sharing(16)
    requests = make_requests(8, longest=16, most=12, prefixes=2, every=0.03)
    requests = [attrs.evolve(request, priority=int(request.id == 6)) for request in requests]
    storage = make_storage(model, memory_for(model, requests, 1.6, prefix), prefix=prefix)
    served = Served(model, storage)

    def stop_one(at):
        if at.steps == 8:
            served.loop.abort(4)

    report = served.run(requests, stop_one)
    verdict = verify(model, report, served.runner.tokens)

    assert verdict.equal, str(verdict.difference)
    assert report.count("done") == 7
    assert report.count("aborted") == 1
    assert report.retractions + report.preemptions >= 1
    assert report.cache.cached_tokens >= 32
    assert report.cache.evictions >= 1
    if storage.sizing.limits.grid is not None:
        assert report.cache.checkpoints_taken >= 1
    storage.release()


@pytest.mark.req("CKP-1")
@pytest.mark.parametrize("strategy", ["extra_buffer_lazy", "no_buffer"])
def test_checkpoints_that_are_not_taken_change_no_token(tiny, strategy):
    """A state for which there is no slot is not kept; who would have started from it computes it again."""
    model, prefix = tiny("lfm2"), sharing(16, strategy)
    requests = make_requests(8, longest=16, most=12, prefixes=2, every=0.03)
    storage = make_storage(model, memory_for(model, requests, 1.6, prefix), prefix=prefix)
    runner, report = serve(model, storage, requests)

    assert report.count("done") == 8
    assert report.retractions >= 1
    assert (report.cache.checkpoints_skipped >= 1) == (strategy == "extra_buffer_lazy")
    verdict = verify(model, report, runner.tokens)
    assert verdict.equal, str(verdict.difference)
    storage.release()


def test_a_second_turn_starts_from_what_the_first_one_said(tiny):
    """An agent's next prompt is its last one, the answer to it and something new: most of it is there."""
    model = tiny("gpt_oss")
    storage = make_storage(model, prefix=sharing(16))
    served = Served(model, storage)
    first = make_requests(3, longest=24, most=12, prefixes=1)
    served.loop.run(first)
    second = []
    for request in first:
        prompt = (*request.prompt, *served.runner.tokens(request.id), *range(3, 9))
        second.append(Request(10 + request.id, served.loop.now, len(prompt), 8, prompt))
    report = served.run(second)

    assert all(record.cached_tokens >= record.request.prompt_tokens - 16 for record in report.served[3:])
    verdict = verify(model, report, served.runner.tokens)
    assert verdict.equal, str(verdict.difference)
    storage.release()


@pytest.mark.parametrize("pool", ["full", "window-16", "state"])
def test_a_corrupted_page_is_found(tiny, pool):
    """The judge can fail: bytes that change in any kind of memory show as a difference."""
    model = tiny("lfm3")
    storage = make_storage(model, "1MiB")
    runner = ModelRunner(model, storage)

    @attrs.define
    class Spoiler:
        steps: int = 0

        def launch(self, batch, forward):
            self.steps += 1
            if self.steps == 6:
                storage.forwards.run(forward, spoil)
            runner.launch(batch, forward)

        def result(self, batch):
            return runner.result(batch)

        def keys(self, request, count):
            return runner.keys(request, count)

        def tokens(self, request_id):
            return runner.tokens(request_id)

    def spoil():
        for view in views_of(storage, pool).values():
            view.fill_(3.0)

    report = Scheduler(storage, Spoiler(), SERVING).run(make_requests(3, most=20))
    verdict = verify(model, report, runner.tokens)

    assert not verdict.equal
    assert isinstance(verdict.difference, Difference)
    assert "transformers' own cache gives" in str(verdict.difference)
    storage.release()


def test_a_wrong_token_is_named_with_its_place(tiny):
    """Request, position, both tokens."""
    model = tiny("llama")
    storage = make_storage(model, "1MiB")
    runner, report = serve(model, storage, make_requests(2, most=8))
    right = runner.tokens(1)
    wrong = (*right[:2], (right[2] + 1) % 256, *right[3:]) if len(right) > 2 else ((right[0] + 1) % 256, *right[1:])
    place = 2 if len(right) > 2 else 0

    verdict = verify(model, report, lambda number: wrong if number == 1 else runner.tokens(number))
    assert verdict.difference == Difference(1, place, right[place], wrong[place])
    storage.release()


def test_an_end_token_ends_a_request(tiny):
    """The model's own end of sequence stops a request before its maximal length."""
    model = tiny("lfm3")
    storage = make_storage(model, "1MiB")
    [request] = make_requests(1, most=20, seed=4)
    runner, _ = serve(model, storage, [attrs.evolve(request, output_tokens=20)])
    tokens = runner.tokens(0)
    end = tokens[5]
    model.generation_config.eos_token_id = [end]
    try:
        runner, report = serve(model, storage, [attrs.evolve(request, output_tokens=20)])
    finally:
        model.generation_config.eos_token_id = None

    assert runner.tokens(0) == tokens[: tokens.index(end) + 1]
    assert report.count("done") == 1
    storage.release()


def test_forwards_that_were_not_kept_cannot_be_repeated(tiny):
    """The judge refuses to say anything about a run it cannot repeat."""
    model = tiny("llama")
    storage = make_storage(model, "1MiB")
    runner, report = serve(model, storage, make_requests(1), attrs.evolve(SERVING, keep_forwards=False))
    with pytest.raises(KvarenaError, match="keep_forwards"):
        verify(model, report, runner.tokens)
    storage.release()


def test_a_state_outside_the_cache_is_refused(tiny):
    """recurrent_gemma keeps its states in the module: requests would mix."""
    model = tiny("recurrent_gemma")
    storage = make_storage(model, "1MiB")
    with pytest.raises(KvarenaError, match="keeps its state in the module"):
        ModelRunner(model, storage)
    storage.release()


def test_a_storage_for_another_model_is_refused(tiny):
    """The layers that the storage has must be those that the model caches."""
    storage = make_storage(tiny("lfm3"), "1MiB")
    with pytest.raises(KvarenaError, match=r"layer 0 of this 'llama' model.*probe_layers"):
        ModelRunner(tiny("llama"), storage)
    storage.release()


def test_lengths_alone_cannot_be_served(tiny):
    """A trace without tokens needs prompts drawn for it first."""
    storage = make_storage(tiny("llama"), "1MiB")
    with pytest.raises(KvarenaError, match="no prompt tokens"):
        serve(tiny("llama"), storage, [Request(0, 0.0, 8, 2)])
    storage.release()


def test_the_clock_is_the_runners(tiny):
    """A step costs what it was told to, whatever the machine does: 16 prompt tokens, then 3 decodes."""
    model = tiny("llama")
    storage = make_storage(model, "1MiB")
    runner = ModelRunner(model, storage, step_seconds=1.0, token_seconds=0.5)
    prompt = tuple(range(3, 19))
    report = Scheduler(storage, runner, SERVING).run([Request(0, 0.0, 16, 4, prompt)])

    assert report.seconds == pytest.approx(1.0 + 16 * 0.5 + 3 * 1.5)
    assert torch.is_grad_enabled()
    storage.release()


@pytest.mark.parametrize("in_flight", [2, 0])
def test_a_runner_serves_on_in_an_arena_that_was_resized(tiny, in_flight):
    """Smaller and as large as before: another loop over the same storage and runner gives transformers' tokens."""
    model = tiny("lfm3")
    storage = make_storage(model, "200KiB", in_flight=in_flight)
    runner, first = ModelRunner(model, storage), 0
    for memory in ("200KiB", "100KiB", "200KiB"):
        storage.resize(memory)
        requests = [
            attrs.evolve(request, id=first + request.id) for request in make_requests(4, seed=first, longest=24)
        ]
        report = Scheduler(storage, runner, SERVING).run(requests)
        assert report.count("done") == len(requests)
        verdict = verify(model, report, runner.tokens)
        assert verdict.equal, str(verdict.difference)
        first += 10
    storage.release()


def test_a_runner_forgets_what_it_is_told_to(tiny):
    """A server reads the tokens of a request that is over, and then nobody has them; the id serves another prompt."""
    model = tiny("lfm3")
    storage = make_storage(model, "200KiB", in_flight=2)
    served = Served(model, storage)
    request = make_requests(1)[0]
    served.run([request])
    tokens = served.runner.tokens(0)
    served.runner.forget(0)
    served.runner.forget(0)

    assert len(tokens) == request.output_tokens
    assert served.runner.tokens(0) == ()
    again = Scheduler(storage, served.runner, SERVING)
    report = again.run([attrs.evolve(request, output_tokens=request.output_tokens + 5)])
    assert served.runner.tokens(0)[: len(tokens)] == tokens
    assert verify(model, report, served.runner.tokens).equal
    storage.release()
