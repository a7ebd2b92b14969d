"""Streams in memory: order, events, real concurrency, and errors that nobody loses. Gates decide, no clock does."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvarena.backends.cpu import CpuDevice
from kvarena.ledger.timeline import Timeline
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import FieldView, Stream

UNIT = 64
PATIENCE_S = 30
"""How long a test waits for what must come, before it fails instead of hanging."""


class Gate:
    """Work that does not end before the test lets it: ``entered`` says that it runs."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        """The work."""
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    """Sixteen units, all zero."""
    device = CpuDevice()
    device.reserve(16 * UNIT)
    yield device
    device.close()


def raw(device: CpuDevice) -> Any:
    """The arena, a row for each unit."""
    return device.view(FieldView("uint8", (), 1, 0, 1, device.arena_bytes)).numpy().reshape(-1, UNIT)


def blocked(device: CpuDevice, stream: Stream) -> Gate:
    """The stream stands at a gate, inside of work."""
    gate = Gate()
    device.run(stream, gate.pass_through, (), ())
    assert gate.entered.wait(PATIENCE_S)
    return gate


def fails() -> None:
    """Work that fails."""
    raise ValueError("seven is not eight")


def test_the_callers_own_stream_is_done_when_a_call_returns(device: CpuDevice) -> None:
    """Its work runs in the caller's thread, its events have come, each is another, and its errors are raised as is."""
    here, threads = device.current(), list[threading.Thread]()
    device.run(here, lambda: threads.append(threading.current_thread()), (), ())
    assert threads == [threading.current_thread()]
    first, second = device.record(here), device.record(here)
    assert first.done()
    assert first is not second
    with pytest.raises(ValueError, match="seven"):
        device.run(here, fails, (), ())
    device.synchronize(device.record(here))


def test_work_on_a_stream_runs_in_order_beside_the_caller(device: CpuDevice) -> None:
    """One thread, the order of the calls; an event comes after all before it, and not before."""
    stream, done = device.stream("copies"), list[int]()
    gate = blocked(device, stream)
    for number in range(100):
        device.run(stream, partial(done.append, number), (), ())
    event = device.record(stream)
    assert not event.done()
    assert done == []
    gate.opened.set()
    device.synchronize(event)
    assert event.done()
    assert done == list(range(100))


@pytest.mark.req("LIF-8")
def test_a_device_that_holds_bytes_has_streams(device: CpuDevice) -> None:
    """Forwards may overlap on it: two streams without an order between them run at the same time."""
    assert device.has_streams
    assert Timeline(device, 1).overlaps
    met = threading.Barrier(3)

    def meet() -> None:
        met.wait(PATIENCE_S)

    for name in ("forward", "memory"):
        device.run(device.stream(name), meet, (), ())
    meet()


def test_a_copy_waits_for_the_event_of_another_stream(device: CpuDevice) -> None:
    """It reads what the other wrote; queued without the wait, the same copy reads what was there before."""
    forward, memory, beside = device.stream("forward"), device.stream("memory"), device.stream("beside")
    gate = blocked(device, forward)
    device.run(forward, lambda: raw(device)[3].fill(7), (), ())
    device.wait(memory, device.record(forward))
    device.copy_pages(memory, UNIT, np.array([3]), np.array([4]))
    device.copy_pages(beside, UNIT, np.array([3]), np.array([5]))
    device.synchronize(device.record(beside))
    ordered = device.record(memory)
    assert not ordered.done()
    gate.opened.set()
    device.synchronize(ordered)
    assert (raw(device)[4] == 7).all()
    assert not raw(device)[5].any()


def test_the_callers_stream_waits_by_waiting(device: CpuDevice) -> None:
    """``wait`` on it returns once the event has come."""
    stream = device.stream("forward")
    gate = blocked(device, stream)
    event = device.record(stream)
    opener = threading.Thread(target=gate.opened.set)
    opener.start()
    device.wait(device.current(), event)
    assert event.done()
    opener.join()


