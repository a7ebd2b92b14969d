"""What the simulated device judges: each planted fault is found in words in every timing, its mended twin is silent."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from simulations import TIMINGS, UNIT, at, checks, device_of, fill, read, write

from kvarena.backends.simulated import SimulatedDevice
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import Mirror, Stream, Touch

Act = Callable[[SimulatedDevice, Stream, int], None]


def _write(device: SimulatedDevice, stream: Stream, page: int) -> None:
    write(device, stream, page, 1)


def _read(device: SimulatedDevice, stream: Stream, page: int) -> None:
    read(device, stream, page, [])


def _zero(device: SimulatedDevice, stream: Stream, page: int) -> None:
    device.zero_pages(stream, UNIT, at(page))


def _copy_from(device: SimulatedDevice, stream: Stream, page: int) -> None:
    device.copy_pages(stream, UNIT, at(page), at(13 if stream.name == "a" else 14))


def _copy_to(device: SimulatedDevice, stream: Stream, page: int) -> None:
    device.copy_pages(stream, UNIT, at(15), at(page))


def _save(device: SimulatedDevice, stream: Stream, page: int) -> None:
    device.save(stream, Touch(UNIT, at(page), "full"), device.host_memory(UNIT, 1), at(0))


def _load(device: SimulatedDevice, stream: Stream, page: int) -> None:
    device.load(stream, device.host_memory(UNIT, 1), at(0), Touch(UNIT, at(page), "full"))


def _look(mirror: Mirror) -> None:
    mirror.read(at(1))


WRITERS: tuple[Act, ...] = (_write, _zero, _copy_to, _load)
READERS: tuple[Act, ...] = (_read, _copy_from, _save)


@pytest.mark.req("HAR-1")
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("second", [*WRITERS, *READERS])
@pytest.mark.parametrize("first", [*WRITERS, *READERS])
def test_two_unordered_accesses_are_found_if_one_writes(first: Act, second: Act, timing: str) -> None:
    """Every pair of kinds of work, whether the first has landed or not; with a wait between them it is silent."""
    for is_ordered in (False, True):
        device = device_of(timing=timing)
        a, b = device.stream("a"), device.stream("b")
        first(device, a, 3)
        device.turn()
        if is_ordered:
            device.wait(b, device.record(a))
        second(device, b, 3)
        device.drain()
        is_race = not is_ordered and (first in WRITERS or second in WRITERS)
        assert checks(device) == ["unordered_overlap"] * is_race


@pytest.mark.req("HAR-1")
def test_a_race_is_told_in_words() -> None:
    """Which check, who, which bytes, against whom."""
    device = device_of()
    write(device, device.stream("forward"), 5, 1)
    device.copy_pages(device.stream("memory"), UNIT, at(7, 8, 9), at(3, 4, 5))
    (violation,) = device.violations
    assert violation.check == "unordered_overlap"
    assert violation.actor == "copy of 3 pages of 128 B on stream memory"
    assert violation.other == "run of fill_page on stream forward"
    assert (violation.unit_bytes, violation.page) == (UNIT, 5)
    assert str(violation) == (
        "unordered_overlap: copy of 3 pages of 128 B on stream memory writes bytes 640..703 of the arena "
        "(page 5 of 128 B), which run of fill_page on stream forward writes, and neither comes before the other"
    )
    with pytest.raises(InvariantError, match="unordered_overlap: copy of 3 pages"):
        device.check()


def test_grids_of_different_units_share_the_bytes() -> None:
    """A unit of 192 B is judged against one of 128 B where they overlap, by 64 B."""
    device = device_of(12)
    device.zero_pages(device.stream("a"), 192, at(1))  # bytes 192..383
    device.zero_pages(device.stream("b"), UNIT, at(0, 3, 4))
    device.check()
    device.zero_pages(device.stream("c"), UNIT, at(1))
    assert "bytes 192..255 of the arena (page 1 of 128 B)" in device.violations[0].words


def test_a_lost_write_is_really_lost() -> None:
    """The bytes follow the order in which the work landed, so a check of what was written fails with some timing."""
    ends = set()
    for seed in range(20):
        device = device_of(seed=seed)
        write(device, device.stream("a"), 3, 1)
        write(device, device.stream("b"), 3, 2)
        device.drain()
        ends.add(int(device.host_bytes(UNIT, 3)[0]))
    assert ends == {1, 2}


def test_what_the_host_has_waited_for_comes_before_what_it_queues() -> None:
    """By ``synchronize``, by an event seen done, and by its own work; not by an event that it did not look at."""
    for seen in ("synchronize", "done", "own", "nothing"):
        device = device_of(timing="early")
        a, b = device.stream("a"), device.stream("b")
        write(device, a, 3, 1)
        event = device.record(a)
        device.turn()
        if seen == "synchronize":
            device.synchronize(event)
        elif seen == "done":
            assert event.done()
        elif seen == "own":
            device.wait(device.current(), event)
            device.zero_pages(device.current(), UNIT, at(9))
        write(device, b, 3, 2)
        assert checks(device) == ["unordered_overlap"] * (seen == "nothing"), seen


def test_an_event_covers_what_its_stream_was_made_to_wait_for() -> None:
    """Also where no work followed the wait; but not what it is made to wait for later."""
    for is_early in (True, False):
        device = device_of()
        a, b, c = (device.stream(name) for name in "abc")
        write(device, a, 3, 1)
        event = device.record(b)
        device.wait(b, device.record(a))
        device.wait(c, event if is_early else device.record(b))
        write(device, c, 3, 2)
        assert checks(device) == ["unordered_overlap"] * is_early


# -- engines


@pytest.mark.req("HAR-1")
def test_an_engine_begins_behind_its_event_and_knows_nothing_else() -> None:
    """What the host waits for after it made the engine is not before the engine's work: nobody tells it."""
    for order in ("after", "told", "late", "nothing"):
        device = device_of()
        forward = device.stream("forward")
        write(device, forward, 3, 1)
        event = device.record(forward)
        if order == "told":
            device.synchronize(event)
        engine = device.engine("t1", event if order == "after" else None)
        if order == "late":
            device.synchronize(event)
        write(device, engine, 3, 2)
        assert checks(device) == ["unordered_overlap"] * (order in ("late", "nothing")), order
        if device.violations:
            assert device.violations[0].actor == "run of fill_page by engine t1"
    assert device.engine("engine t2").label == "engine t2"


