"""The requests that wait: who is next."""

from bisect import bisect_left, insort
from itertools import islice

from kvarena.plugins.serving.job import QUEUED, Job, Key


class Queue:
    """By priority, the higher first; then those that came back from a retraction; then by arrival and id."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._jobs: dict[Key, Job] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, job: Job) -> None:
        """The job waits from now on."""
        key = job.key = _key(job)
        job.place = QUEUED
        self._jobs[key] = job
        insort(self._keys, key)

    def head(self) -> Job:
        """Who is next; there is one."""
        return self._jobs[self._keys[0]]

    def first(self, count: int) -> list[Job]:
        """Up to so many from the head on."""
        return [self._jobs[key] for key in islice(self._keys, count)]

    def remove(self, job: Job) -> None:
        """The job waits no more."""
        key = job.key
        del self._jobs[key]
        del self._keys[bisect_left(self._keys, key)]


def _key(job: Job) -> Key:
    stopped = job.retractions + job.preemptions > 0
    return -job.request.priority, not stopped, job.request.arrival, job.request.id
