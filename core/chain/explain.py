"""A chain's answer with its reasons: what ``feasible`` says, how, and exactly what would move."""

import attrs

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.chain.chain import Chain
from kvarena.planning.explain import Explanation, Moved
from kvarena.planning.explain import explain as explain_snapshot
from kvarena.planning.pricing import Action, Placing


def explain(chain: Chain, demand: tuple[int, ...]) -> Explanation:
    """Why so many units per sub-pool, in chain order, fit now or do not; for people, not for the step path.

    Where they fit: the layout that a take would make, the pages that it would move, counted, and what it would wait
    for. Where they do not: the band that binds, what it lacks, and the nearest ask that fits.

    Raises:
        InvariantError: a negative count, or not one count per sub-pool.
    """
    found = explain_snapshot(chain.snapshot(), demand, chain.policies.placement.start)
    if found.arrangement is None:
        return found
    moved = [_moved(chain, place) for place in found.arrangement.places if place.action is not Action.STAY]
    return attrs.evolve(found, moved=tuple(band for band in moved if band.pages), exact=True)


def _moved(chain: Chain, place: Placing) -> Moved:
    band = chain.bands[place.name]
    pages = 0
    if isinstance(band, Band):
        pages = band.live_outside(band.packed)
    elif isinstance(band, FloatBand):
        pages = band.live_outside(range(place.start, place.stop))
    return Moved(place.name, pages, pages * band.grid.unit_bytes)
