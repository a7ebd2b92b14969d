"""Whether units fit an empty arena: planning's answer is the one that a chain gives before its first take."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain
from kvarena.planning.charges import most
from kvarena.planning.packing import packs
from kvarena.planning.plan import Plan, plan_storage
from kvarena.planning.pricing import feasible
from kvarena.policies.compaction import Lazy
from kvarena.policies.hole_order import Nearest
from kvarena.policies.placement import Middle
from kvarena.terms.errors import PlanError
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ports import Policies

TOKEN_LIFETIMES: tuple[Lifetime, ...] = (Full(), Window(8), Window(64), Chunk(10), Chunk(50))
SLOTS = 1000


@attrs.frozen
class Raw:
    """An entry of so many bytes."""

    size: int
    name = "raw"

    def fields(self) -> tuple[Field, ...]:
        return (Field("bytes", "uint8", (self.size,)),)


def planned(*parts: tuple[Lifetime, int]) -> Plan:
    layers = [Layer(index, (Part(Raw(size), lifetime),)) for index, (lifetime, size) in enumerate(parts)]
    return plan_storage(layers, page_tokens=1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One to five bands with bytes, units of 1 to 61 B, slots or none; an owner without bytes where none outlives."""
    lifetimes = draw(st.lists(st.sampled_from((State(), *TOKEN_LIFETIMES)), min_size=1, max_size=5, unique=True))
    sizes = draw(st.lists(st.integers(1, 61), min_size=len(lifetimes), max_size=len(lifetimes)))
    return planned(*zip(lifetimes, sizes, strict=True))


def empty_chain(plan: Plan, arena_bytes: int) -> Chain:
    device = HostDevice()
    device.reserve(arena_bytes)
    policies = Policies(Nearest(), Lazy(), Middle())
    return Chain(plan, arena_bytes, device=device, policies=policies, slot_count=SLOTS)


@settings(max_examples=400)
@given(plans(), st.integers(1, 3000), st.data())
def test_an_empty_chain_serves_what_planning_packs(plan: Plan, arena_bytes: int, data: st.DataObject) -> None:
    """Any units, and for one sub-pool the most that packs and one more; a chain also wants an id for each."""
    try:
        snapshot = empty_chain(plan, arena_bytes).snapshot()
    except PlanError:
        assert not packs(plan, arena_bytes, [1] * len(plan.sub_pools))
        return
    backed = [index for index, pool in enumerate(plan.sub_pools) if pool.unit_bytes]
    units = [
        data.draw(st.integers(0, arena_bytes // (pool.unit_bytes or 1) // len(backed) + 1)) for pool in plan.sub_pools
    ]
    chosen = data.draw(st.sampled_from(backed))

    def with_chosen(count: int) -> tuple[int, ...]:
        return (*units[:chosen], count, *units[chosen + 1 :])

    limit = most(lambda count: packs(plan, arena_bytes, with_chosen(count)), arena_bytes)
    for asked in (tuple(units), with_chosen(limit), with_chosen(limit + 1)):
        has_ids = all(count <= shot.ids_free for count, shot in zip(asked, snapshot.bands, strict=True))
        assert feasible(snapshot, asked) == (has_ids and packs(plan, arena_bytes, asked))


@pytest.mark.parametrize(("arena_bytes", "fits"), [(109, False), (110, True)])
def test_sinks_and_grids_by_hand(arena_bytes: int, fits: bool) -> None:
    """The state sink ends at 7, two states at 21; three window pages of 4 B lie from 24 to 36; six full pages
    of 10 B from 40 to 100, below their sink.
    """
    plan = planned((State(), 7), (Window(8), 4), (Full(), 10))
    assert plan.names == ("state", "window-8", "full")
    assert packs(plan, arena_bytes, (2, 3, 6)) is fits
