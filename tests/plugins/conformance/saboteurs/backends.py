"""Backends that break one promise each: the cpu backend, and one method that is nearly right."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gpu_toys import ToyDevice
from sabotage import saboteur

from kvarena.backends.cpu import CpuDevice
from kvarena.plugins.conformance import BackendConformance
from kvarena.terms.ports import FieldView, IntArray, Stream, Touch

NO_TABLES = ("tables",)


class HoldsOne(CpuDevice):
    """A number for a yes."""

    holds_bytes: Any = 1


class Dirty(CpuDevice):
    """One byte of a new arena is not zero."""

    def reserve(self, arena_bytes: int) -> None:
        super().reserve(arena_bytes)
        self._copies.arena[3] = 7


class KeepsTheTop(CpuDevice):
    """What was above comes back as it was."""

    def resize(self, arena_bytes: int) -> None:
        top = self._copies.arena[arena_bytes:].copy()
        self.kept = top if len(top) else getattr(self, "kept", top)
        before = self.arena_bytes
        super().resize(arena_bytes)
        if arena_bytes > before:
            self._copies.arena[before:] = self.kept[: arena_bytes - before]


class CopiesRows(CpuDevice):
    """A view of several rows a page is a copy."""

    def view(self, field: FieldView) -> Any:
        return super().view(field).clone() if field.rows > 1 else super().view(field)


class Shares(CpuDevice):
    """Two devices that are open at once have one arena."""

    others: list[Any] = []  # noqa: RUF012 - shared, as its fault is

    def reserve(self, arena_bytes: int) -> None:
        super().reserve(arena_bytes)
        for other in self.others:
            self._copies.arena = other._copies.arena
        self.others.append(self)

    def close(self) -> None:
        if self in self.others:
            self.others.remove(self)
        super().close()


class ClosesOnce(CpuDevice):
    """A second time it fails."""

    is_closed = False

    def close(self) -> None:
        super().close()
        if self.is_closed:
            raise RuntimeError("there is nothing to close")
        self.is_closed = True


class OneHostMemory(CpuDevice):
    """The same memory for everybody who asks for as much."""

    def host_memory(self, unit_bytes: int, count: int) -> Any:
        known = self.__dict__.setdefault("known", {})
        return known.setdefault((unit_bytes, count), super().host_memory(unit_bytes, count))


class WarmsByWriting(CpuDevice):
    """It tries its copies out."""

    def warm(self, units_bytes: Sequence[int]) -> None:
        super().warm(units_bytes)
        self._copies.arena[: max(units_bytes)] = 0


class WrapsAround(CpuDevice):
    """A page beyond the last is the first."""

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        count = self.arena_bytes // unit_bytes
        super().copy_pages(stream, unit_bytes, sources % count, targets % count)


class CopiesBackwards(CpuDevice):
    """The last pair first."""

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        super().copy_pages(stream, unit_bytes, sources[::-1], targets[::-1])


class ZeroesTwoAtMost(CpuDevice):
    """Of more than two pages the last is left."""

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        super().zero_pages(stream, unit_bytes, pages if len(pages) < 3 else pages[:-1])


class SavesTwoAtMost(CpuDevice):
    """Of more than two pages the last is left."""

    def save(self, stream: Stream, pages: Touch, host: Any, places: IntArray) -> None:
        if len(places) > 2:
            pages, places = pages._replace(pages=pages.pages[:-1]), places[:-1]
        super().save(stream, pages, host, places)


class LoadsTwoAtMost(CpuDevice):
    """Of more than two pages the last is left."""

    def load(self, stream: Stream, host: Any, places: IntArray, pages: Touch) -> None:
        if len(places) > 2:
            pages, places = pages._replace(pages=pages.pages[:-1]), places[:-1]
        super().load(stream, host, places, pages)


class ReadsListsLate(CpuDevice):
    """The lists of a copy are read when its turn comes."""

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        copy = partial(super().copy_pages, self.current(), unit_bytes, sources, targets)
        if len(sources) == len(targets) and max(sources.max(initial=0), targets.max(initial=0)) < 24:
            self.run(stream, copy, (), ())
        else:
            copy()


class ZeroesAtOnce(CpuDevice):
    """Zeroing does not wait for its turn."""

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        super().zero_pages(self.current(), unit_bytes, pages)


class Renames(CpuDevice):
    """Its streams have names of its own."""

    def stream(self, name: str) -> Stream:
        return super().stream(f"{name}-1")


class Overtakes(CpuDevice):
    """The tenth piece of work does not wait for its turn."""

    count = 0

    def run(self, stream: Stream, work: Callable[[], None], reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        self.count += 1
        super().run(self.current() if self.count == 10 else stream, work, reads, writes)


class NeverWaits(CpuDevice):
    """A stream waits for nobody."""

    def wait(self, stream: Stream, event: Any) -> None:
        """Nothing."""


class Told:
    """An event that answers for another."""

    def __init__(self, real: Any) -> None:
        self.real, self.asked, self.is_awaited, self.behind = real, 0, False, list[Any]()

    def done(self) -> bool:
        self.asked += 1
        return bool(self.real.done())


class Early(Told):
    """It has always come."""

    def done(self) -> bool:
        return True


class Shy(Told):
    """Who waited for it without asking before is told that it has not come."""

    def done(self) -> bool:
        answer = super().done()
        return answer and not (self.is_awaited and self.asked == 1)


class Forgotten(Told):
    """Once three events stand behind it, it never comes."""

    def done(self) -> bool:
        return super().done() and len(self.behind) < 3


class OwnEvents(CpuDevice):
    """Its events are of one of these sorts."""

    sort: type[Told] = Told

    def record(self, stream: Stream) -> Any:
        event = self.sort(super().record(stream))
        known = self.__dict__.setdefault("known", {}).setdefault(stream.name, [])
        for other in known:
            other.behind.append(event)
        known.append(event)
        return event

    def wait(self, stream: Stream, event: Any) -> None:
        super().wait(stream, event.real)

    def synchronize(self, event: Any) -> None:
        event.is_awaited = True
        super().synchronize(event.real)


class EarlyEvents(OwnEvents):
    """Events that come at once."""

    sort = Early


class ShyEvents(OwnEvents):
    """Events that deny that they came."""

    sort = Shy


class ForgottenEvents(OwnEvents):
    """Events that come after those behind them."""

    sort = Forgotten


class OldMirror:
    """A mirror that is nearly right."""

    def __init__(self, device: Any, mirror: Any) -> None:
        self.device, self.mirror, self.size = device, mirror, mirror.size

    def read(self, positions: IntArray) -> Any:
        return self.mirror.read(positions)


class FirstCounts(OldMirror):
    """Through the last slot a place is written once."""

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        self.device.synchronize(self.device.record(stream))
        fresh = self.mirror.read(positions) == 0 if slot == 2 else np.ones(len(positions), dtype=bool)
        self.mirror.apply(stream, slot, positions[fresh], values[fresh])


class ReadsLate(OldMirror):
    """An update is read when its turn comes."""

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        update = partial(self.mirror.apply, self.device.current(), slot, positions, values)
        self.device.run(stream, update, (), ())


class OldMirrors(CpuDevice):
    """Its mirrors are of one of these sorts."""

    sort: Any = OldMirror

    def mirror(self, size: int, slots: int, slot_entries: int) -> Any:
        return self.sort(self, super().mirror(size, slots, slot_entries))


class FirstUpdateCounts(OldMirrors):
    """The first update of a place counts."""

    sort = FirstCounts


class LateUpdates(OldMirrors):
    """Updates are read late."""

    sort = ReadsLate


class NarrowTables:
    """Tables whose last column is not filled."""

    def __init__(self, tables: Any) -> None:
        self.tables, self.arrays = tables, tables.arrays

    def translate(self, rows: int, width: int) -> None:
        self.tables.translate(rows, width - 1)


class NarrowMirror(OldMirror):
    """Tables are one column too narrow."""

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        self.mirror.apply(stream, slot, positions, values)

    def tables(self, rows: int, batch_at: int, lookups: Any) -> Any:
        tables = self.mirror.tables(rows, batch_at, lookups)
        for table in tables.arrays:
            table.zero_()
        return NarrowTables(tables)


class Narrow(ToyDevice):
    """A GPU device whose tables are too narrow."""

    def mirror(self, size: int, slots: int, slot_entries: int) -> Any:
        return NarrowMirror(self, super().mirror(size, slots, slot_entries))


class Tires(CpuDevice):
    """After many zeroings it leaves them."""

    count = 0

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        self.count += 1
        if self.count < 25:
            super().zero_pages(stream, unit_bytes, pages)


def _of(make: Any, breaks: str) -> Any:
    return saboteur(BackendConformance, breaks, NO_TABLES, make_device=lambda: make)


TestHoldsOne = _of(HoldsOne, "test_says_what_it_is")
TestDirty = _of(Dirty, "test_reserves_zeros")
TestKeepsTheTop = _of(KeepsTheTop, "test_resizes_at_the_top")
TestCopiesRows = _of(CopiesRows, "test_views_are_the_arena")
TestShares = _of(Shares, "test_keeps_devices_apart")
TestClosesOnce = _of(ClosesOnce, "test_closes_again")
TestOneHostMemory = _of(OneHostMemory, "test_gives_memory_of_the_host")
TestWarmsByWriting = _of(WarmsByWriting, "test_warming_changes_nothing")
TestWrapsAround = _of(WrapsAround, "test_refuses_pages_outside")
TestCopiesBackwards = _of(CopiesBackwards, "test_copies_pages_in_their_order")
TestZeroesTwoAtMost = _of(ZeroesTwoAtMost, "test_zeroes_pages")
TestSavesTwoAtMost = _of(SavesTwoAtMost, "test_saves_pages")
TestLoadsTwoAtMost = _of(LoadsTwoAtMost, "test_loads_pages")
TestReadsListsLate = _of(ReadsListsLate, "test_reads_lists_when_it_is_called")
TestZeroesAtOnce = _of(ZeroesAtOnce, "test_does_page_work_in_the_order_of_the_calls")
TestRenames = _of(Renames, "test_gives_streams_by_name")
TestOvertakes = _of(Overtakes, "test_does_work_once_and_in_order")
TestNeverWaits = _of(NeverWaits, "test_a_wait_orders_two_streams")
TestEarlyEvents = _of(EarlyEvents, "test_an_event_comes_after_its_work")
TestShyEvents = _of(ShyEvents, "test_synchronize_waits_for_the_event")
TestForgottenEvents = _of(ForgottenEvents, "test_events_of_a_stream_come_in_order")
TestFirstUpdateCounts = _of(FirstUpdateCounts, "test_a_mirror_is_zero_and_written_in_order")
TestLateUpdates = _of(LateUpdates, "test_a_mirrors_update_is_read_when_it_is_given")
TestNarrow = saboteur(
    BackendConformance, "test_tables_are_what_reading_would_give", make_device=lambda: partial(Narrow, kernels="torch")
)
TestTires = _of(Tires, "test_holds_in_the_stress_harness")
