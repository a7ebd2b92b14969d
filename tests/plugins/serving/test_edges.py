"""What a runner or a caller gets wrong is named, and nothing is held for it."""

from typing import Any

import numpy as np
import pytest
from loops import CountingRunner, assert_empty, loop_of, loop_over, storage_of, tokens_of

from kvarena.assembly.config import PrefixConfig
from kvarena.planning.demand import LENGTH_MAX
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.report import DONE, FAILED, REFUSED
from kvarena.terms.errors import KvarenaError

SHARED = PrefixConfig(share=True, checkpoint_tokens=8)


class Wrong(CountingRunner):
    """Gives this instead of an outcome, at its third batch."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given, self.asked = given, 0

    def result(self, batch: Batch) -> Outcome:
        """As ever, but for one."""
        outcome = super().result(batch)
        self.asked += 1
        return self.given if self.asked == 3 else outcome


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "Runner.result gave None; it must give an Outcome"),
        (1.0, "Runner.result gave 1.0"),
        (Outcome(float("nan")), "Outcome.seconds is nan; it must be a finite number of at least 0"),
        (Outcome(float("inf")), "Outcome.seconds is inf"),
        (Outcome(-1.0), "Outcome.seconds is -1.0"),
        (Outcome(None), "Outcome.seconds is None"),  # type: ignore[arg-type]
        (Outcome(True), "Outcome.seconds is True"),
        (Outcome("1"), "Outcome.seconds is '1'"),  # type: ignore[arg-type]
        (Outcome(10**400), f"Outcome.seconds is {10**400}"),
        (Outcome(1.0, [False]), r"Outcome.ended is bool of shape \(1,\); it must be None, or 2 booleans"),
        (Outcome(1.0, False), r"Outcome.ended is bool of shape \(\)"),
        (Outcome(1.0, []), r"Outcome.ended is float64 of shape \(0,\)"),
        (Outcome(1.0, [[False], [False]]), r"Outcome.ended is bool of shape \(2, 1\)"),
        (Outcome(1.0, np.zeros(3, dtype=bool)), r"Outcome.ended is bool of shape \(3,\)"),
        (Outcome(1.0, [0, 1]), r"Outcome.ended is int64 of shape \(2,\)"),
        (Outcome(1.0, "no"), "Outcome.ended is <U2"),
        (Outcome(1.0, [[True], [True, False]]), r"Outcome.ended is object of shape \(1,\)"),
    ],
)
def test_an_outcome_that_is_none_ends_its_batch_alone(given: Any, says: str, in_flight: int) -> None:
    """Its requests fail with what was found, and who comes later is served as if nothing had been."""
    loop = loop_over(storage_of(4000, in_flight=in_flight, prefix=SHARED), Wrong(given))
    for number in range(2):
        loop.submit(Request(number, 0.0, 12, 9, prompt=tokens_of(12, first=number)))
    loop.submit(Request(2, 99.0, 12, 3, prompt=tokens_of(12)))
    with pytest.raises(KvarenaError, match=says):
        loop.run()
    loop.storage.verify()
    report = loop.run()

    assert [served.fate for served in report.served] == [FAILED, FAILED, DONE]
    assert report.served[0].reason.startswith("the runner failed: KvarenaError: ")
    assert_empty(loop)


def test_seconds_may_be_any_finite_number() -> None:
    """Whole, of numpy, or none at all; flags may be a list."""
    for given in (Outcome(2), Outcome(np.float32(2)), Outcome(0.0), Outcome(1.0, [False, True])):  # type: ignore[arg-type]
        loop = loop_of(4000, runner=Wrong(given))
        assert loop.run([Request(0, 0.0, 8, 9), Request(1, 0.0, 8, 9)]).count(DONE) == 2
        assert_empty(loop)


@pytest.mark.parametrize("nobody", [[0], {}, None, True, 0.0, "0", float("nan"), 10**30, -1, np.array([0])])
def test_an_abort_of_what_is_no_id_is_named(nobody: Any) -> None:
    """And nobody is aborted in its stead."""
    loop = loop_of(4000)
    loop.submit(Request(0, 0.0, 8, 2))
    loop.submit(Request(1, 0.0, 8, 2))
    loop.step()
    with pytest.raises(KvarenaError, match=r"abort of request .*: there is no request of this id"):
        loop.abort(nobody)
    loop.abort(np.int64(0))
    assert (loop.run().count(DONE), loop.counts.aborts) == (1, 1)
    assert_empty(loop)


@pytest.mark.parametrize("nothing", [None, 7, (0, 0.0, 8, 2), {"id": 0}])
def test_what_is_no_request_is_not_submitted(nothing: Any) -> None:
    """The message shows it; the loop has nothing to do."""
    loop = loop_of(4000)
    with pytest.raises(KvarenaError, match=r"submit: .* is no Request"):
        loop.submit(nothing)
    with pytest.raises(KvarenaError, match=r"submit: .* is no Request"):
        loop.run([Request(0, 0.0, 8, 2), nothing])
    assert loop.run().count(DONE) == 1
    assert_empty(loop)


@pytest.mark.parametrize("share", [False, True])
def test_lengths_beyond_all_arenas_are_refused_with_their_sum(share: bool) -> None:
    """Up to the longest that is a length at all; others are served."""
    loop = loop_of(4000, prefix=SHARED if share else PrefixConfig())
    most = LENGTH_MAX
    shapes = [(most, 1), (1, most), (most, most), (1 << 35, 5), (8, 2)]
    report = loop.run([Request(number, 0.0, *shape) for number, shape in enumerate(shapes)])

    fates = [served.fate for served in report.served]
    assert fates == [REFUSED, DONE, REFUSED, REFUSED, DONE]
    assert (report.served[1].clipped, report.served[1].generated) == (True, 64)
    assert "context_tokens" in report.served[0].reason
    assert_empty(loop)


class Aborts(CountingRunner):
    """Calls a request off from where its batch is launched, waited for, or its keys are asked for."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.loop, self.refused = where, None, 0

    def _abort(self, where: str) -> None:
        if where == self.where:
            with pytest.raises(KvarenaError, match="request 0 is aborted inside a step, by a runner say"):
                self.loop.abort(0)
            self.refused += 1

    def launch(self, batch: Batch, forward: Any) -> None:
        """Where nothing may change."""
        self._abort("launch")
        super().launch(batch, forward)

    def result(self, batch: Batch) -> Outcome:
        """Between two batches."""
        self._abort("result")
        return super().result(batch)

    def keys(self, request: Request, count: int) -> Any:
        """In the middle of an admission."""
        self._abort("keys")
        return super().keys(request, count)


@pytest.mark.parametrize("where", ["launch", "result", "keys"])
def test_nobody_is_aborted_inside_a_step(where: str) -> None:
    """A runner that tries is told so, and nothing has changed: all are served."""
    runner = Aborts(where)
    runner.loop = loop = loop_over(storage_of(4000, in_flight=2, prefix=SHARED), runner)
    for number in range(2):
        loop.submit(Request(number, 0.0, 12, 5, prompt=tokens_of(12, first=number)))
    assert [served.fate for served in loop.run().served] == [DONE, DONE]
    assert runner.refused
    assert_empty(loop)
