"""One request on its way through the loop: what it has, what it holds, and its record at the end."""

from typing import Any

import attrs

from kvarena.plugins.serving.lineage import Lineage, stops_of
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import Attempt, Forward, Served

Key = tuple[int, bool, float, int]
"""Where a job stands in the queue."""

ARRIVING, QUEUED, RUNNING, OVER = "arriving", "queued", "running", "over"


@attrs.define(eq=False)
class Pending:
    """A checkpoint of a state whose forward is in flight: the state after so many tokens, in a slot handed over."""

    tokens: int
    slot: int


@attrs.define(eq=False)
class Trial:
    """One admission as it goes. ``lineage`` and then ``since``: the forwards that computed the rows so far."""

    cached: int = 0
    origin: Lineage | None = None
    forwards: list[Forward] = attrs.Factory(list)
    lineage: Lineage | None = None
    since: list[int] = attrs.Factory(list)

    def add(self, forward: Forward) -> None:
        """A forward whose result counts."""
        self.forwards.append(forward)
        self.since.append(forward.stop)

    def so_far(self) -> Lineage | None:
        """Who computed the rows up to here, as one value that outlives the request."""
        if self.since:
            self.lineage = Lineage(self.lineage, tuple(self.since))
            self.since.clear()
        return self.lineage

    def attempt(self) -> Attempt:
        """The admission's record."""
        return Attempt(tuple(self.forwards), self.cached, stops_of(self.origin, self.cached))


@attrs.define(eq=False)
class Job:
    """One request, waiting or running. ``outputs``: the tokens that it may generate, clipped to what memory holds.

    ``started``: prompt, output and cached tokens as of its last start; ``in_full``: charged all that it may hold;
    ``shares``: it reads from the prefix cache and leaves there what it makes.
    ``entry`` of the prefix cache is locked while it runs; once ``relaxed``, only for its path. ``kept``: how many of
    its tokens the cache has; ``kept_max``: how many it may have. ``pending``: its checkpoints in flight.
    ``cut``: where others have its tokens, and cannot be landed: it makes a landing there.
    """

    request: Request
    outputs: int
    queued_at_step: int = 0
    place: str = ARRIVING
    key: Key = (0, False, 0.0, 0)
    row: int = -1
    started: tuple[int, int, int] = (0, 0, 0)
    in_full: bool = False
    shares: bool = True
    generated: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    retractions: int = 0
    preemptions: int = 0
    waited: bool = False
    cached_tokens: int = 0
    entry: Any = None
    relaxed: bool = False
    kept: int = 0
    kept_max: int = 0
    cut: int = 0
    pending: list[Pending] = attrs.Factory(list)
    trials: list[Trial] = attrs.Factory(list)

    @property
    def known_tokens(self) -> int:
        """The tokens that must be forwarded before the next one can be sampled."""
        return self.request.prompt_tokens + self.generated

    @property
    def tokens_left(self) -> int:
        """How many tokens it may still generate."""
        return self.outputs - self.generated

    def served(self, fate: str, now: float, reason: str = "") -> Served:
        """The job's record, at its end."""
        return Served(
            request=self.request,
            fate=fate,
            reason=reason,
            generated=self.generated,
            admitted_at=self.admitted_at,
            first_token_at=self.first_token_at,
            finished_at=now,
            retractions=self.retractions,
            preemptions=self.preemptions,
            waited=self.waited,
            clipped=self.outputs < self.request.output_tokens,
            cached_tokens=self.cached_tokens,
            attempts=tuple([trial.attempt() for trial in self.trials]),
        )
