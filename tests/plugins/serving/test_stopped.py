"""Requests that are stopped: for a higher priority, by their caller, or because nothing is left to try."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import CountingRunner, assert_empty, loop_of, tokens_of

from kvarena.assembly.config import PrefixConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import ABORTED, DONE, FAILED, REFUSED
from kvarena.terms.answers import Refused
from kvarena.terms.errors import KvarenaError
from kvarena.terms.lifetimes import Full, State, Window

SHARED = PrefixConfig(share=True, checkpoint_tokens=8)


@pytest.mark.req("ADM-6")
@pytest.mark.parametrize("in_flight", [0, 2])
def test_a_higher_priority_stops_just_those_whose_room_it_needs(in_flight: int) -> None:
    """Three of a low priority fill the arena; one is enough for the urgent one: the latest, and it comes back."""
    loop = loop_of(420, in_flight=in_flight)
    low = [Request(number, 0.0, 20, 20) for number in range(3)]
    report = loop.run([*low, Request(9, 6.0, 20, 5, priority=1)])

    assert report.count(DONE) == 4
    assert [served.preemptions for served in report.served] == [0, 0, 1, 0]
    assert (report.preemptions, report.retractions) == (1, 0)
    assert report.served[3].admitted_at == 6.0
    assert report.served[2].generated == 20
    assert_empty(loop)


@pytest.mark.req("ADM-6")
def test_equals_wait_and_so_does_who_would_not_fit_even_then() -> None:
    """The same priority stops nobody; nor does one that cannot start with all the others gone."""
    loop = loop_of(420)
    report = loop.run([*(Request(number, 0.0, 20, 20) for number in range(3)), Request(9, 6.0, 20, 5)])
    assert report.preemptions == 0
    assert report.served[3].waited

    loop = loop_of(320)
    first, second = Request(0, 0.0, 30, 20, priority=2), Request(1, 0.0, 20, 9)
    report = loop.run([first, second, Request(9, 3.0, 50, 14, priority=1)])
    assert report.preemptions == 0
    assert report.count(DONE) == 3


@pytest.mark.req("ADM-6")
def test_a_row_is_given_up_too() -> None:
    """Memory is ample and every row taken: the one of the lowest priority is stopped."""
    loop = loop_of(4000, running=2, in_flight=2)
    report = loop.run([Request(0, 0.0, 8, 20), Request(1, 0.0, 8, 20, priority=1), Request(2, 5.0, 8, 4, priority=2)])
    assert [served.preemptions for served in report.served] == [1, 0, 0]
    assert report.count(DONE) == 3
    assert_empty(loop)


def test_what_a_stopped_request_had_cached_helps_it_back() -> None:
    """Its checkpoints stay, where the urgent one leaves room for them."""
    loop = loop_of(4000, running=1, in_flight=2, prefix=SHARED)
    low = Request(0, 0.0, 20, 20, prompt=tokens_of(20))
    report = loop.run([low, Request(1, 8.0, 8, 4, priority=1, prompt=tokens_of(8, first=1))])

    stopped = report.served[0]
    assert (stopped.preemptions, stopped.generated) == (1, 20)
    assert stopped.attempts[1].cached == 24
    assert_empty(loop)


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("share", [False, True])
@given(when=st.integers(0, 14))
def test_an_abort_gives_everything_back_wherever_the_request_is(in_flight: int, share: bool, when: int) -> None:
    """To come, queued, between two chunks, decoding, with a forward and a checkpoint in flight: the other is served."""
    prefix = SHARED if share else PrefixConfig()
    loop = loop_of(4000, running=1, in_flight=in_flight, prefix=prefix)
    loop.submit(Request(0, 1.0, 20, 6, prompt=tokens_of(20)))
    loop.submit(Request(1, 1.0, 20, 3, prompt=tokens_of(20)))
    for _ in range(when):
        loop.step()
    over = [served.request.id for served in loop.report().served]
    if 0 not in over:
        loop.abort(0)
        assert loop.report().served[0].fate == ABORTED
        loop.storage.verify()
    report = loop.run()

    assert report.served[1].fate == DONE
    assert report.served[1].generated == 3
    assert loop.counts.aborts == report.count(ABORTED)
    assert_empty(loop)


def test_an_abort_of_nobody_is_an_error_and_so_is_a_second_request_of_one_id() -> None:
    """Unknown, over, or twice: named, and nothing has changed."""
    loop = loop_of(4000)
    loop.run([Request(0, 0.0, 8, 2)])
    loop.submit(Request(1, 0.0, 8, 2))
    for call, says in (
        (lambda: loop.abort(7), "abort of request 7: there is no request of this id"),
        (lambda: loop.abort(0), "abort of request 0: it is over"),
        (lambda: loop.submit(Request(1, 0.0, 9, 1)), "request 1: there was one of this id before"),
        (lambda: loop.submit(Request(0, 0.0, 9, 1)), "request 0: there was one of this id before"),
    ):
        with pytest.raises(KvarenaError, match=says):
            call()
    assert [served.request.id for served in loop.run().served] == [1]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("prompt_tokens", 0, "request 3: prompt_tokens is 0; at least 1"),
        ("output_tokens", -2, "request 3: output_tokens is -2; at least 1"),
        ("output_tokens", 1.5, "request 3: output_tokens is 1.5; give a whole number"),
        ("priority", "high", "request 3: priority is 'high'; give a whole number"),
        ("priority", None, "request 3: priority is None; give a whole number"),
        ("arrival", float("nan"), "request 3: arrival is nan; give seconds"),
        ("arrival", "soon", "request 3: arrival is 'soon'; give seconds"),
        ("prompt", (1, 2), "request 3: prompt has 2 tokens, and prompt_tokens says 8"),
        ("block_tokens", 0, "request 3: block_tokens is 0; at least 1"),
        ("id", "a", "request 'a': id is no whole number"),
    ],
)
def test_a_request_that_is_none_is_refused_by_its_field(field: str, value: object, says: str) -> None:
    """Before anything is held."""
    fields = {"id": 3, "arrival": 0.0, "prompt_tokens": 8, "output_tokens": 2, field: value}
    with pytest.raises(KvarenaError, match=says):
        Request(**fields)  # type: ignore[arg-type]


@pytest.mark.req("DEM-2")
def test_to_the_exact_token_an_output_is_clipped_and_a_prompt_refused() -> None:
    """H07: 12 pages of 16 tokens. 180 + 12 runs; of 190 + 64 three are generated; 193 and 208 are refused."""
    runner = CountingRunner()
    loop = loop_of(
        13 * 16 * 2, lifetimes=(Full(),), page_tokens=16, context=208, running=4, runner=runner, chunk_tokens=16
    )
    shapes = [(180, 12), (190, 64), (193, 1), (208, 1), (16, 1)]
    report = loop.run([Request(number, 0.0, *shape) for number, shape in enumerate(shapes)])

    assert [served.fate for served in report.served] == [DONE, DONE, REFUSED, REFUSED, DONE]
    assert [served.generated for served in report.served] == [12, 3, 0, 0, 1]
    assert [served.clipped for served in report.served] == [False, True, False, False, False]
    assert "13 full" in report.served[2].reason
    assert len(runner.tokens(1)) == 3
    assert not any(request in (2, 3) for batch in runner.batches for request, _, _ in batch)
    assert_empty(loop)


def test_a_request_longer_than_a_row_is_clipped_to_it() -> None:
    """The row holds 64: of a prompt of 60, five tokens can be generated, and the last of them needs no row."""
    loop = loop_of(4000)
    report = loop.run([Request(0, 0.0, 60, 50), Request(1, 0.0, 65, 1)])
    assert (report.served[0].generated, report.served[0].clipped) == (5, True)
    assert report.served[1].fate == REFUSED


def test_the_queue_is_by_priority_then_who_was_stopped_then_arrival() -> None:
    """With one row at a time, the order of starts is the order of the queue."""
    runner = CountingRunner()
    loop = loop_of(4000, running=1, runner=runner)
    loop.run([Request(0, 0.0, 8, 9), Request(1, 1.0, 8, 1), Request(2, 2.0, 8, 1, priority=1), Request(3, 2.0, 8, 1)])
    starts = [request for batch in runner.batches for request, start, _ in batch if not start]
    assert starts == [0, 2, 0, 1, 3]


def test_what_happens_is_told_as_events_with_its_sum(caplog: pytest.LogCaptureFixture) -> None:
    """Clipped, preempted, aborted, waiting: each with the request and why."""
    with caplog.at_level("DEBUG", logger="kvarena"):
        loop = loop_of(420, prefix=SHARED)
        for number in range(3):
            loop.submit(Request(number, 0.0, 20, 20))
        loop.submit(Request(8, 0.0, 20, 90))
        loop.submit(Request(9, 3.0, 20, 5, priority=1))
        for _ in range(8):
            loop.step()
        loop.abort(0)
        loop.run()
    told = {line.split()[0][7:-1] for line in caplog.messages if line.startswith("event='request.")}
    assert told >= {"request.admitted", "request.clipped", "request.waits", "request.preempted", "request.aborted"}
    for line in caplog.messages:
        if "request.waits" in line or "request.preempted" in line:
            assert "reason=" in line


@pytest.mark.req("CKP-1")
def test_nothing_is_told_of_checkpoints_unless_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """A skipped one has its place and why; at another level nothing is even counted for it."""
    config = PrefixConfig(share=True, strategy="extra_buffer_lazy", checkpoint_tokens=8)
    with caplog.at_level("DEBUG", logger="kvarena"):
        loop = loop_of(120, prefix=config, running=1, context=40, lifetimes=(State(), Full()))
        loop.run([Request(0, 0.0, 30, 10, prompt=tokens_of(30))])
    skipped = [line for line in caplog.messages if "checkpoint.skipped" in line]
    assert len(skipped) == loop.counts.checkpoints_skipped == 4
    assert all("at=" in line and "bytes free" in line for line in skipped)


def test_a_lone_request_that_cannot_go_on_fails_and_others_are_served() -> None:
    """Somebody else holds the pages that it was promised: it ends with the sum, once nothing is left to try."""
    runner = CountingRunner()
    loop = loop_of(400, lifetimes=(Window(8), Full()), running=1, runner=runner, context=60, prefix=SHARED)
    loop.submit(Request(0, 0.0, 20, 30, prompt=tokens_of(20)))
    loop.submit(Request(1, 0.0, 8, 2, prompt=tokens_of(8)))
    for _ in range(4):
        loop.step()
    chain = loop.storage.chain
    held = 0
    while chain.feasible((held + 1, held + 1)):
        held += 1
    taken = chain.take_new("full", held)
    assert not isinstance(taken, Refused)
    report = loop.run()
    chain.free_all({"full": taken.ids})

    assert report.served[0].fate == FAILED
    assert "asked" in report.served[0].reason
    assert report.served[1].fate == DONE
