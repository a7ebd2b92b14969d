"""What would fit once a cache had given some of its units back."""

from collections.abc import Sequence
from operator import sub

from kvarena.planning.pricing import check_demand, feasible, serves
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.invariants import fail


def feasible_after(snapshot: ChainSnapshot, demand: Sequence[int], frees: Sequence[int] | None) -> bool:
    """Whether the demand is feasible once so many live units per sub-pool, in chain order, are freed; None for none.

    Where they lie does not matter: whatever arrangement serves a chain with as many more holes serves after the frees,
    since a hole at a frontier only makes the span shorter. None of these units may be fixed.

    Raises:
        InvariantError: more is freed than lives, or less than nothing.
    """
    if frees is None:
        return feasible(snapshot, demand)
    check_demand(snapshot, demand)
    for shot, count in zip(snapshot.bands, frees, strict=True):
        if not 0 <= count <= shot.live:
            fail("credit.more_than_lives", sub_pool=shot.name, count=count, live=shot.live)
    return serves(snapshot, tuple(map(sub, demand, frees)))
