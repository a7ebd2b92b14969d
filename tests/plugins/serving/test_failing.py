"""A runner that fails, and requests that are none: what is wrong is named, and the others are served."""

from typing import Any

import pytest
from loops import CountingRunner, assert_empty, loop_over, storage_of

from kvarena.assembly.config import PrefixConfig
from kvarena.ledger.steps import Forward
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.report import DONE, FAILED
from kvarena.terms.errors import KvarenaError

PROMPT = tuple(range(20))


class Failing(CountingRunner):
    """Fails once, at the launch or at the result of its ``at``-th batch."""

    def __init__(self, when: str, at: int) -> None:
        super().__init__()
        self.when, self.at = when, at

    def launch(self, batch: Batch, forward: Forward) -> None:
        """As ever, but for one."""
        self.at -= self.when == "launch"
        if self.when == "launch" and self.at == 0:
            raise KvarenaError("no kernel for it")
        super().launch(batch, forward)

    def result(self, batch: Batch) -> Outcome:
        """As ever, but for one."""
        outcome = super().result(batch)
        self.at -= self.when == "result"
        if self.when == "result" and self.at == 0:
            raise KvarenaError("no kernel for it")
        return outcome


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("when", ["launch", "result"])
def test_what_a_runner_raises_ends_the_requests_of_its_batch(when: str, at: int, in_flight: int) -> None:
    """They end failed with what was raised, nothing is held for them, and who comes later is served."""
    storage = storage_of(900, in_flight=in_flight, prefix=PrefixConfig(share=True, checkpoint_tokens=8))
    loop = loop_over(storage, Failing(when, at))
    loop.submit(Request(0, 0.0, 20, 5, prompt=PROMPT))
    loop.submit(Request(1, 30.0, 20, 5, prompt=PROMPT))
    with pytest.raises(KvarenaError, match="no kernel for it"):
        loop.run()
    storage.verify()
    report = loop.run()
    first, second = report.served
    assert (first.fate, second.fate) == (FAILED, DONE)
    assert first.reason == "the runner failed: KvarenaError: no kernel for it"
    assert second.generated == 5
    assert_empty(loop)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", ["salt"]), ("prompt", (2**64, 1)), ("prompt", "ab"), ("prompt", ((1,), (2,))), ("prompt", 5),
        ("prompt", (1.5, 2.5)), ("prompt", (1, 2, 3)), ("prompt_tokens", 0), ("output_tokens", -1),
        ("priority", "high"), ("priority", float("nan")), ("priority", 1.0), ("priority", True), ("priority", 10**30),
        ("prompt_tokens", 10**30), ("prompt_tokens", 2.0), ("prompt_tokens", True), ("output_tokens", 1 << 63),
        ("prompt_tokens", (1 << 40) + 1), ("output_tokens", (1 << 40) + 1),
        ("output_tokens", False), ("arrival", True), ("arrival", 10**400), ("arrival", -float("inf")), ("arrival", 1j),
        ("prompt", (1, -2)), ("prompt", (True, False)), ("prompt", 1), ("prompt", {1: 2, 2: 3}),
        ("prefix_ids", (1.5,)), ("prefix_ids", 3), ("prefix_ids", ("a",)), ("prefix_ids", (10**30,)),
        ("block_tokens", True), ("block_tokens", 0), ("block_tokens", 1.5),
    ],
)  # fmt: skip
def test_requests_that_are_none_are_named(field: str, value: Any) -> None:
    """The message has the request and the field, before anything of it is queued."""
    fields = {"id": 7, "arrival": 0.0, "prompt_tokens": 2, "output_tokens": 2, "prompt": (1, 2), field: value}
    with pytest.raises(KvarenaError, match=rf"request 7: {field}"):
        Request(**fields)


@pytest.mark.parametrize("number", ["a", None, 1.0, True, 10**30, [1]])
def test_a_request_without_an_id_is_named_by_what_it_has(number: Any) -> None:
    """Whole numbers of 64 bits."""
    with pytest.raises(KvarenaError, match=r"request .*: id is no whole number of 64 bits"):
        Request(number, 0.0, 2, 2)
