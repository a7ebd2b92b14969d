"""The loop: arrivals, admission, one batched step after another, retraction when memory runs short.

One iteration:  1. requests that have arrived join the queue; those that can never fit are refused at once.
                2. the queue's head is admitted while its whole charge fits beside what was promised.
                3. every running request advances: decodes by one token, prefills by a chunk.
                4. if the pages do not suffice, the latest admitted of the lowest priority is retracted, and
                   comes back later with what it generated as part of its prompt.
                5. the runner forwards the batch; requests that got their last token leave.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import attrs
import numpy as np

from kvarena.admission.admission import Admission
from kvarena.assembly.config import SettingError, at_least
from kvarena.planning.demand import Demand
from kvarena.plugins.serving.port import Batch, Request, Runner
from kvarena.plugins.serving.report import DONE, FAILED, REFUSED, Report, Served
from kvarena.plugins.serving.running import Job, Running
from kvarena.plugins.serving.use import UseMeter
from kvarena.storage.checks import check_idle
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Never, Refused
from kvarena.terms.errors import ConfigError, InvariantError
from kvarena.terms.events import event_log
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray

_log = event_log()


@attrs.frozen
class ServingConfig:
    """How the loop batches. ``chunk_tokens``: the prefill chunk of one request in a step; ``step_tokens``:
    what all prefills of a step share, at least one chunk; ``output_fraction``: the share of its maximal
    output that a request is charged at admission (1.0: it never runs dry); ``keep_forwards``: keep each
    request's forwards in the report, to repeat them elsewhere.
    """

    chunk_tokens: int = attrs.field(default=512, validator=at_least(1))
    step_tokens: int = attrs.field(default=2048, validator=at_least(1))
    output_fraction: float = attrs.field(default=1.0)
    keep_forwards: bool = False

    @step_tokens.validator
    def _holds_a_chunk(self, _: object, step_tokens: int) -> None:
        if step_tokens < self.chunk_tokens:
            cure = f"raise it, or lower chunk_tokens, which is {self.chunk_tokens}"
            raise SettingError("step_tokens", f"is {step_tokens}, less than one chunk; {cure}")

    @output_fraction.validator
    def _is_a_share(self, _: object, output_fraction: float) -> None:
        if not 0 < output_fraction <= 1:
            raise SettingError("output_fraction", f"is {output_fraction}; it must be above 0 and at most 1")


@attrs.frozen
class Progress:
    """Where the loop is, for a progress bar."""

    finished: int
    running: int
    waiting: int
    steps: int


class Scheduler:
    """Runs requests through one storage with one runner. Deterministic: it decides by no clock but the runner's.

    A request's life:  1. arrive   its time has come: it is queued, or refused at once.
                       2. admit    it is charged and gets a row.
                       3. step     it advances, until it ends done; or a shortage retracts it: back to the queue,
                                   or, if it ran alone, it ends failed.
    Always:  arriving + queued + running + served == requests, and a running request has an open row of its own.
    """

    def __init__(self, storage: Storage, runner: Runner, config: ServingConfig) -> None:
        """The loop waits for every step.

        Raises:
            ConfigError: forwards may overlap on a device that holds bytes, where nobody would wait for them.
        """
        if storage.chain.ledger.timeline.overlaps and storage.device.holds_bytes:
            raise ConfigError(
                "[arena] forwards_in_flight: this loop waits for every step and launches no forward; set it to 0"
            )
        self.storage = storage
        self.runner = runner
        self.config = config
        self.admission = Admission(
            storage.chain,
            storage.sizing,
            storage.ownership,
            chunk_tokens=config.chunk_tokens,
            output_fraction=config.output_fraction,
        )
        self.now = 0.0
        self._running = Running(len(storage.requests))
        self._queue: deque[Job] = deque()
        self._served: list[Served] = []
        self._use = UseMeter(storage.chain)
        self._steps = self._retractions = self._tokens = 0
        self._waiting_at: tuple[int, int] | None = None
        self._idle_at = storage.chain.epoch

    def run(self, requests: Iterable[Request], on_step: Callable[[Progress], None] | None = None) -> Report:
        """Serve every request to its end and report. Arrivals are taken in order of their time."""
        arriving = deque(sorted(requests, key=lambda request: (request.arrival, request.id)))
        total = len(arriving) + len(self._served)
        while arriving or self._queue or self._running:
            if not self._running and not self._queue:
                self._idle()
                self.now = max(self.now, arriving[0].arrival)
            while arriving and arriving[0].arrival <= self.now:
                self._arrive(arriving.popleft())
            with self._use.memory_time():
                self._admit()
            if self._running:
                self._step()
            self._check(total - len(arriving))
            if on_step is not None:
                on_step(Progress(len(self._served), len(self._running), len(self._queue) + len(arriving), self._steps))
        self._idle()
        return self._report()

    def _idle(self) -> None:
        """Nothing runs and nothing waits: look whether anything was left behind, if anything was held since."""
        if self._idle_at != self.storage.chain.epoch:
            self._idle_at = self.storage.chain.epoch
            check_idle(self.storage)

    # -- the queue

    def _arrive(self, request: Request) -> None:
        """Into the queue, or refused at once where no empty arena could serve it."""
        job = Job(request, queued_at_step=self._steps)
        never = self.admission.never(request.prompt_tokens, request.output_tokens)
        if never is not None:
            _log.info("request_refused", request=request.id, reason=str(never))
            self._end(job, REFUSED, str(never))
        else:
            self._queue.append(job)

    def _admit(self) -> None:
        """Start requests from the head of the queue while their whole charges fit."""
        if not self._queue or self._waiting_at == (self._queue[0].request.id, self.storage.chain.epoch):
            return
        heads = islice(self._queue, self.storage.requests.free_count)
        charges, stopped = self.admission.admit((job.known_tokens, job.tokens_left) for job in heads)
        if charges:
            self._start(charges)
        if isinstance(stopped, Never):  # it came back from a retraction, and no longer fits as it must be prefilled
            job = self._queue.popleft()
            _log.warning("request_failed", request=job.request.id, reason=str(stopped))
            self._end(job, FAILED, str(stopped))
        elif stopped is not None:
            job = self._queue[0]
            invariant("scheduler.wait_with_nothing_running", self._running, request=job.request.id, answer=str(stopped))
            _log.debug("request_waits", request=job.request.id, reason=str(stopped))
            self._waiting_at = None if charges else (job.request.id, self.storage.chain.epoch)

    def _start(self, charges: list[Demand]) -> None:
        """Open the rows of the admitted head of the queue, all at once."""
        rows = self.storage.open_batch(len(charges))
        if isinstance(rows, Refused):  # a yes is a successful take; waiting here could wait for ever
            raise InvariantError(f"scheduler.admitted_is_opened: {len(charges)} requests: {rows}")
        self.admission.start(rows, charges)
        for row in rows.tolist():
            job = self._queue.popleft()
            job.waited |= job.queued_at_step < self._steps
            job.admitted_at = self.now if job.admitted_at is None else job.admitted_at
            job.attempts.append([])
            self._running.add(row, job)

    # -- a step

    def _step(self) -> None:
        """Advance every running request once."""
        with self._use.memory_time():
            ids = self._take()
        if ids is None:
            return
        samples = ids.lengths == self._running.known[ids.rows]
        jobs = [self._running.jobs[row] for row in ids.rows.tolist()]
        batch = Batch(ids.rows, ids.starts, ids.lengths, samples, tuple(job.request for job in jobs), ids)
        if self.config.keep_forwards:
            self._running.keep_forwards(ids.rows, ids.starts, ids.lengths, samples)
        began = time.perf_counter()
        outcome = self.runner.run(batch)
        self._use.runner_seconds += time.perf_counter() - began
        self.now += outcome.seconds
        self._steps += 1
        self._tokens += int((ids.lengths - ids.starts).sum())
        self._use.count(outcome.seconds)
        with self._use.memory_time():
            self._process(ids.rows[samples], None if outcome.ended is None else np.asarray(outcome.ended)[samples])
            self.storage.flush()

    def _take(self) -> IterationIds | None:
        """Pages for the whole batch, retracting until they suffice; None when nobody is left to run."""
        while self._running:
            rows, stops = self._running.compose(
                self.storage.requests.lengths, self.config.chunk_tokens, self.config.step_tokens
            )
            ids = self.storage.step(rows, stops)
            if not isinstance(ids, Refused):
                return ids
            self._shortage(ids)
        return None

    def _shortage(self, refused: Refused) -> None:
        """Retract one request; alone, it has nobody to wait for and ends with the sum."""
        job = self._leave(np.array([self._running.victim()]))[0]
        if not self._running:
            _log.warning("request_failed", request=job.request.id, reason=str(refused))
            self._end(job, FAILED, str(refused))
            return
        job.retractions += 1
        self._retractions += 1
        _log.info("request_retracted", request=job.request.id, generated=job.generated, reason=str(refused))
        self._queue.appendleft(job)
        self._waiting_at = (job.request.id, self.storage.chain.epoch)
        # the guess was too low: those that go on are charged in full, so that nobody is let in on it again
        for other, running in self._running.jobs.items():
            self.admission.recharge(
                other, self.admission.demand(running.request.prompt_tokens, running.request.output_tokens)
            )

    def _process(self, rows: IntArray, ended: IntArray | None) -> None:
        """These rows got a token: note the first ones, end those that got their last."""
        firsts, lasts = self._running.sampled(rows)
        for row in firsts.tolist():
            job = self._running.jobs[row]
            job.first_token_at = self.now if job.first_token_at is None else job.first_token_at
        if ended is not None:
            lasts = np.union1d(lasts, rows[ended.astype(bool)])
        for job in self._leave(lasts):
            self._end(job, DONE)

    def _leave(self, rows: IntArray) -> list[Job]:
        """Take jobs out of their rows; all that they held comes back."""
        jobs = [self._running.remove(row) for row in rows.tolist()]
        self.storage.close(rows)
        self.admission.forget(rows)
        return jobs

    def _check(self, arrived: int) -> None:
        """The sums of the class hold between two iterations."""
        queued, running, served = len(self._queue), len(self._running), len(self._served)
        invariant(
            "scheduler.requests_add_up", queued + running + served == arrived,
            queued=queued, running=running, served=served, arrived=arrived,
        )  # fmt: skip
        rows = self._running.rows()
        invariant("scheduler.running_without_a_row", self.storage.requests.is_open(rows), rows=rows)

    def _end(self, job: Job, fate: str, reason: str = "") -> None:
        self._served.append(job.served(fate, self.now, reason))

    def _report(self) -> Report:
        bands = self._use.bands()
        return Report(
            served=tuple(sorted(self._served, key=lambda served: served.request.id)),
            bands=bands,
            steps=self._steps,
            seconds=self.now,
            tokens_forwarded=self._tokens,
            waits=sum(served.waited for served in self._served),
            retractions=self._retractions,
            pages_moved=sum(band.moves for band in bands),
            memory_cpu_seconds=self._use.memory_seconds,
            runner_seconds=self._use.runner_seconds,
        )
