"""What the loop and its runners say to each other: requests, batches, outcomes. Values only."""

import math
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.ledger.steps import Forward
from kvarena.planning.demand import LENGTH_MAX, RequestShape
from kvarena.storage.iteration_ids import IterationIds
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import IntArray

MOST = (1 << 63) - 1
"""Numbers lie in arrays of 64 bits."""


def _is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _whole(least: int, most: int = MOST) -> Any:
    """A validator: a whole number from ``least`` to ``most``; or None where that is the default."""

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is None and attribute.default is None:
            return
        if not _is_whole(value):
            raise KvarenaError(f"request {instance.id}: {attribute.name} is {value!r}; give a whole number")
        if not least <= value <= most:
            limit = f"at least {least}" if value < least else f"at most {most:,}"
            raise KvarenaError(f"request {instance.id}: {attribute.name} is {value}; {limit}")

    return check


def _are_whole(values: Any, least: int) -> bool:
    """Whether these are whole numbers of 64 bits, one after another, of at least ``least``."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        return False
    return found.ndim == 1 and (not len(found) or (found.dtype.kind == "i" and bool(found.min() >= least)))


def _is_time(value: Any) -> bool:
    """Whether this is a finite number of seconds."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


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
    prompt_tokens: int = attrs.field(validator=_whole(1, LENGTH_MAX))
    output_tokens: int = attrs.field(validator=_whole(1, LENGTH_MAX))
    prompt: tuple[int, ...] | None = None
    prefix_ids: tuple[int, ...] | None = None
    priority: int = attrs.field(default=0, validator=_whole(-MOST))
    namespace: str | None = None
    block_tokens: int | None = attrs.field(default=None, validator=_whole(1))

    def __attrs_post_init__(self) -> None:
        if not _is_whole(self.id) or not -MOST <= self.id <= MOST:
            raise KvarenaError(
                f"request {self.id!r}: id is no whole number of 64 bits; give each request one of its own"
            )
        if not _is_time(self.arrival):
            raise KvarenaError(f"request {self.id}: arrival is {self.arrival!r}; give seconds on the loop's clock")
        try:
            hash(self.namespace)
        except TypeError:
            raise KvarenaError(f"request {self.id}: namespace is {self.namespace!r}; give a hashable value") from None
        if self.prompt is not None and not _are_whole(self.prompt, 0):
            raise KvarenaError(
                f"request {self.id}: prompt is no sequence of token ids; give whole numbers of 64 bits, 0 or more"
            )
        if self.prefix_ids is not None and not _are_whole(self.prefix_ids, -MOST):
            raise KvarenaError(f"request {self.id}: prefix_ids is no sequence of blocks; give whole numbers of 64 bits")
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

    ``ended`` has a boolean for each row of the batch, or is None where only the length ends a request. An outcome that
    is none (seconds that are no time, flags for other rows) is a failure of its runner.
    """

    seconds: float
    ended: Any = None


def checked(outcome: Any, rows: int) -> Outcome:
    """What a runner gave for a batch of so many rows, if it is an outcome.

    Raises:
        KvarenaError: it is none: with the field, what was found and what it must be.
    """
    if not isinstance(outcome, Outcome):
        raise KvarenaError(f"Runner.result gave {outcome!r}; it must give an Outcome")
    seconds, ended = outcome.seconds, outcome.ended
    if not (_is_time(seconds) and seconds >= 0):
        raise KvarenaError(f"Outcome.seconds is {seconds!r}; it must be a finite number of at least 0")
    if ended is not None:
        try:
            found = np.asarray(ended)
        except ValueError:  # lists of different lengths
            found = np.array([None], dtype=object)
        if found.dtype.kind != "b" or found.shape != (rows,):
            shape = f"{found.dtype} of shape {found.shape}"
            raise KvarenaError(
                f"Outcome.ended is {shape}; it must be None, or {rows} booleans, one per row of the batch"
            )
    return outcome


class Runner(Protocol):
    """Runs batches. It owns the sampled tokens: the loop passes rows and lengths, never token values.

    A batch's life:  1. launch  its work is on the forward's stream, maybe before the batch before it has ended: what
                                a decoding row forwards may be a token that the batch before is still sampling.
                     2. result  asked in the order of the launches, once for each: it has ended.
    Of a request that was retracted, ended or aborted meanwhile a result is dropped: tokens are kept by position, so
    that the same position sampled again, after a retraction, replaces it; ``Served.generated`` says how many count.
    It may submit requests to the loop while it is called, and aborts none: a step is under way.
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
