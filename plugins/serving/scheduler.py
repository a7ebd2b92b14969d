"""The loop: arrivals, admission, one batched forward after another, retraction when memory runs short.

One iteration:  1. requests that have arrived join the queue; those that can never fit are refused at once.
                2. the queue's head starts while its whole charge fits beside what was promised.
                3. every running request advances: decodes by one token, prefills by a chunk. The forward is launched.
                4. if as many are in flight as may be, the oldest is processed: its tokens count, requests that got
                   their last one leave, and what others can start from goes to the cache.
So the next forward is launched before the host has looked at the result of the one that runs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import numpy as np

from kvarena.admission.admission import Admission
from kvarena.plugins.serving.admitting import Admitting
from kvarena.plugins.serving.arrivals import Arrivals
from kvarena.plugins.serving.checkpoints import Checkpoints
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.ends import Ends
from kvarena.plugins.serving.flights import Flights
from kvarena.plugins.serving.job import RUNNING
from kvarena.plugins.serving.port import Request, Runner
from kvarena.plugins.serving.prefixes import PrefixCache, Prefixes
from kvarena.plugins.serving.report import CacheUse, Report, Served
from kvarena.plugins.serving.rounds import Rounds
from kvarena.plugins.serving.running import Running
from kvarena.plugins.serving.seats import Seats
from kvarena.plugins.serving.stepping import Stepping
from kvarena.plugins.serving.use import UseMeter
from kvarena.storage.checks import check_idle
from kvarena.storage.storage import Storage
from kvarena.terms.errors import KvarenaError
from kvarena.terms.events import event_log
from kvarena.terms.invariants import invariant

__all__ = ["Progress", "Scheduler", "ServingConfig"]

_log = event_log()


@attrs.frozen
class Progress:
    """Where the loop is, for a progress bar."""

    finished: int
    running: int
    waiting: int
    steps: int


class Scheduler:
    """Runs requests through one storage with one runner. Deterministic: it decides by no clock but the runner's.

    A request's life:  1. submit   it will arrive at its time; then it is queued, or refused at once.
                       2. admit    it is charged and gets a row.
                       3. step     it advances, until it ends done; or a shortage or a higher priority stops it: back to
                                   the queue; or, if it cannot go on even alone, it ends failed.
                       4. take     its record is handed out; until then it is kept, as one of the latest few thousand.
    Or:                2. abort    from wherever it is; all that it holds comes back.
    Always:  arriving + queued + running == living, and a running request has an open row of its own.
    ``now``: when the last processed forward ended; a forward starts when the one before it has ended. ``counts`` and
    ``cache`` are there to be read.
    """

    def __init__(
        self, storage: Storage, runner: Runner, config: ServingConfig, *, cache: PrefixCache | None = None
    ) -> None:
        self.storage = storage
        self.cache = cache
        self.counts = counts = Counts()
        self.admission = Admission(
            storage.chain,
            storage.sizing,
            storage.ownership,
            chunk_tokens=config.chunk_tokens,
            output_fraction=config.output_fraction,
            cache=cache,
        )
        self._arrivals = Arrivals()
        queue = self._arrivals.queue
        self._ends = Ends(self._arrivals, counts)
        self._use = use = UseMeter(storage.chain)
        self._seats = seats = self._make_seats(runner, keep_forwards=config.keep_forwards)
        self._admitting = Admitting(storage, self.admission, queue, seats, ends=self._ends, counts=counts)
        stepping = Stepping(storage, self.admission, queue, seats, ends=self._ends, counts=counts)
        flights = Flights(storage, runner, seats, use)
        self._rounds = Rounds(storage, config, stepping, flights, seats, ends=self._ends, counts=counts, use=use)
        self._idle_at = storage.chain.epoch
        self._is_stepping = False

    @property
    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self._ends.now

    @property
    def waiting(self) -> int:
        """How many requests have arrived and not started."""
        return len(self._arrivals.queue)

    @property
    def running(self) -> int:
        """How many requests have a row."""
        return len(self._seats.running)

    def submit(self, request: Request) -> None:
        """A request will arrive at its time, or in the next iteration where that has come.

        Raises:
            KvarenaError: it is none, or one of this id lives or has ended lately; nothing has changed.
        """
        self._arrivals.submit(request)

    def abort(self, request_id: Any) -> None:
        """Call a request off, wherever it is: all that it holds comes back, and its record says so.

        Raises:
            KvarenaError: there is no such request, or it is over, or a step is under way; nothing has changed.
        """
        if self._is_stepping:
            raise KvarenaError(
                f"request {request_id!r} is aborted inside a step, by a runner say; abort it between steps"
            )
        job = self._arrivals.find(request_id)
        if job.place == RUNNING:
            self._seats.leave(np.array([job.row]))
        else:
            self._arrivals.withdraw(job)
        self._ends.abort(job)

    def take_served(self) -> list[Served]:
        """The records of requests that are over, in the order of their ends, each once: the caller's from here on.

        A server takes them after each step. Of those that nobody takes the latest 4,096 are kept.
        """
        return self._ends.take()

    def run(self, requests: Iterable[Request] = (), on_step: Callable[[Progress], None] | None = None) -> Report:
        """Serve these, and all submitted before, to their ends and report. They arrive in order of their time.

        The records are taken thereby: those of this run, and what was left of those before it.
        """
        for request in requests:
            self.submit(request)
        self._ends.keeps_all = True
        try:
            more = True
            while more:
                more = self.step()
                if on_step is not None:
                    on_step(self._progress())
        finally:
            self._ends.keeps_all = False
        self._idle()
        report = self.report()
        self._ends.take()
        return report

    def step(self) -> bool:
        """One iteration. Returns whether there is more to do; nothing happens where there is nothing.

        What a runner raises comes out of it, once the requests of that batch have ended; the others can go on.

        Raises:
            KvarenaError: the storage was resized since the loop was made.
        """
        arrivals, rounds = self._arrivals, self._rounds
        if not arrivals and not rounds.flying:
            self._idle()
            return False
        self._check_storage()
        self._is_stepping = True
        try:
            with self._use.memory_time:
                self._step()
        finally:
            self._is_stepping = False
        return bool(arrivals) or rounds.flying

    def report(self) -> Report:
        """What came of the requests whose records nobody has taken, and what each band held since the loop was made."""
        bands, counts, cache = self._use.bands(), self.counts, None
        if self.cache is not None:
            stats = self.cache.stats()
            cache = CacheUse(
                prompt_tokens=counts.prompt_tokens,
                cached_tokens=counts.cached_tokens,
                checkpoints_taken=counts.checkpoints_taken,
                checkpoints_skipped=counts.checkpoints_skipped,
                entries=stats.entries,
                evictions=stats.evictions,
            )
        served = self._ends.records()
        return Report(
            served=served,
            bands=bands,
            steps=counts.steps,
            seconds=self.now,
            tokens_forwarded=counts.forwarded_tokens,
            waits=sum(record.waited for record in served),
            retractions=counts.retractions,
            pages_moved=sum(band.moves for band in bands),
            memory_cpu_seconds=self._use.memory_time.seconds,
            runner_seconds=self._use.runner_time.seconds,
            preemptions=counts.preemptions,
            cache=cache,
        )

    # -- inside

    def _make_seats(self, runner: Runner, *, keep_forwards: bool) -> Seats:
        """Who runs, with the prefix cache and the checkpoints where there are any."""
        storage, grid = self.storage, self.storage.sizing.limits.grid
        running = Running(len(storage.requests), grid)
        prefixes, checkpoints = None, None
        if self.cache is not None:
            prefixes = Prefixes(storage, self.cache, runner, running, origins=keep_forwards)
            if grid is not None:
                checkpoints = Checkpoints(storage, self.admission, running, self.counts, grid)
        return Seats(
            storage, self.admission, running, self.counts,
            prefixes=prefixes, checkpoints=checkpoints, keep_forwards=keep_forwards,
        )  # fmt: skip

    def _step(self) -> None:
        """Whose time has come arrives, who may starts, and the batch goes on."""
        arrivals, rounds, running = self._arrivals, self._rounds, self._seats.running
        if not running and not arrivals.queue and not rounds.flying:
            self._idle()
            self._ends.now = max(self.now, arrivals.next_at)
        self._arrive()
        self._admitting.admit(flying=rounds.flying)
        if not rounds.turn():
            invariant("scheduler.runs_on", not running, running=len(running))
        self._check()

    def _arrive(self) -> None:
        """Whose time has come is queued, clipped to what memory holds; or refused at once, where it holds no output."""
        for job in self._arrivals.due(self.now):
            request = job.request
            job.queued_at_step = self.counts.steps
            never = self.admission.never(request.prompt_tokens, request.output_tokens)
            if never is not None:
                outputs = self.admission.clip(request.prompt_tokens, request.output_tokens)
                if not outputs:
                    self._ends.refuse(job, str(never))
                    continue
                job.outputs = outputs
                self.counts.clipped += 1
                _log.info("request.clipped", request=request.id, asked=request.output_tokens, output_tokens=outputs)
            self._arrivals.queue.add(job)

    def _idle(self) -> None:
        """Nothing runs and nothing waits: look whether anything was left behind, if anything was held since."""
        if self._idle_at != self.storage.chain.epoch:
            self._idle_at = self.storage.chain.epoch
            check_idle(self.storage)

    def _check_storage(self) -> None:
        """A loop, and its cache, are made for one arena."""
        if not self._use.measures(self.storage.chain):
            raise KvarenaError(
                "the storage was resized after this loop was made for it; make another Scheduler, and another cache, "
                "and submit to that one"
            )

    def _check(self) -> None:
        """The sums of the class hold between two iterations."""
        arrivals, running = self._arrivals, len(self._seats.running)
        arriving, queued, living = arrivals.coming, len(arrivals.queue), len(arrivals)
        invariant(
            "scheduler.requests_add_up", arriving + queued + running == living,
            arriving=arriving, queued=queued, running=running, living=living,
        )  # fmt: skip
        if self.storage.chain.checks:
            rows = self._seats.running.rows()
            invariant("scheduler.running_without_a_row", self.storage.requests.is_open(rows), rows=rows)

    def _progress(self) -> Progress:
        counts, waiting = self.counts, self.waiting + self._arrivals.coming
        finished = counts.done + counts.refused + counts.failed + counts.aborts
        return Progress(finished, self.running, waiting, counts.steps)
