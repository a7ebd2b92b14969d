"""The order of a simulated device: its actors, and what comes before what.

An actor is the host, a stream or an engine; its works are numbered from 1. A clock says of each actor how many of its
works come before a place. A piece of work gets its clock when it is queued: all that its stream was given or made to
wait for, and all that the host has waited for. So what is ordered never depends on what lands when.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice

import attrs
import numpy as np

from kvarena.backends.sim_queues import Clock, Queues, SimStream, Vector, Work, joined, reaches
from kvarena.terms.invariants import fail
from kvarena.terms.ports import Event, Stream

HISTORY = 256
"""So many landed works of an actor are remembered by their words, at least."""
WIDTH_STEP = 8


@attrs.frozen(eq=False)
class SimEvent:
    """A place: all the works in its clock come before it."""

    order: "Order" = attrs.field(repr=False)
    clock: Clock

    def done(self) -> bool:
        """Whether all of it has landed; the host that sees so comes after it from here on."""
        has_come = self.order.queues.has_come(self.clock)
        if has_come:
            self.order.tell_host(self.clock)
        return has_come


class Order:
    """The actors and their clocks, over the queues of their work."""

    def __init__(self, timing: str, seed: int) -> None:
        self.queues = Queues(timing, seed)
        self.width = WIDTH_STEP
        """Columns of the shadows; rises with the actors, and ``widened`` is called."""
        self.widened: list[Callable[[], None]] = []
        self.host = SimStream("host", "the host", self.queues)
        self.inline = SimStream("current", "the caller's own stream", self.queues)
        self._count = self._told = 0
        self._actors: list[SimStream] = []
        self._issued: Clock = []
        self._history: list[deque[Work]] = []
        self._lease(self.host)

    # -- queueing

    def begin(self, stream: SimStream, verb: str, count: int, unit_bytes: int, act: Callable[[], None]) -> Work:
        """Queue a piece of work; it has its clock from here on.

        Raises:
            InvariantError: another work is landing: what runs on a device queues nothing.
        """
        self.queues.outside()
        work = self._work(self.own(stream), verb, count, unit_bytes)
        work.act = act
        self.queues.add(work)
        return work

    def placed(self, work: Work) -> None:
        """All is known about a queued work. On the caller's own stream it lands, and the host goes on after it."""
        if work.stream is self.inline:
            self.queues.through(work.clock)
            self.tell_host(work.clock)

    def by_host(self, verb: str, count: int, unit_bytes: int) -> Work:
        """Something that the host does itself, now. What was queued before does not come after it."""
        work = self._work(self.host, verb, count, unit_bytes)
        self.queues.landed[0] = work.seq
        self._told += 1
        return work

    def event(self, stream: SimStream) -> SimEvent:
        """The place after all that the stream was given and made to wait for."""
        return SimEvent(self, stream.clock[:])

    def own(self, stream: Stream) -> SimStream:
        """A stream of this device.

        Raises:
            InvariantError: it is another device's.
        """
        if not isinstance(stream, SimStream) or stream.queues is not self.queues:
            fail("device.stream_of_another", stream=stream)
        return stream

    def place(self, event: Event) -> Clock:
        """The clock of an event of this device.

        Raises:
            InvariantError: it is another device's.
        """
        if not isinstance(event, SimEvent) or event.order is not self:
            fail("device.event_of_another", event=event)
        return event.clock

    def _work(self, stream: SimStream, verb: str, count: int, unit_bytes: int) -> Work:
        if stream.actor < 0 or self._actors[stream.actor] is not stream:
            self._lease(stream)
        if stream.heard != self._told and not stream.is_engine:
            stream.clock = joined(stream.clock, self.host.clock)
            stream.heard = self._told
        actor, clock, issued = stream.actor, stream.clock, self._issued
        seq = clock[actor] = issued[actor] = issued[actor] + 1
        self._count += 1
        # no clock is ahead of what was issued: an equal one knows of every work
        vector = None if clock == issued else self._vector(clock)
        work = Work(self._count, stream, actor, seq, clock[:], vector, verb, count, unit_bytes, None)
        history = self._history[actor]
        history.append(work)
        while len(history) > HISTORY and history[0].seq <= self._heard_of(actor):
            history.popleft()
        return work

    def _vector(self, clock: Clock) -> Vector:
        vector = np.zeros(self.width, dtype=np.int32)
        vector[: len(clock)] = clock
        return vector

    def _heard_of(self, actor: int) -> int:
        """How many works of the actor come before what the host does next."""
        return self.host.clock[actor] if actor < len(self.host.clock) else 0

    def _lease(self, stream: SimStream) -> None:
        """Give the stream an index of its own.

        An engine's index is taken over by a stream that comes after everything the engine was given: all that is after
        the new owner's works is then after the old one's too, so no race can hide behind the shared index. An engine
        that is given more work later gets another.
        """
        clock = stream.clock
        for actor, owner in enumerate(self._actors):
            if owner.is_engine and owner is not stream and actor < len(clock) and clock[actor] >= self._issued[actor]:
                break
        else:
            actor = len(self._actors)
            self._actors.append(stream)
            self._issued.append(0)
            self.queues.landed.append(0)
            self._history.append(deque())
            if actor >= self.width:
                self.width *= 2
                for widen in self.widened:
                    widen()
        stream.actor, self._actors[actor] = actor, stream
        clock += [0] * (actor + 1 - len(clock))

    # -- what has come

    def tell_host(self, clock: Clock) -> None:
        """What the host does and queues from now on comes after all this."""
        if not reaches(self.host.clock, clock):
            self.host.clock = joined(self.host.clock, clock)
            self._told += 1

    def host_follows(self, work: Work) -> bool:
        """Whether the host has waited for the work."""
        return self._heard_of(work.actor) >= work.seq

    def find(self, actor: int, seq: int) -> Work | None:
        """That work; None where it is too long ago."""
        history = self._history[actor]
        first = history[0].seq if history else seq + 1
        return next(islice(history, seq - first, None), None) if seq >= first else None

    def told(self, actor: int, seq: int) -> str:
        """The words of that work."""
        work = self.find(actor, seq)
        return work.words if work else f"work {seq} on {self._actors[actor].label}"
