"""The simulated device: bytes move in every order that may be, and every broken promise is found, whichever it was."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest
from simulations import TIMINGS, UNIT, at, checks, device_of, read, write

from kvarena.backends.simulated import SimulatedDevice
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Device, FieldView, Touch

# -- streams, and what lands when


def test_it_is_a_device_with_settings() -> None:
    """The port is whole; a timing that nobody knows is refused."""
    device = SimulatedDevice()
    assert isinstance(device, Device)
    assert (device.holds_bytes, device.has_streams) == (True, True)
    with pytest.raises(ValueError, match="'timing' must be in"):
        SimulatedDevice(timing="never")


def test_streams_never_run_by_themselves() -> None:
    """Queued work lands when time is turned, or when the host waits for it; not before."""
    device = device_of(timing="late")
    stream = device.stream("forward")
    write(device, stream, 1, 7)
    event = device.record(stream)
    assert device.turn() == 0
    assert not event.done()
    assert not device.host_bytes(UNIT, 1).any()
    device.synchronize(event)
    assert event.done()
    assert device.host_bytes(UNIT, 1).all()


def test_work_on_the_callers_own_stream_is_done_when_the_call_returns() -> None:
    """With all that it was made to wait for, and nothing else."""
    device = device_of(timing="late")
    memory, other = device.stream("memory"), device.stream("other")
    write(device, memory, 1, 7)
    write(device, other, 2, 8)
    device.wait(device.current(), device.record(memory))
    device.copy_pages(device.current(), UNIT, at(1), at(3))
    assert (device.host_bytes(UNIT, 3) == 7).all()
    assert not device.host_bytes(UNIT, 2).any()
    write(device, memory, 3, 9)  # the host has gone on after its own work
    assert not device.violations


def test_copies_zeroes_saves_and_loads_move_bytes() -> None:
    """Whole units, as they are when the work lands; the lists as they were at the call."""
    device = device_of()
    stream = device.stream("copy")
    host = device.host_memory(UNIT, 4)
    pages = at(1)
    write(device, stream, 1, 5)
    device.copy_pages(stream, UNIT, pages, at(2))
    device.save(stream, Touch(UNIT, pages, "full"), host, at(3))
    device.zero_pages(stream, UNIT, pages)
    device.load(stream, host, at(3), Touch(UNIT, at(7), "full"))
    pages[:] = 9
    assert device.drain() == 5
    assert [int(device.host_bytes(UNIT, page).max()) for page in (1, 2, 7, 9)] == [0, 5, 5, 0]
    assert (host[3] == 5).all()
    assert not host[:3].any()
    assert not device.violations


def test_each_timing_lands_its_own_share() -> None:
    """Early all, late and manual nothing, random some, in every share and each by its seed alike."""

    def landed(timing: str, seed: int) -> int:
        device = device_of(timing=timing, seed=seed)
        for page in range(6):
            write(device, device.stream("a"), page, 1)
        return device.turn()

    assert [landed(timing, 0) for timing in ("early", "late", "manual")] == [6, 0, 0]
    shares = [landed("random", seed) for seed in range(60)]
    assert set(shares) == set(range(7))
    assert shares == [landed("random", seed) for seed in range(60)]


def test_a_turn_has_a_limit() -> None:
    """At most so many pieces land, the oldest first."""
    device = device_of(timing="early")
    for page in (1, 2, 3):
        write(device, device.stream("a"), page, 1)
    assert device.turn(limit=2) == 2
    assert not device.host_bytes(UNIT, 3).any()


@pytest.mark.parametrize("timing", TIMINGS)
def test_the_host_waits_for_what_it_needs_and_no_more(timing: str) -> None:
    """Through the waits of other streams, however deep."""
    device = device_of(timing=timing)
    a, b, c = (device.stream(name) for name in "abc")
    write(device, a, 1, 1)
    device.wait(b, device.record(a))
    write(device, a, 4, 1)
    write(device, b, 2, 1)
    write(device, c, 3, 1)
    device.synchronize(device.record(b))
    assert [bool(device.host_bytes(UNIT, page).any()) for page in (1, 2, 3, 4)] == [True, True, False, False]


@pytest.mark.req("HAR-1")
def test_work_lands_in_every_order_that_may_be() -> None:
    """Three streams with one wait: the orders of the random adversary are exactly the ones that the waits allow."""

    def program(seed: int) -> tuple[str, ...]:
        device, landed = device_of(timing="random", seed=seed), []
        a, b, c = (device.stream(name) for name in "abc")
        device.run(a, lambda: landed.append("a1"), [], [])
        first = device.record(a)
        device.run(a, lambda: landed.append("a2"), [], [])
        device.wait(b, first)
        device.run(b, lambda: landed.append("b1"), [], [])
        device.run(c, lambda: landed.append("c1"), [], [])
        device.run(c, lambda: landed.append("c2"), [], [])
        device.drain()
        return tuple(landed)

    before = [("a1", "a2"), ("a1", "b1"), ("c1", "c2")]
    orders = permutations(("a1", "a2", "b1", "c1", "c2"))
    allowed = {order for order in orders if all(order.index(x) < order.index(y) for x, y in before)}
    assert {program(seed) for seed in range(600)} == allowed


@pytest.mark.req("HAR-1")
def test_every_order_can_be_had_by_hand() -> None:
    """All ways through ``ready`` and ``land`` of a small program: each order that the waits allow, once."""
    orders: set[tuple[str, ...]] = set()

    def play(choices: list[int]) -> None:
        device = device_of(timing="manual")
        landed: list[str] = []
        streams = [device.stream(name) for name in "ab"]
        for name, stream in zip("ab", streams, strict=True):
            for step in (1, 2):
                device.run(stream, partial(landed.append, f"{name}{step}"), [], [])
        device.wait(streams[1], device.record(streams[0]))
        device.run(streams[1], lambda: landed.append("b3"), [], [])
        for choice in choices:
            device.land(device.ready()[choice])
        ready = device.ready()
        if not ready:
            assert tuple(landed) not in orders
            orders.add(tuple(landed))
        for choice in range(len(ready)):
            play([*choices, choice])

    play([])
    assert len(orders) == 6
    assert all(order[-1] == "b3" for order in orders)


def test_what_is_not_ready_cannot_be_landed() -> None:
    """By name, with what it waits for; nor can a piece land twice."""
    device = device_of()
    a, b = device.stream("a"), device.stream("b")
    device.zero_pages(a, UNIT, at(1, 2, 3))
    first = device.ready()[0]
    device.wait(b, device.record(a))
    device.zero_pages(b, UNIT, at(1))
    second = b.works[0]
    with pytest.raises(InvariantError, match=r"work_is_not_ready.*zeroing of 3 pages of 128 B on stream a"):
        device.land(second)
    device.land(first)
    device.land(second)
    with pytest.raises(InvariantError, match=r"work_is_not_ready.*has_landed=True"):
        device.land(second)


def test_landing_an_event_lands_what_it_needs_and_tells_the_host_nothing() -> None:
    """The work is over, and the host has not waited for it: what it queues next is not ordered behind."""
    device = device_of()
    a, b = device.stream("a"), device.stream("b")
    write(device, a, 1, 1)
    device.land(device.record(a))
    assert device.host_bytes(UNIT, 1).all()
    write(device, b, 1, 2)
    assert checks(device) == ["unordered_overlap"]


def test_something_that_can_never_come_is_named() -> None:
    """Nothing is ready while something is needed: the works that wait are in the message."""
    device = device_of(timing="early")
    a, b = device.stream("a"), device.stream("b")
    device.zero_pages(a, UNIT, at(1))
    event = device.record(a)
    event.clock[:] = [0, 5]
    device.wait(b, event)
    device.zero_pages(b, UNIT, at(1))
    with pytest.raises(InvariantError, match=r"device\.deadlock.*zeroing of 1 page of 128 B on stream b"):
        device.drain()
    with pytest.raises(InvariantError, match=r"device\.deadlock"):
        device.synchronize(device.record(b))


def test_work_queues_and_waits_for_nothing() -> None:
    """What runs on a device does not call the device; a work that fails has landed, and its error is the caller's."""
    device = device_of()
    a, b = device.stream("a"), device.stream("b")
    device.zero_pages(b, UNIT, at(2))
    device.run(a, lambda: device.zero_pages(a, UNIT, at(1)), [], [])
    with pytest.raises(InvariantError, match=r"call_inside_work.*run of <lambda> on stream a"):
        device.synchronize(device.record(a))
    device.run(a, lambda: device.synchronize(device.record(b)), [], [])
    with pytest.raises(InvariantError, match="call_inside_work"):
        device.synchronize(device.record(a))
    assert device.record(a).done()
    assert device.drain() == 1


