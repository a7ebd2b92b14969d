"""The allocator's stream beside the forwards': who waits for whom, and what it costs where nothing overlaps."""

import numpy as np
import pytest

from kvarena.backends.host import HostDevice, Past
from kvarena.ledger.clearance import COPY_READ, COPY_WRITE, FORWARD, FORWARD_READ, HOST_SAVE, RECEIVING, ZERO
from kvarena.ledger.ledger import Ledger
from kvarena.ledger.timeline import Timeline
from kvarena.ledger.uses import Pages
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Event, IntArray, Stream


class Told(HostDevice):
    """Remembers the calls that order streams."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.events: dict[Event, str] = {}

    def record(self, stream: Stream) -> Event:
        """An event that knows its stream."""
        event = super().record(stream)
        self.events[event] = stream.name
        self.calls.append(f"record {stream.name}")
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Told."""
        self.calls.append(f"{stream.name} waits {self.events.get(event, 'another')}")

    def synchronize(self, event: Event) -> None:
        """Told."""
        self.calls.append("host waits")


def pages(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_a_stream_is_handed_the_tail_as_of_the_hand_out() -> None:
    """One event for all who ask until more is done; nothing where nothing was done."""
    device = Told()
    timeline = Timeline(device, 1)
    timeline.hand(timeline.forward)
    assert device.calls == []
    timeline.zero_pages(8, pages(1))
    timeline.hand(timeline.forward)
    timeline.hand(device.stream("save"))
    assert device.calls == ["record memory", "forward waits memory", "save waits memory"]
    timeline.wait(Past())
    timeline.hand(timeline.forward)
    assert device.calls[3:] == ["memory waits another", "record memory", "forward waits memory"]


@pytest.mark.req("LIF-7")
def test_without_overlap_there_is_one_stream_and_nothing_to_wait_for() -> None:
    """The caller's own: forwards, moves and zeroes are in the order of the calls."""
    device = Told()
    timeline = Timeline(device, 0)
    timeline.zero_pages(8, pages(1))
    timeline.wait(Past())
    timeline.hand(timeline.forward)
    assert timeline.memory is timeline.forward
    assert device.calls == []


@pytest.mark.req("LIF-8")
def test_a_device_with_bytes_and_no_streams_is_refused_with_overlap() -> None:
    """By name, with the cure; without overlap it will do."""

    class Plain(HostDevice):
        name = "plain"
        holds_bytes = True
        has_streams = False

    with pytest.raises(KvarenaError, match=r"backend 'plain' holds bytes but has no streams.*forwards_in_flight = 0"):
        Timeline(Plain(), 1)
    Timeline(Plain(), 0)


@pytest.mark.req("LIF-11")
@pytest.mark.req("CHK-1")
def test_the_host_reads_before_a_stream_waits() -> None:
    """Within one operation; the next one begins anew."""
    device = Told()
    timeline = Timeline(device, 1)
    timeline.begin()
    timeline.read_on_host(Past())
    timeline.wait(Past())
    with pytest.raises(InvariantError, match=r"band\.host_read_before_wait"):
        timeline.read_on_host(Past())
    timeline.begin()
    timeline.read_on_host(Past())
    assert device.calls.count("host waits") == 2


@pytest.mark.req("LED-1")
@pytest.mark.req("LED-2")
@pytest.mark.req("LED-2+")
def test_chosen_pages_are_cleared_as_the_table_says() -> None:
    """Writers wait for every copy, readers for one that writes; what may not be had is named."""
    device = Told()
    ledger = Ledger(device, 1)
    save = device.stream("save")
    read = ledger.uses.record(COPY_READ, {"full": Pages(8, pages(1))}, Past())
    ledger.clear(8, pages(1), (HOST_SAVE,), save)
    assert device.calls == []
    ledger.clear(8, pages(1, 2), (ZERO, FORWARD))
    ledger.clear(4, pages(2), (FORWARD,), ledger.timeline.forward)
    assert device.calls == ["memory waits another", "forward waits another"]
    ledger.uses.end(read)
    ledger.uses.record(COPY_WRITE, {"full": Pages(8, pages(1))}, Past())
    ledger.clear(8, pages(1), (HOST_SAVE,), save)
    assert device.calls[2:] == ["save waits another"]
    ledger.uses.record(RECEIVING, {"full": Pages(8, pages(3))}, None)
    for actor in (FORWARD, FORWARD_READ, HOST_SAVE):
        with pytest.raises(InvariantError, match=r"ledger\.page_is_not_to_be_had: use='NETWORK_RECEIVE 3"):
            ledger.clear(8, pages(3), (actor,))


def test_a_forward_is_settled_once() -> None:
    """The stream waits its event; a later settle of it, or of an older one, waits for nothing."""
    device = Told()
    ledger = Ledger(device, 2)
    for _ in range(2):
        ledger.steps.record(ledger.steps.launch(), Past(), {})
    for number in (2, 2, 1, 0):
        ledger.settle(number)
    assert device.calls == ["memory waits another"]
    assert ledger.steps.retired == 2
