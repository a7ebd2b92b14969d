"""The sums that must hold over all bands of an arena: no byte has two owners, none is lost."""

from collections.abc import Mapping

from kvarena.bands.id_band import IdBand
from kvarena.chain.relief import AnyBand
from kvarena.terms.invariants import invariant


def verify_chain(bands: Mapping[str, AnyBand], usable: range) -> None:
    """Check every band by itself, then that their spans lie in chain order and the bytes add up.

    Raises:
        InvariantError: the first promise that does not hold.
    """
    edge = usable.start
    held = gaps = 0
    for name, band in bands.items():
        band.verify()
        if isinstance(band, IdBand) or band.start == band.stop:
            continue
        unit = band.grid.unit_bytes
        low, high = band.start * unit, band.stop * unit
        invariant("chain.spans_in_order", edge <= low, sub_pool=name, low=low, left_neighbour_ends=edge)
        gaps += low - edge
        held += (band.stop - band.start) * unit
        edge = high
    invariant("chain.span_above_the_arena", edge <= usable.stop, edge=edge, top=usable.stop)
    total = held + gaps + usable.stop - edge
    invariant("chain.bytes_add_up", total == len(usable), held=held, gaps=gaps, usable=len(usable))
