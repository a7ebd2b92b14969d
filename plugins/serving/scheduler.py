"""The loop: arrivals, admission, one batched forward after another, retraction when memory runs short.

One iteration:  1. requests that have arrived join the queue; those that can never fit are refused at once.
                2. the queue's head starts while its whole charge fits beside what was promised.
                3. every running request advances: decodes by one token, prefills by a chunk. The forward is launched.
                4. if as many are in flight as may be, the oldest is processed: its tokens count, requests that got
                   their last one leave, and what others can start from goes to the cache.
So the next forward is launched before the host has looked at the result of the one that runs.
"""

import heapq
from collections.abc import Callable, Iterable

import attrs
import numpy as np

from kvarena.admission.admission import Admission
from kvarena.plugins.serving.admitting import Admitting
from kvarena.plugins.serving.checkpoints import Checkpoints
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.ends import Ends
from kvarena.plugins.serving.flights import Flights, Landed
from kvarena.plugins.serving.job import QUEUED, RUNNING, Job
from kvarena.plugins.serving.port import Batch, Request, Runner
from kvarena.plugins.serving.prefixes import PrefixCache, Prefixes
from kvarena.plugins.serving.queue import Queue
from kvarena.plugins.serving.report import CacheUse, Forward, Report
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
    Or:                2. abort    from wherever it is; all that it holds comes back.
    Always:  arriving + queued + running + over == submitted, and a running request has an open row of its own.
    ``now``: when the last processed forward ended; a forward starts when the one before it has ended. ``counts`` and
    ``cache`` are there to be read.
    """

    def __init__(
        self, storage: Storage, runner: Runner, config: ServingConfig, *, cache: PrefixCache | None = None
    ) -> None:
        self.storage = storage
        self.runner = runner
        self.config = config
        self.cache = cache
        self.counts = Counts()
        self.admission = Admission(
            storage.chain,
            storage.sizing,
            storage.ownership,
            chunk_tokens=config.chunk_tokens,
            output_fraction=config.output_fraction,
            cache=cache,
        )
        grid = storage.sizing.limits.grid
        self._queue = Queue()
        self._running = Running(len(storage.requests), grid)
        self._prefixes, checkpoints = None, None
        if cache is not None:
            self._prefixes = Prefixes(storage, cache, runner, self._running, origins=config.keep_forwards)
            if grid is not None:
                checkpoints = Checkpoints(storage, self.admission, self._running, self.counts, grid)
        self._ends = Ends(self._queue, self.counts)
        self._use = UseMeter(storage.chain)
        seats = Seats(
            storage, self.admission, self._running, self.counts, prefixes=self._prefixes, checkpoints=checkpoints
        )
        self._seats = seats
        self._admitting = Admitting(storage, self.admission, self._queue, seats, ends=self._ends, counts=self.counts)
        self._stepping = Stepping(storage, self.admission, seats, self._ends, self.counts)
        self._flights = Flights(storage, runner, seats, self._use)
        self._jobs: dict[int, Job] = {}
        self._over: set[int] = set()
        self._arriving: list[tuple[float, int]] = []
        self._idle_at = storage.chain.epoch

    @property
    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self._ends.now

    @property
    def waiting(self) -> int:
        """How many requests have arrived and not started."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """How many requests have a row."""
        return len(self._running)

    def submit(self, request: Request) -> None:
        """A request will arrive at its time, or in the next iteration where that has come.

        Raises:
            KvarenaError: there was a request of this id.
        """
        if request.id in self._jobs or request.id in self._over:
            raise KvarenaError(f"request {request.id}: there was one of this id before; give each an id of its own")
        self._jobs[request.id] = Job(request, request.output_tokens)
        heapq.heappush(self._arriving, (request.arrival, request.id))

    def abort(self, request_id: int) -> None:
        """Call a request off, wherever it is: all that it holds comes back, and its record says so.

        Raises:
            KvarenaError: there is no such request, or it is over.
        """
        job = self._jobs.get(request_id)
        if job is None:
            why = "it is over" if request_id in self._over else "there is no request of this id"
            raise KvarenaError(f"abort of request {request_id!r}: {why}")
        if job.place == QUEUED:
            self._queue.remove(job)
        elif job.place == RUNNING:
            self._seats.leave(np.array([job.row]))
        else:
            self._arriving.remove((job.request.arrival, request_id))
            heapq.heapify(self._arriving)
        self._ends.abort(job)
        self._forget()

    def run(self, requests: Iterable[Request] = (), on_step: Callable[[Progress], None] | None = None) -> Report:
        """Serve these, and all submitted before, to their ends and report. They arrive in order of their time."""
        for request in requests:
            self.submit(request)
        more = True
        while more:
            more = self.step()
            if on_step is not None:
                on_step(self._progress())
        self._idle()
        return self.report()

    def step(self) -> bool:
        """One iteration. Returns whether there is more to do; nothing happens where there is nothing.

        What a runner raises comes out of it, once the requests of that batch have ended; the others can go on.
        """
        if not self._jobs and not self._flights:
            self._idle()
            return False
        if not self._running and not self._queue and not self._flights:
            self._idle()
            self._ends.now = max(self.now, self._arriving[0][0])
        self._arrive()
        with self._use.memory_time():
            self._admitting.admit(flying=bool(self._flights))
        if not self._launch() and not self._land():
            invariant("scheduler.runs_on", not self._running, running=len(self._running))
        while len(self._flights) >= self._flights.most:
            self._land()
        self._forget()
        self._check()
        return bool(self._jobs) or bool(self._flights)

    def report(self) -> Report:
        """What came of all requests that are over, and what each band held."""
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
        return Report(
            served=tuple(sorted(self._ends.served, key=lambda served: served.request.id)),
            bands=bands,
            steps=counts.steps,
            seconds=self.now,
            tokens_forwarded=counts.forwarded_tokens,
            waits=sum(served.waited for served in self._ends.served),
            retractions=counts.retractions,
            pages_moved=sum(band.moves for band in bands),
            memory_cpu_seconds=self._use.memory_seconds,
            runner_seconds=self._use.runner_seconds,
            preemptions=counts.preemptions,
            cache=cache,
        )

    # -- arrivals

    def _arrive(self) -> None:
        """Whose time has come is queued, clipped to what memory holds; or refused at once, where it holds no output."""
        while self._arriving and self._arriving[0][0] <= self.now:
            job = self._jobs[heapq.heappop(self._arriving)[1]]
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
                _log.info("request_clipped", request=request.id, asked=request.output_tokens, output_tokens=outputs)
            self._queue.add(job)

    # -- forwards

    def _launch(self) -> bool:
        """Launch a forward in which every running request advances; False where nobody has anything to run."""
        with self._use.memory_time():
            ids = self._stepping.take(self.config.step_tokens, self._land)
            if ids is None:
                return False
            running, rows, stops = self._running, ids.rows, ids.lengths
            samples = running.launched(rows, stops)
            batch = Batch(rows, ids.starts, stops, samples, running.requests[rows], ids)
        self._flights.launch(batch)
        with self._use.memory_time():
            self._stepping.settle(rows[samples & (stops == running.prompts[rows])])
        return True

    def _land(self) -> bool:
        """Process the oldest forward in flight; False where there is none."""
        if not self._flights:
            return False
        landed = self._flights.land()
        if landed.error is not None:
            self._fall(landed)
            raise landed.error
        seconds = landed.outcome.seconds
        self._ends.now += seconds
        self.counts.steps += 1
        self.counts.forwarded_tokens += int((landed.batch.stops - landed.batch.starts).sum())
        self._use.count(landed.held, seconds)
        with self._use.memory_time():
            self._process(landed)
            self.storage.flush()
        return True

    def _fall(self, landed: Landed) -> None:
        """The runner failed for a batch: its requests end, and the others can go on."""
        reason = f"the runner failed: {type(landed.error).__name__}: {landed.error}"
        for job in self._seats.leave(landed.batch.rows[landed.valid]):
            self._ends.fail(job, reason)
        self._forget()

    def _process(self, landed: Landed) -> None:
        """Tokens count, what others can start from goes to the cache, and who got the last token leaves."""
        batch, valid, ended = landed.batch, landed.valid, landed.ended()
        rows, starts, stops, samples = batch.rows, batch.starts, batch.stops, batch.samples
        if not valid.all():
            rows, starts, stops = rows[valid], starts[valid], stops[valid]
            samples, ended = samples[valid], ended[valid]
        if self.config.keep_forwards:
            pieces = (starts.tolist(), stops.tolist(), samples.tolist())
            for row, *piece in zip(rows.tolist(), *pieces, strict=True):
                self._running.jobs[row].trials[-1].add(Forward(*piece))
        firsts, lasts = self._running.processed(rows, stops, samples)
        self.counts.generated_tokens += int(np.count_nonzero(samples))
        for row in firsts.tolist():
            job = self._running.jobs[row]
            job.first_token_at = self.now if job.first_token_at is None else job.first_token_at
        if self._prefixes is not None:
            for job, pending in landed.checkpoints:
                if pending in job.pending:  # else it was stopped, and the slot is free already
                    self._seats.keep(job, pending)
            prefills = stops <= self._running.prompts[rows]
            self._prefixes.chunks(rows[prefills], stops[prefills])
        if ended.any():
            lasts = np.union1d(lasts, rows[ended])
        if len(lasts):
            for job in self._seats.leave(lasts):
                self._ends.done(job)
        if self._prefixes is not None:
            self._prefixes.relax()

    # -- sums

    def _forget(self) -> None:
        """Who is over is known by its id alone."""
        for request_id in self._ends.take_over():
            del self._jobs[request_id]
            self._over.add(request_id)

    def _idle(self) -> None:
        """Nothing runs and nothing waits: look whether anything was left behind, if anything was held since."""
        if self._idle_at != self.storage.chain.epoch:
            self._idle_at = self.storage.chain.epoch
            check_idle(self.storage)

    def _check(self) -> None:
        """The sums of the class hold between two iterations."""
        arriving, queued, running, live = len(self._arriving), len(self._queue), len(self._running), len(self._jobs)
        invariant(
            "scheduler.requests_add_up", arriving + queued + running == live,
            arriving=arriving, queued=queued, running=running, live=live,
        )  # fmt: skip
        if self.storage.chain.checks:
            rows = self._running.rows()
            invariant("scheduler.running_without_a_row", self.storage.requests.is_open(rows), rows=rows)

    def _progress(self) -> Progress:
        waiting = len(self._queue) + len(self._arriving)
        return Progress(len(self._ends.served), len(self._running), waiting, self.counts.steps)