# -- errors


def test_streams_and_events_of_another_device_are_refused() -> None:
    """Each rank has its own."""
    mine, other = device_of(), device_of()
    stream, event = other.stream("a"), other.record(other.stream("a"))
    with pytest.raises(InvariantError, match=r"device\.stream_of_another"):
        mine.zero_pages(stream, UNIT, at(1))
    with pytest.raises(InvariantError, match=r"device\.event_of_another"):
        mine.wait(mine.stream("a"), event)
    with pytest.raises(InvariantError, match=r"device\.event_of_another"):
        mine.synchronize(event)
    with pytest.raises(InvariantError, match=r"device\.host_memory_of_another"):
        mine.save(mine.stream("a"), Touch(UNIT, at(1), "full"), other.host_memory(UNIT, 1), at(0))


def test_lists_that_cannot_be_are_refused_and_nothing_is_queued() -> None:
    """Pages off the grid, pairs that are none, a target that is a later source, a unit that is no whole grain."""
    device = device_of(8)
    stream, host = device.stream("a"), device.host_memory(UNIT, 2)
    for pages in (at(8), at(-1), at(0, 99)):
        with pytest.raises(InvariantError, match=r"device\.pages_inside"):
            device.zero_pages(stream, UNIT, pages)
        with pytest.raises(InvariantError, match=r"device\.pages_inside"):
            device.run(stream, lambda: None, [Touch(UNIT, pages, "full")], [])
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        device.copy_pages(stream, UNIT, at(1), at(2, 3))
    with pytest.raises(InvariantError, match=r"target_is_later_source: page=2"):
        device.copy_pages(stream, UNIT, at(1, 2), at(2, 3))
    with pytest.raises(InvariantError, match=r"grain_divides_unit: unit_bytes=96 grain_bytes=64"):
        device.zero_pages(stream, 96, at(0))
    with pytest.raises(InvariantError, match=r"device\.places_inside"):
        device.save(stream, Touch(UNIT, at(1), "full"), host, at(2))
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        device.load(stream, host, at(0, 1), Touch(UNIT, at(1), "full"))
    with pytest.raises(InvariantError, match=r"device\.host_memory_unit"):
        device.load(stream, host, at(0), Touch(64, at(1), "full"))
    assert not device.ready()
    device.copy_pages(stream, UNIT, at(2, 1), at(3, 2))  # a target may be an earlier source
    device.copy_pages(stream, 0, at(2), at(3))
    device.zero_pages(stream, UNIT, at())
    assert device.drain() == 1


