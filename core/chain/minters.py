"""Who mints ids and which bands bind them: the owner of token ids, and the state slots."""

from collections.abc import Mapping

import numpy as np

from kvarena.bands.unit_ids import IdPool
from kvarena.chain.relief import AnyBand
from kvarena.planning.plan import Plan
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


class Minter:
    """One id space: its pool of ids and the bands that bind them.

    An id's life:  1. mint       it is out.
                   2. take, free  any of the bands binds it to a page, and lets go.
                   3. give_back  no band has a page for it any more.
    """

    def __init__(self, name: str, pool: IdPool, bands: tuple[AnyBand, ...]) -> None:
        """``bands`` ends with the one that mints: it holds every id that is bound anywhere."""
        self.name = name
        self.pool = pool
        self.bands = bands
        self.names = [band.grid.name for band in bands]
        self.owner, self.others = bands[-1], bands[:-1]

    def mint(self, count: int) -> IntArray | None:
        """Ids that nobody holds; None if fewer are free."""
        return self.pool.mint(count) if count <= self.pool.free else None

    def give_back(self, ids: IntArray) -> None:
        """Minted ids come back."""
        bound = [band.grid.name for band in self.bands if np.count_nonzero(band.ids.is_bound(ids))]
        invariant("chain.give_back_of_bound_id", not bound, minted_by=self.name, bound_in=bound)
        self.pool.give_back(ids)

    def fit_in_holes(self, count: int) -> bool:
        """Whether so many ids can be minted, and bound in every band without growing it."""
        if count > self.pool.free:
            return False
        for band in self.bands:  # noqa: SIM110 - a generator costs as much as the rest of a take
            if band.reusable < count:
                return False
        return True


class Named(dict[str, AnyBand]):
    """Bands by the name of their sub-pool, in chain order; an unknown name is an error that tells the nearest."""

    def __missing__(self, name: str) -> AnyBand:
        raise KvarenaError(f"the chain has no sub-pool {name!r}; {nearest(name, self)}")


class Minters(dict[str, Minter]):
    """Minters by the name of their sub-pool; an unknown name is an error that tells the nearest."""

    def __missing__(self, name: str) -> Minter:
        raise KvarenaError(f"sub-pool {name!r} mints no ids; {nearest(name, self)}")


def open_minters(plan: Plan, bands: Mapping[str, AnyBand]) -> Minters:
    """The owner mints for every token sub-pool, the slots for themselves. The owner stands last: it frees last."""
    tokens = sorted((pool.name for pool in plan.token_pools), key=lambda name: name == plan.owner)
    groups = {plan.owner: tokens} if plan.owner is not None else {}
    if plan.slots is not None:
        groups[plan.slots.name] = [plan.slots.name]
    return Minters(
        {
            name: Minter(name, IdPool(bands[name].grid.id_count), tuple(bands[other] for other in group))
            for name, group in groups.items()
        }
    )
