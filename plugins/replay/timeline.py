"""What each band held over time: a row for each turn of the loop, thinned where there are too many to be looked at.

Every row is a moment that was, so what stands in it belongs together. Thinned rows are the first one and the largest
ones of each stretch of time: no peak is lost, and a mean over them would be too high.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvarena.chain.estimates import free_bytes
from kvarena.storage.storage import Storage

ROWS_MAX = 10_000
ROWS_LEAST = 100
"""The fewest rows that may be asked for."""

Table = npt.NDArray[np.float64]


class EvictableUnits(Protocol):
    """What a timeline asks of a prefix cache."""

    def evictable(self) -> Sequence[int]:
        """Units per sub-pool that it would give back, in chain order."""
        ...


class BandRow(NamedTuple):
    """One band at one moment, in its units; ``start`` is the page where its span begins.

    ``cached``: of the live units, those that the prefix cache would give back. ``pending``: freed, and a forward may
    still touch them. ``span``: from the first unit to the last.
    """

    live: int
    cached: int
    holes: int
    pending: int
    span: int
    start: int


class Row(NamedTuple):
    """One moment: the loop's clock, its steps, requests running and queued, bytes that no unit holds, each band."""

    seconds: float
    step: int
    running: int
    waiting: int
    free_bytes: int
    bands: tuple[BandRow, ...]


LOOP = ("seconds", "step", "running", "waiting", "free_bytes")
BAND = ("live", "cached", "holes", "pending", "span", "start")
"""What stands in a row, by name: of the loop, and of each band."""

PEAKS = ("live", "cached", "holes", "pending", "span")
"""What of a band is kept at its largest when rows are thinned: as ``running`` and ``waiting``, and the least free."""


class Timeline:
    """The rows of one run, at most ``rows_max`` of them when they are read, and never more than twice as many.

    A row's life:  1. note   appended, one per turn of the loop.
                   2. thin   when there are too many: time is cut into stretches of one length, and of each stretch
                             the first row and those with the largest of each count are kept. The length doubles
                             until few enough are.
    """

    def __init__(self, storage: Storage, cache: EvictableUnits | None = None, *, rows_max: int = ROWS_MAX) -> None:
        """``rows_max`` is raised to what one stretch may need, some rows a band."""
        self.units = tuple((pool.name, pool.unit_bytes) for pool in storage.plan.sub_pools)
        self.arena_bytes = storage.sizing.arena_bytes
        self.noted = 0
        self._storage = storage
        self._cache = cache
        width = len(BAND)
        starts = range(len(LOOP), len(LOOP) + width * len(self.units), width)
        self._largest = [LOOP.index(name) for name in ("running", "waiting")]
        self._largest += [start + BAND.index(name) for start in starts for name in PEAKS]
        self._least = LOOP.index("free_bytes")
        self._max = max(rows_max, len(self._largest) + 3)
        self._rows: list[tuple[float, ...]] = []
        self._stretch = 0.0

    def note(self, seconds: float, *, step: int, running: int, waiting: int) -> None:
        """The present moment, with what the storage and the cache hold now."""
        snapshot = self._storage.chain.snapshot()
        cached = self._cache.evictable() if self._cache is not None else [0] * len(snapshot.bands)
        row: list[float] = [seconds, step, running, waiting, free_bytes(snapshot)]
        for shot, units in zip(snapshot.bands, cached, strict=True):
            row += (shot.live, units, shot.holes, shot.pending, shot.stop - shot.start, shot.start)
        self._rows.append(tuple(row))
        self.noted += 1
        if len(self._rows) >= 2 * self._max:
            self._rows = self._few(self._max)

    def rows(self, at_most: int | None = None) -> Iterator[Row]:
        """The rows, oldest first: as many as were asked for at the most, or even fewer, as few as one stretch needs."""
        width = len(BAND)
        for seconds, *counts in self._few(self._max if at_most is None else min(at_most, self._max)):
            whole = [int(count) for count in counts]
            step, running, waiting, free, *rest = whole
            bands = tuple([BandRow(*rest[at : at + width]) for at in range(0, len(rest), width)])
            yield Row(seconds, step, running, waiting, free, bands)

    def __len__(self) -> int:
        """How many rows there are to read."""
        return len(self._few(self._max))

    def _few(self, most: int) -> list[tuple[float, ...]]:
        """So many rows at the most, raised to what one stretch needs. Stretches double, so that they nest."""
        most = max(most, len(self._largest) + 3)
        if len(self._rows) <= most:
            return self._rows
        table = np.array(self._rows)
        stretch = self._stretch or float(table[-1, 0] - table[0, 0]) / most or 1.0
        kept = self._kept(table, stretch)
        while len(kept) > most:
            stretch *= 2
            kept = self._kept(table, stretch)
        if most == self._max:
            self._stretch = stretch
        return [self._rows[at] for at in kept.tolist()]

    def _kept(self, table: Table, stretch: float) -> npt.NDArray[np.intp]:
        """The places of the rows that stand for their stretches, and of the last one."""
        of = np.floor((table[:, 0] - table[0, 0]) / stretch)
        starts = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
        sizes = np.diff(starts, append=len(table))
        kept = [starts, np.array([len(table) - 1])]
        for column, sign in [*((at, 1) for at in self._largest), (self._least, -1)]:
            values = sign * table[:, column]
            most = np.flatnonzero(values == np.repeat(np.maximum.reduceat(values, starts), sizes))
            # the first of equal ones in each stretch
            kept.append(most[np.unique(np.searchsorted(starts, most, side="right"), return_index=True)[1]])
        return np.unique(np.concatenate(kept))
