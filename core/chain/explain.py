"""A chain's answer with its reasons: what ``feasible`` says, how, and exactly what would move."""

import attrs
import numpy as np

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.span import Span
from kvarena.bands.unit_ids import UNOWNED
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
        pages = live_outside(band, band.packed)
    elif isinstance(band, FloatBand):
        pages = live_outside(band, range(place.start, place.stop))
    return Moved(place.name, pages, pages * band.grid.unit_bytes)


def live_outside(band: Span, pages: range) -> int:
    """How many live pages of a band lie outside these: what must move for it to keep to them."""
    below = band.ids.owners_of(slice(band.start, max(band.start, min(band.stop, pages.start))))
    above = band.ids.owners_of(slice(min(band.stop, max(band.start, pages.stop)), band.stop))
    return sum(int(np.count_nonzero(owners != UNOWNED)) for owners in (below, above))
