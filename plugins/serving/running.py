"""The running requests as arrays by request row, so that a step costs vector operations, not a loop."""

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import Forward, Served
from kvarena.terms.ports import IntArray


@attrs.define(eq=False)
class Job:
    """One request on its way through the loop, waiting or running."""

    request: Request
    queued_at_step: int = 0
    generated: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    retractions: int = 0
    waited: bool = False
    attempts: list[list[Forward]] = attrs.Factory(list)

    @property
    def known_tokens(self) -> int:
        """The tokens that must be forwarded before the next one can be sampled."""
        return self.request.prompt_tokens + self.generated

    @property
    def tokens_left(self) -> int:
        """How many tokens it may still generate."""
        return self.request.output_tokens - self.generated

    def served(self, fate: str, now: float | None, reason: str = "") -> Served:
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
            waited=self.waited,
            attempts=tuple(tuple(attempt) for attempt in self.attempts),
        )


class Running:
    """The jobs in their rows, oldest admission first, and how far each has come."""

    def __init__(self, rows: int) -> None:
        self.jobs: dict[int, Job] = {}
        self.known = np.zeros(rows, dtype=np.int64)
        self.generated = np.zeros(rows, dtype=np.int64)
        self.outputs = np.zeros(rows, dtype=np.int64)
        self._order: IntArray | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, row: int, job: Job) -> None:
        """A job starts in this row."""
        self.jobs[row] = job
        self.known[row] = job.known_tokens
        self.generated[row] = job.generated
        self.outputs[row] = job.request.output_tokens
        self._order = None

    def remove(self, row: int) -> Job:
        """The job leaves its row."""
        job = self.jobs.pop(row)
        job.generated = int(self.generated[row])
        self._order = None
        return job

    def rows(self) -> IntArray:
        """The rows in use, oldest admission first."""
        if self._order is None:
            self._order = np.fromiter(self.jobs, dtype=np.int64, count=len(self.jobs))
        return self._order

    def compose(self, lengths: IntArray, chunk_tokens: int, step_tokens: int) -> tuple[IntArray, IntArray]:
        """The rows of the next step and the length that each reaches in it.

        Every row that decodes takes part; prefills, oldest first, share ``step_tokens`` in whole chunks of
        ``chunk_tokens``: a chunk cut short would move the grid that admission priced.
        """
        rows = self.rows()
        rest = self.known[rows] - lengths[rows]
        chunks = np.minimum(rest, chunk_tokens)
        prefills = np.where(rest > 1, chunks, 0)
        chosen = (rest == 1) | (np.cumsum(prefills) <= step_tokens)
        return rows[chosen], lengths[rows[chosen]] + chunks[chosen]

    def victim(self) -> int:
        """Whom a shortage stops: the latest admitted among those of the lowest priority."""
        lowest = min(job.request.priority for job in self.jobs.values())
        return next(row for row in reversed(self.jobs) if self.jobs[row].request.priority == lowest)

    def sampled(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Each of these rows got a token. Returns the rows that got their first, and those that got their last."""
        self.generated[rows] += 1
        self.known[rows] += 1
        generated = self.generated[rows]
        return rows[generated == 1], rows[generated >= self.outputs[rows]]

    def keep_forwards(self, rows: IntArray, starts: IntArray, stops: IntArray, samples: npt.NDArray[np.bool_]) -> None:
        """Write each row's forward into its job's present attempt."""
        for row, start, stop, sample in zip(
            rows.tolist(), starts.tolist(), stops.tolist(), samples.tolist(), strict=True
        ):
            self.jobs[row].attempts[-1].append(Forward(start, stop, sample))
