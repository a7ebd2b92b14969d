"""The pages of a step; and when they cannot be had, what gives memory back, in the order of what it costs.

1. the cache evicts.
2. what is in flight is processed: it may end requests.
3. slots that wait for a checkpoint come back: it is skipped.
4. a request is retracted: the latest admitted of the lowest priority. One that runs alone tries once more without
   the cache; then it ends with the sum.
"""

from collections.abc import Callable

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.planning.demand import Demand, Purpose
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.ends import Ends
from kvarena.plugins.serving.job import Job
from kvarena.plugins.serving.queue import Queue
from kvarena.plugins.serving.seats import Seats
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.events import event_log
from kvarena.terms.lifetimes import Full
from kvarena.terms.ports import IntArray

_log = event_log()

_NOWHERE: IntArray = np.empty(0, dtype=np.int64)

Land = Callable[[], bool]
"""Processes the oldest forward in flight; False where there is none."""


class Stepping:
    """Takes the pages of one step after another.

    Always: of those that run, one is left whatever happens, and is served or ends with the sum
    """

    def __init__(
        self, storage: Storage, admission: Admission, queue: Queue, seats: Seats, *, ends: Ends, counts: Counts
    ) -> None:
        self._storage = storage
        self._admission = admission
        self._queue = queue
        self._seats = seats
        self._ends = ends
        self._counts = counts
        self._names = storage.plan.names
        self._has_windows = any(not isinstance(pool.lifetime, Full) for pool in storage.plan.token_pools)

    def take(self, step_tokens: int, land: Land) -> tuple[IterationIds, IntArray] | None:
        """Pages for the whole batch, however much has to give way; None where nobody has anything to run.

        With the ids, the places in the batch where a checkpoint is due.
        """
        evicted = gave_up = False
        while True:
            rows, stops = self._seats.running.compose(self._storage.requests.lengths, step_tokens)
            if not len(rows):
                return None
            due = self._due(rows, stops)
            if len(due) and not gave_up and self._seats.checkpoints is not None:
                self._seats.checkpoints.prepare(rows[due])
            ids = self._storage.step(rows, stops)
            if not isinstance(ids, Refused):
                return ids, due
            if not evicted and self._evict(ids):
                evicted = True
            elif land():
                evicted = False
            elif not gave_up and self._seats.checkpoints is not None and self._seats.checkpoints.give_up():
                gave_up = True
            else:
                self._retract(ids)
                evicted = False

    def settle(self, rows: IntArray, stops: IntArray) -> None:
        """Of these rows, launched to these lengths, some have their prompts launched whole.

        From here on they are charged what they may hold as they decode.
        """
        if not self._has_windows:
            return
        rows = rows[stops == self._seats.running.prompts[rows]]
        if not len(rows):
            return
        jobs = [self._seats.running.jobs[row] for row in rows.tolist()]
        self._admission.recharge(rows, [self._rest(job, Purpose.DECODE_PREALLOC) for job in jobs])

    # -- inside

    def _due(self, rows: IntArray, stops: IntArray) -> IntArray:
        """Where the step completes a grid point whose tokens may be cached."""
        checkpoints, prefixes = self._seats.checkpoints, self._seats.prefixes
        return _NOWHERE if checkpoints is None or prefixes is None else checkpoints.due(rows, stops, prefixes.kept_max)

    def _evict(self, refused: Refused) -> bool:
        """Let the cache make room for a refused step."""
        prefixes = self._seats.prefixes
        if prefixes is None:
            return False
        prefixes.narrow()
        return self._admission.free_for(tuple(refused.asked.get(name, 0) for name in self._names))

    def _retract(self, refused: Refused) -> None:
        """Stop one request; alone, it has nobody to wait for and ends with the sum."""
        running = self._seats.running
        job = self._seats.stop(running.victims()[0])
        if not len(running):
            if job.shares and self._seats.prefixes is not None:  # what it gave to the cache may be what it lacks
                job.shares = False
            else:
                self._ends.fail(job, str(refused))
                return
        job.retractions += 1
        self._counts.retractions += 1
        _log.info("request.retracted", request=job.request.id, generated=job.generated, reason=str(refused))
        self._queue.add(job)
        # the guess was too low: those that go on are charged in full, so that nobody is let in on it again
        rows = running.rows()
        jobs = [running.jobs[row] for row in rows.tolist()]
        for other in jobs:
            other.in_full = True
        at = zip(jobs, (running.known[rows] > running.prompts[rows]).tolist(), strict=True)
        charges = [self._rest(job, Purpose.DECODE_PREALLOC if decodes else Purpose.CEILING) for job, decodes in at]
        self._admission.recharge(rows, charges)

    def _rest(self, job: Job, purpose: Purpose) -> Demand:
        """What a running job may hold from here on, of its own."""
        prices, lengths = self._admission.prices, job.started
        if job.in_full or prices.output_fraction == 1:
            return prices.demand(*lengths, purpose)
        return prices.by_chunk(lengths, purpose, prices.chunk_tokens)
