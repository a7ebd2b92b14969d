"""What a backend promises of order: streams, events, and mirrors that are written in their turn."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kvarena.plugins.conformance.base import Conformance, needs
from kvarena.plugins.conformance.device_bytes import array, near, settle
from kvarena.plugins.conformance.pauses import pause
from kvarena.terms.ports import Device, Lookup, Stream, TableMirror

FORWARD, OTHER = "forward", "engine"
PIECES = 12
ROUNDS = 3


class StreamPromises(Conformance):
    """Order: what is queued on a stream, what waits for another, and what the caller waits for."""

    def test_gives_streams_by_name(self, device: Device) -> None:
        """``stream`` gives one of that name; where the device has none, the caller's own."""
        stream = device.stream(FORWARD)
        if not device.has_streams and stream is not device.current():
            self._fail(device, f"it has no streams, and stream({FORWARD!r}) is not the caller's own")
        if device.has_streams and stream.name != FORWARD:
            self._fail(device, f"stream({FORWARD!r}) has the name {stream.name!r}")

    def test_does_work_once_and_in_order(self, device: Device) -> None:
        """Work that ``run`` puts on a stream is done once, in the order of the calls."""
        done: list[int] = []
        stream = device.stream(FORWARD)
        device.run(stream, pause, (), ())
        for number in range(PIECES):
            device.run(stream, partial(done.append, number), (), ())
        settle(device, FORWARD)
        if done != list(range(PIECES)):
            self._fail(device, f"{PIECES} pieces of work were put on a stream, and were done in the order {done}")

    @needs("streams")
    def test_a_wait_orders_two_streams(self, device: Device) -> None:
        """What a stream is given after ``wait`` begins after the event, and after all that was before it."""
        for _ in range(ROUNDS):
            done: list[str] = []
            first, second = device.stream(FORWARD), device.stream(OTHER)
            device.run(first, pause, (), ())
            device.run(first, partial(done.append, "before"), (), ())
            device.wait(second, device.record(first))
            device.run(second, partial(done.append, "behind"), (), ())
            settle(device, OTHER, FORWARD)
            if done != ["before", "behind"]:
                self._fail(device, f"a stream waits for an event of another, and work was done in the order {done}")

    @needs("streams")
    def test_an_event_comes_after_its_work(self, device: Device) -> None:
        """An event is not ``done`` before all work that was on the stream when it was recorded has ended."""
        done: list[int] = []
        stream = device.stream(FORWARD)
        device.run(stream, pause, (), ())
        device.run(stream, partial(done.append, 1), (), ())
        event = device.record(stream)
        if event.done() and not done:
            self._fail(device, "an event is done, and the work before it has not ended")
        device.synchronize(event)

    @needs("streams")
    def test_synchronize_waits_for_the_event(self, device: Device) -> None:
        """When ``synchronize`` returns, the work before the event has ended, and the event is ``done``."""
        done: list[int] = []
        stream = device.stream(FORWARD)
        device.run(stream, pause, (), ())
        device.run(stream, partial(done.append, 1), (), ())
        event = device.record(stream)
        device.synchronize(event)
        if not done:
            self._fail(device, "synchronize returned, and the work before the event has not ended")
        if not event.done():
            self._fail(device, "synchronize returned, and the event is not done")

    @needs("streams")
    def test_events_of_a_stream_come_in_order(self, device: Device) -> None:
        """An event that is ``done`` was preceded by all that were recorded on the stream before it."""
        stream = device.stream(FORWARD)
        events = []
        for _ in range(4):
            device.run(stream, pause, (), ())
            events.append(device.record(stream))
        for _ in range(PIECES):
            pause()
            come = [event.done() for event in reversed(events)]  # the newest is asked first
            if come != sorted(come):
                self._fail(device, f"of {len(events)} events of a stream, the newest first, {come} are done")
            if all(come):
                break
        device.synchronize(events[-1])
        come = [event.done() for event in events]
        if not all(come):
            self._fail(device, f"the newest event of a stream has come, and of all, the oldest first, {come} are done")