def test_views_are_numpys() -> None:
    """Reads and writes go to the arena, odd offsets too; what numpy does not have is refused with the cure."""
    device = device_of(4)
    view = device.view(FieldView("float32", (2,), 3, 4, UNIT, 4))
    assert view.shape == (4, 3, 2)
    view[2, 1] = 1.5
    assert device.host_bytes(UNIT, 2)[12:20].view(np.float32).tolist() == [1.5, 1.5]
    assert device.view(FieldView("int8", (0,), 3, 0, UNIT, 4)).size == 0
    assert device.view(FieldView("int32", (), 1, 3, UNIT, 4)).shape == (4, 1)
    with pytest.raises(KvarenaError, match="numpy has no bfloat16"):
        device.view(FieldView("bfloat16", (2,), 3, 4, UNIT, 4))
    with pytest.raises(InvariantError, match=r"device\.view_inside"):
        device.view(FieldView("int8", (2,), 3, 0, UNIT, 5))


def test_the_top_moves_when_nothing_is_under_way() -> None:
    """What was dropped comes back as zeros of no kind; a busy device, and one that would grow too far, say so."""
    device = device_of(8)
    stream = device.stream("a")
    write(device, stream, 6, 3, "state")
    with pytest.raises(InvariantError, match=r"resize_when_idle.*run of fill_page on stream a"):
        device.resize(4 * UNIT)
    device.synchronize(device.record(stream))
    device.resize(4 * UNIT)
    with pytest.raises(InvariantError, match=r"device\.pages_inside"):
        device.zero_pages(stream, UNIT, at(6))
    with pytest.raises(KvarenaError, match="reserve the largest size first"):
        device.resize(9 * UNIT)
    device.resize(8 * UNIT)
    seen: list[int] = []
    read(device, stream, 6, seen)
    device.drain()
    assert seen == [0]
    assert not device.violations


def test_the_top_moves_only_behind_what_the_host_has_waited_for() -> None:
    """Work that has landed by chance is not behind it."""
    device = device_of(8)
    write(device, device.stream("a"), 6, 3)
    device.drain()
    device.resize(4 * UNIT)
    assert checks(device) == ["unordered_overlap"]


def test_a_device_is_reserved_once_and_closed() -> None:
    """After the close there are no bytes; work that was queued has landed."""
    device, landed = device_of(), []
    with pytest.raises(InvariantError, match=r"device\.reserved_once"):
        device.reserve(1)
    device.run(device.stream("a"), lambda: landed.append(1), [], [])
    device.close()
    assert landed
    with pytest.raises(InvariantError, match=r"device\.reserved"):
        device.zero_pages(device.stream("a"), UNIT, at(1))