def test_the_host_races_with_an_engine_too() -> None:
    """A read by the host, and an engine that was not told to begin after it."""
    device = device_of()
    engine = device.engine("t1")
    device.host_read(UNIT, at(3))
    write(device, engine, 3, 2)
    (violation,) = device.violations
    assert violation.other == "read of 1 page of 128 B by the host"


def test_engines_that_ended_before_others_began_share_an_index() -> None:
    """A thousand transfers, one after another, cost a handful of actors, and none is taken for another."""
    device = device_of(64)
    forward = device.stream("forward")
    for number in range(1000):
        engine = device.engine(f"t{number}", device.record(forward))
        write(device, engine, number % 60, 1)
        device.wait(forward, device.record(engine))
        device.synchronize(device.record(engine))
        write(device, forward, number % 60, 2)
    device.check()
    assert device.order.width == 8
    assert engine.actor < 4


def test_an_index_is_shared_only_where_no_race_can_hide() -> None:
    """An engine that was made before another ended gets its own; one whose index was taken gets a new one."""
    device = device_of()
    first, early = device.engine("first"), device.engine("early")
    write(device, first, 3, 1)
    device.synchronize(device.record(first))
    later = device.engine("later")
    write(device, later, 4, 1)
    assert later.actor == first.actor
    write(device, early, 5, 1)
    assert early.actor != first.actor
    device.check()
    write(device, first, 4, 2)
    assert first.actor not in (later.actor, early.actor)
    write(device, early, 3, 2)
    assert len(device.violations) == 2
    assert device.violations[0].actor == "run of fill_page by engine first"
    assert device.violations[0].other == "run of fill_page by engine later"
    assert device.violations[1].other == "run of fill_page by engine first"


