"""H04: the state pool's sink slot and the draft scratch are paid from the budget."""

import attrs
import pytest

from kvarena.planning.charges import Limits
from kvarena.planning.plan import plan_storage
from kvarena.planning.sizing import size_plan
from kvarena.terms.errors import PlanError
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import State


@attrs.frozen
class Slot:
    """A state slot of 100 bytes."""

    name = "slot"

    def fields(self) -> tuple[Field, ...]:
        return (Field("state", "float32", (25,)),)


PLAN = plan_storage([Layer(0, (Part(Slot(), State(), "state"),))])
DRAFTING = Limits(slots_per_request=2, scratch_slots_per_request=4, mirrors=False)


def allocated(slots, running):
    """What is really allocated: the slots and their sink, and four scratch slots per row, padding row included."""
    return (slots + 1) * 100 + (running + 1) * 4 * 100


@pytest.mark.parametrize(
    ("budget", "slots", "running", "in_all"),
    [(10_000, 31, 15, 9_600), (10_099, 31, 15, 9_600), (10_100, 32, 16, 10_100), (1_100, 2, 1, 1_100)],
)
@pytest.mark.req("SIZ-1")
def test_drafting_budgets(budget, slots, running, in_all):
    """The slots, the requests and the bytes really allocated are those of the physical sum."""
    sizing = size_plan(PLAN, budget, DRAFTING)
    assert (sizing.state_slots, sizing.running) == (slots, running)
    assert (sizing.state_slots + 1) * 100 + sizing.fixed["draft scratch"] == in_all
    assert sizing.scratch_slots == (running + 1) * 4


@pytest.mark.req("SIZ-2")
def test_a_byte_below_the_floor_is_refused():
    """No request can run in 1,099 bytes."""
    with pytest.raises(PlanError, match="draft scratch: 800 B"):
        size_plan(PLAN, 1_099, DRAFTING)


def test_without_drafting_all_but_the_sink_is_usable():
    """10,000 bytes are 100 slots, one of them the sink."""
    assert size_plan(PLAN, 10_000, Limits(mirrors=False)).state_slots == 99


def test_no_budget_is_over_committed_and_none_wastes_a_slot():
    """At and around every multiple of a slot's bytes, what is allocated fits, and one slot more would not."""
    for budget in [edge + step for edge in range(1_100, 20_000, 100) for step in (0, 1, 50, 99)]:
        sizing = size_plan(PLAN, budget, DRAFTING)
        slots = sizing.state_slots
        assert allocated(slots, slots // 2) <= budget
        assert allocated(slots + 1, (slots + 1) // 2) > budget
