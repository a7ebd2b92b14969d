"""Who is alive: the requests that were submitted and are not over, by id, and those of them whose time has not come.

1. submit  known by its id from here on; it will arrive at its time.
2. due     its time has come; whoever asked puts it in the queue, or refuses it.
3. forget  it is over. Its id is remembered for a while, so that who comes too late is told so.
"""

import heapq
from numbers import Integral
from typing import Any

from kvarena.plugins.serving.job import QUEUED, Job
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.queue import Queue
from kvarena.terms.errors import KvarenaError

OVER_KEPT = 4096
"""So many ids of requests that are over are remembered, the latest."""


class Arrivals:
    """The living requests of one loop; ``queue`` are those of them that wait to start.

    Always: ids of the living are distinct; what is kept of the dead does not grow without end
    """

    def __init__(self) -> None:
        self.queue = Queue()
        self.jobs: dict[int, Job] = {}
        self._coming: list[tuple[float, int]] = []
        self._over: dict[int, None] = {}

    def __len__(self) -> int:
        """How many are alive."""
        return len(self.jobs)

    @property
    def coming(self) -> int:
        """How many have not arrived."""
        return len(self._coming)

    @property
    def next_at(self) -> float:
        """When the next one arrives; there is one."""
        return self._coming[0][0]

    def submit(self, request: Request) -> None:
        """A request will arrive at its time.

        Raises:
            KvarenaError: it is none, or one of this id lives or ended lately.
        """
        if not isinstance(request, Request):
            raise KvarenaError(f"submit: {request!r} is no Request of kvarena.plugins.serving.port; make one of it")
        if request.id in self.jobs or request.id in self._over:
            raise KvarenaError(f"request {request.id}: there was one of this id before; give each an id of its own")
        self.jobs[request.id] = Job(request, request.output_tokens)
        heapq.heappush(self._coming, (request.arrival, request.id))

    def find(self, request_id: Any) -> Job:
        """The living request of this id.

        Raises:
            KvarenaError: there is none, or it is over.
        """
        known = isinstance(request_id, Integral) and not isinstance(request_id, bool)
        job = self.jobs.get(int(request_id)) if known else None
        if job is None:
            why = "it is over" if known and request_id in self._over else "there is no request of this id"
            raise KvarenaError(f"abort of request {request_id!r}: {why}")
        return job

    def due(self, now: float) -> list[Job]:
        """Those whose time has come, in order."""
        jobs, coming = [], self._coming
        while coming and coming[0][0] <= now:
            jobs.append(self.jobs[heapq.heappop(coming)[1]])
        return jobs

    def withdraw(self, job: Job) -> None:
        """It will not start: it has not arrived, or waits."""
        if job.place == QUEUED:
            self.queue.remove(job)
            return
        self._coming.remove((job.request.arrival, job.request.id))
        heapq.heapify(self._coming)

    def forget(self, job: Job) -> None:
        """It is over."""
        del self.jobs[job.request.id]
        self._over[job.request.id] = None
        if len(self._over) > OVER_KEPT:
            del self._over[next(iter(self._over))]
