"""Who mints ids and which bands bind them: the owner of token ids, and the state slots."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kvarena.bands.id_band import IdBand
from kvarena.bands.unit_ids import IdPool, within
from kvarena.chain.relief import AnyBand, actors_of, hand_out, take_pages
from kvarena.ledger.clearance import Actor
from kvarena.planning.plan import Plan
from kvarena.planning.pricing import Arrangement
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.invariants import invariant
from kvarena.terms.members import any_of, is_once
from kvarena.terms.ports import IntArray

Ways = list[tuple[str, AnyBand, tuple[Actor, ...]]]
"""A band's name, the band, and who writes a page there."""


class NewPages(NamedTuple):
    """Ids that were minted for a take, and the page that each got, per sub-pool."""

    ids: IntArray
    pages: dict[str, IntArray]


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
        self._loose = np.zeros(pool.count, dtype=np.bool_)  # out, and not bound by the owner
        self._spans = [band for band in bands if not isinstance(band, IdBand)]
        self._known_ways: dict[Actor, Ways] = {}
        self._capped = [band for band in self._spans if band.grid.cap is not None]

    def mint(self, count: int) -> IntArray | None:
        """Ids that nobody holds; None if fewer are free."""
        if count > self.pool.free:
            return None
        ids = self.pool.mint(count)
        self._loose[ids] = True
        return ids

    def give_back(self, ids: IntArray) -> None:
        """Minted ids come back. Checked before anything changes: each is out, named once, and bound nowhere."""
        invariant("id_pool.give_back_of_unknown_id", within(ids, self.pool.count), ids=ids, minted_by=self.name)
        bound = [band.grid.name for band in self.bands if any_of(band.ids.is_bound(ids))]
        invariant("chain.give_back_of_bound_id", not bound, minted_by=self.name, bound_in=bound)
        invariant("id_pool.give_back_of_free_id", self._loose[ids].all(), ids=ids, minted_by=self.name)
        invariant("id_pool.give_back_twice", len(np.unique(ids)) == len(ids), ids=ids, minted_by=self.name)
        self._loose[ids] = False
        self.pool.accept(ids)

    def check_take(self, name: str, ids: IntArray) -> None:
        """Every id that a take names for one of the bands was minted and is out."""
        out = self._loose[ids] | self.owner.ids.is_bound(ids)
        invariant("chain.take_of_id_not_minted", out.all(), sub_pool=name, minted_by=self.name, ids=ids[~out])

    def check_rebind(self, band: AnyBand, sources: IntArray, targets: IntArray) -> None:
        """Each source has a page in this band, each target is out and has none, and none is named twice."""
        ids, count = band.ids, self.pool.count
        bound = within(sources, count) and ids.is_bound(sources).all() and is_once(sources)
        invariant("chain.window_segment_bound", bound, sub_pool=band.grid.name, ids=sources)
        loose = within(targets, count) and not ids.is_bound(targets).any() and is_once(targets)
        invariant("chain.rebind_onto_bound_id", loose, sub_pool=band.grid.name, ids=targets)
        self.check_take(band.grid.name, targets)

    def bound(self, ids: IntArray) -> None:
        """The owner bound ids that were minted by ``mint``."""
        self._loose[ids] = False

    def unbound(self, ids: IntArray) -> None:
        """The owner let go of ids that are still out."""
        self._loose[ids] = True

    def check_released(self, ids: IntArray) -> None:
        """No other band has a page for ids that the owner is about to let go."""
        held = [band.grid.name for band in self.others if any_of(band.ids.is_bound(ids))]
        invariant("chain.window_segment_released", not held, minted_by=self.name, still_bound_in=held)

    def check_free(self, ids: IntArray) -> None:
        """Each of these ids is bound by the band that mints them, named once, and fixed in none. Nothing changes."""
        self.owner.check_free(ids)
        for band in self.others:
            band.check_free(band.ids.bound_among(ids))

    def free(self, ids: IntArray) -> None:
        """Unbind ids in every band that has a page for them, and take them back."""
        self.owner.free(ids)
        for band in self.others:
            band.free_among(ids)
        self.pool.accept(ids)

    def fit_in_spans(self, count: int) -> bool:
        """Whether so many ids can be minted, and bound in every band without growing it."""
        if count > self.pool.free:
            return False
        for band in self._spans:
            if count > band.free_count:
                return False
        for band in self._capped:  # noqa: SIM110 - a generator costs as much as the rest of a take
            if count > band.room:
                return False
        return True

    def take_in_spans(self, count: int, actor: Actor) -> NewPages:
        """Mint ids and bind them in every band, to pages of its span. They fit, by ``fit_in_spans``."""
        ids = self.pool.mint(count)
        pages: dict[str, IntArray] = {}
        try:
            for name, band, actors in self._ways(actor):
                pages[name] = taken = band.reuse(ids, actors)
                hand_out(band, taken, actors)
        except BaseException:
            self._take_back(ids)
            raise
        return NewPages(ids, pages)

    def _ways(self, actor: Actor) -> Ways:
        """Its bands by name, and who writes a page there that is handed to the actor; remembered."""
        ways = self._known_ways.get(actor)
        if ways is None:
            ways = self._known_ways[actor] = [(band.grid.name, band, actors_of(band, actor)) for band in self.bands]
        return ways

    def take_placed(self, count: int, arrangement: Arrangement, bands: Mapping[str, AnyBand], actor: Actor) -> NewPages:
        """Mint ids and bind them in every band, where the arrangement says; what it moves has moved."""
        ids = self.pool.mint(count)
        try:
            return NewPages(ids, take_pages(bands, arrangement, dict.fromkeys(self.names, ids), actor))
        except BaseException:
            self._take_back(ids)
            raise

    def _take_back(self, ids: IntArray) -> None:
        """A take failed half-way: nobody has these ids."""
        for band in self.bands:
            band.free_among(ids)
        self.pool.accept(ids)


class Bands(dict[str, AnyBand]):
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
