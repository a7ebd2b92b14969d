"""What the loop and its runners say to each other: requests, batches, outcomes. Values only."""

import math
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.ledger.steps import Forward
from kvarena.planning.demand import RequestShape
from kvarena.storage.iteration_ids import IterationIds
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import IntArray


def _whole(least: int | None) -> Any:
    """A validator: a whole number, of at least ``least``."""

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is None and attribute.default is None:
            return
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise KvarenaError(f"request {instance.id}: {attribute.name} is {value!r}; give a whole number")
        if least is not None and value < least:
            raise KvarenaError(f"request {instance.id}: {attribute.name} is {value}; at least {least}")

    return check


def _are_tokens(prompt: Any) -> bool:
    """Whether these are token ids, one after another."""
    try:
        found = np.asarray(prompt)
    except (TypeError, ValueError, OverflowError):
        return False
    return found.ndim == 1 and (found.dtype.kind == "i" or not len(found))


@attrs.frozen
class Request:
    """One request as it arrives. Lengths in tokens, ``arrival`` in seconds of the loop's clock.

    ``prompt`` has the token ids for runners that need them; ``prefix_ids`` name the shared blocks of the
    prompt, ``block_tokens`` tokens each, where the trace has them. A higher ``priority`` starts earlier and is
    retracted later. Prefixes are shared within one ``namespace`` alone (a salt, an adapter's name).

    Raises:
        KvarenaError: a length, the arrival, the priority or the prompt is none; it names the request and the field.
    """

    id: int
    arrival: float
    prompt_tokens: int = attrs.field(validator=_whole(1))
    output_tokens: int = attrs.field(validator=_whole(1))
    prompt: tuple[int, ...] | None = None
    prefix_ids: tuple[int, ...] | None = None
    priority: int = attrs.field(default=0, validator=_whole(None))
    namespace: str | None = None
    block_tokens: int | None = attrs.field(default=None, validator=_whole(1))

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.id, Integral) or isinstance(self.id, bool):
            raise KvarenaError(f"request {self.id!r}: id is no whole number; give each request one of its own")
        if not isinstance(self.arrival, Real) or isinstance(self.arrival, bool) or not math.isfinite(self.arrival):
            raise KvarenaError(f"request {self.id}: arrival is {self.arrival!r}; give seconds on the loop's clock")
        try:
            hash(self.namespace)
        except TypeError:
            raise KvarenaError(f"request {self.id}: namespace is {self.namespace!r}; give a hashable value") from None
        if self.prompt is not None and not _are_tokens(self.prompt):
            raise KvarenaError(f"request {self.id}: prompt is no sequence of token ids; give whole numbers of 64 bits")
        if self.prompt is not None and len(self.prompt) != self.prompt_tokens:
            raise KvarenaError(
                f"request {self.id}: prompt has {len(self.prompt)} tokens, and prompt_tokens says {self.prompt_tokens}"
            )

    @property
    def rows(self) -> int:
        """The rows that the whole request needs, as admission counts them."""
        return RequestShape(self.prompt_tokens, self.output_tokens).rows


@attrs.frozen
class Chunk:
    """Tokens ``[start, stop)`` of one request, in its row; ``samples``: the last logits give token ``stop``."""

    row: int
    request: Request
    start: int
    stop: int
    samples: bool


@attrs.frozen(eq=False)
class Batch:
    """One step: for each row the tokens ``[start, stop)`` to forward. Arrays run parallel to ``requests``.

    ``samples[i]`` says that chunk i reaches the end of what is known, so that its last logits give the next
    token, at position ``stops[i]`` of the request. ``ids`` has the physical pages of exactly this step, valid until
    the forward was recorded; ``ids.slots[:, 0]`` are the live states.
    """

    rows: IntArray
    starts: IntArray
    stops: IntArray
    samples: npt.NDArray[np.bool_]
    requests: npt.NDArray[np.object_]
    ids: IterationIds

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self) -> Iterator[Chunk]:
        """The batch piece by piece, for runners that forward one sequence at a time."""
        rows, starts, stops = self.rows.tolist(), self.starts.tolist(), self.stops.tolist()
        for piece in zip(rows, list(self.requests), starts, stops, self.samples.tolist(), strict=True):
            yield Chunk(*piece)


@attrs.frozen(eq=False)
class Outcome:
    """What a step gave: how long it took on the loop's clock, and which sampled rows ended early.

    ``ended`` is parallel to the batch's rows, or None where only the length ends a request.
    """

    seconds: float
    ended: Any = None


class Runner(Protocol):
    """Runs batches. It owns the sampled tokens: the loop passes rows and lengths, never token values.

    A batch's life:  1. launch  its work is on the forward's stream, maybe before the batch before it has ended: what
                                a decoding row forwards may be a token that the batch before is still sampling.
                     2. result  asked in the order of the launches, once for each: it has ended.
    Of a request that was retracted, ended or aborted meanwhile a result is dropped: tokens are kept by position, so
    that the same position sampled again, after a retraction, replaces it; ``Served.generated`` says how many count.
    """

    def launch(self, batch: Batch, forward: Forward) -> None:
        """Put the work of the batch on the forward's stream (``storage.forwards.run``), and return at once.

        Raises:
            KvarenaError: a request cannot be run; nothing is on the stream.
        """
        ...

    def result(self, batch: Batch) -> Outcome:
        """Wait for the batch; how long it took, and which rows' sampled token ends an answer."""
        ...

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """The tokens sampled for a request so far; they survive a retraction. Empty where none are made."""
        ...

    def keys(self, request: Request, count: int) -> IntArray | None:
        """The first ``count`` tokens of a request, its prompt and then what it sampled, as keys of a prefix cache.

        int64 (count,), equal where tokens are equal; None where its tokens are not to be cached. Nobody writes it.
        """
        ...