class MirrorPromises(Conformance):
    """Mirrors: host integers on the device, written by one packed update after another."""

    def test_a_mirror_is_zero_and_written_in_order(self, device: Device) -> None:
        """A mirror is all 0; of updates that name one place the last one counts, whichever slots they went through."""
        stream, mirror = device.stream(FORWARD), device.mirror(12, 3, 4)
        fresh = seen(device, stream, mirror, np.arange(12))
        if mirror.size != 12 or fresh.any():
            self._fail(device, f"a new mirror of 12 integers has {mirror.size}: {fresh.tolist()}")
        mirror.apply(stream, 0, array([1, 11]), array([-(2**31), 2**31 - 1]))
        mirror.apply(stream, 2, array([11, 0, 3, 4]), array([7, 8, 9, 10]))
        mirror.apply(stream, 1, array([]), array([]))
        found = seen(device, stream, mirror, np.array([[0, 1, 2], [3, 4, 11]]))
        if found.tolist() != [[8, -(2**31), 0], [9, 10, 7]] or found.dtype != np.int64:
            self._fail(device, f"places [[0, 1, 2], [3, 4, 11]] of a mirror read {found.dtype} {found.tolist()}")

    def test_a_mirrors_update_is_read_when_it_is_given(self, device: Device) -> None:
        """What ``apply`` is given may be changed at once; work that is queued before it still reads what was there."""
        stream, mirror = device.stream(FORWARD), device.mirror(4, 2, 4)
        positions, values, found = array([1, 2]), array([10, 20]), list[Any]()
        everything = np.arange(4)
        device.run(stream, pause, (), ())
        device.run(stream, lambda: found.append(mirror.read(everything).tolist()), (), ())
        mirror.apply(stream, 0, positions, values)
        positions[:], values[:] = 0, 99
        device.run(stream, lambda: found.append(mirror.read(everything).tolist()), (), ())
        settle(device, FORWARD)
        if found != [[0, 0, 0, 0], [0, 10, 20, 0]]:
            self._fail(device, f"before and after an update of places 1 and 2 to 10 and 20 a mirror reads {found}")

    @needs("tables")
    def test_tables_are_what_reading_would_give(self, device: Device) -> None:
        """``translate`` fills each table with what reading the mirror place by place gives, unbound ids included."""
        mirror, stream = device.mirror(64, 1, 64), device.stream(FORWARD)
        if not isinstance(mirror, TableMirror):
            self._fail(device, 'its mirrors fill no tables; write declines = ("tables",), or give them "tables"')
        values = np.random.default_rng(9).permutation(64)
        batch_at, rows_at, map_at, unbound_at = 0, 4, 20, 63
        values[batch_at:rows_at] = [2, 0, 3, 1]
        values[rows_at:map_at] = np.random.default_rng(10).integers(-1, 12, 16)
        mirror.apply(stream, 0, np.arange(64), values)
        lookups = (Lookup(4, rows_at, 4, map_at, unbound_at), Lookup(3, rows_at, 4, map_at + 12, unbound_at))
        tables = mirror.tables(4, batch_at, lookups)
        device.run(stream, lambda: tables.translate(4, 4), (), ())
        settle(device, FORWARD)
        for lookup, table in zip(lookups, tables.arrays, strict=True):
            expected = expected_table(values, lookup, batch_at)
            if not np.array_equal(near(table)[:, : lookup.width], expected):
                self._fail(device, f"a table reads {near(table).tolist()}, and place by place {expected.tolist()}")


def seen(device: Device, stream: Stream, mirror: Any, positions: Any) -> Any:
    """What work on the stream reads of a mirror."""
    found: list[Any] = []
    work: Callable[[], None] = lambda: found.append(mirror.read(positions))  # noqa: E731
    device.run(stream, work, (), ())
    settle(device, FORWARD)
    return found[0]


def expected_table(values: Any, lookup: Lookup, batch_at: int) -> Any:
    """A table of four rows, place by place."""
    table = np.empty((4, lookup.width), dtype=np.int64)
    for at in range(4):
        start = lookup.rows_at + int(values[batch_at + at]) * lookup.row_entries
        for column, place in enumerate(values[start : start + lookup.width].tolist()):
            table[at, column] = values[lookup.map_at + place] if place >= 0 else values[lookup.unbound_at]
    return table
