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

    @contextmanager
    def memory_time(self) -> Iterator[None]:
        """Count the processor time of a block, of this thread alone, as kvarena's own."""
        began = time.thread_time()
        yield
        self.memory_seconds += time.thread_time() - began

    def count(self, seconds: float) -> None:
        """The bands held what they hold now for so long."""
        self._seconds += seconds
        for index, shot in enumerate(self._chain.snapshot().bands):
            self._peaks[index] = max(self._peaks[index], shot.live)
            self._areas[index] += shot.live * seconds

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
