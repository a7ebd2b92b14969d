"""How a job ends: its record is written, what it was is counted and told. It holds nothing by then."""

from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.job import OVER, Job
from kvarena.plugins.serving.queue import Queue
from kvarena.plugins.serving.report import ABORTED, DONE, FAILED, REFUSED, Served
from kvarena.terms.events import event_log

_log = event_log()


class Ends:
    """The records of one loop, and the clock that they are written by."""

    def __init__(self, queue: Queue, counts: Counts) -> None:
        self.now = 0.0
        self.served: list[Served] = []
        self._queue = queue
        self._counts = counts
        self._fresh: list[int] = []

    def take_over(self) -> list[int]:
        """The ids of those that ended since this was asked last."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def done(self, job: Job) -> None:
        """It got its last token."""
        self._counts.done += 1
        self._end(job, DONE)

    def refuse(self, job: Job, reason: str) -> None:
        """No empty arena could serve it."""
        self._counts.refused += 1
        _log.info("request_refused", request=job.request.id, reason=reason)
        self._end(job, REFUSED, reason)

    def fail(self, job: Job, reason: str) -> None:
        """It cannot be served, or not to its end."""
        self._counts.failed += 1
        _log.warning("request_failed", request=job.request.id, reason=reason)
        self._end(job, FAILED, reason)

    def abort(self, job: Job) -> None:
        """Somebody has called it off, wherever it was."""
        self._counts.aborts += 1
        _log.info("request_aborted", request=job.request.id, state=job.place)
        self._end(job, ABORTED)

    def again(self, job: Job) -> None:
        """It was stopped, and waits to go on with what it generated as part of its prompt."""
        self._queue.add(job)

    def _end(self, job: Job, fate: str, reason: str = "") -> None:
        job.place = OVER
        self._fresh.append(job.request.id)
        self.served.append(job.served(fate, self.now, reason))
