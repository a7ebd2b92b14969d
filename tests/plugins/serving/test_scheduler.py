"""The loop over a host storage: everybody is served or refused with a reason, and all memory comes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Bytes

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.plugins.serving.port import Outcome, Request
from kvarena.plugins.serving.report import DONE, FAILED, REFUSED
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig
from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, State, Window

CATALOG = Catalog.installed()


class CountingRunner:
    """Takes one second a step, ends a request early where asked, and remembers every batch."""

    def __init__(self, ends_after=None):
        self.batches = []
        self.made = {}
        self.ends_after = ends_after or {}

    def run(self, batch):
        self.batches.append([(chunk.request.id, chunk.start, chunk.stop) for chunk in batch.chunks()])
        ended = np.zeros(len(batch), dtype=bool)
        for at, chunk in enumerate(batch.chunks()):
            if chunk.samples:
                self.made[chunk.request.id] = self.made.get(chunk.request.id, 0) + 1
                ended[at] = self.made[chunk.request.id] == self.ends_after.get(chunk.request.id)
        return Outcome(1.0, ended)

    def tokens(self, request_id):
        return (0,) * self.made.get(request_id, 0)


def loop_of(memory, *, running=4, context=64, runner=None, **serving):
    """A loop over a state, a window of 8 and full attention, pages of 4 tokens."""
    layers = [
        Layer(0, (Part(Bytes(16), State(), "state"),)),
        Layer(1, (Part(Bytes(2), Window(8)),)),
        Layer(2, (Part(Bytes(2), Full()),)),
    ]
    config = StorageConfig(
        arena=ArenaConfig(memory=memory, page_tokens=4, context_tokens=context, max_running=running, mirrors=False),
        backend="host",
    )
    storage = build_storage(layers, config, CATALOG)
    settings = ServingConfig(**{"chunk_tokens": 8, "step_tokens": 16, "keep_forwards": True, **serving})
    return Scheduler(storage, runner or CountingRunner(), settings)


def assert_quiet(loop):
    """Nothing is held any more, and every sum holds."""
    chain = loop.storage.chain
    chain.verify()
    assert all(shot.live == 0 and shot.holes == 0 for shot in chain.snapshot().bands)
    assert loop.storage.requests.free_count == len(loop.storage.requests)
    assert sum(loop.admission.promised()) == 0


def test_a_loop_that_waits_for_every_step_refuses_overlap_on_real_bytes():
    """Zeroes and moves would run beside the model; where there are no bytes there is nothing to race."""
    layers = [Layer(0, (Part(Bytes(2), Full()),))]
    arena = ArenaConfig(memory=4000, page_tokens=4, context_tokens=64, max_running=2, forwards_in_flight=2)
    for backend, refused in (("cpu", True), ("host", False)):
        storage = build_storage(layers, StorageConfig(arena=arena, backend=backend), CATALOG)
        if refused:
            with pytest.raises(ConfigError, match=r"forwards_in_flight: this loop waits for every step.*set it to 0"):
                Scheduler(storage, CountingRunner(), ServingConfig())
        else:
            Scheduler(storage, CountingRunner(), ServingConfig()).run([Request(0, 0.0, 20, 4)])
        storage.release()


def test_a_request_is_prefilled_in_chunks_and_decoded_one_by_one():
    """Forwards cover the prompt and every sampled token but the last; the first token ends the prefill."""
    loop = loop_of(4000)
    report = loop.run([Request(0, 0.0, 20, 4)])
    served = report.served[0]
    assert [(step.start, step.stop, step.samples) for step in served.attempts[0]] == [
        (0, 8, False), (8, 16, False), (16, 20, True), (20, 21, True), (21, 22, True), (22, 23, True),
    ]  # fmt: skip
    assert (served.fate, served.generated, served.retractions) == (DONE, 4, 0)
    assert served.time_to_first_token == 3.0
    assert served.time_per_token == 1.0
    assert_quiet(loop)


def test_prefills_share_a_step_in_whole_chunks_and_decodes_always_take_part():
    """Two chunks of 8 fill a step of 16; the third request starts when there is room."""
    runner = CountingRunner()
    loop = loop_of(4000, runner=runner)
    loop.run([Request(number, 0.0, 8, 3) for number in range(3)])
    assert runner.batches[0] == [(0, 0, 8), (1, 0, 8)]
    assert runner.batches[1] == [(0, 8, 9), (1, 8, 9), (2, 0, 8)]


@pytest.mark.req("ADM-1")
def test_charged_in_full_nobody_is_ever_retracted():
    """At output_fraction 1.0 an admitted request never runs dry, however tight the arena."""
    for memory in range(300, 700, 25):
        loop = loop_of(memory)
        shapes = [(6 + 5 * (number % 4), 1 + 7 * (number % 3)) for number in range(12)]
        report = loop.run([Request(number, number * 0.5, *shape) for number, shape in enumerate(shapes)])
        assert report.retractions == 0
        assert report.count(FAILED) == 0
        assert report.count(DONE) + report.count(REFUSED) == 12
        assert_quiet(loop)


@pytest.mark.req("ADM-1")
def test_charged_for_half_the_latest_is_retracted_and_comes_back():
    """The first admitted is never stopped; the retracted one recomputes what it had, and all finish."""
    runner = CountingRunner()
    loop = loop_of(300, runner=runner, output_fraction=0.3)
    report = loop.run([Request(number, 0.0, 8, 24) for number in range(3)])
    assert report.retractions > 0
    assert report.served[0].retractions == 0
    back = max(report.served, key=lambda served: served.retractions)
    assert len(back.attempts) == back.retractions + 1
    assert back.attempts[1][0].start == 0
    assert all(served.fate == DONE and served.generated == 24 for served in report.served)
    sampled = [sum(step.samples for attempt in served.attempts for step in attempt) for served in report.served]
    assert sampled == [24, 24, 24] == [runner.made[number] for number in range(3)]
    assert_quiet(loop)


@pytest.mark.req("ADM-1")
def test_the_lowest_priority_is_retracted_first():
    """Priority goes before the time of admission."""
    loop = loop_of(300, output_fraction=0.3)
    report = loop.run([Request(0, 0.0, 8, 24), Request(1, 0.0, 8, 24, priority=1), Request(2, 0.0, 8, 24, priority=2)])
    assert report.retractions > 0
    assert report.served[2].retractions == 0


def test_what_can_never_fit_is_refused_at_arrival_and_holds_up_nobody():
    """The reason has the sum; requests behind it are served."""
    loop = loop_of(150)
    report = loop.run([Request(0, 0.0, 60, 5), Request(1, 0.0, 65, 1), Request(2, 0.0, 8, 2)])
    assert [served.fate for served in report.served] == [REFUSED, REFUSED, DONE]
    assert "full" in report.served[0].reason
    assert "a prompt of at most" in report.served[0].reason
    assert "context_tokens" in report.served[1].reason
    assert report.served[2].waited is False
    assert_quiet(loop)


def test_waits_are_counted_and_arrivals_keep_their_time():
    """With one row at a time the others wait; an idle loop jumps to the next arrival."""
    loop = loop_of(4000, running=1)
    report = loop.run([Request(0, 0.0, 4, 2), Request(1, 0.0, 4, 2), Request(2, 100.0, 4, 2)])
    assert [served.waited for served in report.served] == [False, True, False]
    assert report.waits == 1
    assert report.served[2].admitted_at == 100.0
    assert report.seconds == 102.0


def test_an_early_end_frees_the_row():
    """A runner may end a request before its last token."""
    runner = CountingRunner(ends_after={0: 2})
    loop = loop_of(4000, runner=runner)
    report = loop.run([Request(0, 0.0, 4, 10)])
    assert (report.served[0].generated, report.served[0].fate) == (2, DONE)
    assert_quiet(loop)


def test_band_use_is_measured_over_the_clock():
    """Peak and mean follow what each step held."""
    loop = loop_of(4000)
    report = loop.run([Request(0, 0.0, 8, 3)])
    use = {band.name: (band.peak, band.mean) for band in report.bands}
    assert use["state"] == (1, 1.0)
    assert use["full"] == (3, pytest.approx((2 + 3 + 3) / 3))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=14),
    st.integers(260, 900),
    st.floats(0.1, 1.0),
    st.integers(1, 11),
)
@settings(max_examples=80, deadline=None)
def test_any_traffic_ends_with_everybody_served_or_refused(shapes, memory, fraction, chunk):
    """No order of lengths, priorities, memory, fraction and chunk leaves a request behind or a page out."""
    loop = loop_of(memory, output_fraction=fraction, chunk_tokens=chunk)
    requests = [Request(number, number * 0.7, *shape[:2], priority=shape[2]) for number, shape in enumerate(shapes)]
    report = loop.run(requests)
    assert len(report.served) == len(requests)
    assert report.count(FAILED) == 0
    for served in report.served:
        if served.fate == DONE:
            assert served.generated == served.request.output_tokens
    assert_quiet(loop)


def test_a_step_smaller_than_a_chunk_is_refused():
    """Such a loop could never prefill."""
    with pytest.raises(ValueError, match="less than one chunk"):
        ServingConfig(chunk_tokens=32, step_tokens=16)


def test_refusals_and_retractions_are_told_as_events(caplog):
    """Each has the request and the sum behind it."""
    with caplog.at_level("INFO", logger="kvarena"):
        loop_of(150).run([Request(0, 0.0, 60, 5)])
        report = loop_of(300, output_fraction=0.3).run([Request(number, 0.0, 8, 24) for number in range(3)])
    told = [line.split()[0] for line in caplog.messages]
    assert told.count("event='request_refused'") == 1
    assert told.count("event='request_retracted'") == report.retractions > 0
    assert all("reason=" in line for line in caplog.messages if "request_" in line)
