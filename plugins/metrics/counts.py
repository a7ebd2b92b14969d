"""The counts of a chain, read while another thread changes it: plain integers, and nothing is kept by reading them.

``Storage.stats`` and ``Chain.snapshot`` keep what they found until the next change, so they belong to the thread that
changes it: an answer kept a moment too late would be taken for the truth by the next decision.
"""

import time
from typing import NamedTuple

from kvarena.bands.id_band import IdBand
from kvarena.chain.chain import Chain
from kvarena.chain.relief import AnyBand, Counters

TRIES = 10
PAUSE_SECONDS = 0.0005
"""A reading that fell into an operation is made again after so long, which lets the operation go on."""


class BandCounts(NamedTuple):
    """One band, in its units. ``start`` and ``stop`` are the pages of its span.

    Always, between two operations: live + holes + pending + vacated + reserved == stop - start
    """

    name: str
    unit_bytes: int
    start: int
    stop: int
    live: int
    holes: int
    pending: int
    vacated: int
    reserved: int
    fixed: int
    ids_free: int
    moves: int
    refusals: int

    @property
    def span(self) -> int:
        """The units from the first to the last that the band has."""
        return self.stop - self.start

    @property
    def adds_up(self) -> bool:
        """Whether the reading is of one moment, as far as its sum tells; ids without bytes have no span."""
        held = self.live + self.holes + self.pending + self.vacated + self.reserved
        return held == self.span or not self.unit_bytes


def read_bands(chain: Chain) -> tuple[BandCounts, ...]:
    """The counts of every band, in chain order, from any thread.

    Of one moment wherever that can be had: a reading whose sums do not hold, or during which something was taken or
    freed, is made again, so many times; then it is given as it is, some units astray. It never raises for that.
    """
    for _ in range(TRIES):
        epoch = chain.epoch
        found = _read_once(chain)
        if epoch == chain.epoch and all(band.adds_up for band in found):
            break
        time.sleep(PAUSE_SECONDS)
    return found


def free_bytes(chain: Chain, bands: tuple[BandCounts, ...]) -> int:
    """Bytes that no live or reserved unit holds: in holes, in gaps, and under what is still awaited."""
    held = sum((band.live + band.reserved) * band.unit_bytes for band in bands)
    return max(0, len(chain.usable) - held)


def largest_gap_bytes(chain: Chain, bands: tuple[BandCounts, ...]) -> int:
    """The longest run of bytes that lies in no band's span."""
    edge, largest = chain.usable.start, 0
    for start, stop in sorted((band.start * band.unit_bytes, band.stop * band.unit_bytes) for band in bands):
        if start < stop:
            largest = max(largest, start - edge)
            edge = max(edge, stop)
    return max(largest, chain.usable.stop - edge)


def _read_once(chain: Chain) -> tuple[BandCounts, ...]:
    return tuple([_band(name, band, chain.counters) for name, band in chain.bands.items()])


def _band(name: str, band: AnyBand, counters: Counters) -> BandCounts:
    live, happened = band.ids.bound, (counters.moved_by.get(name, 0), counters.refused_by.get(name, 0))
    if isinstance(band, IdBand):
        return BandCounts(name, 0, 0, 0, live, 0, 0, 0, 0, 0, band.ids.id_count - live, *happened)
    return BandCounts(
        name, band.grid.unit_bytes, band.start, band.stop, live, len(band.holes), band.pending.count,
        band.vacated.count, len(band.still.reserved), len(band.still.immovable), band.room, *happened,
    )  # fmt: skip
