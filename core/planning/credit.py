"""What a chain would look like once a cache had given some of its units back."""

from collections.abc import Sequence

from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.invariants import invariant


def credited(snapshot: ChainSnapshot, frees: Sequence[int]) -> ChainSnapshot:
    """The snapshot with so many live units per sub-pool, in chain order, as holes. Where they lie does not matter.

    Whatever arrangement serves then, serves after the frees: a hole at a frontier only makes the span shorter.
    None of these units may be fixed.
    """
    base, top, bands, released = snapshot
    after = None if released is None else _with_holes(released, frees)
    return ChainSnapshot(base, top, _with_holes(bands, frees), after)


def _with_holes(bands: tuple[BandShot, ...], frees: Sequence[int]) -> tuple[BandShot, ...]:
    shots = []
    for shot, count in zip(bands, frees, strict=True):
        name, unit, end, live, holes, start, stop, ids_free, *rest = shot
        invariant("credit.more_than_lives", 0 <= count <= live, sub_pool=name, count=count, live=live)
        shots.append(BandShot(name, unit, end, live - count, holes + count, start, stop, ids_free + count, *rest))
    return tuple(shots)
