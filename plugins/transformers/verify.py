"""The judge: every request's forwards repeated with transformers' own cache, token by token.

The reference forwards the same chunks, recomputation after a retraction included, because some families
differ from themselves under another chunking. What is compared are greedy tokens.
"""

from collections.abc import Callable, Sequence

import attrs
from transformers import Cache, PreTrainedModel

from kvarena.plugins.serving.report import Forward, Report, Served
from kvarena.plugins.transformers.geometry import plain_cache
from kvarena.plugins.transformers.runner import forward
from kvarena.terms.errors import KvarenaError


@attrs.frozen
class Difference:
    """The first token that the reference does not give: the request, its position after the prompt, both tokens."""

    request_id: int
    position: int
    expected: int
    got: int

    def __str__(self) -> str:
        return (
            f"request {self.request_id}: token {self.position} after its prompt is {self.got}, and transformers' own "
            f"cache gives {self.expected}"
        )


@attrs.frozen
class Verdict:
    """Whether all sampled tokens are those of the reference, and how many of each were compared."""

    equal: bool
    requests: int
    tokens: int
    difference: Difference | None = None


def verify(
    model: PreTrainedModel,
    report: Report,
    tokens: Callable[[int], Sequence[int]],
    on_request: Callable[[int], None] | None = None,
) -> Verdict:
    """Repeat the forwards of a run's requests that got tokens; ``tokens`` gives what was sampled, by request id.

    Stops at the first difference. ``on_request`` is told after each request how many are done.

    Raises:
        KvarenaError: a request has tokens but no forwards: the loop was not asked to keep them.
    """
    requests = compared = 0
    for done, record in enumerate(report.served, start=1):
        sampled = tokens(record.request.id)
        if sampled:
            count, difference = _repeat(model, record, sampled)
            requests, compared = requests + 1, compared + count
            if difference is not None:
                return Verdict(False, requests, compared, difference)
        if on_request is not None:
            on_request(done)
    return Verdict(True, requests, compared)


def _repeat(model: PreTrainedModel, record: Served, sampled: Sequence[int]) -> tuple[int, Difference | None]:
    """One request: each attempt from an empty cache, each forward with the tokens that were known then."""
    if record.request.prompt is None or not any(record.attempts):
        raise KvarenaError(
            f"request {record.request.id} cannot be repeated: its prompt or its forwards were not kept (keep_forwards)"
        )
    known = [*record.request.prompt, *sampled]
    position = 0
    for attempt in record.attempts:
        cache: Cache = plain_cache(model.config)
        for step in attempt:
            expected = forward(model, cache, _slice(known, step))
            if not step.samples:
                continue
            if position >= len(sampled) or expected != sampled[position]:
                got = sampled[position] if position < len(sampled) else -1
                return position + 1, Difference(record.request.id, position, expected, got)
            position += 1
    if position != len(sampled):
        raise KvarenaError(
            f"request {record.request.id} has {len(sampled)} tokens, and its kept forwards sampled {position}"
        )
    return position, None


def _slice(known: Sequence[int], step: Forward) -> Sequence[int]:
    return known[step.start : step.stop]
