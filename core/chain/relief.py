"""Moves: the bytes go through the device, then the ids follow. Nothing here decides."""

import attrs

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.id_band import IdBand
from kvarena.planning.pricing import Action, Arrangement, move_order
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Device

AnyBand = Band | FloatBand | IdBand


@attrs.define
class Counters:
    """What a chain did so far. ``moves``: pages; ``relocations``: floats moved as a whole."""

    takes: int = 0
    refusals: int = 0
    moves: int = 0
    moved_bytes: int = 0
    relocations: int = 0

    def count(self, pages: int, unit_bytes: int) -> None:
        """Add pages that were moved."""
        self.moves += pages
        self.moved_bytes += pages * unit_bytes


def compact(band: Band, device: Device, counters: Counters, *, limit: int) -> int:
    """Close up to ``limit`` holes of an end with its farthest pages. Returns how many moved."""
    sources, targets = band.closing_moves(limit)
    if len(sources):
        device.copy_pages(band.grid.unit_bytes, sources, targets)
        band.moved(sources, targets)
        counters.count(len(sources), band.grid.unit_bytes)
    return len(sources)


def relocate(band: FloatBand, device: Device, counters: Counters, *, block: range) -> None:
    """Bring a float into its new block; pages that are inside already stay."""
    sources, targets = band.relocation(block.start, block.stop)
    if len(sources):
        device.copy_pages(band.grid.unit_bytes, sources, targets)
    band.relocated(block.start, block.stop, (sources, targets))
    counters.count(len(sources), band.grid.unit_bytes)
    counters.relocations += 1


def realize(
    bands: dict[str, AnyBand], snapshot: ChainSnapshot, arrangement: Arrangement, device: Device, counters: Counters
) -> None:
    """Compact the ends that the arrangement flushes, then relocate its floats, each onto bytes that nobody holds."""
    places = {place.name: place for place in arrangement.places}
    for place in arrangement.places:
        band = bands[place.name]
        if place.action is Action.FLUSH and isinstance(band, Band):
            compact(band, device, counters, limit=len(band.holes))
            invariant("relief.end_is_packed", not len(band.holes), sub_pool=place.name, holes=len(band.holes))
    for name in move_order(snapshot, arrangement):
        band = bands[name]
        if isinstance(band, FloatBand):
            relocate(band, device, counters, block=range(places[name].start, places[name].stop))
