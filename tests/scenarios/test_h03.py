"""H03: recurrent layers hold no rows per token, however many of them there are."""

import pytest

from kvarena.layouts.mha import Mha
from kvarena.layouts.state import GatedDelta
from kvarena.planning.charges import Limits
from kvarena.planning.plan import plan_storage
from kvarena.planning.sizing import size_plan
from kvarena.terms.errors import PlanError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, State

ATTENTION = Part(Mha(4, 256), Full())
RECURRENT = Part(GatedDelta(channels=10_240, columns=3, heads=48, key_dim=128, value_dim=128), State(), "state")
LAYERS = [Layer(index, (ATTENTION if (index + 1) % 4 == 0 else RECURRENT,)) for index in range(64)]


@pytest.mark.req("PLN-1")
@pytest.mark.req("PLN-3")
def test_two_sub_pools_with_the_state_low_and_full_attention_high():
    """Sixteen layers keep rows, forty-eight keep a state; the state's band grows up, the rows' band down."""
    plan = plan_storage(LAYERS, page_tokens=16)

    assert plan.names == ("state", "full")
    assert plan["full"].layers == tuple(range(3, 64, 4))
    assert len(plan["state"].layers) == 48
    assert not set(plan["full"].layers) & set(plan["state"].layers)


@pytest.mark.req("DEC-1")
def test_bytes_per_token_and_per_slot():
    """262,144 tokens are 16 GiB exactly, where 64 attention layers would need 64; a slot is 153,944,064 bytes."""
    plan = plan_storage(LAYERS, page_tokens=16)

    assert plan["full"].entry_bytes == 65_536
    assert plan["full"].unit_bytes * (262_144 // 16) == 16 * 1024**3
    assert plan["state"].unit_bytes == plan["state"].entry_bytes == 153_944_064
    assert {plan["state"].lifetime.entries(length) for length in (1, 4096, 1_000_000)} == {1}


@pytest.mark.req("PLN-2")
def test_the_recurrent_layers_alone_have_no_owner():
    """With owner = required the 48 recurrent layers are refused by name; by default they are planned without ids."""
    alone = [layer for layer in LAYERS if layer.parts[0] is RECURRENT]

    with pytest.raises(PlanError, match=r"no full-attention layer .* layers 0-2, 4-6, .*60-62"):
        plan_storage(alone, page_tokens=16, owner="required")
    assert plan_storage(alone, page_tokens=16).owner is None


def test_the_order_of_declaration_does_not_matter():
    """Layers declared backwards give the same bands and the same bytes."""
    forwards, backwards = (plan_storage(layers, page_tokens=16) for layers in (LAYERS, LAYERS[::-1]))

    assert backwards.names == forwards.names
    for name in forwards.names:
        assert backwards[name].unit_bytes == forwards[name].unit_bytes
        assert backwards[name].entry_bytes == forwards[name].entry_bytes
        assert set(backwards[name].layers) == set(forwards[name].layers)


@pytest.mark.req("SIZ-1")
def test_a_budget_to_the_page():
    """Four slots, their sink and 262,144 tokens fill the budget; one byte less is one page less."""
    budget = 17_951_621_120
    plan = plan_storage(LAYERS, page_tokens=16)
    limits = Limits(state_slots=4, context_tokens=262_144, mirrors=False)

    exact, short = size_plan(plan, budget, limits), size_plan(plan, budget - 1, limits)

    assert (exact.units, exact.tokens) == ({"state": 4, "full": 16_384}, 262_144)
    assert short.units == {"state": 4, "full": 16_383}
    assert exact.arena_bytes + exact.fixed_bytes == budget


@pytest.mark.req("SIZ-1")
def test_mirrors_are_charged_beside_it():
    """With the device's maps and rows charged on top, the same budget plus their bytes gives the same tokens."""
    plan = plan_storage(LAYERS, page_tokens=16)
    limits = Limits(state_slots=4, context_tokens=262_144)
    fixed = size_plan(plan, 17_951_621_120, limits).fixed_bytes

    sizing = size_plan(plan, 17_951_621_120 + fixed + 4 * 2, limits)

    assert fixed > 0
    assert (sizing.units["full"], sizing.state_slots) == (16_384, 4)
