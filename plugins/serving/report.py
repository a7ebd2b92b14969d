"""What a run of the loop gives back: each request's fate and forwards, and what each band held."""

import attrs

from kvarena.plugins.serving.port import Request

DONE, REFUSED, FAILED, ABORTED = "done", "refused", "failed", "aborted"


@attrs.frozen
class Forward:
    """Tokens ``[start, stop)`` forwarded in one step; ``samples``: the last logits gave a token."""

    start: int
    stop: int
    samples: bool


@attrs.frozen
class Attempt:
    """One admission of a request: the forwards whose results counted, in order.

    It started from ``cached`` tokens of a prefix cache; ``origin`` are the rising lengths at which the forwards ended
    that had computed these, the last one ``cached``. A sample that a retraction or an abort dropped is not here: it
    comes again in the next attempt.
    """

    forwards: tuple[Forward, ...]
    cached: int = 0
    origin: tuple[int, ...] = ()


@attrs.frozen
class Served:
    """One request's fate. Times in seconds of the loop's clock; None where it never came so far.

    ``waited``: it first started later than in the step of its arrival. ``clipped``: memory or the context held only a
    shorter output than was asked for. ``cached_tokens``: what a prefix
    cache had of the tokens that its admissions needed. ``attempts`` has the forwards of each admission; a retraction
    starts the next one, with the tokens generated before as part of the prompt. Empty where the loop was not asked to
    keep them.
    """

    request: Request
    fate: str
    reason: str = ""
    generated: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    retractions: int = 0
    preemptions: int = 0
    waited: bool = False
    clipped: bool = False
    cached_tokens: int = 0
    attempts: tuple[Attempt, ...] = ()

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.request.arrival

    @property
    def time_per_token(self) -> float | None:
        """Mean seconds between tokens after the first."""
        if self.finished_at is None or self.first_token_at is None or self.generated < 2:
            return None
        return (self.finished_at - self.first_token_at) / (self.generated - 1)


@attrs.frozen
class BandUse:
    """What a band held over the run, in its units; the mean is over the loop's clock.

    ``moves``: pages of it that were moved. ``refusals``: refused takes that asked for some of it.
    """

    name: str
    unit_bytes: int
    peak: int
    mean: float
    moves: int
    refusals: int


@attrs.frozen
class CacheUse:
    """What a prefix cache did in a run. ``entries`` are those it holds at the end."""

    prompt_tokens: int
    cached_tokens: int
    checkpoints_taken: int
    checkpoints_skipped: int
    entries: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """The share of the tokens needed that was there."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@attrs.frozen
class Report:
    """A whole run: ``served`` are the records that nobody had taken, by request id, and ``waits`` those of them that
    waited; all else is counted since the loop was made.

    ``seconds`` is the loop's clock; ``memory_cpu_seconds`` is processor time of the loop's thread inside kvarena,
    ``runner_seconds`` wall time inside the runner. ``cache`` is None without one.
    """

    served: tuple[Served, ...]
    bands: tuple[BandUse, ...]
    steps: int
    seconds: float
    tokens_forwarded: int
    waits: int
    retractions: int
    pages_moved: int
    memory_cpu_seconds: float
    runner_seconds: float
    preemptions: int = 0
    cache: CacheUse | None = None

    def count(self, fate: str) -> int:
        """How many requests met this fate."""
        return sum(served.fate == fate for served in self.served)
