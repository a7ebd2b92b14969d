"""A loop that serves for days: what is over is handed out, forgotten, and not kept for ever."""

import gc
import tracemalloc

import pytest
from loops import CountingRunner, assert_empty, loop_of, loop_over, storage_of, tokens_of

from kvarena.assembly.config import PrefixConfig
from kvarena.plugins.serving.arrivals import OVER_KEPT
from kvarena.plugins.serving.ends import RECORDS_KEPT
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.report import ABORTED, DONE
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.terms.errors import KvarenaError

SHARED = PrefixConfig(share=True, checkpoint_tokens=8)


class Forgetful(CountingRunner):
    """Keeps nothing of what it ran."""

    def result(self, batch: Batch) -> Outcome:
        """The same outcome, and no memory of it."""
        outcome = super().result(batch)
        self.batches.clear()
        self.made.clear()
        return outcome


def serve(loop: Scheduler, first: int, count: int, *, takes: bool) -> int:
    """So many short requests, one step after another; how many records were handed out."""
    taken, number = 0, first
    while number < first + count or loop.waiting or loop.running:
        for _ in range(min(32 - loop.waiting - loop.running, first + count - number)):
            loop.submit(Request(number, loop.now, 8, 1))
            number += 1
        loop.step()
        taken += len(loop.take_served()) if takes else 0
    return taken


@pytest.mark.parametrize("takes", [True, False])
def test_memory_does_not_grow_with_the_requests_that_were_served(takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether their records are taken or not: once as many are kept as may be, three times as many leave nothing."""
    assert OVER_KEPT == RECORDS_KEPT == 4096
    monkeypatch.setattr("kvarena.plugins.serving.ends.RECORDS_KEPT", 100)
    monkeypatch.setattr("kvarena.plugins.serving.arrivals.OVER_KEPT", 100)
    loop = loop_of(40_000, running=32, runner=Forgetful(), in_flight=2, chunk_tokens=8, step_tokens=256)
    held, taken = [], 0
    tracemalloc.start()
    try:
        for first, count in ((0, 500), (1000, 500), (2000, 1500)):
            taken += serve(loop, first, count, takes=takes)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[2] - held[1] < 40_000, held  # the records alone of 1,500 requests are ten times as much
    assert taken == (2500 if takes else 0)
    assert len(loop.take_served()) == (0 if takes else 100)
    assert loop.take_served() == []


def test_a_record_is_handed_out_once_in_the_order_of_the_ends() -> None:
    """To whoever takes it: a server after each step, or a run with its report."""
    loop = loop_of(4000)
    for number, output in enumerate((9, 1, 5)):
        loop.submit(Request(number, 0.0, 8, output))
    loop.submit(Request(3, 50.0, 8, 4))
    taken = []
    while loop.counts.done < 2:
        loop.step()
        taken += loop.take_served()
    loop.abort(3)
    taken += loop.take_served()
    assert [(served.request.id, served.fate) for served in taken] == [(1, DONE), (2, DONE), (3, ABORTED)]
    assert [served.request.id for served in loop.run([Request(4, 0.0, 8, 1)]).served] == [0, 4]
    assert loop.run([Request(5, 0.0, 8, 1)]).count(DONE) == 1
    assert loop.report().served == ()
    assert (loop.counts.done, loop.counts.aborts) == (5, 1)


def test_a_run_reports_all_its_requests_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are dropped where nobody takes them, and a run takes them all."""
    monkeypatch.setattr("kvarena.plugins.serving.ends.RECORDS_KEPT", 3)
    loop = loop_of(4000)
    report = loop.run([Request(number, 0.0, 8, 1) for number in range(10)])
    assert [served.request.id for served in report.served] == list(range(10))
    for number in range(10, 20):
        loop.submit(Request(number, 0.0, 8, 1))
    assert all(iter(loop.step, False))  # until there is nothing more to do
    assert [served.request.id for served in loop.take_served()] == [17, 18, 19]


def test_an_id_is_free_again_once_it_is_long_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that live never share one; who ended lately is known by its own."""
    monkeypatch.setattr("kvarena.plugins.serving.arrivals.OVER_KEPT", 2)
    loop = loop_of(4000)
    loop.run([Request(number, 0.0, 8, 1) for number in range(3)])
    with pytest.raises(KvarenaError, match="request 2: there was one of this id before"):
        loop.submit(Request(2, 0.0, 8, 1))
    with pytest.raises(KvarenaError, match="abort of request 1: it is over"):
        loop.abort(1)
    with pytest.raises(KvarenaError, match="abort of request 0: there is no request of this id"):
        loop.abort(0)
    loop.submit(Request(0, 0.0, 8, 1))
    with pytest.raises(KvarenaError, match="request 0: there was one"):
        loop.submit(Request(0, 0.0, 9, 1))
    assert loop.run().count(DONE) == 1
    assert_empty(loop)


@pytest.mark.parametrize("share", [False, True])
def test_a_loop_over_a_storage_that_was_resized_says_so(share: bool) -> None:
    """Its arrays are of another arena: it does nothing, and another one over the same storage serves."""
    storage = storage_of(4000, prefix=SHARED if share else PrefixConfig())
    loop = loop_over(storage)
    loop.run([Request(0, 0.0, 8, 2, prompt=tokens_of(8))])
    assert_empty(loop)
    storage.resize(2000)
    loop.submit(Request(1, loop.now, 8, 2, prompt=tokens_of(8)))
    for _ in range(2):
        with pytest.raises(KvarenaError, match="the storage was resized after this loop was made for it; make another"):
            loop.step()
    loop.abort(1)
    assert not loop.step()

    other = loop_over(storage)
    assert other.run([Request(1, 0.0, 20, 9, prompt=tokens_of(20))]).count(DONE) == 1
    assert_empty(other)
