"""The bytes of a simulated device, and the shadow that judges every access to them."""

from typing import NamedTuple, NoReturn

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.backends.sim_queues import Work, joined
from kvarena.backends.sim_shadow import Shadow, Where
from kvarena.backends.sim_turn import TurnedDevice
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import FieldView, IntArray
from kvarena.terms.units import ceil_div, format_bytes

Bytes = npt.NDArray[np.uint8]
Units = npt.NDArray[np.void]
Codes = npt.NDArray[np.int16]
ARENA = "the arena"


class Grid(NamedTuple):
    """The arena in units of one size: the units, and the cells of each."""

    unit_bytes: int
    units: Units
    cells: IntArray

    def where(self, pages: IntArray) -> Where:
        """These pages, as they are now.

        Raises:
            InvariantError: one is not on the grid.
        """
        pages = np.array(pages, dtype=np.int64)
        listed = pages.tolist()
        if listed and (min(listed) < 0 or max(listed) >= len(self.cells)):
            self._refuse(listed)
        if self.cells.shape[1] == 1:
            return Where(ARENA, self.unit_bytes, pages, pages)
        return Where(ARENA, self.unit_bytes, pages, self.cells.take(pages, 0).reshape(-1))

    def _refuse(self, pages: list[int]) -> NoReturn:
        fail("device.pages_inside", unit_bytes=self.unit_bytes, pages=len(self.cells), asked=pages)


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)
class WatchedArena(TurnedDevice):
    """An arena in numpy's memory. Every unit of every grid is a whole number of grains, the cells that are judged."""

    arena_bytes: int = attrs.field(default=0, init=False)
    shadow: Shadow = attrs.field(init=False, repr=False)
    _room: Bytes | None = attrs.field(default=None, init=False, repr=False)
    _grids: dict[int, Grid] = attrs.field(factory=dict, init=False, repr=False)

    def reserve(self, arena_bytes: int) -> None:
        """Get the arena, zeroed."""
        invariant("device.reserved_once", self._room is None, arena_bytes=self.arena_bytes)
        try:
            self._room = np.zeros(arena_bytes, dtype=np.uint8)
        except (MemoryError, ValueError, OverflowError) as error:
            raise KvarenaError(f"backend 'simulated' cannot get {format_bytes(arena_bytes)}: {error}") from error
        self.arena_bytes = arena_bytes
        self.shadow = Shadow(self.order, self.findings, ceil_div(arena_bytes, self.grain_bytes), self.grain_bytes)

    def resize(self, arena_bytes: int) -> None:
        """Move the top inside what was reserved. The host drops what is above it, so all work there must come before.

        Raises:
            KvarenaError: more than was reserved.
            InvariantError: work is under way.
        """
        room = self._bytes
        if arena_bytes > len(room):
            raise KvarenaError(
                f"backend 'simulated' reserved {format_bytes(len(room))} and cannot grow to "
                f"{format_bytes(arena_bytes)} without moving the base; reserve the largest size first"
            )
        pending = [work.words for work in self.order.queues.pending()]
        invariant("device.resize_when_idle", not pending, pending=pending)
        low, high = sorted((self.arena_bytes, arena_bytes))
        cells = np.arange(low // self.grain_bytes, ceil_div(high, self.grain_bytes))
        work = self.order.by_host("resize of the arena", 0, 0)
        self._write(work, Where(ARENA, self.grain_bytes, cells, cells), 0)
        room[low:high] = 0
        self.arena_bytes = arena_bytes
        self._grids.clear()

    def view(self, field: FieldView) -> npt.NDArray[np.generic]:
        """An array of shape ``(pages, rows, *shape)`` over the arena.

        Raises:
            KvarenaError: numpy has no such dtype.
        """
        try:
            dtype = np.dtype(field.dtype)
        except TypeError:
            raise KvarenaError(
                f"backend 'simulated' has numpy's views, and numpy has no {field.dtype}; "
                'view a dtype of the same size (int16, uint8), or choose backend = "cpu"'
            ) from None
        invariant("device.view_inside", field.pages * field.unit_bytes <= self.arena_bytes, field=field)
        strides = [dtype.itemsize]
        for size in reversed(field.shape):
            strides.append(strides[-1] * size)
        shape = (field.pages, field.rows, *field.shape)
        stride = (field.unit_bytes, *reversed(strides))
        if 0 in shape:
            return np.empty(shape, dtype=dtype)
        return np.ndarray(shape, dtype, self._bytes.data, field.offset_bytes, stride)

    def close(self) -> None:
        """Land all work, and let go of the arena."""
        self.drain()
        self._room, self.arena_bytes = None, 0
        self._grids.clear()

    def host_bytes(self, unit_bytes: int, page: int) -> Bytes:
        """The bytes of a page as they are now, to look at and, inside work, to write. Nobody's access."""
        invariant("device.pages_inside", 0 <= page < self.arena_bytes // max(1, unit_bytes), page=page)
        return self._bytes[page * unit_bytes : (page + 1) * unit_bytes]

    def host_read(self, unit_bytes: int, pages: IntArray) -> Bytes:
        """The host reads pages, after it has waited for the last writers of them: a copy, a row a page."""
        grid = self._grid(unit_bytes)
        where = grid.where(pages)
        place = self.order.host.clock[:]
        for actor, seq in enumerate(self.shadow.last_writes(where)):
            if seq and (actor >= len(place) or seq > place[actor]):
                work = self.order.find(actor, seq)
                place = joined(place, work.clock if work else [0] * actor + [seq])
        first = int(where.pages[0]) if len(where.pages) else -1
        self._host_waits(place, f"the host reads {len(where.pages)} pages of {unit_bytes} B after", unit_bytes, first)
        self._read(self.order.by_host("read", len(where.pages), unit_bytes), where, None)
        return grid.units[where.pages].view(np.uint8).reshape(len(where.pages), unit_bytes)

    # -- for work

    @property
    def _bytes(self) -> Bytes:
        invariant("device.reserved", self._room is not None)
        assert self._room is not None
        return self._room

    def _grid(self, unit_bytes: int) -> Grid:
        """The grid of units of this size.

        Raises:
            InvariantError: its units are no whole number of grains.
        """
        grid = self._grids.get(unit_bytes)
        if grid is None:
            whole = unit_bytes > 0 and unit_bytes % self.grain_bytes == 0
            invariant("device.grain_divides_unit", whole, unit_bytes=unit_bytes, grain_bytes=self.grain_bytes)
            count, cells = self.arena_bytes // unit_bytes, unit_bytes // self.grain_bytes
            units = self._bytes[: count * unit_bytes].view(f"V{unit_bytes}")
            grid = self._grids[unit_bytes] = Grid(unit_bytes, units, np.arange(count * cells).reshape(count, cells))
        return grid

    def _read(self, work: Work, where: Where, kind: str | None) -> None:
        """The work reads pages, as data of a kind; None: as whatever it is."""
        self.shadow.reads(work, where)
        if kind is not None:
            self.shadow.is_kind(work, where, kind)
        self.shadow.mark_read(work, where)
        if self.findings.log is not None:
            self.findings.access(work, kind or "", False, where)

    def _write(self, work: Work, where: Where, codes: Codes | int, kind: str = "") -> None:
        """The work writes pages: data of these kinds, by their codes; 0 is zeros. ``kind`` is the word for the log."""
        self.shadow.writes(work, where)
        self.shadow.mark_written(work, where)
        self.shadow.kinds[where.cells] = codes
        if self.findings.log is not None:
            self.findings.access(work, kind, True, where)