def test_several_streams_and_the_caller_wait_for_one_event(device: CpuDevice) -> None:
    """All go on when it comes; who asks later does not wait at all."""
    first, passed = device.stream("first"), list[str]()
    gate = blocked(device, first)
    event = device.record(first)
    others = [device.stream(f"other {number}") for number in range(4)]
    for other in others:
        device.wait(other, event)
        device.run(other, partial(passed.append, other.name), (), ())
    ends = [device.record(other) for other in others]
    assert not any(end.done() for end in ends)
    gate.opened.set()
    device.synchronize(event)
    for end in ends:
        device.synchronize(end)
    assert sorted(passed) == sorted(other.name for other in others)
    device.wait(others[0], event)
    device.synchronize(device.record(others[0]))


def test_what_a_call_names_is_read_when_it_is_called(device: CpuDevice) -> None:
    """Whoever calls may write over the lists at once; the bytes are those of the work's turn."""
    stream = device.stream("memory")
    raw(device)[1].fill(1)
    gate = blocked(device, stream)
    sources, targets, zeroed = np.array([1, 2]), np.array([8, 9]), np.array([3])
    device.copy_pages(stream, UNIT, sources, targets)
    device.zero_pages(stream, UNIT, zeroed)
    sources[:], targets[:], zeroed[:] = 5, 6, 1
    raw(device)[2].fill(2)
    raw(device)[3].fill(3)
    gate.opened.set()
    device.synchronize(device.record(stream))
    assert (raw(device)[8] == 1).all()
    assert (raw(device)[9] == 2).all()
    assert not raw(device)[3].any()
    assert (raw(device)[1] == 1).all()


def test_lists_are_checked_when_they_are_given(device: CpuDevice) -> None:
    """A page outside fails the call, not the stream."""
    stream = device.stream("memory")
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.copy_pages(stream, UNIT, np.array([1]), np.array([16]))
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.zero_pages(stream, UNIT, np.array([-1]))
    device.synchronize(device.record(stream))


@pytest.mark.parametrize("later", ["record", "wait", "run", "copy_pages", "synchronize"])
def test_an_error_in_work_is_raised_by_whoever_comes_next(later: str) -> None:
    """It names the stream and the work, has the original as its cause, and what came after it was not run."""
    device, after = CpuDevice(), list[int]()
    device.reserve(16 * UNIT)
    stream = device.stream("memory")
    gate = blocked(device, stream)
    device.run(stream, fails, (), ())
    device.run(stream, lambda: after.append(1), (), ())
    event, other = device.record(stream), device.record(device.current())
    gate.opened.set()
    calls: dict[str, Callable[[], object]] = {
        "record": lambda: device.record(stream),
        "wait": lambda: device.wait(stream, other),
        "run": lambda: device.run(stream, lambda: after.append(2), (), ()),
        "copy_pages": lambda: device.copy_pages(stream, UNIT, np.array([1]), np.array([2])),
        "synchronize": lambda: device.synchronize(event),
    }
    with contextlib.suppress(KvarenaError):
        device.synchronize(event)
    for _ in range(2):
        with pytest.raises(KvarenaError, match=r"stream 'memory' failed at run of fails: ValueError: seven") as caught:
            calls[later]()
        assert isinstance(caught.value.__cause__, ValueError)
    assert after == []
    device.close()


def test_an_error_reaches_the_streams_that_wait_for_it(device: CpuDevice) -> None:
    """Nobody hangs, and nobody works on bytes that were never written: the wait fails, and names where it began."""
    first, second, third = (device.stream(name) for name in ("first", "second", "third"))
    gate, after = blocked(device, first), list[int]()
    device.run(first, fails, (), ())
    device.wait(second, device.record(first))
    device.run(second, lambda: after.append(1), (), ())
    device.wait(third, device.record(second))
    event = device.record(third)
    gate.opened.set()
    with pytest.raises(KvarenaError, match="stream 'first' failed at run of fails"):
        device.synchronize(event)
    with pytest.raises(KvarenaError, match="stream 'first' failed"):
        device.run(second, lambda: after.append(2), (), ())
    assert after == []
    fourth = device.stream("fourth")
    device.wait(fourth, event)
    with pytest.raises(KvarenaError, match="stream 'first' failed"):
        device.synchronize(device.record(fourth))


