"""The forwards in flight, by number: what has been launched, recorded, settled and processed.

Numbers rise from 1. Every decision reads these numbers; none reads whether an event has fired, so ranks that see
completions at different times decide alike.
"""

from collections import deque
from collections.abc import Mapping

import attrs

from kvarena.ledger.writes import Writes, WriteSet
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.owners import described, misbehaves
from kvarena.terms.ports import Device, Event, IntArray

PREBUILT = 0
"""The number of a step that has no forward of its own."""


@attrs.define(eq=False)
class Forward:
    """One forward, by its number.

    Its life:  1. launched   nothing managed may be taken, freed or moved until it is recorded.
               2. recorded   ``event`` comes after all its work.
               3. settled    the allocator's stream waits for it: to the ledger it is over (retired).
               4. processed  the scheduler says that it, and all before it, are over.
    """

    number: int
    event: Event | None = None
    device: Device | None = attrs.field(default=None, repr=False)
    """The device that made the event, on its stream of forwards; None where an engine brought one of its own."""

    def __str__(self) -> str:
        return f"forward {self.number}" if self.number else "a step without a forward"


class ForwardSteps:
    """Forwards of one storage, in launch order.

    Always: processed <= retired <= recorded <= launched <= recorded + 1     (checked by ``verify``)
    """

    def __init__(self, in_flight: int) -> None:
        """``in_flight``: the most forwards that are launched and not processed; 0 where nothing is recorded."""
        self.in_flight = in_flight
        self.launched = self.recorded = self.retired = self.processed = 0
        self.open: Forward | None = None
        self.writes = Writes()
        self._flying: deque[Forward] = deque()

    @property
    def keying(self) -> int:
        """The newest forward that pages freed now wait for: recorded and not processed; 0 where there is none."""
        return self.recorded if self.recorded > self.processed else 0

    @property
    def reading(self) -> int:
        """The newest forward that may still read what is moved now: recorded and not retired; 0 where there is none."""
        return self.recorded if self.recorded > self.retired else 0

    @property
    def is_open(self) -> bool:
        """Whether a forward was launched that is not recorded."""
        return self.launched > self.recorded

    @property
    def flying(self) -> int:
        """How many forwards are recorded and not processed."""
        return self.recorded - self.processed

    def check_launch(self) -> None:
        """The forward before was recorded, and no more are in flight than may be. Nothing changes."""
        if self.launched > self.recorded:
            fail("forwards.launch_over_unrecorded", never_recorded=self.launched)
        if self.recorded - self.processed >= self.in_flight:
            fail("forwards.too_many_in_flight", flying=self.flying, most=self.in_flight)

    def launch(self) -> Forward:
        """The next forward begins."""
        self.check_launch()
        self.launched += 1
        self.open = Forward(self.launched)
        return self.open

    def record(
        self, forward: Forward, event: Event, writes: Mapping[str, IntArray], unknown: frozenset[str] = frozenset()
    ) -> None:
        """All work of the forward is on its stream, before ``event``, which is its own."""
        if forward.event is not None:
            fail("forwards.recorded_twice", forward=forward.number)
        if self.launched == self.recorded:
            fail("forwards.record_of_unlaunched", forward=forward.number, recorded=self.recorded)
        if forward is not self.open:
            fail("forwards.record_out_of_order", forward=forward.number, open=self.launched)
        for other in self._flying:
            if event is other.event:
                fail("forwards.event_is_not_fresh", forward=forward.number)
        forward.event = event
        self.recorded = forward.number
        self.writes.add(WriteSet(forward.number, writes, unknown))
        self._flying.append(forward)

    def check_process(self, forward: Forward, *, checks: int) -> None:
        """The forward is the oldest in flight and, at check level 1 and above, has ended. Nothing changes."""
        if forward.event is None or forward.number <= self.processed:
            fail("forwards.process_of_unrecorded", forward=forward.number, processed=self.processed)
        oldest = self._flying[0]
        if forward is not oldest:
            fail("forwards.process_out_of_order", forward=forward.number, oldest=oldest.number)
        if checks and not forward.event.done():
            self._tell_overtaken(forward)
            found = {} if forward.device is None else {"on": described("backend", forward.device)}
            cure = "wait for it on the host; where that was done, the backend came back too early"
            fail("forwards.process_before_its_end", forward=forward.number, **found, cure=cure)

    def process(self, forward: Forward) -> None:
        """The oldest in flight is over, for the scheduler too."""
        self._flying.popleft()
        self.processed = forward.number
        self.settle(forward.number)

    def settle(self, number: int) -> None:
        """The allocator's stream waits for this forward: it and all before it are retired."""
        if number > self.retired:
            self.retired = number
            self.writes.retire(number)

    def event_of(self, number: int) -> Event:
        """The event of a forward in flight."""
        event = None
        for forward in self._flying:
            if forward.number == number:
                event = forward.event
        if event is None:
            fail("forwards.event_of_ended", forward=number, processed=self.processed)
        return event

    def verify(self) -> None:
        """The numbers are in order, and every forward in flight has its event."""
        order = self.processed <= self.retired <= self.recorded <= self.launched <= self.recorded + 1
        invariant("forwards.numbers_in_order", order, steps=self)
        numbers = [forward.number for forward in self._flying]
        expected = list(range(self.processed + 1, self.recorded + 1))
        invariant("forwards.flying_is_recorded", numbers == expected, flying=numbers, expected=expected)
        invariant("forwards.writes_of_unretired", len(self.writes) == self.recorded - self.retired, steps=self)

    def _tell_overtaken(self, forward: Forward) -> None:
        """The forward has not ended. If one behind it on the device's stream has, it is the device that is wrong."""
        for later in self._flying:
            if later.device is not None and later.device is forward.device and later.event and later.event.done():
                finding = (
                    f"the event of forward {later.number} is done and that of forward {forward.number} is not, which "
                    f"was recorded before it on the same stream; nothing was processed"
                )
                raise misbehaves("device.event_out_of_order", "backend", later.device, finding)

    def __repr__(self) -> str:
        counts = f"launched {self.launched}, recorded {self.recorded}"
        return f"<forwards: {counts}, retired {self.retired}, processed {self.processed}>"
