"""From the queue into rows: who is asked about, who starts, and who is stopped for one that matters more.

1. the head's tokens are matched against the prefix cache.
2. admission is asked; what it lets in is promised, and the entry it starts from is locked.
3. rows are opened for all that were let in, at once.
4. where the head must wait, and what runs matters less: victims make room, if any choice of them does.
"""

from kvarena.admission.admission import TOGETHER, Admission, Asked
from kvarena.admission.preemption import Victim
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.ends import Ends
from kvarena.plugins.serving.job import Job
from kvarena.plugins.serving.prefixes import Match, Prefixes
from kvarena.plugins.serving.queue import Queue
from kvarena.plugins.serving.seats import Seats, Starting
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Never, Wait
from kvarena.terms.events import event_log, tells_debug
from kvarena.terms.invariants import invariant

_log = event_log()


class Admitting:
    """Lets the queue's head start while its whole charge fits beside what was promised.

    Nobody is asked about twice while nothing has changed that could change the answer.
    Always: where somebody waits, something runs or is in flight
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
        self._waiting_at: object = None
        self._has_waited = -1

    def admit(self, *, flying: bool) -> None:
        """Start requests from the head of the queue; ``flying``: whether a forward is in flight."""
        while self._queue and (self._waiting_at is None or self._waiting_at != self._now(flying=flying)):
            self._waiting_at = None
            group, stopped = self._ask()
            if group:
                self._seats.start(group, self._ends.now)
            if isinstance(stopped, Never):  # it came back from a retraction, or nothing will give memory back for it
                job = self._queue.head()
                self._queue.remove(job)
                self._ends.fail(job, str(stopped))
            elif stopped is not None or (self._queue and not self._storage.requests.free_count):
                prefixes = self._seats.prefixes
                if (prefixes is not None and prefixes.narrow()) or self._preempt():
                    continue
                self._wait(stopped, flying=flying)

    # -- inside

    def _now(self, *, flying: bool) -> object:
        """What an answer depends on: the head, what is held and promised, what the cache could give back, and whether
        anything will give memory back by and by."""
        cache = self._admission.cache
        evictable = None if cache is None else tuple(cache.evictable())
        version = self._storage.ownership.version
        head, runs = self._queue.head().request.id, flying or len(self._seats.running) > 0
        return head, runs, self._storage.chain.epoch, version, self._seats.changes, evictable

    def _ask(self) -> tuple[list[Starting], Wait | Never | None]:
        """Those of the queue's first that may start, promised; and what stopped the next."""
        prefixes, free = self._seats.prefixes, self._storage.requests.free_count
        stopped: Wait | Never | None = None
        if prefixes is None:
            jobs = self._queue.first(free)
            answers, stopped = self._admission.admit(_asked(job, None) for job in jobs)
            group = [Starting(job, answer, None) for job, answer in zip(jobs, answers, strict=False)]
        else:
            group = self._together(prefixes, self._queue.first(min(free, TOGETHER)))
            if not group:
                group, stopped = self._one_by_one(prefixes, self._queue.first(free))
        for starting in group:
            self._queue.remove(starting.job)
        return group, stopped

    def _together(self, prefixes: Prefixes, jobs: list[Job]) -> list[Starting]:
        """All of these, if the cache can make room for all at once; else nobody. Who waited alone is asked alone."""
        if len(jobs) < 2 or self._has_waited == jobs[0].request.id:
            return []
        asked = [(job, prefixes.match(job)) for job in jobs]
        entries = [match.entry for _, match in asked if match is not None]
        for entry in entries:  # an eviction for one must not take what another has matched
            prefixes.cache.lock(entry)
        try:
            questions = [_asked(job, match) for job, match in asked]
            charges = [self._admission.prices.charge(*question[:3], question.purpose) for question in questions]
            known = [charge for charge in charges if charge is not None]
            if len(known) < len(charges) or not self._admission.room_for(tuple(map(sum, zip(*known, strict=True)))):
                return []
            answers, _ = self._admission.admit(questions)
        finally:
            for entry in entries:
                prefixes.cache.unlock(entry)
        return [Starting(job, answer, match) for (job, match), answer in zip(asked, answers, strict=False)]

    def _one_by_one(self, prefixes: Prefixes, jobs: list[Job]) -> tuple[list[Starting], Wait | Never | None]:
        """As many of these as may start, each matched when those before it have been let in."""
        group: list[Starting] = []
        for job in jobs:
            match = prefixes.match(job)
            answers, stopped = self._admission.admit([_asked(job, match)])
            if match is not None and isinstance(stopped, Never):  # maybe only beside what it would read
                match = None
                answers, stopped = self._admission.admit([_asked(job, None)])
            if stopped is not None:
                return group, stopped
            group.append(Starting(job, answers[0], match))
        return group, None

    def _wait(self, stopped: Wait | None, *, flying: bool) -> None:
        """The head waits: for memory, or for a row."""
        job = self._queue.head()
        runs = len(self._seats.running) or flying
        invariant("scheduler.wait_with_nothing_running", runs, request=job.request.id, answer=stopped)
        if tells_debug():
            reason = "no request row is free" if stopped is None else str(stopped)
            _log.debug("request.waits", request=job.request.id, reason=reason)
        self._waiting_at, self._has_waited = self._now(flying=flying), job.request.id

    def _preempt(self) -> bool:
        """Stop running requests of a lower priority than the head's, if that lets it start; whether it does."""
        job, running = self._queue.head(), self._seats.running
        rows = running.victims(below=job.request.priority)
        if not rows:
            return False
        prefixes = self._seats.prefixes
        asked = _asked(job, None if prefixes is None else prefixes.match(job))
        victims = [Victim(row, running.jobs[row].entry, running.jobs[row].relaxed) for row in rows]
        chosen = self._admission.preempt(asked, victims)
        if chosen is None:
            return False
        if not chosen and not self._storage.requests.free_count:
            chosen = (rows[0],)
        for row in chosen:
            stopped = self._seats.stop(row)
            stopped.preemptions += 1
            self._counts.preemptions += 1
            reason = f"request {job.request.id} of priority {job.request.priority} needs its memory"
            _log.info("request.preempted", request=stopped.request.id, by=job.request.id, reason=reason)
            self._queue.add(stopped)
        return bool(chosen)


def _asked(job: Job, match: Match | None) -> Asked:
    """What admission is asked for a job that would start from this match."""
    if match is None:
        return Asked(job.known_tokens, job.tokens_left)
    return Asked(job.known_tokens, job.tokens_left, match.tokens, match.entry)