def test_there_may_be_many_actors() -> None:
    """Shadows grow with them, and keep what they knew."""
    device = device_of(64)
    for number in range(40):
        write(device, device.engine(f"t{number}"), number, 1)
    device.check()
    for number in range(40):
        stream = device.stream(f"s{number}")
        if number % 2:
            write(device, stream, number, 2)
        else:
            read(device, stream, number, [])
    assert len(device.violations) == 40
    assert [violation.other[-3:].strip() for violation in device.violations] == [f"t{n}" for n in range(40)]


# -- data of a kind


@pytest.mark.req("HAR-1")
def test_bytes_of_another_kind_never_reach_a_reader() -> None:
    """A page written as state, freed, and read as tokens; zeroed or written anew, it is silent."""
    for cure in ("none", "zero", "write", "copied", "saved"):
        device = device_of()
        stream, host = device.stream("forward"), device.host_memory(UNIT, 1)
        write(device, stream, 3, 1, "state")
        page = 3
        if cure == "zero":
            device.zero_pages(stream, UNIT, at(3))
        elif cure == "write":
            write(device, stream, 3, 1, "full")
        elif cure == "copied":
            device.copy_pages(stream, UNIT, at(3), at(4))
            page = 4
        if cure == "saved":
            device.save(stream, Touch(UNIT, at(3), "state"), host, at(0))
            device.load(stream, host, at(0), Touch(UNIT, at(3), "full"))
        else:
            read(device, stream, page, [])
        assert checks(device) == ["cross_dtype_bytes"] * (cure in ("none", "copied", "saved")), cure
        if cure == "copied":
            assert device.violations[0].words == (
                "run of <lambda> on stream forward reads bytes 512..575 of the arena (page 4 of 128 B) as 'full', "
                "last written as 'state' by copy of 1 page of 128 B on stream forward"
            )


def test_a_work_reads_before_it_writes() -> None:
    """A forward that writes one row of a page and attends to all of it sees what the page held before."""
    device = device_of()
    stream, page = device.stream("forward"), [Touch(UNIT, at(3), "full")]
    write(device, stream, 3, 1, "state")
    device.run(stream, fill(device, 3, 2), page, page)
    assert checks(device) == ["cross_dtype_bytes"]


# -- the host that waits


@pytest.mark.req("HAR-1")
@pytest.mark.parametrize("how", ["synchronize", "host_read"])
def test_the_host_reads_before_the_allocators_stream_waits(how: str) -> None:
    """Unfinished work that the host waits for, after a wait on unfinished work in the same operation."""
    for case in ("wait first", "read first", "landed", "next operation", "other stream", "landed wait"):
        device = device_of(timing="late")
        memory, forward = device.stream("memory"), device.stream("forward")
        write(device, forward, 3, 1)
        event = device.record(forward)
        device.operation()

        def look(device: SimulatedDevice = device, event: object = event) -> None:
            if how == "synchronize":
                device.synchronize(event)  # type: ignore[arg-type]
            else:
                device.host_read(UNIT, at(3))

        if case == "read first":
            look()
        if case == "landed wait":
            device.drain()
        device.wait(forward if case == "other stream" else memory, event)
        if case == "landed wait":
            write(device, forward, 3, 1)
        if case == "landed":
            device.drain()
        if case == "next operation":
            device.operation()
        if case != "read first":
            look()
        assert checks(device) == ["host_read_after_wait"] * (case == "wait first"), case
        if device.violations:
            assert "stream memory waits for run of fill_page on stream forward" in device.violations[0].words


