"""The chain: takes that succeed whole or change nothing, frees, moves, and the answer to "does it fit?"."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.grid import Grid, chain_grids
from kvarena.bands.guarded import open_holes
from kvarena.bands.id_band import IdBand
from kvarena.bands.unit_ids import UnitIds
from kvarena.chain.asking import moves_of, start_of
from kvarena.chain.estimates import Estimates, capacity_decision, free_bytes
from kvarena.chain.minters import Bands, Minter, NewPages, open_minters
from kvarena.chain.relief import AnyBand, Counters, compact, realize, take_pages
from kvarena.chain.usage import Usage
from kvarena.chain.verify import verify_chain
from kvarena.ledger.clearance import CLEARANCE, FORWARD, Actor, Clearance
from kvarena.ledger.ledger import Ledger
from kvarena.ledger.steps import Forward
from kvarena.planning.credit import feasible_after
from kvarena.planning.packing import usable_range
from kvarena.planning.plan import Plan
from kvarena.planning.pricing import Arrangement, Step, Waits, feasible, first_plan
from kvarena.planning.pricing import plan as plan_step
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.answers import Refused, Shortage
from kvarena.terms.doors import line, whole, wholes
from kvarena.terms.invariants import OFF, STRICT, WARN, fail, invariant
from kvarena.terms.ports import LOW, Device, IntArray, Policies

ANSWERS_MAX = 1024
"""So many answers are remembered until something changes."""


class Chain:
    """All bands of one arena, in chain order.

    A take:  1. checked    the ids exist, are unbound and named once; or they are minted for it.
             2. planned    free pages of the spans, or in place, if that serves; else, if nothing does, refused, and
                           nothing has changed.
             3. recovered  before anything moves, or where pages that forwards may touch are needed: the host waits for
                           transfers, if it must, then the allocator's stream waits for every forward in flight.
             4. rearranged ends are compacted, floats relocated.
             5. taken      band by band in chain order; pages are zeroed where the layout asks for it.
    ``epoch`` grows with every take, free and move: what was read of the maps before it may be stale.
    ``ledger`` knows what is under way, ``usage`` the uses of pages that outlast a call.
    ``estimates`` are for logs and messages: what decides asks ``feasible``.
    """

    def __init__(
        self,
        plan: Plan,
        arena_bytes: int,
        *,
        device: Device,
        policies: Policies,
        slot_count: int = 0,
        checks: int = WARN,
        in_flight: int = 0,
        clearance: Clearance = CLEARANCE,
    ) -> None:
        """Lay the bands over an arena that ``device`` has reserved. ``checks``: the level of checks (0, 1, 2).

        ``in_flight``: the most forwards that are launched and not processed; 0 where none overlaps. ``clearance``: who
        waits for what.

        Raises:
            PlanError: a sub-pool has too many pages to number, or none at all.
            KvarenaError: forwards may be in flight, and the device has no streams for them.
        """
        invariant("chain.negative_slots", slot_count >= 0, slot_count=slot_count)
        invariant("chain.unknown_check_level", checks in (OFF, WARN, STRICT), checks=checks)
        self.plan = plan
        self.arena_bytes = arena_bytes
        self.device = device
        self.ledger = Ledger(device, in_flight, clearance, checks=checks)
        self.policies = policies
        self.checks = checks
        self.usable = usable_range(plan, arena_bytes)
        grids = chain_grids(plan, arena_bytes, slot_count)
        self.bands = Bands({grid.name: _open_band(grid, policies, self.ledger, checks) for grid in grids})
        self.minters = open_minters(plan, self.bands)
        self._minter_of = {name: minter for minter in self.minters.values() for name in minter.names}
        self.estimates = Estimates(self.snapshot, self.bands, checks)
        self.counters = Counters()
        self.epoch = 0
        self.usage = Usage(self.bands, self.ledger, self._reprice)
        self._in_order = list(self.bands.values())
        self._spans = [band for band in self.bands.values() if not isinstance(band, IdBand)]
        self._snapshot: ChainSnapshot | None = None
        self._answers: dict[tuple[int, ...], bool] = {}

    def pages(self, name: str, ids: IntArray) -> IntArray:
        """The physical page of each id, any shape; the sub-pool's sink where unbound or -1."""
        return self.bands[name].ids.pages_of(ids)

    # -- capacity

    def snapshot(self) -> ChainSnapshot:
        """Counts and frontiers of now; kept until one of them changes."""
        snapshot = self._snapshot
        if snapshot is None:
            usable, shots = self.usable, tuple([band.shot() for band in self._in_order])
            released = self._released() if self.usage.pins else None
            snapshot = self._snapshot = tuple.__new__(ChainSnapshot, (usable.start, usable.stop, shots, released))
        return snapshot

    @capacity_decision
    def feasible(self, demand: tuple[int, ...]) -> bool:
        """Whether a take of so many units per sub-pool, in chain order, would succeed now. Kept until a change."""
        answer = self._answers.get(demand) if type(demand) is tuple else None
        if answer is None:
            demand = wholes(demand, "chain.feasible: the demand")
            answer = feasible(self.snapshot(), demand)
            if len(self._answers) < ANSWERS_MAX:
                self._answers[demand] = answer
        return answer

    @capacity_decision
    def feasible_after(self, demand: tuple[int, ...], frees: Sequence[int]) -> bool:
        """Whether the take would succeed once so many units per sub-pool, of those live now, were freed."""
        invariant("chain.frees_of_other_bands", len(frees) == len(self.bands), frees=frees, bands=len(self.bands))
        return feasible_after(self.snapshot(), demand, frees)

    # -- taking and freeing

    @capacity_decision
    def take_new(self, minter: str, count: int, actor: Actor = FORWARD) -> NewPages | Refused:
        """Mint ids and bind each in every sub-pool that shares them, all of them or none, for ``actor`` to write."""
        self._begin("take")
        source = self.minters[minter]
        if type(count) is not int:
            count = whole(count, "chain.take_new: count")
        if count < 0:
            fail("chain.negative_demand", minter=minter, count=count)
        try:
            if source.fit_in_spans(count):
                taken = source.take_in_spans(count, actor)
            else:
                counts = self._counts(dict.fromkeys(source.names, count))
                planned = self._arrange(counts) if count <= source.pool.free else self._refusal(counts, source)
                if isinstance(planned, Refused):
                    return planned
                taken = source.take_placed(count, planned, self.bands, actor)
        except BaseException:  # a device or a policy failed: what it did before is priced anew
            self._changed()
            raise
        self._changed()
        self.counters.takes += 1
        return taken

    @capacity_decision
    def take(self, demand: Mapping[str, IntArray], actor: Actor = FORWARD) -> Mapping[str, IntArray] | Refused:
        """Bind every id in the demand, per sub-pool, to a page for ``actor`` to write; all of them or none.

        Returns:
            The pages per sub-pool, parallel to the ids; or the refusal with its sum.
        """
        self._begin("take")
        for name, ids in demand.items():
            band = self.bands[name]
            if self.checks:
                band.ids.check_unbound(ids)
                self._minter_of[name].check_take(name, ids)
        wanted = {name: ids for name, ids in demand.items() if len(ids)}
        try:
            planned = self._arrange(self._counts({name: len(ids) for name, ids in wanted.items()}))
            if isinstance(planned, Refused):
                return planned
            taken = take_pages(self.bands, planned, wanted, actor)
        except BaseException:  # a device or a policy failed: what was bound before is let go
            for name, ids in wanted.items():
                self.bands[name].free_among(ids)
            self._changed()
            raise
        for name in wanted.keys() & self.minters.keys():
            self.minters[name].bound(wanted[name])
        self._changed()
        self.counters.takes += 1
        return {name: np.empty(0, dtype=np.int64) for name in demand} | taken

    def free(self, name: str, ids: IntArray) -> None:
        """Unbind ids, at once; their pages are holes, pending under a forward, or reserved under a transfer.

        Checked before anything changes: each is bound and, at check level 1 and above, named once and not fixed; and
        whoever mints ids lets go of them last. The ids stay out, until ``give_back``.
        """
        self._begin("free")
        band, minter = self.bands[name], self.minters.get(name)
        if not len(ids):
            return
        if self.checks or self.usage.any_fixed:
            band.check_free(ids)
            if minter is not None:
                minter.check_released(ids)
        band.free(ids)
        if minter is not None:
            minter.unbound(ids)
        self._changed()

    def free_all(self, frees: Mapping[str, IntArray]) -> None:
        """Unbind ids, per sub-pool that mints them, in every sub-pool that has a page for them; the ids come back.

        At check level 1 and above, checked before anything changes: each is bound in the sub-pool that mints it,
        named once, and nowhere fixed.
        """
        self._begin("free")
        sources = [(self.minters[name], ids) for name, ids in frees.items() if len(ids)]
        if self.checks or self.usage.any_fixed:
            for source, ids in sources:
                source.check_free(ids)
        for source, ids in sources:
            source.free(ids)
        if sources:
            self._changed()

    def rebind(self, name: str, sources: IntArray, targets: IntArray) -> None:
        """In one sub-pool, the pages of ``sources`` are bound to ``targets`` from here on, one for one.

        Nothing is taken, freed or copied, so it never refuses, whatever runs: work under way knows pages, not ids.

        Raises:
            InvariantError: the sub-pool mints ids; a source has no page there, or a target has one, was not minted, or
                is named twice; a page is reserved, or a receive of it is not published. Nothing has changed.
        """
        self._begin("rebind")
        band, minter = self.bands[name], self._minter_of[name]
        sources, targets = line(sources, "chain.rebind: sources"), line(targets, "chain.rebind: targets")
        invariant("chain.rebind_pairs", len(sources) == len(targets), sources=sources, targets=targets)
        if not len(sources):
            return
        invariant("chain.rebind_by_the_minter", band is not minter.owner, sub_pool=name, cure="take and free")
        minter.check_rebind(band, sources, targets)
        kept = self.usage.is_kept_by_id(name, sources)
        invariant("chain.rebind_of_reserved_page", not kept, sub_pool=name, ids=sources)
        band.rebind(sources.copy(), targets.copy())
        self.epoch += 1

    # -- time

    def process(self, forward: Forward) -> None:
        """The oldest forward in flight is over, says the scheduler: what was freed under it is holes.

        Raises:
            InvariantError: it is not the oldest, was never recorded or, at check level 1 and above, has not ended.
        """
        steps = self.ledger.steps
        if self.usage.is_waiting:
            fail("chain.call_from_a_waiter", asked="process")
        steps.check_process(forward, checks=self.checks)
        steps.process(forward)
        for band in self._spans:
            if band.waits and band.process(forward.number):
                self._reprice()

    @capacity_decision
    def flush(self) -> int:
        """Close holes of the ends as far as the compaction policy says. Returns the pages moved.

        No forward is waited for: a page that one may write stops the moves of its band, and what forwards may still
        read is vacated. A band whose receive has not been published is left alone.
        """
        self._begin("flush")
        moved, policy = 0, self.policies.compaction
        try:
            for band in self.bands.values():
                if isinstance(band, Band) and len(band.holes) and not self.usage.holds(band.grid.name):
                    limit = moves_of(policy, band.live, len(band.holes))
                    moved += compact(band, self.counters, band.idle_moves(limit)) if limit else 0
        finally:  # where the policy fails for one band, another has moved
            if moved:
                self._changed()
        return moved

    def verify(self) -> None:
        """Check every sum and map; raises InvariantError at the first that does not hold. Slow: for tests and idle."""
        kept, self._snapshot = self._snapshot, None
        verify_chain(self.bands, self.usable)
        invariant("chain.stale_snapshot", kept is None or kept == self.snapshot(), kept=kept, now=self._snapshot)
        self.ledger.steps.verify()
        for minter in self.minters.values():
            minter.pool.verify()

    # -- inside

    def _arrange(self, counts: tuple[int, ...]) -> Arrangement | Refused:
        """The least rearrangement that serves, realized up to the takes; or the refusal, and nothing has changed."""
        snapshot = self.snapshot()
        arrangement = plan_step(snapshot, counts, Step.NO_MOVE, self._place)
        if arrangement is None:
            if not feasible(snapshot, counts):
                return self._refusal(counts)
            arrangement = self._first_plan(snapshot, counts)
            waits = arrangement.waits
            if waits is Waits.TRANSFERS:
                self.usage.wait_for_all()
                self.usage.lift()
            try:
                if waits is not Waits.NOTHING or self.ledger.steps.reading:
                    self._recover()
                    snapshot = self.snapshot()
                    arrangement = self._first_plan(snapshot, counts)
                realize(self.bands, snapshot, arrangement, self.counters)
            finally:
                if waits is Waits.TRANSFERS:
                    self.usage.lower()
        return arrangement

    def _first_plan(self, snapshot: ChainSnapshot, counts: tuple[int, ...]) -> Arrangement:
        """The least rearrangement of a chain in which the demand is feasible."""
        arrangement = first_plan(snapshot, counts, self._place)
        if arrangement is None:
            fail("chain.feasible_without_a_plan", counts=counts, snapshot=snapshot)
        return arrangement

    def _recover(self) -> None:
        """The allocator's stream waits for every forward that may touch pages: none pends, and none is vacated."""
        newest = self.ledger.steps.recorded
        self.ledger.settle(newest)
        for band in self._spans:
            band.process(newest)
        self._reprice()

    def _released(self) -> tuple[BandShot, ...] | None:
        """The bands once the host has waited for every use that keeps pages; None where nobody can wait."""
        if not self.usage.may_wait:
            return None
        return tuple(band.shot(released=True) for band in self.bands.values())

    def _begin(self, what: str) -> None:
        """An operation of the allocator begins; none does between the launch of a forward and its recording."""
        steps = self.ledger.steps
        if steps.launched > steps.recorded:
            fail("forwards.change_before_record", asked=what, launched=steps.launched)
        if self.usage.is_waiting:
            fail("chain.call_from_a_waiter", asked=what)
        self.ledger.timeline.begin()

    def _place(self, lowest: int, highest: int) -> int:
        """Where the policy puts an empty float."""
        return start_of(self.policies.placement, lowest, highest)

    def _refusal(self, counts: Sequence[int], minter: Minter | None = None) -> Refused:
        """The sum behind a no to so many units per sub-pool, in chain order. Counted; nothing else changes."""
        snapshot = self.snapshot()
        asked = [(shot, count) for shot, count in zip(snapshot.bands, counts, strict=True) if count]
        self.counters.refuse({shot.name: count for shot, count in asked})
        grids = {name: band.grid for name, band in self.bands.items()}
        short = [grids[shot.name].why_no_more(shot.ids_free) for shot, count in asked if count > shot.ids_free]
        if minter is not None:
            short = [f"{minter.name} has {minter.pool.free} ids left"]
        return Refused(
            {shot.name: count for shot, count in asked},
            tuple(Shortage(shot.name, count, shot.live, shot.holes, shot.unit_bytes) for shot, count in asked),
            free_bytes(snapshot),
            ", ".join(short) if short else "no arrangement of the arena serves this take",
        )

    def _counts(self, wanted: Mapping[str, int]) -> tuple[int, ...]:
        """Units per sub-pool in chain order."""
        return tuple([wanted.get(name, 0) for name in self.bands])

    def _changed(self) -> None:
        """Pages were taken, freed or moved."""
        self.epoch += 1
        self._reprice()

    def _reprice(self) -> None:
        """What a snapshot shows has changed."""
        self._snapshot = None
        self._answers.clear()


def _open_band(grid: Grid, policies: Policies, ledger: Ledger, checks: int) -> AnyBand:
    """An empty band; its hole order sees the end it is anchored to, and the low one for a float."""
    ids = UnitIds(grid.id_count, grid.page_count, grid.sink_page)
    if not grid.unit_bytes:
        return IdBand(grid, ids)
    holes = open_holes(policies.hole_order, grid.page_count, grid.end or LOW, checks)
    return FloatBand(grid, ids, holes, ledger) if grid.end is None else Band(grid, ids, holes, ledger)
