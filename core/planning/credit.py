"""What a chain would look like once a cache had given some of its units back."""

from collections.abc import Sequence

from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.invariants import invariant


def credited(snapshot: ChainSnapshot, frees: Sequence[int]) -> ChainSnapshot:
    """The snapshot with so many live units per sub-pool, in chain order, as holes. Where they lie does not matter.

    Whatever arrangement serves then, serves after the frees: a hole at a frontier only makes the span shorter.
    """
    shots = []
    for shot, count in zip(snapshot.bands, frees, strict=True):
        invariant("credit.more_than_lives", 0 <= count <= shot.live, sub_pool=shot.name, count=count, live=shot.live)
        shots.append(shot._replace(live=shot.live - count, holes=shot.holes + count, ids_free=shot.ids_free + count))
    return snapshot._replace(bands=tuple(shots))
