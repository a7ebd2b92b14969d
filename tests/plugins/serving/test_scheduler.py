"""The loop over a host storage: everybody is served or refused with a reason, and all memory comes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import CountingRunner, assert_empty, loop_of

from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import DONE, FAILED, REFUSED
from kvarena.plugins.serving.scheduler import ServingConfig


def test_a_request_is_prefilled_in_chunks_and_decoded_one_by_one():
    """Forwards cover the prompt and every sampled token but the last; the first token ends the prefill."""
    loop = loop_of(4000)
    report = loop.run([Request(0, 0.0, 20, 4)])
    served = report.served[0]
    assert [(step.start, step.stop, step.samples) for step in served.attempts[0].forwards] == [
        (0, 8, False), (8, 16, False), (16, 20, True), (20, 21, True), (21, 22, True), (22, 23, True),
    ]  # fmt: skip
    assert (served.fate, served.generated, served.retractions) == (DONE, 4, 0)
    assert served.time_to_first_token == 3.0
    assert served.time_per_token == 1.0
    assert_empty(loop)


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
        assert_empty(loop)


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
    assert back.attempts[1].forwards[0].start == 0
    assert all(served.fate == DONE and served.generated == 24 for served in report.served)
    sampled = [
        sum(step.samples for attempt in served.attempts for step in attempt.forwards) for served in report.served
    ]
    assert sampled == [24, 24, 24] == [len(runner.tokens(number)) for number in range(3)]
    assert [served.waited for served in report.served] == [False, False, False]  # all started when they came
    assert report.waits == loop.counts.waits == 0
    assert_empty(loop)


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
    assert_empty(loop)


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
    assert_empty(loop)


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
    st.integers(0, 3),
)
@settings(max_examples=80)
def test_any_traffic_ends_with_everybody_served_or_refused(shapes, memory, fraction, chunk, in_flight):
    """No lengths, priorities, memory, fraction, chunk and forwards in flight leave a request behind or a page out."""
    loop = loop_of(memory, output_fraction=fraction, chunk_tokens=chunk, in_flight=in_flight)
    requests = [Request(number, number * 0.7, *shape[:2], priority=shape[2]) for number, shape in enumerate(shapes)]
    report = loop.run(requests)
    assert len(report.served) == len(requests)
    assert report.count(FAILED) == 0
    for served in report.served:
        if served.fate == DONE:
            assert served.generated == served.request.output_tokens or served.clipped
    assert_empty(loop)


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
    assert told.count("event='request.refused'") == 1
    assert told.count("event='request.retracted'") == report.retractions > 0
    assert all("reason=" in line for line in caplog.messages if "request_" in line)
