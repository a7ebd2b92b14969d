"""The judge: every request's forwards repeated with transformers' own cache, token by token.

The reference forwards the same chunks, recomputation after a retraction and the rows of a cached prefix
included, because some families differ from themselves under another chunking. What is compared are greedy tokens.
Where a layout keeps keys and values through a codec that loses something, the reference's rows go through it too:
what differs then is the arena's doing, and not the codec's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from transformers import Cache, PreTrainedModel

from kvarena.plugins.serving.report import Attempt, Report, Served
from kvarena.plugins.transformers.geometry import plain_cache
from kvarena.plugins.transformers.keeping import Keeping
from kvarena.plugins.transformers.runner import forward
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import invariant


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


class CodecCache(Cache):
    """Transformers' own layers; each new row goes through its layout's codec and back before they get it."""

    def __init__(self, config: Any, keeping: Keeping) -> None:
        self._keeping = keeping
        super().__init__(layers=plain_cache(config).layers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        kept = self._keeping.rows[layer_idx].round_trip(key_states, value_states)
        return super().update(*kept, layer_idx, *args, **kwargs)


def verify(
    model: PreTrainedModel,
    report: Report,
    tokens: Callable[[int], Sequence[int]],
    on_request: Callable[[int], None] | None = None,
    *,
    keeping: Keeping | None = None,
) -> Verdict:
    """Repeat the forwards of a run's requests that got tokens; ``tokens`` gives what was sampled, by request id.

    Of a request's tokens the first ``generated`` are compared: a forward that was dropped may have sampled more.
    Stops at the first difference. ``on_request`` is told after each request how many are done. ``keeping`` is the
    runner's: where it has a codec, the reference goes through that as well.

    Raises:
        KvarenaError: a request has tokens but no forwards: the loop was not asked to keep them.
        InvariantError: an attempt's origin does not end at what it started from.
    """
    requests = compared = 0
    for done, record in enumerate(report.served, start=1):
        sampled = tokens(record.request.id)[: record.generated]
        if sampled:
            count, difference = _repeat(model, record, sampled, keeping)
            requests, compared = requests + 1, compared + count
            if difference is not None:
                return Verdict(False, requests, compared, difference)
        if on_request is not None:
            on_request(done)
    return Verdict(True, requests, compared)


def _repeat(
    model: PreTrainedModel, record: Served, sampled: Sequence[int], keeping: Keeping | None
) -> tuple[int, Difference | None]:
    """One request: each attempt from an empty cache, each forward with the tokens that were known then."""
    prompt = record.request.prompt
    if prompt is None or not any(attempt.forwards for attempt in record.attempts):
        raise KvarenaError(
            f"request {record.request.id} cannot be repeated: its prompt or its forwards were not kept (keep_forwards)"
        )
    known = [*prompt, *sampled]
    compared = 0
    for attempt in record.attempts:
        cache = CodecCache(model.config, keeping) if keeping and keeping.codec else plain_cache(model.config)
        _bring_prefix(model, cache, known, attempt)
        for step in attempt.forwards:
            expected = forward(model, cache, known[step.start : step.stop])
            if not step.samples:
                continue
            place = step.stop - len(prompt)
            if place != compared or place >= len(sampled):
                raise KvarenaError(
                    f"request {record.request.id} has {len(sampled)} tokens, and a kept forward samples token {place} "
                    f"after {compared}"
                )
            compared += 1
            if expected != sampled[place]:
                return compared, Difference(record.request.id, place, expected, sampled[place])
    if compared != len(sampled):
        raise KvarenaError(
            f"request {record.request.id} has {len(sampled)} tokens, and its kept forwards sampled {compared}"
        )
    return compared, None


def _bring_prefix(model: PreTrainedModel, cache: Cache, known: Sequence[int], attempt: Attempt) -> None:
    """Forward what the attempt started from, in the pieces that had computed it."""
    start = 0
    for stop in attempt.origin:
        forward(model, cache, known[start:stop])
        start = stop
    invariant("verify.origin_of_cached_rows", start == attempt.cached, origin=attempt.origin, cached=attempt.cached)
