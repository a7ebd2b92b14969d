"""One budget, solved: fixed points that are exact, floors that are named."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Bytes

from kvarena.planning.charges import Charges, Limits
from kvarena.planning.packing import packs, usable_range
from kvarena.planning.plan import plan_storage
from kvarena.planning.sizing import size_plan
from kvarena.terms.errors import PlanError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Window


def hybrid(page_tokens=4, state=24, window=5, full=3):
    """A state, a window and full attention; sizes that divide nothing."""
    return plan_storage(
        [
            Layer(0, (Part(Bytes(state), State(), "state"),)),
            Layer(1, (Part(Bytes(window), Window(8)),)),
            Layer(2, (Part(Bytes(full), Full()),)),
        ],
        page_tokens=page_tokens,
    )


def placed(plan, arena_bytes, units):
    """Lay the units out page by page, as bytes; None when two of them would overlap."""
    used = usable_range(plan, arena_bytes)
    position = used.start
    for pool, count in list(zip(plan.sub_pools, units, strict=True))[:-1]:
        for _ in range(count):
            position += -position % pool.unit_bytes + pool.unit_bytes
    pages = used.stop // plan.sub_pools[-1].unit_bytes
    return (pages - units[-1]) * plan.sub_pools[-1].unit_bytes >= position if units[-1] else position <= used.stop


@pytest.mark.req("SIZ-1")
@given(st.integers(150, 5000), st.integers(8, 40), st.integers(1, 2), st.booleans())
@settings(max_examples=60)
def test_the_concurrency_found_fits_and_one_more_does_not(budget, context, slots_per_request, mirrors):
    """Rows, mirrors and slots depend on the concurrency they limit: the answer is the fixed point."""
    plan = hybrid()
    limits = Limits(context_tokens=context, slots_per_request=slots_per_request, mirrors=mirrors)
    try:
        sizing = size_plan(plan, budget, limits)
    except PlanError:
        return
    assert sizing.arena_bytes + sizing.fixed_bytes <= budget
    per_request = (slots_per_request, 3 if context > 8 else -(-context // 4), -(-context // 4))
    whole = [
        count
        for count in range(1, 200)
        if placed(plan, _arena(plan, budget, limits, count), [count * units for units in per_request])
    ]
    assert sizing.running == max([1, *whole])


def _arena(plan, budget, limits, running):
    """The largest arena beside the terms of so many rows, by trying every size from the top."""
    for arena in range(budget, -1, -1):
        ids = 2 * (arena // 12) + arena // 24
        pages = -(-limits.context_tokens // 4)
        rows = (running + 1) * (pages + limits.slots_per_request)
        staged = 2 * min(-(-(ids + 3 + rows) // 4), 2 * 4 * (running + 1 + pages))
        if arena + (4 * (ids + 3 + rows + staged) if limits.mirrors else 0) <= budget:
            return arena
    return 0


@pytest.mark.req("SIZ-1")
@given(st.integers(300, 9000), st.integers(1, 6))
def test_the_token_target_is_the_most_that_fits_with_its_windows(budget, slots):
    """After the state slots, full attention gets all pages for which the window targets also fit."""
    plan = hybrid()
    try:
        sizing = size_plan(plan, budget, Limits(context_tokens=16, state_slots=slots, mirrors=False))
    except PlanError:
        return
    state, window, full = (sizing.units[name] for name in plan.names)
    assert (state, window) == (slots, min(full, slots * 3))
    assert packs(plan, sizing.arena_bytes, (state, window, full))
    assert not packs(plan, sizing.arena_bytes, (state, min(full + 1, slots * 3), full + 1))


@pytest.mark.req("SIZ-1")
@pytest.mark.parametrize("limits", [{"max_running": 9}, {"state_share": 0.3}, {"state_slots": 20}])
def test_concurrency_counts_whole_requests_whatever_slots_are_booted(limits):
    """Boot targets are no walls: at the context, each request brings its own slot, and memory is what binds."""
    plan = hybrid()
    sizing = size_plan(plan, 2000, Limits(context_tokens=64, mirrors=False, **limits))
    fits = [count for count in range(1, 50) if packs(plan, sizing.arena_bytes, (count, 3 * count, 16 * count))]
    assert sizing.concurrency == max(fits) < sizing.running
    assert sizing.binds == "full"
    short = size_plan(plan, 2000, Limits(context_tokens=4, mirrors=False, max_running=2))
    assert (short.concurrency, short.running, short.binds) == (2, 2, "max_running")


@pytest.mark.req("SIZ-2")
def test_a_budget_below_one_request_is_refused_term_by_term():
    """The message has each term of the floor and its bytes."""
    with pytest.raises(PlanError) as refused:
        size_plan(hybrid(), 100, Limits(context_tokens=64, mirrors=False))
    text = str(refused.value)
    assert "100 B" in text
    for term in ("state sink: 24 B", "token sink: 20 B", "state: 1 x 24 B: 24 B", "window-8: 3 x 20 B: 60 B"):
        assert term in text
    assert "full: 1 x 12 B: 12 B" in text


@pytest.mark.req("SIZ-2")
def test_the_floor_is_exact():
    """The least budget that is accepted serves one request; one byte less is refused."""
    plan = hybrid()
    accepted = next(budget for budget in range(100, 1000) if _accepts(plan, budget))
    assert not any(_accepts(plan, budget) for budget in range(100, accepted))
    assert all(_accepts(plan, budget) for budget in range(accepted, accepted + 200))
    assert packs(plan, accepted, (1, 3, 1))


def _accepts(plan, budget):
    try:
        size_plan(plan, budget, Limits(context_tokens=64, mirrors=False))
    except PlanError:
        return False
    return True


@pytest.mark.req("SIZ-4")
def test_a_whole_request_need_not_fit_at_sizing():
    """A context longer than the arena boots; that a request fits is asked when it arrives."""
    sizing = size_plan(hybrid(), 400, Limits(context_tokens=10_000, mirrors=False))
    assert sizing.running == 1
    assert sizing.concurrency == 0
    assert 0 < sizing.tokens < 10_000


def test_mirrors_and_rows_are_charged_only_where_there_are_any():
    """A device without mirrors leaves their bytes to the arena."""
    plan = hybrid()
    with_mirrors = size_plan(plan, 4000, Limits(context_tokens=64, max_running=3))
    without = size_plan(plan, 4000, Limits(context_tokens=64, max_running=3, mirrors=False))
    assert without.fixed_bytes == 0
    assert without.arena_bytes == 4000
    assert with_mirrors.fixed["request rows"] == 4 * (with_mirrors.running + 1) * (16 + 1)
    ids = 2 * with_mirrors.id_count + with_mirrors.arena_bytes // 24
    assert with_mirrors.fixed["id maps"] == 4 * (ids + 3)  # a last entry of each map is for what is unbound
    assert with_mirrors.fixed["map updates"] == 4 * 2 * min(-(-(ids + 3 + 4 * 17) // 4), 2 * 4 * (4 + 16))
    overlapped = size_plan(plan, 4000, Limits(context_tokens=64, max_running=3, in_flight=2))
    ids = 2 * overlapped.id_count + overlapped.arena_bytes // 24
    assert overlapped.fixed["map updates"] == 3 * 4 * 2 * min(-(-(ids + 3 + 4 * 17) // 4), 2 * 4 * (4 + 16))
    assert overlapped.mirror_bytes == overlapped.fixed_bytes


def test_request_state_and_a_share_for_slots():
    """Row bytes that plugins register are charged per row; a share caps the state slots, sink included."""
    plan = hybrid()
    sizing = size_plan(plan, 4000, Limits(context_tokens=16, state_share=0.25, mirrors=False, row_bytes=10))
    assert sizing.fixed["request state"] == 10 * (sizing.running + 1)
    assert (sizing.state_slots + 1) * 24 <= 0.25 * sizing.arena_bytes < (sizing.state_slots + 2) * 24 + 3


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(state_slots=1, slots_per_request=2), "less than the 2 slots"),
        (Limits(state_slots=3, state_share=0.5), "give one"),
        (Limits(state_share=1.5), "between 0 and 1"),
        (Limits(max_running=0), "max_running = 0"),
        (Limits(state_slots=1000, context_tokens=16, mirrors=False), "state_slots = 1000"),
    ],
)
def test_limits_that_contradict_are_refused(limits, words):
    """Each impossible limit is named."""
    with pytest.raises(PlanError, match=words):
        size_plan(hybrid(), 4000, limits)


def test_state_limits_without_states_are_refused():
    """A model without state layers cannot be given state slots."""
    plan = plan_storage([Layer(0, (Part(Bytes(4), Full()),))], page_tokens=4)
    with pytest.raises(PlanError, match="no state layers"):
        size_plan(plan, 4000, Limits(state_slots=3, context_tokens=16))


def test_more_pages_than_an_int32_counts_are_refused():
    """Planning alone says so; nothing is allocated."""
    plan = plan_storage([Layer(0, (Part(Bytes(1), Full()),))], page_tokens=1)
    with pytest.raises(PlanError, match="2,147,483,647"):
        size_plan(plan, 2**31 + 1, Limits(context_tokens=16, mirrors=False))
    assert size_plan(plan, 2**31 - 1, Limits(context_tokens=16, mirrors=False)).id_count == 2**31 - 1


@pytest.mark.req("PLN-2+")
def test_a_window_owner_gets_the_rest_of_the_arena():
    """Without full attention the last token sub-pool is the one that grows."""
    plan = plan_storage(
        [Layer(0, (Part(Bytes(24), State(), "state"),)), Layer(1, (Part(Bytes(2), Window(8)),))], page_tokens=4
    )
    sizing = size_plan(plan, 1000, Limits(context_tokens=64, mirrors=False, max_running=2))
    assert plan.owner == "window-8"
    assert sizing.units == {"state": 2, "window-8": (1000 - 8 - 3 * 24) // 8}


@pytest.mark.req("PLN-2+")
def test_the_ids_of_an_owner_without_bytes_are_counted_and_charged():
    """A chunk and a window outlive each other by turns: a byte-less owner mints ids for both."""
    plan = plan_storage([Layer(0, (Part(Bytes(2), Chunk(16)),)), Layer(1, (Part(Bytes(2), Window(8)),))], page_tokens=4)
    sizing = size_plan(plan, 2000, Limits(context_tokens=64))
    assert plan.owner == "ids"
    assert sizing.id_count == 2 * (sizing.arena_bytes // 8)
    assert sizing.fixed["id maps"] == 4 * 3 * (sizing.id_count + 1)


@pytest.mark.req("DEM-3")
@pytest.mark.req("SIZ-1")
def test_a_request_is_sized_with_the_windows_that_checkpoints_keep():
    """P=4, W=8: three pages without a grid, six on one of 16 tokens; so fewer requests fit."""
    plan = hybrid()
    plain = size_plan(plan, 4000, Limits(context_tokens=64, slots_per_request=2, mirrors=False))
    grid = size_plan(plan, 4000, Limits(context_tokens=64, slots_per_request=2, mirrors=False, grid=16))
    assert Charges(plan, 4000, plain.limits).per_request == (2, 3, 16)
    assert Charges(plan, 4000, grid.limits).per_request == (2, 6, 16)
    assert 0 < grid.concurrency < plain.concurrency


def test_spare_places_are_charged_as_places_and_not_as_slots():
    """A row has room for a slot that it may get; nobody is charged the slot."""
    plan, limits = hybrid(), Limits(context_tokens=64, grid=16, max_running=4)
    lazy = attrs.evolve(limits, spare_slots=1)
    assert (limits.slot_places, lazy.slot_places) == (1, 2)
    charges, spare = Charges(plan, 9000, limits), Charges(plan, 9000, lazy)
    assert spare.per_request == charges.per_request == (1, 6, 16)
    assert spare.fixed(4, 4000)["request rows"] == charges.fixed(4, 4000)["request rows"] + 4 * 5
    assert spare.host_bytes(4, 4000) == charges.host_bytes(4, 4000) + 8 * 4


@pytest.mark.parametrize(("wrong", "words"), [({"grid": 6}, "grid = 6"), ({"spare_slots": -1}, "spare_slots = -1")])
def test_a_grid_or_spare_places_that_are_none_are_refused(wrong, words):
    """With their name and value."""
    with pytest.raises(PlanError, match=words):
        size_plan(hybrid(), 4000, Limits(context_tokens=64, mirrors=False, **wrong))
