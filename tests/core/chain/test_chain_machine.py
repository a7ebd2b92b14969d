"""Any order of takes, frees and flushes on real bytes, beside a model that only knows ids and tags."""

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvarena.backends.cpu import CpuDevice
from kvarena.chain.chain import Chain, Policies
from kvarena.planning.plan import plan_storage
from kvarena.policies.compaction import Eager, Lazy, Never
from kvarena.policies.hole_order import Nearest, Recent
from kvarena.policies.placement import Middle
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Window
from kvarena.terms.ports import FieldView


@attrs.frozen
class Raw:
    """An entry of so many bytes."""

    size: int
    name = "raw"

    def fields(self) -> tuple[Field, ...]:
        return (Field("bytes", "uint8", (self.size,)),)


LIFETIMES = (State(), Window(64), Window(32), Chunk(48), Window(8), Window(4), Full())


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """One to seven sub-pools with units of 2 to 24 bytes, mixed, on a few hundred bytes."""
    lifetimes = draw(st.lists(st.sampled_from(LIFETIMES), unique=True, min_size=1, max_size=7))
    layers = [
        Layer(index, (Part(Raw(draw(st.integers(2, 24))), lifetime),)) for index, lifetime in enumerate(lifetimes)
    ]
    plan = plan_storage(layers, page_tokens=1)
    arena_bytes = draw(st.integers(64 * len(layers), 128 * len(layers)))
    device = CpuDevice()
    device.reserve(arena_bytes)
    policies = Policies(
        draw(st.sampled_from((Nearest(), Nearest(recent_max=0), Recent()))),
        draw(st.sampled_from((Lazy(max_moves=3), Eager(), Never()))),
        Middle(),
    )
    return Chain(plan, arena_bytes, device=device, policies=policies, slot_count=draw(st.integers(1, 12)))


