"""The time of a simulated device: streams that never run by themselves, and the hand that lets work land."""

from typing import ClassVar

import attrs

from kvarena.backends.sim_order import Order, SimEvent
from kvarena.backends.sim_queues import Clock, SimStream, Work, joined, reaches
from kvarena.backends.sim_shadow import HOST_READ, Findings, Violation
from kvarena.terms.ports import Event, Stream

TIMINGS = ("early", "late", "manual", "random")


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)  # some of it is set at every operation
class TurnedDevice:
    """Streams, events, and the adversary that chooses what lands when.

    ``timing`` is what ``turn`` lands: ``early`` all, ``late`` and ``manual`` nothing, ``random`` some. When the host
    waits, what it waits for lands and nothing else: the oldest first, or with ``late`` the newest that is ready, with
    ``random`` any that is ready.
    """

    ALLOCATORS: ClassVar[frozenset[str]] = frozenset({"memory"})
    """Streams of these names are an allocator's: a wait on one is what no host read may follow in an operation."""

    seed: int = 0
    timing: str = attrs.field(default="random", validator=attrs.validators.in_(TIMINGS))
    grain_bytes: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    watch_writes: bool = False
    order: Order = attrs.field(init=False, repr=False)
    findings: Findings = attrs.field(factory=Findings, init=False, repr=False)
    _is_operating: bool = attrs.field(default=False, init=False, repr=False)
    _waited: str = attrs.field(default="", init=False, repr=False)
    _streams: dict[str, SimStream] = attrs.field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.order = Order(self.timing, self.seed)

    # -- what was found

    @property
    def violations(self) -> list[Violation]:
        """What was found, the first first. Never emptied by the device."""
        return self.findings.violations

    # -- streams

    def current(self) -> SimStream:
        """The caller's own stream: work on it has landed, and all it waits for, when the call returns."""
        return self.order.inline

    def stream(self, name: str) -> SimStream:
        """The stream of this name. What it is given comes after all that the host has waited for."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = SimStream(name, f"stream {name}", self.order.queues)
        return stream

    def engine(self, name: str, after: Event | None = None) -> SimStream:
        """An actor outside all streams, such as a transfer engine.

        Its work comes after ``after`` and after all that the host has waited for when it makes the engine; but after
        nothing that the host waits for later, for nobody asks the host before an engine moves.
        """
        clock = self.order.host.clock[:]
        if after is not None:
            clock = joined(clock, self._place(after))
        label = name if name.startswith("engine") else f"engine {name}"
        return SimStream(name, label, self.order.queues, True, clock)

    def record(self, stream: Stream) -> SimEvent:
        """The place after all work that is on the stream now, and all that it was made to wait for."""
        return self.order.event(self._own(stream))

    def wait(self, stream: Stream, event: Event) -> None:
        """Work that the stream is given from now on begins after the event."""
        own, place = self._own(stream), self._place(event)
        if own.name in self.ALLOCATORS and self._is_operating and not self.order.queues.has_come(place):
            self._waited = self._waited or f"{own.label} waits for {self._unfinished(place)}"
        if not reaches(own.clock, place):
            own.clock = joined(own.clock, place)

    def synchronize(self, event: Event) -> None:
        """Land what the event needs; the host comes after it."""
        self._host_waits(self._place(event), "the host waits for")

    def operation(self) -> None:
        """An operation of the allocator begins: in it, no host read of unfinished work follows a wait of its stream.

        Before the first call nothing is judged by this.
        """
        self._is_operating, self._waited = True, ""

    # -- the clock, turned by hand

    def ready(self) -> list[Work]:
        """What may land now, the oldest first."""
        return self.order.queues.ready()

    def turn(self, limit: int | None = None) -> int:
        """Let some ready work land, by ``timing``, at most ``limit`` pieces; returns how many."""
        pending = self.order.queues.queued
        count = {"early": pending, "random": self.order.queues.rng.randint(0, pending)}.get(self.timing, 0)
        return self.order.queues.through(limit=count if limit is None else min(count, limit))

    def land(self, what: Work | Event) -> None:
        """Land one piece that is ready, or all that an event needs. The host has waited for nothing by this.

        Raises:
            InvariantError: the piece is not ready; the message says what it waits for.
        """
        if isinstance(what, Work):
            self.order.queues.land(what)
        else:
            self.order.queues.through(self._place(what))

    def drain(self) -> int:
        """Land everything; returns how many pieces. The host has waited for nothing by this."""
        return self.order.queues.through()

    # -- for the memory

    def _own(self, stream: Stream) -> SimStream:
        return self.order.own(stream)

    def _place(self, event: Event) -> Clock:
        return self.order.place(event)

    def _unfinished(self, place: Clock) -> str:
        """The words for the oldest work of the place that has not landed."""
        behind = (work for work in self.order.queues.pending() if reaches(place, work.clock))
        return next((work.words for work in behind), "work that has not landed")

    def _host_waits(self, place: Clock, what: str, unit_bytes: int = 0, page: int = -1) -> None:
        """The host waits for a place. In an operation whose stream has waited before, it may not have to."""
        if not self.order.queues.has_come(place):
            if self._waited:
                other = self._unfinished(place)
                words = f"{what} {other}, in an operation in which {self._waited}"
                self.violations.append(Violation(HOST_READ, "the host", other, unit_bytes, page, words))
            self.order.queues.through(place)
        self.order.tell_host(place)
