"""How a job ends: its record is written, what it was is counted and told. It holds nothing by then."""

from collections import deque

from kvarena.plugins.serving.arrivals import Arrivals
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.job import OVER, Job
from kvarena.plugins.serving.report import ABORTED, DONE, FAILED, REFUSED, Served
from kvarena.terms.events import event_log

_log = event_log()

RECORDS_KEPT = 4096
"""So many records that nobody has taken are kept, the latest."""


class Ends:
    """The records of one loop, until they are taken, and the clock that they are written by.

    ``keeps_all``: while a run goes on that will report them all, none is dropped.
    """

    def __init__(self, arrivals: Arrivals, counts: Counts) -> None:
        self.now = 0.0
        self.keeps_all = False
        self._records: deque[Served] = deque()
        self._arrivals = arrivals
        self._counts = counts

    def records(self) -> tuple[Served, ...]:
        """Those that nobody has taken, by request id."""
        return tuple(sorted(self._records, key=lambda served: served.request.id))

    def take(self) -> list[Served]:
        """The same in the order of their ends; they are the caller's, and not kept any more."""
        taken = list(self._records)
        self._records.clear()
        return taken

    def done(self, job: Job) -> None:
        """It got its last token."""
        self._counts.done += 1
        self._end(job, DONE)

    def refuse(self, job: Job, reason: str) -> None:
        """No empty arena could serve it."""
        self._counts.refused += 1
        _log.info("request.refused", request=job.request.id, reason=reason)
        self._end(job, REFUSED, reason)

    def fail(self, job: Job, reason: str) -> None:
        """It cannot be served, or not to its end."""
        self._counts.failed += 1
        _log.warning("request.failed", request=job.request.id, reason=reason)
        self._end(job, FAILED, reason)

    def abort(self, job: Job) -> None:
        """Somebody has called it off, wherever it was."""
        self._counts.aborts += 1
        _log.info("request.aborted", request=job.request.id, state=job.place)
        self._end(job, ABORTED)

    def _end(self, job: Job, fate: str, reason: str = "") -> None:
        job.place = OVER
        self._arrivals.forget(job)
        self._records.append(job.served(fate, self.now, reason))
        while len(self._records) > RECORDS_KEPT and not self.keeps_all:
            self._records.popleft()
