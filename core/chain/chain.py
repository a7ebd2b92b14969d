"""The chain: takes that succeed whole or change nothing, frees, moves, and the answer to "does it fit?"."""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.grid import Grid, chain_grids
from kvarena.bands.id_band import IdBand
from kvarena.bands.unit_ids import IdPool, UnitIds
from kvarena.chain.relief import AnyBand, Counters, compact, realize
from kvarena.chain.verify import verify_chain
from kvarena.planning.packing import usable_range
from kvarena.planning.plan import Plan
from kvarena.planning.pricing import Arrangement, Step, feasible, first_plan
from kvarena.planning.pricing import plan as plan_step
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.answers import Refused, Shortage
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import LOW, Compaction, Device, HoleOrder, IntArray, Placement


@attrs.frozen
class Policies:
    """The choices a chain leaves to config: which hole first, how much to compact, where an empty float goes."""

    hole_order: HoleOrder
    compaction: Compaction
    placement: Placement


class Chain:
    """All bands of one arena, in chain order.

    A take:  1. checked    the ids exist, are unbound and named once.
             2. planned    in place if that serves; else, if no arrangement serves, refused: nothing has changed.
             3. rearranged ends are compacted, floats relocated.
             4. taken      band by band in chain order; pages are zeroed where the layout asks for it.
    ``epoch`` grows with every take, free and move: what was read of the maps before it may be stale.
    """

    def __init__(
        self, plan: Plan, arena_bytes: int, *, device: Device, policies: Policies, slot_count: int = 0
    ) -> None:
        """Lay the bands over an arena that ``device`` has reserved.

        Raises:
            PlanError: a sub-pool has too many pages to number, or none at all.
        """
        self.plan = plan
        self.device = device
        self.policies = policies
        self.usable = usable_range(plan, arena_bytes)
        grids = chain_grids(plan, arena_bytes, slot_count)
        self.bands: dict[str, AnyBand] = {grid.name: _open_band(grid, policies) for grid in grids}
        minting = {plan.owner, plan.slots.name if plan.slots else None}
        self._pools = {grid.name: IdPool(grid.id_count) for grid in grids if grid.name in minting}
        self.counters = Counters()
        self.epoch = 0
        self._snapshot: ChainSnapshot | None = None

    # -- ids

    def mint(self, name: str, count: int) -> IntArray | None:
        """Ids of the owner or of the state slots that nobody holds; None if fewer are free."""
        pool = self._pool(name)
        return pool.mint(count) if count <= pool.free else None

    def give_back(self, name: str, ids: IntArray) -> None:
        """Minted ids come back; no band has a page for them any more."""
        pool = self._pool(name)
        bound = [band.grid.name for band in self._bands_of(name) if np.count_nonzero(band.ids.is_bound(ids))]
        invariant("chain.give_back_of_bound_id", not bound, minted_by=name, bound_in=bound)
        pool.give_back(ids)

    def pages(self, name: str, ids: IntArray) -> IntArray:
        """The physical page of each id, any shape; the sub-pool's sink where unbound or -1."""
        return self._band(name).ids.pages_of(ids)

    def is_bound(self, name: str, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each id has a page in this sub-pool."""
        return self._band(name).ids.is_bound(ids)

    # -- capacity

    def snapshot(self) -> ChainSnapshot:
        """Counts and frontiers of now; kept until one of them changes."""
        if self._snapshot is None:
            shots = tuple(band.shot() for band in self.bands.values())
            self._snapshot = ChainSnapshot(self.usable.start, self.usable.stop, shots)
        return self._snapshot

    def feasible(self, demand: Sequence[int]) -> bool:
        """Whether a take of so many units per sub-pool, in chain order, would succeed now."""
        return feasible(self.snapshot(), demand)

    @property
    def free_bytes(self) -> int:
        """Bytes that no live unit holds: an estimate for messages, never for decisions."""
        return self.snapshot().free_bytes

    # -- taking and freeing

    def take(self, demand: Mapping[str, IntArray]) -> Mapping[str, IntArray] | Refused:
        """Bind every id in the demand, per sub-pool, to a page; all of them or none.

        Returns:
            The pages per sub-pool, parallel to the ids; or the refusal with its sum.
        """
        wanted = {name: ids for name, ids in demand.items() if len(ids)}
        for name, ids in wanted.items():
            self._band(name).ids.check_unbound(ids)
        counts = tuple(len(wanted.get(name, ())) for name in self.bands)
        snapshot = self.snapshot()
        place = self.policies.placement.start
        arrangement = plan_step(snapshot, counts, Step.NO_MOVE, place)
        if arrangement is None:
            arrangement = first_plan(snapshot, counts, place) if feasible(snapshot, counts) else None
            if arrangement is None:
                return self.refusal(counts)
            realize(self.bands, snapshot, arrangement, self.device, self.counters)
        self._changed()
        self.counters.takes += 1
        return {name: np.empty(0, dtype=np.int64) for name in demand} | self._hand_out(arrangement, wanted)

    def refusal(self, counts: Sequence[int]) -> Refused:
        """The sum behind a no to so many units per sub-pool, in chain order. Counted; nothing else changes."""
        self.counters.refusals += 1
        snapshot = self.snapshot()
        asked = [(shot, count) for shot, count in zip(snapshot.bands, counts, strict=True) if count]
        short = [f"{shot.name} has {shot.ids_free} ids left" for shot, count in asked if count > shot.ids_free]
        return Refused(
            {shot.name: count for shot, count in asked},
            tuple(Shortage(shot.name, count, shot.live, shot.holes, shot.unit_bytes) for shot, count in asked),
            snapshot.free_bytes,
            ", ".join(short) if short else "no arrangement of the arena serves this take",
        )

    def free(self, name: str, ids: IntArray) -> None:
        """Unbind ids; their pages are holes at once. A page that is not bound is caught before anything changes."""
        self._band(name).free(ids)
        self._changed()

    def flush(self) -> int:
        """Close holes of the ends as far as the compaction policy says. Returns the pages moved."""
        moved = 0
        for band in self.bands.values():
            if isinstance(band, Band) and len(band.holes):
                limit = self.policies.compaction.moves(band.live, len(band.holes))
                moved += compact(band, self.device, self.counters, limit=limit) if limit > 0 else 0
        if moved:
            self._changed()
        return moved

    def verify(self) -> None:
        """Check every sum and map; raises InvariantError at the first that does not hold. Slow: for tests."""
        verify_chain(self.bands, self.usable)
        for pool in self._pools.values():
            pool.verify()

    # -- inside

    def _hand_out(self, arrangement: Arrangement, wanted: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Each band takes its pages inside the span that the arrangement gives it."""
        places = {place.name: place for place in arrangement.places}
        taken: dict[str, IntArray] = {}
        for name, band in self.bands.items():
            ids = wanted.get(name)
            if ids is None:
                continue
            if isinstance(band, IdBand):
                taken[name] = band.take(ids)
                continue
            place = places[name]
            taken[name] = pages = band.take(ids, place.start, place.stop)
            if band.grid.zero_on_take:
                self.device.zero_pages(band.grid.unit_bytes, pages)
        return taken

    def _changed(self) -> None:
        self.epoch += 1
        self._snapshot = None

    def _band(self, name: str) -> AnyBand:
        band = self.bands.get(name)
        if band is None:
            raise KvarenaError(f"the chain has no sub-pool {name!r}; {nearest(name, self.bands)}")
        return band

    def _pool(self, name: str) -> IdPool:
        pool = self._pools.get(name)
        if pool is None:
            raise KvarenaError(f"sub-pool {name!r} mints no ids; {nearest(name, self._pools)}")
        return pool

    def _bands_of(self, name: str) -> list[AnyBand]:
        """The bands whose ids this sub-pool mints."""
        slots = self.plan.slots
        if slots and name == slots.name:
            return [self.bands[name]]
        return [self.bands[pool.name] for pool in self.plan.token_pools]


def _open_band(grid: Grid, policies: Policies) -> AnyBand:
    """An empty band; its hole order sees the end it is anchored to, and the low one for a float."""
    ids = UnitIds(grid.id_count, grid.page_count, grid.sink_page)
    if not grid.unit_bytes:
        return IdBand(grid, ids)
    holes = policies.hole_order.open(grid.page_count, grid.end or LOW)
    return FloatBand(grid, ids, holes) if grid.end is None else Band(grid, ids, holes)
