"""One thread's CPU time, medians of many repeats, the sides in turn so that noise reaches all of them.

A *work* is a callable that does its piece once and returns what it measured, by name. What a side spends zeroing and
copying bytes is taken out and kept beside.
"""

import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import numpy as np

Clock = Callable[[], int]
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""glibc's numbers of two settings of its heap."""

BLOCK = 10
"""So many repeats of one side before the other's turn: caches are warm, and drifts are shared."""


def _cost(clock: Clock) -> int:
    """What a pair of readings of the clock costs by itself."""
    return int(np.median([-(clock() - clock()) for _ in range(2000)]))


CPU, WALL = time.thread_time_ns, time.perf_counter_ns
COSTS = {CPU: _cost(CPU), WALL: _cost(WALL)}


@attrs.frozen
class Reading:
    """Nanoseconds of bookkeeping, and of zeroing and copying beside it."""

    ns: int
    apart_ns: int = 0


class Watch:
    """Adds up laps: ``with watch: ...``."""

    def __init__(self, clock: Clock = CPU) -> None:
        self.clock, self.cost = clock, COSTS[clock]
        self.total = 0
        self._began = 0

    def __enter__(self) -> "Watch":
        self._began = self.clock()
        return self

    def __exit__(self, *raised: object) -> None:
        self.total += self.clock() - self._began - self.cost


Work = Callable[[], Mapping[str, Reading]]


class Series:
    """All readings of one name."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def quantile_us(self, share: float) -> float:
        """Bookkeeping alone."""
        return float(np.quantile([reading.ns for reading in self.readings], share)) / 1e3

    @property
    def median_us(self) -> float:
        """The median of bookkeeping alone."""
        return self.quantile_us(0.5)

    @property
    def apart_us(self) -> float:
        """The median of zeroing and copying."""
        return float(np.median([reading.apart_ns for reading in self.readings])) / 1e3

    @property
    def gross_us(self) -> float:
        """The median with zeroing and copying."""
        return float(np.median([reading.ns + reading.apart_ns for reading in self.readings])) / 1e3


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside; and the C library keeps what is freed, so that no array is paged in twice."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for setting in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            library.mallopt(setting, 1 << 30)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_turn(works: Sequence[Work], repeats: int, *, warm: int = 0) -> list[dict[str, Series]]:
    """Each work ``warm`` and then ``repeats`` times, a block of one after a block of the other."""
    found: list[dict[str, Series]] = [{} for _ in works]
    with quiet():
        for first in range(-warm, repeats, BLOCK):
            for work, series in zip(works, found, strict=True):
                for index in range(first, min(first + BLOCK, repeats)):
                    for name, reading in work().items():
                        if index >= 0:
                            series.setdefault(name, Series()).readings.append(reading)
    return found