def test_a_read_by_the_host_waits_for_the_last_writers_alone() -> None:
    """It sees their bytes, and what is queued later comes after it."""
    device = device_of(timing="late")
    a, b = device.stream("a"), device.stream("b")
    write(device, a, 3, 7)
    write(device, b, 4, 8)
    write(device, a, 5, 9)
    seen = device.host_read(UNIT, at(3))
    assert seen.shape == (1, UNIT)
    assert (seen == 7).all()
    assert not device.host_bytes(UNIT, 4).any()
    assert not device.host_bytes(UNIT, 5).any()
    write(device, b, 3, 1)
    device.check()


# -- mirrors and staging


@pytest.mark.parametrize("timing", TIMINGS)
def test_a_mirror_is_updated_in_the_order_of_its_stream(timing: str) -> None:
    """Through a ring of slots; work on the stream reads what was applied before it."""
    device = device_of(timing=timing)
    stream, mirror, seen = device.stream("forward"), device.mirror(8, 2, 4), []
    mirror.apply(stream, 0, at(1, 2), at(10, 20))
    device.run(stream, lambda: seen.append(mirror.read(at(1, 2, 3).reshape(3, 1)).tolist()), [], [])
    mirror.apply(stream, 1, at(2), at(21))
    assert not mirror.entries.any()
    device.synchronize(device.record(stream))
    assert seen == [[[10], [20], [0]]]
    assert mirror.read(at(1, 2)).tolist() == [10, 21]
    assert mirror.read(at(1)).dtype == np.int64
    device.check()


@pytest.mark.req("HAR-1")
def test_staging_in_flight_is_not_filled_again() -> None:
    """The slot is overwritten really, so that the first update brings the second's values; a host that waited may."""
    for is_waited in (False, True):
        device = device_of(timing="late")
        stream, mirror = device.stream("forward"), device.mirror(8, 2, 4)
        mirror.apply(stream, 0, at(1, 2), at(10, 20))
        if is_waited:
            device.synchronize(device.record(stream))
        mirror.apply(stream, 0, at(3), at(30))
        device.drain()
        assert checks(device) == ["staging_overwritten"] * (not is_waited)
        assert mirror.entries[:4].tolist() == ([0, 10, 20, 30] if is_waited else [0, 0, 20, 30])
        if device.violations:
            assert "fills staging slot 0" in device.violations[0].words


def test_staging_that_is_free_by_chance_is_a_fault_too() -> None:
    """The update has landed, and the host has not waited for it."""
    device = device_of(timing="early")
    stream, mirror = device.stream("forward"), device.mirror(8, 2, 4)
    mirror.apply(stream, 0, at(1), at(10))
    device.turn()
    mirror.apply(stream, 0, at(2), at(20))
    assert checks(device) == ["staging_overwritten"]


@pytest.mark.req("HAR-1")
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("is_update_first", [False, True])
def test_a_mirror_is_not_read_beside_its_update(timing: str, is_update_first: bool) -> None:
    """On another stream with no order, whichever lands first; behind an event it is silent."""
    for is_ordered in (False, True):
        device = device_of(timing=timing)
        streams, mirror = [device.stream("a"), device.stream("b")], device.mirror(8, 2, 4)
        for stream, is_update in zip(streams, (is_update_first, not is_update_first), strict=True):
            if is_ordered and stream is streams[1]:
                device.wait(stream, device.record(streams[0]))
            if is_update:
                mirror.apply(stream, 0, at(1), at(10))
            else:
                device.run(stream, partial(_look, mirror), [], [])
        device.drain()
        assert checks(device) == ["unordered_overlap"] * (not is_ordered)


def test_the_host_reads_a_mirror_behind_its_updates() -> None:
    """A read outside of work is the host's own."""
    device = device_of(timing="early")
    stream, mirror = device.stream("forward"), device.mirror(8, 2, 4)
    mirror.apply(stream, 0, at(1), at(10))
    device.drain()
    mirror.read(at(1))
    assert "read of a mirror by the host reads a mirror" in device.violations[0].words


