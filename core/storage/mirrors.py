"""The device's copies of id maps and request rows: what kernels read, brought up to date once a launch."""

from collections.abc import Callable
from functools import partial

import attrs
import numpy as np

from kvarena.planning.mirroring import MirrorShape
from kvarena.storage.iteration_ids import Maps
from kvarena.storage.tables import Batch, BatchTables, ReadTables
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.invariants import invariant
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import Event, IntArray, Lookup, TableMirror

Look = Callable[[IntArray], IntArray]


@attrs.define(eq=False)
class Segment:
    """A part of the mirror: where it begins, how many integers it has, what each should be, and which have changed."""

    first: int
    size: int
    look: Look
    changed: list[IntArray]


@attrs.define(eq=False)
class Staging:
    """One slot of the ring: the forward that its last update was applied for, and a place after that update."""

    forward: int = 0
    event: Event | None = None


class Mirrors:
    """One line of integers on the device: a map per sub-pool, then the page ids of each row, then its slots.

    Where tables were opened, the rows of a batch come last.

    An update's life:  1. gathered  what changed since the last launch, each place once; its value is the one of now.
                       2. staged    in the next slot of the ring, which nobody reads any more; a long one takes several.
                       3. applied   on the forwards' stream, before the kernels of the forward that is launched.
    Always, when a launch has applied its update: the mirror reads as the host's maps and rows did then.

    A row has one more beside it, for padding: its ids are all unbound. What is unbound reads as its map's last entry,
    the sink.
    """

    def __init__(self, maps: Maps, shape: MirrorShape) -> None:
        self._maps = maps
        chain, table = maps.chain, maps.table
        self._chain = chain
        self._timeline = chain.ledger.timeline
        self._segments: dict[str, Segment] = {}
        self._table = table
        self._shape = shape
        self._slots_name = chain.plan.slots.name if chain.plan.slots else None
        first = 0
        for name, band in chain.bands.items():
            invariant("mirrors.map_is_as_charged", band.ids.id_count == shape.ids[name], sub_pool=name, shape=shape)
            self._segments[name] = Segment(first, band.ids.id_count + 1, band.ids.pages_of, [])
            first += band.ids.id_count + 1
        width, slots = table.pages_per_row, table.slots.shape[1]
        invariant("mirrors.rows_are_as_charged", len(table) + 1 == shape.rows, rows=len(table), shape=shape)
        self._rows = Segment(first, shape.rows * width, _padded(table.flat), [])
        self._slots = Segment(first + self._rows.size, shape.rows * slots, _padded(table.slots.reshape(-1)), [])
        self._has_tables = False
        self._open(*self._segments.values(), self._rows, self._slots)

    # -- what kernels read

    def pages(self, name: str, rows: IntArray, width: int) -> IntArray:
        """The page tables of these rows, shape (rows, width), as of the launch: for work on the forwards' stream.

        Row ``len(storage.requests)`` is the padding row, which reads the sink.

        Raises:
            KvarenaError: no such sub-pool of tokens.
        """
        self._maps.check_arena()
        segment = self._segments.get(name)
        if segment is None or name == self._slots_name:
            tokens = [known for known in self._segments if known != self._slots_name]
            raise KvarenaError(f"no token sub-pool {name!r}; {nearest(name, tokens)}")
        places = rows[:, None] * self._table.pages_per_row + np.arange(width)
        return self._translated(segment, self._mirror.read(self._rows.first + places))

    def slots(self, rows: IntArray) -> IntArray:
        """The state slots of these rows, shape (rows, slots of one), as of the launch.

        Raises:
            KvarenaError: the model keeps no state.
        """
        self._maps.check_arena()
        if self._slots_name is None:
            raise KvarenaError("the model keeps no state, so no row has a slot")
        count = self._table.slots.shape[1]
        places = rows[:, None] * count + np.arange(count)
        return self._translated(self._segments[self._slots_name], self._mirror.read(self._slots.first + places))

    @property
    def fills_tables(self) -> bool:
        """Whether the device fills tables by itself, in a kernel; else ``tables`` reads them place by place."""
        return isinstance(self._mirror, TableMirror)

    def tables(self, rows: int, width: int | None = None) -> BatchTables:
        """Tables of up to so many rows, ``width`` pages each (a row's whole length by default), which a device fills.

        Called once, before anything is captured: the mirror is made anew, with a place for each row of a batch, and
        the next launch writes all of it. The tables are on top of what sizing charged: rows * width * 4 bytes for each
        token sub-pool.

        Raises:
            KvarenaError: there are tables already, a forward is in flight, or no row or page is asked for.
        """
        self._maps.check_current()
        steps, width = self._chain.ledger.steps, self._table.pages_per_row if width is None else width
        if self._has_tables:
            raise KvarenaError("mirrors.tables: there are tables already; a resize makes mirrors, and tables, anew")
        if steps.launched > steps.processed:
            raise KvarenaError(
                f"mirrors.tables: {steps.launched - steps.processed} forwards are in flight: process them"
            )
        if rows < 1 or not 0 <= width <= self._table.pages_per_row:
            most = self._table.pages_per_row
            raise KvarenaError(
                f"mirrors.tables: {rows} rows of {width} pages; a row has up to {most}, and one is needed"
            )
        names = [name for name in self._segments if name != self._slots_name]
        lookups = [self._lookup(name, self._rows.first, self._table.pages_per_row, width) for name in names]
        if self._slots_name is not None:
            places = self._table.slots.shape[1]
            lookups.append(self._lookup(self._slots_name, self._slots.first, places, places))
        device, batch, batch_at = self._timeline.device, Batch(rows, self._shape.rows - 1), self._size
        self._timeline.wait_on_host(device.record(self._timeline.forward))
        self._open(*self._order, Segment(batch_at, rows, batch.at, batch.changed))
        mirror = self._mirror
        make = mirror.tables if isinstance(mirror, TableMirror) else partial(ReadTables, mirror)
        tables = BatchTables(names, make(rows, batch_at, lookups), batch, width=width, maps=self._maps)
        self._has_tables = True
        return tables

    def _lookup(self, name: str, first: int, entries: int, width: int) -> Lookup:
        """The table of one sub-pool, whose ids stand in rows from ``first`` on."""
        own = self._segments[name]
        return Lookup(width, first, entries, own.first, own.first + own.size - 1)

    # -- updates

    def _open(self, *segments: Segment) -> None:
        """A mirror of these segments, one behind the other, to which the next launch writes all."""
        self._order = segments
        self._size = segments[-1].first + segments[-1].size
        self._bounds = np.array([segment.first for segment in segments[1:]], dtype=np.int64)
        self._ring = [Staging() for _ in range(self._shape.updates)]
        self._next = 0
        self._follows = False
        slots, entries = self._shape.updates, max(1, self._shape.update_entries)
        self._mirror = self._timeline.device.mirror(self._size, slots, entries)

    def update(self, forward: int) -> None:
        """Bring the mirror up to date on the forwards' stream, for the forward that is launched next."""
        positions = self._gather() if self._follows else self._follow()
        entries = self._shape.update_entries
        try:
            for first in range(0, len(positions), max(1, entries)):
                part = positions[first : first + entries]
                self._apply(forward, part, self._values(part))
        except BaseException:  # nobody knows how much of it has come through: the next update writes all
            self._follows = False
            raise

    def _follow(self) -> IntArray:
        """From the first launch on, changes are noted; up to then everything is."""
        for name, band in self._chain.bands.items():
            band.ids.changed = self._segments[name].changed
        self._table.changed, self._table.slots_changed = self._rows.changed, []
        for segment in self._order:
            segment.changed.clear()
        self._follows = True
        return np.arange(self._size)

    def _gather(self) -> IntArray:
        """The places that changed, rising, each once; nothing has changed any more."""
        self._note_slots()
        parts: list[IntArray] = []
        for segment in self._order:
            if segment.changed:
                places = np.concatenate(segment.changed)
                places += segment.first
                parts.append(places)
                segment.changed.clear()
        if not parts:
            return np.empty(0, dtype=np.int64)
        positions = np.concatenate(parts)
        positions.sort()
        if len(positions) > 1:
            distinct = np.empty(len(positions), dtype=np.bool_)
            distinct[0] = True
            np.not_equal(positions[1:], positions[:-1], out=distinct[1:])
            positions = positions[distinct]
        return positions

    def _note_slots(self) -> None:
        """Rows whose slots changed, as places."""
        changed = self._table.slots_changed
        if changed:
            count = self._table.slots.shape[1]
            rows = np.concatenate(changed)
            changed.clear()
            self._slots.changed.append((rows[:, None] * count + np.arange(count)).reshape(-1))

    def _values(self, positions: IntArray) -> IntArray:
        """What should stand at these places, rising, now."""
        values = np.empty(len(positions), dtype=np.int64)
        start = 0
        for segment, stop in zip(self._order, [*positions.searchsorted(self._bounds).tolist(), None], strict=True):
            stop = len(positions) if stop is None else stop
            if stop > start:
                values[start:stop] = segment.look(positions[start:stop] - segment.first)
            start = stop
        return values

    def _apply(self, forward: int, positions: IntArray, values: IntArray) -> None:
        """One part, through the next slot of the ring, once its last update is over."""
        device, steps = self._timeline.device, self._chain.ledger.steps
        slot, self._next = self._next, (self._next + 1) % len(self._ring)
        staging = self._ring[slot]
        if staging.event is not None:
            if not self._timeline.overlaps or staging.forward > steps.processed:
                self._timeline.wait_on_host(staging.event)
            elif self._chain.checks:
                invariant("mirrors.staging_in_use", staging.event.done(), slot=slot, forward=staging.forward)
        self._mirror.apply(self._timeline.forward, slot, positions, values)
        staging.forward, staging.event = forward, device.record(self._timeline.forward)

    def _translated(self, segment: Segment, ids: IntArray) -> IntArray:
        """The pages of ids that stand in rows; the map's last entry for what is unbound."""
        return self._mirror.read(segment.first + np.where(ids == UNBOUND, segment.size - 1, ids))


def _padded(values: IntArray) -> Look:
    """A look-up in these rows; what lies beyond them, the padding row, is unbound."""

    def look(places: IntArray) -> IntArray:
        inside = places < len(values)
        if inside.all():
            return values[places]
        found = np.full(len(places), UNBOUND, dtype=np.int64)
        found[inside] = values[places[inside]]
        return found

    return look
