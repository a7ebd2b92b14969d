"""What the loop measures as it goes: units held per band, and the time inside kvarena and the runner."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvarena.chain.chain import Chain
from kvarena.chain.describe import stats
from kvarena.plugins.serving.report import BandUse


class UseMeter:
    """Peak and mean units per band over the loop's clock; the times never decide anything."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        names = chain.plan.names
        self._peaks = [0] * len(names)
        self._areas = [0.0] * len(names)
        self._seconds = 0.0
        self.memory_seconds = 0.0
        self.runner_seconds = 0.0
        self._runner_cpu = 0.0
        self._inside = False

    @contextmanager
    def memory_time(self) -> Iterator[None]:
        """Count the processor time of a block, of this thread alone, as kvarena's own; without the runner's in it."""
        if self._inside:
            yield
            return
        self._inside = True
        began = time.thread_time() - self._runner_cpu
        try:
            yield
        finally:
            self.memory_seconds += time.thread_time() - self._runner_cpu - began
            self._inside = False

    @contextmanager
    def runner_time(self) -> Iterator[None]:
        """Count the wall time of a block as the runner's."""
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self._runner_cpu += time.thread_time() - cpu
            self.runner_seconds += time.perf_counter() - began

    def held(self) -> list[int]:
        """The units that live in each band now, in chain order."""
        return [band.live for band in self._chain.bands.values()]

    def count(self, held: list[int], seconds: float) -> None:
        """The bands held so much for so long."""
        self._seconds += seconds
        for index, live in enumerate(held):
            self._peaks[index] = max(self._peaks[index], live)
            self._areas[index] += live * seconds

    def bands(self) -> tuple[BandUse, ...]:
        """Each band's use, in chain order."""
        return tuple(
            BandUse(
                name,
                unit_bytes=counts["unit_bytes"],
                peak=peak,
                mean=area / self._seconds if self._seconds else float(peak),
                moves=counts["moves"],
                refusals=counts["refusals"],
            )
            for (name, counts), peak, area in zip(stats(self._chain).items(), self._peaks, self._areas, strict=True)
        )
