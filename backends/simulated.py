"""A device whose time a test turns: work lands in any order that may be, and every access to every byte is judged."""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np

from kvarena.backends.sim_arena import Bytes, Units, WatchedArena
from kvarena.backends.sim_mirror import SimMirror
from kvarena.backends.sim_queues import Work
from kvarena.backends.sim_shadow import UNDECLARED, Shadow, Violation, Where
from kvarena.terms.errors import InvariantError
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import IntArray, Stream, Touch

HOST = "the host's memory"


@attrs.frozen(eq=False)
class HostMemory:
    """An array that copies reach, in units, and its shadow of one cell a place."""

    array: Bytes
    units: Units
    shadow: Shadow

    def where(self, places: IntArray, pages: Where) -> Where:
        """These places, one for each page.

        Raises:
            InvariantError: there are more or fewer, their size is another's, or one is not in the memory.
        """
        places = np.array(places, dtype=np.int64)
        unit_bytes, count = self.array.shape[1], len(self.array)
        same = pages.unit_bytes == unit_bytes
        invariant("device.copy_pairs", len(places) == len(pages.pages), pages=len(pages.pages), places=len(places))
        invariant("device.host_memory_unit", same, unit_bytes=pages.unit_bytes, host_unit_bytes=unit_bytes)
        if np.count_nonzero(places.view(np.uint64) >= count):
            fail("device.places_inside", places=count, asked=places.tolist())
        return Where(HOST, unit_bytes, places, places)


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)
class SimulatedDevice(WatchedArena):
    """Streams as queues, a clock that the test turns, an adversary that lands the work, and a judge of every access.

    An access is judged when it is queued, by what comes before it, so a race is found whichever timing was chosen; the
    bytes move when the work lands, so what a race destroys is really lost. ``violations`` has what was found:

    - ``unordered_overlap``: two accesses to the same bytes, one of them a write, and neither comes before the other.
    - ``cross_dtype_bytes``: a page is read as data of one kind, and its bytes were last written as another's.
    - ``host_read_after_wait``: the host waits for unfinished work, in an operation whose stream waited before.
    - ``staging_overwritten``: the host fills a slot of a mirror's staging that an update may still read.
    - ``undeclared_write``: with ``watch_writes``, a ``run`` changed bytes of no page that it said it writes.
    """

    name = "simulated"
    holds_bytes = True
    has_streams = True

    _hosts: dict[int, HostMemory] = attrs.field(factory=dict, init=False, repr=False)

    def check(self) -> None:
        """Stop at the first violation.

        Raises:
            InvariantError: there is one; the message is its words.
        """
        if self.violations:
            raise InvariantError(str(self.violations[0]))

    def run(self, stream: Stream, work: Callable[[], None], reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Put a forward, or a part of one, on the stream. What it reads is judged before what it writes."""
        read = [self._touched(touch) for touch in reads if touch.unit_bytes and len(touch.pages)]
        written = [self._touched(touch) for touch in writes if touch.unit_bytes and len(touch.pages)]
        act = partial(self._watched, work, [where for where, _ in written]) if self.watch_writes else work
        own = self.order.own(stream)
        queued = self.order.begin(own, f"run of {getattr(work, '__name__', type(work).__name__)}", 0, 0, act)
        for where, kind in read:
            self._read(queued, where, kind)
        for where, kind in written:
            self._write(queued, where, self.findings.code(kind), kind)
        self.order.placed(queued)

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units; no target is also a later source of the same call."""
        invariant("device.copy_pairs", len(sources) == len(targets), sources=len(sources), targets=len(targets))
        if not unit_bytes or not len(sources):
            return
        grid = self._grid(unit_bytes)
        read, written = grid.where(sources), grid.where(targets)
        _check_copy_order(read.pages.tolist(), written.pages.tolist())
        act = partial(_move, grid.units, read.pages, grid.units, written.pages)
        work = self._begin(stream, "copy", read, act)
        self._read(work, read, None)
        self._write(work, written, self.shadow.kinds.take(read.cells))
        self.order.placed(work)

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units."""
        if not unit_bytes or not len(pages):
            return
        grid = self._grid(unit_bytes)
        where = grid.where(pages)
        work = self._begin(stream, "zeroing", where, partial(_zero, grid.units, where.pages))
        self._write(work, where, 0)
        self.order.placed(work)

    def warm(self, units_bytes: Sequence[int]) -> None:
        """Make the tables of these grids."""
        for unit_bytes in units_bytes:
            if unit_bytes:
                self._grid(unit_bytes)

    def mirror(self, size: int, slots: int, slot_entries: int) -> SimMirror:
        """A mirror of ``size`` integers, all 0, with a staging ring of ``slots`` updates of ``slot_entries`` each."""
        return SimMirror(self.order, self.findings, size, slots, slot_entries)

    def host_memory(self, unit_bytes: int, count: int) -> Bytes:
        """Memory of the host that copies reach: uint8 of shape (count, unit_bytes), zero."""
        array = np.zeros((count, unit_bytes), dtype=np.uint8)
        units = array.reshape(-1).view(f"V{unit_bytes}") if unit_bytes else np.empty(0, dtype="V1")
        self._hosts[id(array)] = HostMemory(array, units, Shadow(self.order, self.findings, count, unit_bytes))
        return array

    def save(self, stream: Stream, pages: Touch, host: Bytes, places: IntArray) -> None:
        """Copy pages of the arena to ``host[places]``."""
        memory, grid = self._host(host), self._grid(pages.unit_bytes)
        where = grid.where(pages.pages)
        there = memory.where(places, where)
        if not len(where.pages):
            return
        work = self._begin(stream, "save", where, partial(_move, grid.units, where.pages, memory.units, there.pages))
        self._read(work, where, pages.kind)
        memory.shadow.writes(work, there)
        memory.shadow.mark_written(work, there)
        memory.shadow.kinds[there.cells] = self.findings.code(pages.kind)
        self.findings.access(work, pages.kind, True, there)
        self.order.placed(work)

    def load(self, stream: Stream, host: Bytes, places: IntArray, pages: Touch) -> None:
        """Copy ``host[places]`` to pages of the arena."""
        memory, grid = self._host(host), self._grid(pages.unit_bytes)
        where = grid.where(pages.pages)
        there = memory.where(places, where)
        if not len(where.pages):
            return
        work = self._begin(stream, "load", where, partial(_move, memory.units, there.pages, grid.units, where.pages))
        memory.shadow.reads(work, there)
        memory.shadow.is_kind(work, there, pages.kind)
        memory.shadow.mark_read(work, there)
        self.findings.access(work, pages.kind, False, there)
        self._write(work, where, self.findings.code(pages.kind), pages.kind)
        self.order.placed(work)

    def _touched(self, touch: Touch) -> tuple[Where, str]:
        return self._grid(touch.unit_bytes).where(touch.pages), touch.kind

    def _begin(self, stream: Stream, verb: str, where: Where, act: Callable[[], None]) -> Work:
        return self.order.begin(self.order.own(stream), verb, len(where.pages), where.unit_bytes, act)

    def _host(self, host: Bytes) -> HostMemory:
        memory = self._hosts.get(id(host))
        if memory is None:
            fail("device.host_memory_of_another", shape=np.shape(host))
        return memory

    def _watched(self, work: Callable[[], None], written: list[Where]) -> None:
        """Do the work, and find what it changed beside the pages that it said it writes."""
        running, before = self.order.queues.landing, self._bytes.copy()
        work()
        changed = np.flatnonzero(before != self._bytes) // self.grain_bytes
        declared = np.concatenate([where.cells for where in written]) if written else np.empty(0, dtype=np.int64)
        beside = np.setdiff1d(changed, declared)
        if len(beside) and running is not None:
            first = int(beside[0])
            start = first * self.grain_bytes
            words = f"{running.words} changed bytes of {start}..{start + self.grain_bytes - 1}, and did not say so"
            self.violations.append(Violation(UNDECLARED, running.words, "", self.grain_bytes, first, words))


def _move(source: Units, sources: IntArray, target: Units, targets: IntArray) -> None:
    """Copy units."""
    target[targets] = source[sources]


def _zero(units: Units, pages: IntArray) -> None:
    """Write zeros over units."""
    units[pages] = np.zeros((), dtype=units.dtype)


def _check_copy_order(sources: list[int], targets: list[int]) -> None:
    """No target is also a later source of the same call."""
    if set(targets).isdisjoint(sources):
        return
    written: set[int] = set()
    for source, target in zip(sources, targets, strict=True):
        if source in written:
            fail("device.target_is_later_source", page=source)
        written.add(target)
