"""The queues of a simulated device: streams with their work, and the adversary that chooses what lands next.

A clock says of each actor how many of its works come before a place. Work is ready when all in its clock has landed.
"""

import random
from collections import deque
from collections.abc import Callable
from operator import attrgetter, gt

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.terms.invariants import fail

Clock = list[int]
"""Works per actor, by the actor's index; what is missing at the end is 0."""
Vector = npt.NDArray[np.int32]


def joined(one: Clock, other: Clock) -> Clock:
    """The first place that comes after both."""
    if len(one) < len(other):
        one, other = other, one
    known = len(other)
    if known == len(one):
        return [mine if mine > its else its for mine, its in zip(one, other, strict=True)]
    return joined(one[:known], other) + one[known:]


def reaches(clock: Clock, place: Clock) -> bool:
    """Whether all that comes before ``place`` is in ``clock``."""
    return True not in map(gt, place, clock) and (len(place) <= len(clock) or not any(place[len(clock) :]))


@attrs.define(eq=False)
class SimStream:
    """One actor with its queue.

    An engine runs outside all streams: it knows what it was told when it was made and what it was made to wait for, and
    nothing that the host has seen since.
    """

    name: str
    label: str
    queues: "Queues" = attrs.field(repr=False)
    is_engine: bool = False
    clock: Clock = attrs.field(factory=list, repr=False)
    works: "deque[Work]" = attrs.field(factory=deque, repr=False)
    actor: int = -1
    heard: int = -1
    """How far this stream has joined the host's clock, in changes of that clock."""


@attrs.define(eq=False)
class Work:
    """One piece of work. ``vector``: its clock for the shadows; None where every other work is in its clock."""

    number: int
    stream: SimStream = attrs.field(repr=False)
    actor: int
    seq: int
    clock: Clock
    vector: Vector | None = attrs.field(repr=False)
    verb: str
    count: int
    unit_bytes: int
    act: Callable[[], None] | None = attrs.field(repr=False)

    @property
    def words(self) -> str:
        """What it is, and where: ``copy of 3 pages of 128 B on stream memory``."""
        pages = (
            f" of {self.count} page{'s' if self.count != 1 else ''} of {self.unit_bytes} B" if self.unit_bytes else ""
        )
        return f"{self.verb}{pages} {'by' if self.stream.is_engine or not self.actor else 'on'} {self.stream.label}"

    def follows(self, other: "Work") -> bool:
        """Whether the other comes before it."""
        return other.actor < len(self.clock) and self.clock[other.actor] >= other.seq


_number = attrgetter("number")
"""Works in the order of the calls."""


class Queues:
    """All work that has not landed. ``timing`` chooses what lands next: the oldest, the newest that may, or any."""

    def __init__(self, timing: str, seed: int) -> None:
        self.timing = timing
        self.rng = random.Random(seed)
        self.landing: Work | None = None
        self.landed: Clock = []
        self._busy: dict[SimStream, None] = {}

    def add(self, work: Work) -> None:
        """It waits for all that is in its clock."""
        if not work.stream.works:
            self._busy[work.stream] = None
        work.stream.works.append(work)

    def outside(self) -> None:
        """No work is landing: what runs on a device calls nothing of it.

        Raises:
            InvariantError: it does.
        """
        if self.landing is not None:
            fail("device.call_inside_work", work=self.landing.words)

    def has_come(self, clock: Clock) -> bool:
        """Whether all works of the clock have landed."""
        return reaches(self.landed, clock)

    @property
    def queued(self) -> int:
        """How many works have not landed."""
        return sum(len(stream.works) for stream in self._busy)

    def pending(self) -> list[Work]:
        """All that has not landed, in the order of the calls."""
        return sorted((work for stream in self._busy for work in stream.works), key=_number)

    def ready(self) -> list[Work]:
        """What may land now, in the order of the calls."""
        ready = [stream.works[0] for stream in self._busy if self._is_ready(stream.works[0])]
        return sorted(ready, key=_number)

    def through(self, need: Clock | None = None, limit: int = -1) -> int:
        """Land what is in the clock, or everything: in the order that ``timing`` chooses, at most ``limit`` of it.

        Raises:
            InvariantError: something is needed and nothing of it can land.
        """
        landed = 0
        while landed != limit and (self._busy if need is None else not reaches(self.landed, need)):
            work = self._pick(need)
            if work is None:
                fail("device.deadlock", waiting=[one.words for one in self.pending()], landed=self.landed, need=need)
            self._land(work)
            landed += 1
        return landed

    def land(self, work: Work) -> None:
        """Land one piece that is ready.

        Raises:
            InvariantError: something before it has not landed; it is another device's; another is landing.
        """
        if work.stream.queues is not self:
            fail("device.work_of_another", work=work.words)
        if work.act is None or not self._is_ready(work):
            before = [other.words for other in self.pending() if other is not work and work.follows(other)]
            fail("device.work_is_not_ready", work=work.words, has_landed=work.act is None, waits_for=before)
        self._land(work)

    def _land(self, work: Work) -> None:
        self.outside()
        stream, act = work.stream, work.act
        assert act is not None
        stream.works.popleft()
        if not stream.works:
            del self._busy[stream]
        self.landed[work.actor] = work.seq
        self.landing, work.act = work, None
        try:
            act()
        finally:
            self.landing = None

    def _is_ready(self, work: Work) -> bool:
        landed, own = self.landed, work.actor
        if landed[own] != work.seq - 1 or work.stream.works[0] is not work:
            return False
        waiting: int = sum(map(gt, work.clock, landed))
        return waiting == 1  # itself

    def _pick(self, need: Clock | None) -> Work | None:
        heads = [stream.works[0] for stream in self._busy]
        if need is not None:
            reach = len(need)
            heads = [work for work in heads if work.actor < reach and need[work.actor] >= work.seq]
        if self.timing in ("late", "random"):
            heads = [work for work in heads if self._is_ready(work)]
        if not heads:
            return None
        if self.timing == "random":
            return heads[self.rng.randrange(len(heads))]
        if self.timing == "late":
            return max(heads, key=_number)
        oldest = min(heads, key=_number)
        return oldest if self._is_ready(oldest) else None
