"""What the loop measures as it goes: units held per band, and the time inside kvarena and the runner."""

import time

from kvarena.chain.chain import Chain
from kvarena.chain.describe import stats
from kvarena.plugins.serving.report import BandUse


class RunnerTime:
    """``with`` it, the runner works: wall time, and the processor time of this thread, which is not kvarena's own."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._began = self._cpu = 0.0

    def __enter__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.cpu_seconds += time.thread_time() - self._cpu
        self.seconds += time.perf_counter() - self._began


class MemoryTime:
    """``with`` it, kvarena works: processor time of this thread alone, without the runner's in it."""

    def __init__(self, runner: RunnerTime) -> None:
        self.seconds = 0.0
        self._runner = runner
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time() - self._runner.cpu_seconds

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self._runner.cpu_seconds - self._began


class UseMeter:
    """Peak and mean units per band over the loop's clock; the times never decide anything."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        names = chain.plan.names
        self._peaks = [0] * len(names)
        self._areas = [0.0] * len(names)
        self._seconds = 0.0
        self.runner_time = RunnerTime()
        self.memory_time = MemoryTime(self.runner_time)

    def measures(self, chain: Chain) -> bool:
        """Whether this is the chain whose use is counted."""
        return chain is self._chain

    def held(self) -> list[int]:
        """The units that live in each band now, in chain order."""
        return [band.live for band in self._chain.bands.values()]

    def count(self, held: list[int], seconds: float) -> None:
        """The bands held so much for so long."""
        self._seconds += seconds
        peaks, areas = self._peaks, self._areas
        for index, live in enumerate(held):
            if live > peaks[index]:
                peaks[index] = live
            areas[index] += live * seconds

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
