"""The allocator's own stream and the forwards': who waits for whom, so that bytes change hands in order.

One rule makes the rest short: whoever is handed a page waits the tail of the allocator's stream as of the hand-out, and
the allocator's stream waits for what the page must clear.
"""

from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import WARN, invariant
from kvarena.terms.owners import misbehaves
from kvarena.terms.ports import Device, Event, IntArray, Stream


class Timeline:
    """Streams of one storage. Without overlap there is one, the caller's own, and nothing is waited for.

    ``memory``: moves, zeroing, state copies of a match. ``forward``: the forwards, one after another.
    """

    def __init__(self, device: Device, in_flight: int, checks: int = WARN) -> None:
        """``in_flight``: how many forwards may be in flight; 0 is no overlap. ``checks``: the level of checks.

        Raises:
            KvarenaError: the device holds bytes but has no streams to overlap on.
        """
        self.device = device
        self._checks = checks
        self.overlaps = in_flight > 0
        if self.overlaps and device.holds_bytes and not device.has_streams:
            raise KvarenaError(
                f"backend {device.name!r} holds bytes but has no streams, so no forward can overlap on it; "
                "set [arena] forwards_in_flight = 0 or choose another backend"
            )
        self.memory = device.stream("memory") if self.overlaps else device.current()
        self.forward = device.stream("forward") if self.overlaps else self.memory
        self.waited = False
        self._tail: Event | None = None
        self._is_busy = False

    def begin(self) -> None:
        """An operation of the allocator begins: it has waited for nothing yet."""
        self.waited = False

    def wait(self, event: Event) -> None:
        """What the allocator's stream does from now on comes after the event."""
        if self.overlaps:
            self.device.wait(self.memory, event)
            self.waited = True
            self._tail, self._is_busy = None, True

    def read_on_host(self, event: Event | None = None) -> None:
        """The host reads what a device or an engine has done, after ``event``: before any stream wait of the operation.

        Raises:
            InvariantError: a stream wait came first, so that the host would wait for whatever that one waits for.
            PluginError: from check level 1 on, the device came back too early.
        """
        invariant("band.host_read_before_wait", not self.waited)
        if event is not None:
            self.wait_on_host(event)

    def wait_on_host(self, event: Event) -> None:
        """The host waits for the event.

        Raises:
            PluginError: from check level 1 on, the device came back before it.
        """
        self.device.synchronize(event)
        if self._checks and not event.done():
            finding = "synchronize returned and the event that it was given is not done"
            raise misbehaves("device.event_not_done_after_wait", "backend", self.device, finding)

    def tail(self) -> Event | None:
        """A place after all that the allocator's stream has been given; None where it has been given nothing."""
        if self._tail is None and self._is_busy:
            self._tail = self.device.record(self.memory)
        return self._tail

    def hand(self, stream: Stream) -> None:
        """Work that the stream is given from now on comes after the allocator's."""
        tail = self.tail()
        if tail is not None and stream is not self.memory:
            self.device.wait(stream, tail)

    def copy_pages(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units, on the allocator's stream."""
        self.device.copy_pages(self.memory, unit_bytes, sources, targets)
        if self.overlaps:
            self._tail, self._is_busy = None, True

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units, on the allocator's stream."""
        self.device.zero_pages(self.memory, unit_bytes, pages)
        if self.overlaps:
            self._tail, self._is_busy = None, True
