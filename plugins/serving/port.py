"""What the loop and its runners say to each other: requests, batches, outcomes. Values only."""

from collections.abc import Iterator
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.planning.demand import RequestShape
from kvarena.storage.iteration_ids import IterationIds
from kvarena.terms.ports import IntArray


@attrs.frozen
class Request:
    """One request as it arrives. Lengths in tokens, ``arrival`` in seconds of the loop's clock.

    ``prompt`` has the token ids for runners that need them; ``prefix_ids`` name the shared blocks of the
    prompt, where the trace has them. A higher ``priority`` is retracted later.
    """

    id: int
    arrival: float
    prompt_tokens: int = attrs.field(validator=attrs.validators.ge(1))
    output_tokens: int = attrs.field(validator=attrs.validators.ge(1))
    prompt: tuple[int, ...] | None = None
    prefix_ids: tuple[int, ...] | None = None
    priority: int = 0

    @property
    def rows(self) -> int:
        """The rows that the whole request needs, as admission counts them."""
        return RequestShape(self.prompt_tokens, self.output_tokens).rows


@attrs.frozen
class Chunk:
    """Tokens ``[start, stop)`` of one request, in its row; ``samples``: the last logits give a token."""

    row: int
    request: Request
    start: int
    stop: int
    samples: bool


@attrs.frozen(eq=False)
class Batch:
    """One step: for each row the tokens ``[start, stop)`` to forward. Arrays run parallel to ``requests``.

    ``samples[i]`` says that chunk i reaches the end of what is known, so that its last logits give the next
    token. ``ids`` has the physical pages of exactly this step.
    """

    rows: IntArray
    starts: IntArray
    stops: IntArray
    samples: npt.NDArray[np.bool_]
    requests: tuple[Request, ...]
    ids: IterationIds

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self) -> Iterator[Chunk]:
        """The batch piece by piece, for runners that forward one sequence at a time."""
        rows, starts, stops = self.rows.tolist(), self.starts.tolist(), self.stops.tolist()
        for piece in zip(rows, self.requests, starts, stops, self.samples.tolist(), strict=True):
            yield Chunk(*piece)


@attrs.frozen(eq=False)
class Outcome:
    """What a step gave: how long it took on the loop's clock, and which sampled rows ended early.

    ``ended`` is parallel to the batch's rows, or None where only the length ends a request.
    """

    seconds: float
    ended: Any = None


class Runner(Protocol):
    """Runs batches. It owns the sampled tokens: the loop passes rows and lengths, never token values."""

    def run(self, batch: Batch) -> Outcome:
        """Forward every chunk; remember the token that each sampling chunk gives."""
        ...

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """The tokens sampled for a request so far; they survive a retraction. Empty where none are made."""
        ...
