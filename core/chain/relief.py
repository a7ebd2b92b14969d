"""Moves: the bytes go through the device, then the ids follow. Nothing here decides."""

from collections.abc import Mapping

import attrs

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.id_band import IdBand
from kvarena.planning.pricing import Action, Arrangement, move_order
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Device, IntArray

AnyBand = Band | FloatBand | IdBand


@attrs.define
class Counters:
    """What a chain did so far. ``moves`` counts pages, ``relocations`` floats moved as a whole."""

    takes: int = 0
    refusals: int = 0
    moves: int = 0
    moved_bytes: int = 0
    relocations: int = 0
    moved_by: dict[str, int] = attrs.Factory(dict)
    refused_by: dict[str, int] = attrs.Factory(dict)

    def count(self, name: str, pages: int, unit_bytes: int) -> None:
        """Add pages that were moved."""
        self.moves += pages
        self.moved_bytes += pages * unit_bytes
        self.moved_by[name] = self.moved_by.get(name, 0) + pages

    def refuse(self, asked: Mapping[str, int]) -> None:
        """Add a refused take, to each sub-pool that it asked of."""
        self.refusals += 1
        for name in asked:
            self.refused_by[name] = self.refused_by.get(name, 0) + 1


def compact(band: Band, device: Device, counters: Counters, *, limit: int) -> int:
    """Close up to ``limit`` holes of an end with its farthest pages. Returns how many moved."""
    sources, targets = band.closing_moves(limit)
    if len(sources):
        device.copy_pages(band.grid.unit_bytes, sources, targets)
        band.moved(sources, targets)
        counters.count(band.grid.name, len(sources), band.grid.unit_bytes)
    return len(sources)


def relocate(band: FloatBand, device: Device, counters: Counters, *, block: range) -> None:
    """Bring a float into its new block; pages that are inside already stay."""
    sources, targets = band.relocation(block.start, block.stop)
    if len(sources):
        device.copy_pages(band.grid.unit_bytes, sources, targets)
    band.relocated(block.start, block.stop, (sources, targets))
    counters.count(band.grid.name, len(sources), band.grid.unit_bytes)
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
            span = range(band.start, band.stop)
            invariant("relief.end_is_packed", span == band.packed, sub_pool=place.name, span=span, packed=band.packed)
    for name in move_order(snapshot, arrangement):
        band = bands[name]
        if isinstance(band, FloatBand):
            relocate(band, device, counters, block=range(places[name].start, places[name].stop))


def take_pages(
    bands: Mapping[str, AnyBand], arrangement: Arrangement, wanted: Mapping[str, IntArray], device: Device
) -> dict[str, IntArray]:
    """Each band takes its pages, in chain order, inside the span that the arrangement gives it."""
    places = {place.name: place for place in arrangement.places}
    taken: dict[str, IntArray] = {}
    for name, band in bands.items():
        ids = wanted.get(name)
        if ids is None:
            continue
        if isinstance(band, IdBand):
            taken[name] = band.take(ids)
            continue
        place = places[name]
        taken[name] = band.take(ids, place.start, place.stop)
    for name, pages in taken.items():
        if bands[name].grid.zero_on_take:
            device.zero_pages(bands[name].grid.unit_bytes, pages)
    return taken