def test_updates_that_cannot_be_are_refused() -> None:
    """Too many, off the mirror, twice, unpaired, a slot that is not there: nothing is queued."""
    device = device_of()
    stream, mirror = device.stream("forward"), device.mirror(8, 2, 4)
    for slot, positions, values, name in (
        (0, at(0, 1, 2, 3, 4), at(0, 1, 2, 3, 4), "update_fits_slot"),
        (2, at(0), at(0), "slot"),
        (0, at(8), at(0), "positions_inside"),
        (0, at(-1), at(0), "positions_inside"),
        (0, at(1, 1), at(0, 1), "positions_once"),
        (0, at(1, 2), at(0), "update_pairs"),
        (0, at(1), at(1 << 31), "values_fit"),
    ):
        with pytest.raises(InvariantError, match=rf"mirror\.{name}"):
            mirror.apply(stream, slot, positions, values)
    assert not device.ready()


# -- the host's memory, the log, what a work did not say


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("verbs", [("save", "load"), ("load", "save"), ("save", "save"), ("load", "load")])
def test_places_in_the_hosts_memory_are_judged_too(verbs: tuple[str, str], is_ordered: bool) -> None:
    """A load beside the save that fills its place, and a save beside what still uses the place."""
    device = device_of()
    host = device.host_memory(UNIT, 4)

    def copy(verb: str, stream: Stream, page: int, place: int) -> None:
        if verb == "save":
            device.save(stream, Touch(UNIT, at(page), "full"), host, at(place))
        else:
            device.load(stream, host, at(place), Touch(UNIT, at(page), "full"))

    a, b = device.stream("a"), device.stream("b")
    copy(verbs[0], a, 3, 2)
    copy(verbs[1], b, 4, 1)
    device.check()
    if is_ordered:
        device.wait(b, device.record(a))
    copy(verbs[1], b, 5, 2)
    assert checks(device) == ["unordered_overlap"] * (not is_ordered and "save" in verbs)
    if device.violations:
        assert "bytes 256..383 of the host's memory (page 2 of 128 B)" in device.violations[0].words


def test_every_access_is_logged_on_request() -> None:
    """Actor, kind, read or write, byte range, of arena, host memory and mirror, in the order of the calls."""
    device = device_of()
    a, host, mirror = device.stream("a"), device.host_memory(UNIT, 4), device.mirror(8, 1, 4)
    device.zero_pages(a, UNIT, at(1))
    assert device.findings.log is None
    device.findings.log = []
    device.copy_pages(a, UNIT, at(1), at(3))
    device.save(a, Touch(UNIT, at(3), "full"), host, at(2))
    mirror.apply(a, 0, at(5), at(1))
    device.drain()
    assert [(one.actor, one.kind, one.writes, one.memory, one.start, one.stop) for one in device.findings.log] == [
        ("stream a", "", False, "the arena", 128, 256),
        ("stream a", "", True, "the arena", 384, 512),
        ("stream a", "full", False, "the arena", 384, 512),
        ("stream a", "full", True, "the host's memory", 256, 384),
        ("stream a", "", True, "a mirror", 20, 24),
    ]


def test_writes_that_a_work_did_not_declare_are_found_when_watched() -> None:
    """A judge that is told too little sees too little: with ``watch_writes`` the bytes themselves are compared."""
    for declared in (at(3), at(3, 4)):
        device = SimulatedDevice(timing="early", watch_writes=True)
        device.reserve(16 * UNIT)

        def work(device: SimulatedDevice = device) -> None:
            fill(device, 3, 1)()
            fill(device, 4, 1)()

        device.run(device.stream("a"), work, [], [Touch(UNIT, declared, "full")])
        device.drain()
        assert checks(device) == ["undeclared_write"] * (len(declared) == 1)
