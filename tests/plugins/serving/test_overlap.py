"""Forwards in flight: what is launched before a result is looked at, and what becomes of results that come too late."""

import pytest
from loops import CountingRunner, assert_empty, loop_of, loop_over, storage_of

from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.report import DONE


class Diary(CountingRunner):
    """Writes down what is launched and what is looked at, in order."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.lines: list[str] = []

    def launch(self, batch: Batch, forward: object) -> None:
        """``+`` and the number."""
        self.lines.append(f"+{len(self.batches) + 1}")
        super().launch(batch, forward)  # type: ignore[arg-type]

    def result(self, batch: Batch) -> Outcome:
        """``-`` and the number."""
        self.lines.append(f"-{sum(line.startswith('-') for line in self.lines) + 1}")
        return super().result(batch)


@pytest.mark.req("LIF-3")
@pytest.mark.parametrize(
    ("in_flight", "order"),
    [
        (0, "+1 -1 +2 -2 +3 -3 +4 -4"),
        (1, "+1 -1 +2 -2 +3 -3 +4 -4"),
        (2, "+1 +2 -1 +3 -2 +4 -3 -4"),
        (3, "+1 +2 +3 -1 +4 -2 -3 -4"),
    ],
)
def test_so_many_forwards_are_in_flight_as_the_storage_allows(in_flight: int, order: str) -> None:
    """The next is launched before the oldest is looked at; a known length ends without a forward too many."""
    runner = Diary()
    loop = loop_of(4000, in_flight=in_flight, runner=runner)
    report = loop.run([Request(0, 0.0, 8, 4)])

    assert " ".join(runner.lines) == order
    assert (report.steps, report.seconds, report.served[0].generated) == (4, 4.0, 4)
    assert_empty(loop)


def test_the_clock_is_the_same_however_many_are_in_flight() -> None:
    """A forward starts when the one before it has ended: launching early makes none faster."""
    reports = [
        loop_of(4000, in_flight=count).run([Request(number, 0.0, 20, 6) for number in range(3)]) for count in range(4)
    ]
    assert {report.seconds for report in reports} == {reports[0].seconds}
    assert {report.served[0].time_to_first_token for report in reports} == {3.0}


def test_an_arrival_is_seen_a_step_later() -> None:
    """What arrives while a forward runs joins the one after the next, which is launched already."""
    joined = {}
    for in_flight in (0, 2):
        runner = CountingRunner()
        loop_of(4000, in_flight=in_flight, runner=runner).run([Request(0, 0.0, 4, 9), Request(1, 2.5, 4, 2)])
        joined[in_flight] = next(step for step, batch in enumerate(runner.batches) if any(it[0] == 1 for it in batch))
    assert joined == {0: 3, 2: 4}


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_an_answer_that_ends_early_drops_what_was_launched_for_it(in_flight: int) -> None:
    """The end is found when its result comes; the forwards behind it have the row still, and count for nothing."""
    runner = CountingRunner(ends_after={0: 3})
    loop = loop_of(4000, in_flight=in_flight, runner=runner)
    report = loop.run([Request(0, 0.0, 8, 20), Request(1, 0.0, 8, 9)])

    first = report.served[0]
    assert (first.fate, first.generated) == (DONE, 3)
    assert [step.stop for step in first.attempts[0].forwards] == [8, 9, 10]
    launched = sum(1 for batch in runner.batches if any(request == 0 for request, _, _ in batch))
    assert launched == 3 + in_flight - 1
    assert report.served[1].generated == 9
    assert_empty(loop)


@pytest.mark.parametrize("backend", ["cpu", "host"])
def test_work_is_put_on_the_stream_of_any_device(backend: str) -> None:
    """A device that holds bytes runs each batch once, in its own time."""
    storage = storage_of(4000, in_flight=2, backend=backend)
    runner = CountingRunner(storage=storage)
    report = loop_over(storage, runner).run([Request(number, 0.0, 20, 4) for number in range(3)])

    assert report.count(DONE) == 3
    assert runner.ran == report.steps
    storage.release()


def test_a_row_that_is_used_again_gets_no_result_of_the_request_before() -> None:
    """One row: its next request is launched while the last one's forward too many is in flight."""
    runner = CountingRunner(ends_after={0: 2})
    loop = loop_of(4000, running=1, in_flight=2, runner=runner)
    report = loop.run([Request(0, 0.0, 8, 20), Request(1, 0.0, 8, 4)])
    assert [served.generated for served in report.served] == [2, 4]
    assert [step.stop for step in report.served[1].attempts[0].forwards] == [8, 9, 10, 11]
    assert_empty(loop)
