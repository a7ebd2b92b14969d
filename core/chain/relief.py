"""Moves and hand-outs: bytes go through the allocator's stream, then the ids follow. Nothing here decides."""

from collections.abc import Mapping

import attrs

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.id_band import IdBand
from kvarena.ledger.clearance import HOST_LOAD, SCHEDULE_COPY, SCHEDULE_READ, ZERO, Actor
from kvarena.planning.pricing import Action, Arrangement, move_order
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray

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


def actors_of(band: AnyBand, actor: Actor) -> tuple[Actor, ...]:
    """Who writes a page that is handed to ``actor``: zeroing first, where the layout asks for it.

    A load overwrites whole pages, so it needs no zeros before it.
    """
    return (ZERO, actor) if band.grid.zero_on_take and actor is not HOST_LOAD else (actor,)


def hand_out(band: AnyBand, pages: IntArray, actors: tuple[Actor, ...]) -> None:
    """Chosen pages become writable: wait for what is still under way on them, then zero them."""
    if isinstance(band, IdBand):
        return
    ledger, unit = band.ledger, band.grid.unit_bytes
    if len(ledger.uses):
        ledger.clear(unit, pages, actors)
    if actors[0] is ZERO:
        ledger.timeline.zero_pages(unit, pages)


def compact(band: Band, counters: Counters, moves: tuple[IntArray, IntArray]) -> int:
    """Close holes of an end with its farthest pages. Returns how many moved."""
    sources, targets = moves
    if len(sources):
        _copy(band, sources, targets)
        band.moved(sources, targets)
        counters.count(band.grid.name, len(sources), band.grid.unit_bytes)
    return len(sources)


def relocate(band: FloatBand, counters: Counters, *, block: range) -> None:
    """Bring a float into its new block; pages that are inside already stay."""
    sources, targets = band.relocation(block.start, block.stop)
    if len(sources):
        _copy(band, sources, targets)
    band.relocated(block.start, block.stop, (sources, targets))
    counters.count(band.grid.name, len(sources), band.grid.unit_bytes)
    counters.relocations += 1


def realize(
    bands: Mapping[str, AnyBand], snapshot: ChainSnapshot, arrangement: Arrangement, counters: Counters
) -> None:
    """Compact the ends that the arrangement flushes, then relocate its floats, each onto bytes that nobody holds.

    No forward is unretired: the allocator's stream has waited for all of them, so a page that moved is a hole.
    """
    places = {place.name: place for place in arrangement.places}
    for place in arrangement.places:
        band = bands[place.name]
        if place.action is not Action.STAY and not isinstance(band, IdBand):
            pends = band.pending.count + band.vacated.count
            invariant("band.geometry_ready", not pends, sub_pool=place.name, pends=pends)
        if place.action is Action.FLUSH and isinstance(band, Band):
            compact(band, counters, band.closing_moves(len(band.holes)))
            span = range(band.start, band.stop)
            invariant("relief.end_is_packed", span == band.packed, sub_pool=place.name, span=span, packed=band.packed)
    for name in move_order(snapshot, arrangement):
        band = bands[name]
        if isinstance(band, FloatBand):
            relocate(band, counters, block=range(places[name].start, places[name].stop))


def take_pages(
    bands: Mapping[str, AnyBand], arrangement: Arrangement, wanted: Mapping[str, IntArray], actor: Actor
) -> dict[str, IntArray]:
    """Each band takes its pages for ``actor``, in chain order, inside the span that the arrangement gives it."""
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
        taken[name] = band.take(ids, place.start, place.stop, actors_of(band, actor))
    for name, pages in taken.items():
        hand_out(bands[name], pages, actors_of(bands[name], actor))
    return taken


def _copy(band: Band | FloatBand, sources: IntArray, targets: IntArray) -> None:
    """The bytes, behind what still writes the sources and what still reads or writes the targets."""
    ledger, unit = band.ledger, band.grid.unit_bytes
    if len(ledger.uses):
        ledger.clear(unit, sources, (SCHEDULE_READ,))
        ledger.clear(unit, targets, (SCHEDULE_COPY,))
    ledger.timeline.copy_pages(unit, sources, targets)
