"""Who runs in which row, and all that comes and goes with it: the row, its charge, its prefix, its checkpoints."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.plugins.serving.checkpoints import Checkpoints
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.job import Job, Pending, Trial
from kvarena.plugins.serving.prefixes import Begun, Match, Prefixes
from kvarena.plugins.serving.running import Running
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.events import event_log, tells_debug
from kvarena.terms.ports import IntArray

_log = event_log()


class Starting(NamedTuple):
    """A job that admission has let in, and promised its charge; the entry of its match is locked."""

    job: Job
    answer: Admit
    match: Match | None


class Seats:
    """The running requests of one loop, and what they hold.

    Always: a running job has a row, its charge is admission's, and its entry is locked once; a job that has left holds
    nothing, whatever is in flight
    """

    def __init__(
        self,
        storage: Storage,
        admission: Admission,
        running: Running,
        counts: Counts,
        *,
        prefixes: Prefixes | None,
        checkpoints: Checkpoints | None,
        keep_forwards: bool,
    ) -> None:
        self.running = running
        self.prefixes = prefixes
        self.checkpoints = checkpoints
        self.changes = 0
        self._storage = storage
        self._admission = admission
        self._counts = counts
        self._keep_forwards = keep_forwards

    def start(self, group: Sequence[Starting], now: float) -> None:
        """Open rows for these, all at once."""
        rows = self._storage.open_batch(len(group))
        if isinstance(rows, Refused):  # a yes is a successful take; waiting here could wait for ever
            raise InvariantError(f"scheduler.admitted_is_opened: {len(group)} requests: {rows}")
        self._admission.start(rows, [answer for _, answer, _ in group])
        begun = [Begun(row, job, match) for row, (job, _, match) in zip(rows.tolist(), group, strict=True)]
        if self.prefixes is not None:
            self.prefixes.begin(begun)
        chunk_tokens, tells, prompts, reused = self._admission.prices.chunk_tokens, tells_debug(), 0, 0
        for (row, job, match), (_, answer, _) in zip(begun, group, strict=True):
            cached, known = 0 if match is None else match.tokens, job.known_tokens
            if job.admitted_at is None:
                job.admitted_at = now
                job.waited = job.queued_at_step < self._counts.steps
                self._counts.waits += job.waited
            job.started, job.in_full = (known, job.tokens_left, cached), False
            job.cached_tokens += cached
            if self._keep_forwards:
                job.trials.append(self.prefixes.trial(match) if self.prefixes is not None else Trial())
            self.running.add(row, job, answer.chunk_tokens or chunk_tokens, cached)
            prompts += known
            reused += cached
            if tells:
                _log.debug("request.admitted", request=job.request.id, row=row, cached=cached, charge=answer.charge)

        self._counts.admitted += len(group)
        self._counts.prompt_tokens += prompts
        self._counts.cached_tokens += reused

    def keep(self, job: Job, pending: Pending) -> None:
        """The result of the forward that made a checkpoint has come: the cache gets it."""
        if self.prefixes is None or self.checkpoints is None:
            return
        if self.prefixes.checkpoint(job, pending):
            self._counts.checkpoints_taken += 1
        else:
            self.checkpoints.skipped(
                job,
                pending.tokens,
                "nobody could start from it: its keys are not known, or window rows behind it are gone",
            )

    def leave(self, rows: IntArray) -> list[Job]:
        """Take jobs out of their rows; all that they held comes back, or is the cache's."""
        jobs = []
        for row in rows.tolist():
            job = self.running.jobs[row]
            if self.checkpoints is not None:
                self.checkpoints.drop(job)
            if self.prefixes is not None:
                self.prefixes.leave(row, job)
            jobs.append(self.running.remove(row))
        self._storage.close(rows)
        self._admission.forget(rows)
        self.changes += 1
        return jobs

    def stop(self, row: int) -> Job:
        """One job goes back to where it waits, with what it generated as part of its prompt."""
        return self.leave(np.array([row]))[0]