class ChainMachine(RuleBasedStateMachine):
    """Every page gets a tag when it is taken; wherever it moves, its id finds the tag again."""

    @initialize(chain=chains())
    def build(self, chain: Chain) -> None:
        self.chain = chain
        self.plan = chain.plan
        self.tags: dict[str, dict[int, int]] = {name: {} for name in chain.bands}
        self.minted: dict[str, set[int]] = {name: set() for name in chain.bands}
        self.serial = 0
        arena = chain.device.arena_bytes
        self.arena = chain.device.view(FieldView("uint8", (), 1, 0, 1, arena)).numpy().reshape(-1)
        self.sinks = {band.grid.name: self.unit(band.grid.name, band.grid.sink_page).copy() for band in self.backed()}

    # -- takes

    @rule(data=st.data(), pages=st.integers(1, 12))
    def take_tokens(self, data: st.DataObject, pages: int) -> None:
        """New ids, bound in the owner and in any of the other token sub-pools."""
        owner = self.plan.owner
        assume(owner is not None and owner in self.chain.bands)
        others = [pool.name for pool in self.plan.token_pools if pool.name != owner]
        chosen = [name for name in others if data.draw(st.booleans())]
        ids = self.chain.minters[owner].mint(pages)
        assume(ids is not None)
        if self.take({owner: ids, **dict.fromkeys(chosen, ids)}):
            self.minted[owner] |= set(ids.tolist())
        else:
            self.chain.minters[owner].give_back(ids)

    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """As many as ``feasible`` allows, to the last unit, whatever must be moved for it; one more is refused."""
        slots = self.plan.slots
        minters = [name for name in (self.plan.owner, slots.name if slots else None) if name]
        minter = data.draw(st.sampled_from(minters))
        others = [] if slots and minter == slots.name else [pool.name for pool in self.plan.token_pools]
        chosen = {minter, *(name for name in others if data.draw(st.booleans()))}
        count = 0
        while self.chain.feasible(tuple(count + 1 if name in chosen else 0 for name in self.chain.bands)):
            count += 1
        for more in (count, 1):
            ids = self.chain.minters[minter].mint(more)
            if ids is None:
                break  # a window still holds ids that the owner's band has let go: they cannot be minted anew
            if self.take(dict.fromkeys(chosen, ids)):
                assert more == count
                self.minted[minter] |= set(ids.tolist())
            else:
                self.chain.minters[minter].give_back(ids)

    @rule(data=st.data())
    def bind_again(self, data: st.DataObject) -> None:
        """Ids of the owner that a window does not hold are bound there (a load from a cache)."""
        owner = self.plan.owner
        windows = [pool.name for pool in self.plan.token_pools if pool.name != owner]
        assume(windows)
        demand = {}
        for name in windows:
            lacking = sorted(self.minted[owner] - self.tags[name].keys())
            if lacking:
                ids = data.draw(st.lists(st.sampled_from(lacking), unique=True, max_size=12))
                demand[name] = np.array(ids, dtype=np.int64)
        self.take(demand)

    @rule(slots=st.integers(1, 4))
    def take_slots(self, slots: int) -> None:
        """State slots have ids of their own."""
        assume(self.plan.slots is not None)
        name = self.plan.slots.name
        ids = self.chain.minters[name].mint(slots)
        assume(ids is not None)
        if self.take({name: ids}):
            self.minted[name] |= set(ids.tolist())
        else:
            self.chain.minters[name].give_back(ids)

    def take(self, demand: dict[str, np.ndarray]) -> bool:
        """A take succeeds exactly when ``feasible`` said so; refused, it changed nothing."""
        counts = tuple(len(demand.get(name, ())) for name in self.chain.bands)
        before, epoch, held = self.chain.snapshot(), self.chain.epoch, self.arena.copy()
        expected = self.chain.feasible(counts)
        taken = self.chain.take(demand)
        assert isinstance(taken, Refused) != expected
        if isinstance(taken, Refused):
            assert (self.chain.snapshot(), self.chain.epoch) == (before, epoch)
            assert np.array_equal(self.arena, held)
            return False
        for name, ids in demand.items():
            assert np.array_equal(taken[name], self.chain.pages(name, ids))
            for id_, page in zip(ids.tolist(), taken[name].tolist(), strict=True):
                self.serial += 1
                self.tags[name][id_] = self.serial
                if self.chain.bands[name].grid.unit_bytes:
                    assert not self.unit(name, page).any(), "handed out with old bytes"
                    self.unit(name, page)[:] = self.pattern(name, self.serial)
        return True

    # -- frees and moves

    @rule(data=st.data())
    def free_some(self, data: st.DataObject) -> None:
        """Any subset of a sub-pool's ids; ids that no sub-pool holds any more return to their pool."""
        held = [name for name, tags in self.tags.items() if tags]
        assume(held)
        name = data.draw(st.sampled_from(held))
        ids = data.draw(st.lists(st.sampled_from(sorted(self.tags[name])), unique=True, min_size=1))
        self.free(name, ids)

    @rule(data=st.data())
    def free_most(self, data: st.DataObject) -> None:
        """All but a few of every sub-pool: what relief then finds is scattered."""
        for name, tags in self.tags.items():
            if tags:
                kept = data.draw(st.lists(st.sampled_from(sorted(tags)), unique=True, max_size=3))
                self.free(name, sorted(tags.keys() - set(kept)))

    def free(self, name: str, ids: list[int]) -> None:
        self.chain.free(name, np.array(ids, dtype=np.int64))
        for id_ in ids:
            del self.tags[name][id_]
        slots = self.plan.slots
        minter = name if slots and name == slots.name else self.plan.owner
        users = [name] if minter == name and slots and name == slots.name else [p.name for p in self.plan.token_pools]
        done = [id_ for id_ in self.minted[minter] if not any(id_ in self.tags[user] for user in users)]
        if done:
            self.chain.minters[minter].give_back(np.array(done, dtype=np.int64))
            self.minted[minter] -= set(done)

    @rule(data=st.data())
    def free_twice(self, data: st.DataObject) -> None:
        """A double free, in two calls or in one, is caught with nothing changed."""
        held = [name for name, tags in self.tags.items() if tags]
        assume(held)
        name = data.draw(st.sampled_from(held))
        ids = data.draw(st.lists(st.sampled_from(sorted(self.tags[name])), unique=True, min_size=1))
        room = self.chain.bands[name].grid.id_count
        unbound = [*sorted(set(range(room)) - self.tags[name].keys()), -1, room]
        wrong = data.draw(st.sampled_from(ids + unbound))
        before = self.chain.snapshot()
        with pytest.raises(InvariantError):
            self.chain.free(name, np.array([*ids, wrong], dtype=np.int64))
        assert self.chain.snapshot() == before

    @rule()
    def flush(self) -> None:
        """What the compaction policy allows."""
        before = {shot.name: shot for shot in self.chain.snapshot().bands}
        moved = self.chain.flush()
        after = {shot.name: shot for shot in self.chain.snapshot().bands}
        for name, shot in after.items():
            assert shot.live == before[name].live
            assert shot.holes <= before[name].holes
        if isinstance(self.chain.policies.compaction, Never):
            assert moved == 0
        if isinstance(self.chain.policies.compaction, Eager):
            assert not any(shot.holes for shot in after.values() if shot.end is not None)

    # -- what must always hold

    @invariant()
    def everything_is_where_its_id_says(self) -> None:
        if not hasattr(self, "chain"):
            return
        self.chain.verify()
        for name, tags in self.tags.items():
            ids = np.array(list(tags), dtype=np.int64)
            assert self.chain.bands[name].live == len(ids)
            assert self.chain.bands[name].ids.is_bound(ids).all()
            if self.chain.bands[name].grid.unit_bytes:
                for id_, page in zip(ids.tolist(), self.chain.pages(name, ids).tolist(), strict=True):
                    assert np.array_equal(self.unit(name, page), self.pattern(name, tags[id_])), (name, id_)
        for name, zeros in self.sinks.items():
            assert np.array_equal(self.unit(name, self.chain.bands[name].grid.sink_page), zeros)
            assert not zeros.any()

    # -- bytes

    def backed(self) -> list:
        return [band for band in self.chain.bands.values() if band.grid.unit_bytes]

    def unit(self, name: str, page: int) -> np.ndarray:
        size = self.chain.bands[name].grid.unit_bytes
        return self.arena[page * size : (page + 1) * size]

    def pattern(self, name: str, tag: int) -> np.ndarray:
        """A unit's bytes for this tag: never zero, different for neighbours in number."""
        size = self.chain.bands[name].grid.unit_bytes
        return np.resize(np.array([tag % 251 + 1, tag // 251 % 251 + 1], dtype=np.uint8), size)


TestChainMachine = pytest.mark.req("IDS-4")(pytest.mark.req("CAP-5")(pytest.mark.req("ALC-2")(ChainMachine.TestCase)))
TestChainMachine.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