def test_closing_waits_for_all_work_and_ends_all_threads() -> None:
    """Whatever is queued is done first; a second time is fine; afterwards streams are refused by name."""
    device, done = CpuDevice(), list[int]()
    device.reserve(16 * UNIT)
    first, second = device.stream("first"), device.stream("second")
    gate = blocked(device, first)
    device.wait(second, device.record(first))
    for number in range(50):
        device.run(second, partial(done.append, number), (), ())
    before = set(threading.enumerate())
    threading.Thread(target=gate.opened.set).start()
    device.close()
    assert done == list(range(50))
    assert not [thread for thread in before if thread.name in ("kvarena first", "kvarena second") and thread.is_alive()]
    device.close()
    for call in (lambda: device.record(second), lambda: device.stream("third")):
        with pytest.raises(KvarenaError, match=r"closed"):
            call()
    device.resize(0)


def test_closing_tells_what_nobody_was_told() -> None:
    """Every failed stream is named; the device is closed all the same, and what was told is not told again."""
    device = CpuDevice()
    device.reserve(16 * UNIT)
    for name in ("first", "second"):
        device.run(device.stream(name), fails, (), ())
    with pytest.raises(KvarenaError, match="failed at run of fails") as caught:
        device.close()
    told = str(caught.value) + str(getattr(caught.value.__cause__, "__notes__", ""))
    assert "'first'" in told
    assert "'second'" in told
    assert device.arena_bytes == 0
    device.close()

    device = CpuDevice()
    stream = device.stream("third")
    device.run(stream, fails, (), ())
    with pytest.raises(KvarenaError, match="'third'"):
        device.synchronize(device.record(stream))
    device.close()


def test_resizing_waits_for_all_work(device: CpuDevice) -> None:
    """No worker touches a byte while the top moves."""
    stream, done = device.stream("memory"), list[int]()
    gate = blocked(device, stream)
    device.zero_pages(stream, UNIT, np.array([15]))
    device.run(stream, lambda: done.append(device.arena_bytes), (), ())
    opener = threading.Thread(target=gate.opened.set)
    opener.start()
    device.resize(8 * UNIT)
    assert done == [16 * UNIT]
    opener.join()


def test_work_that_would_wait_for_itself_is_refused() -> None:
    """Closing or resizing from inside of a stream's work can never end."""
    device = CpuDevice()
    device.reserve(16 * UNIT)
    stream = device.stream("forward")
    device.run(stream, device.close, (), ())
    with pytest.raises(KvarenaError, match=r"device\.waits_for_itself"):
        device.synchronize(device.record(stream))
    device.close()


def test_work_may_use_the_callers_stream_from_inside(device: CpuDevice) -> None:
    """``current`` inside of work is the place it runs at: copies are done when they return, events have come."""
    stream = device.stream("forward")
    raw(device)[1].fill(9)

    def work() -> None:
        device.copy_pages(device.current(), UNIT, np.array([1]), np.array([2]))
        assert (raw(device)[2] == 9).all()
        device.synchronize(device.record(device.current()))

    device.run(stream, work, (), ())
    device.synchronize(device.record(stream))


def test_streams_and_events_of_others_are_refused(device: CpuDevice) -> None:
    """Named, so that nothing runs without an order."""
    other = CpuDevice()
    with pytest.raises(InvariantError, match=r"device\.stream_of_its_own"):
        device.record(other.stream("memory"))
    with pytest.raises(InvariantError, match=r"device\.stream_of_its_own"):
        device.run(other.current(), fails, (), ())

    class Foreign:
        def done(self) -> bool:
            return True

    with pytest.raises(InvariantError, match=r"device\.event_of_its_own"):
        device.wait(device.stream("memory"), Foreign())
    other.close()


def test_many_streams_pass_a_page_along(device: CpuDevice) -> None:
    """Thousands of copies over four streams, each behind the event of the one before: no link of the chain is lost."""
    streams = [device.stream(f"link {number}") for number in range(4)]
    raw(device)[0].fill(5)
    event = device.record(streams[0])
    for link in range(2000):
        stream = streams[link % 4]
        device.wait(stream, event)
        source, target = link % 16, (link + 1) % 16
        device.copy_pages(stream, UNIT, np.array([source]), np.array([target]))
        device.zero_pages(stream, UNIT, np.array([source]))
        event = device.record(stream)
    device.synchronize(event)
    assert (raw(device)[2000 % 16] == 5).all()
    assert np.count_nonzero(raw(device)) == UNIT
