"""Plans of any layers: bytes laid out without overlap, in chain order, with an owner of ids; or refused by name."""

from fractions import Fraction
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.planning.plan import DEFAULT_PAGE_TOKENS, Plan, SubPool, plan_storage
from kvarena.terms import ranges
from kvarena.terms.errors import PlanError
from kvarena.terms.fields import DTYPE_BYTES, Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Union, Window


@attrs.frozen
class Rows:
    """Any fields, as a stranger's layout would declare them."""

    name = "rows"
    of: tuple[Field, ...]
    zero_on_take: bool = True

    def fields(self) -> tuple[Field, ...]:
        return self.of


@attrs.frozen
class Odd:
    """A stranger's lifetime: every row whose number is even is retired at once, the others never."""

    name = "odd"
    rank = (1, -7)
    own_ids = False

    def entries(self, length: int) -> int:
        return (length + 1) // 2

    def retained(self, length: int) -> int:
        return length // 2

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return tuple(range(row, row + 1) for row in range(start, stop) if row % 2 == 0)


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
LAYOUTS = st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), SHAPES), min_size=1, max_size=4).map(
    lambda fields: Rows(tuple(Field(f"f{at}", dtype, shape) for at, (dtype, shape) in enumerate(fields)))
)
TOKEN_LIFETIMES = st.one_of(
    st.just(Full()), st.builds(Window, st.integers(1, 64)), st.builds(Chunk, st.integers(1, 64)), st.just(Odd())
)
PARTS = st.one_of(
    st.builds(Part, LAYOUTS, TOKEN_LIFETIMES, tokens_per_entry=st.sampled_from([1, 1, 2, 4])),
    st.builds(Part, LAYOUTS, st.just(State())),
)
MODELS = st.lists(st.lists(PARTS, min_size=1, max_size=3), min_size=1, max_size=6).map(
    lambda layers: [
        Layer(index, tuple(attrs.evolve(part, role=f"p{at}") for at, part in enumerate(parts)))
        for index, parts in enumerate(layers)
    ]
)

FEW = settings(max_examples=40, deadline=None)


def kv(heads: int = 2, dim: int = 4, dtype: str = "bfloat16") -> Rows:
    return Rows((Field("k", dtype, (heads, dim)), Field("v", dtype, (heads, dim))))


def one(lifetime: Any, layout: Rows | None = None, **more: Any) -> Part:
    return Part(layout or kv(), lifetime, **more)


def plan_of(*lifetimes: Any, **options: Any) -> Plan:
    """A plan of one layer per lifetime."""
    return plan_storage([Layer(index, (one(lifetime),)) for index, lifetime in enumerate(lifetimes)], **options)


@pytest.mark.req("PLN-1")
@FEW
@given(MODELS, st.sampled_from([1, 8, 256]))
def test_fields_never_overlap_are_aligned_and_lie_in_the_unit(layers: list[Layer], unit_align: int) -> None:
    """Each field starts at a multiple of its items, none touches another, and the unit holds them all."""
    plan = plan_storage(layers, unit_align=unit_align)

    for pool in plan.sub_pools:
        end = 0
        for placed in sorted(pool.placed, key=lambda placed: (placed.offset_bytes, placed.bytes)):
            assert placed.offset_bytes % DTYPE_BYTES[placed.dtype] == 0
            assert placed.offset_bytes >= end
            end = placed.offset_bytes + placed.bytes
            assert pool.unit_bytes % DTYPE_BYTES[placed.dtype] == 0
        assert end <= pool.unit_bytes
        assert pool.unit_bytes % unit_align == 0


@pytest.mark.req("DEC-1")
@pytest.mark.req("DEC-2")
@FEW
@given(MODELS)
def test_every_field_of_every_part_is_placed_once(layers: list[Layer]) -> None:
    """Nothing is lost and nothing is planned twice: the plan's fields are the layers' fields."""
    plan = plan_storage(layers)

    declared = sorted(
        (layer.index, part.role, field.name, part.lifetime.name)
        for layer in layers
        for part in layer.parts
        for field in part.layout.fields()
    )
    placed = sorted(
        (placed.layer, placed.role, placed.field, pool.name) for pool in plan.sub_pools for placed in pool.placed
    )
    assert placed == declared


@pytest.mark.req("DEC-4")
@FEW
@given(MODELS)
def test_a_unit_holds_page_tokens_at_each_parts_rate(layers: list[Layer]) -> None:
    """A page has a row per token, or per k tokens for a part of that rate; a slot has one; bytes add up exactly."""
    plan = plan_storage(layers)
    rates = {(layer.index, part.role): part.tokens_per_entry for layer in layers for part in layer.parts}

    for pool in plan.sub_pools:
        for placed in pool.placed:
            rate = rates[placed.layer, placed.role]
            assert placed.rows * rate == (1 if pool.is_slots else plan.page_tokens)
        assert pool.entry_bytes * (1 if pool.is_slots else plan.page_tokens) == sum(
            placed.bytes for placed in pool.placed
        )
        assert pool.unpadded_bytes <= pool.unit_bytes


@pytest.mark.req("PLN-3")
@FEW
@given(MODELS)
def test_the_chain_is_ordered_by_lifetime(layers: list[Layer]) -> None:
    """State first, then windows from the longest, full last, a byte-less owner behind; in any order of declaration."""
    plan = plan_storage(layers)

    ranks = [pool.lifetime.rank for pool in plan.sub_pools]
    assert ranks == sorted(ranks)
    backwards = plan_storage(layers[::-1])
    assert backwards.names == plan.names
    assert [pool.entry_bytes for pool in backwards.sub_pools] == [pool.entry_bytes for pool in plan.sub_pools]


@pytest.mark.req("PLN-2+")
@FEW
@given(MODELS)
def test_the_owner_of_ids_outlives_every_token_sub_pool(layers: list[Layer]) -> None:
    """Whoever mints the ids needs each row at least as long as any other; a model of states alone has no owner."""
    plan = plan_storage(layers)

    if not plan.token_pools:
        assert plan.owner is None
        return
    assert plan.owner is not None
    owner = plan[plan.owner].lifetime
    for length in range(0, 200, 7):
        gone = owner.retired(0, length)
        assert not any(ranges.subtract(gone, pool.lifetime.retired(0, length)) for pool in plan.token_pools)


@pytest.mark.req("PLN-5")
@FEW
@given(MODELS)
def test_tree_slots_name_every_sub_pool_once(layers: list[Layer]) -> None:
    """A prefix tree keeps one slot per sub-pool, full first and state last."""
    plan = plan_storage(layers)

    assert sorted(plan.tree_slots) == sorted(plan.names)
    if plan.slots:
        assert plan.tree_slots[-1] == "state"


@FEW
@given(MODELS, st.integers(1, 9))
def test_views_are_the_placed_fields(layers: list[Layer], pages: int) -> None:
    """Each view says where its field lies in every unit, and all views stay in their units."""
    for pool in plan_storage(layers).sub_pools:
        views = pool.views(pages)
        assert len(views) == len(pool.placed)
        for placed in pool.placed:
            view = views[placed.layer, placed.role, placed.field]
            assert (view.dtype, view.shape, view.rows) == (placed.dtype, placed.shape, placed.rows)
            assert (view.offset_bytes, view.unit_bytes, view.pages) == (placed.offset_bytes, pool.unit_bytes, pages)


def test_parts_of_one_lifetime_share_a_sub_pool_whatever_their_geometry() -> None:
    """A latent row and an indexer key of one layer lie in one page."""
    latent, key = (
        Rows((Field("latent", "bfloat16", (9,)),)),
        Rows((Field("key", "int8", (5,)), Field("s", "float32", ()))),
    )
    plan = plan_storage([Layer(0, (one(Full(), latent), one(Full(), key, role="index")))], page_tokens=2)

    assert plan.names == ("full",)
    assert plan["full"].entry_bytes == 18 + 5 + 4
    assert [(placed.field, placed.offset_bytes) for placed in plan["full"].placed] == [
        ("latent", 0),
        ("key", 36),
        ("s", 48),
    ]
    assert plan["full"].unit_bytes == 56


def test_the_first_and_last_bands() -> None:
    """State, windows from the longest, full; without a state the longest window is first."""
    assert plan_of(Full(), Window(8), State(), Window(64)).names == ("state", "window-64", "window-8", "full")
    assert plan_of(Full(), Window(8), Window(64)).names == ("window-64", "window-8", "full")


@pytest.mark.req("PLN-2")
def test_an_owner_can_be_required() -> None:
    """With owner = required a model without full attention is refused, naming its layers; with it, nothing changes."""
    with pytest.raises(PlanError, match=r"no full-attention layer .* layers 0-2 .*owner = \"required\""):
        plan_of(State(), Window(8), Window(64), owner="required")
    assert plan_of(Full(), Window(8), owner="required") == plan_of(Full(), Window(8))


@pytest.mark.req("PLN-2+")
@pytest.mark.parametrize(
    ("lifetimes", "owner"),
    [
        ([Window(64), Window(8)], "window-64"),
        ([Window(64), Chunk(8)], "window-64"),
        ([Chunk(64), Chunk(8)], "chunk-64"),
        ([Chunk(8), Window(1)], "chunk-8"),
        ([State()], None),
        ([State(), Window(8)], "window-8"),
        ([Chunk(8), Window(8)], "window-8"),
        ([Chunk(8), Window(4)], "ids"),
        ([Chunk(8), Chunk(12)], "ids"),
        ([Window(8), Odd()], "ids"),
        ([Odd(), Full()], "full"),
    ],
)
def test_who_mints_the_ids(lifetimes: list[Any], owner: str | None) -> None:
    """The sub-pool that outlives all others; a byte-less owner where none does; nobody where there are no rows."""
    plan = plan_of(*lifetimes)

    assert plan.owner == owner
    if owner == "ids":
        assert plan.names[-1] == "ids"
        assert (plan["ids"].unit_bytes, plan["ids"].entry_bytes) == (0, 0)
        assert plan["ids"].lifetime == Union(tuple(pool.lifetime for pool in plan.token_pools[:-1]))


@pytest.mark.req("PLN-2+")
def test_the_id_count_is_an_output_of_the_plan() -> None:
    """Ids are counted on the owner's own grid; a byte-less owner has one for every page that any band could hold."""
    full = plan_of(Full(), Window(8))
    assert full.owner_ids(10_000) == 10_000 // full["full"].unit_bytes
    assert plan_of(State()).owner_ids(10_000) == 0

    both = plan_of(Chunk(8), Window(4))
    assert both.owner_ids(10_000) == sum(10_000 // pool.unit_bytes for pool in both.token_pools if pool.unit_bytes)


@pytest.mark.req("PLN-5")
def test_tree_slots_keep_the_targets_window_first() -> None:
    """Full, the target's primary window, the rest from the longest, state; a draft's longer window changes nothing."""
    layers = [Layer(at, (one(lifetime),)) for at, lifetime in enumerate([State(), Full(), Window(8), Window(32)])]
    draft = [Layer(4, (one(Window(64)),)), Layer(5, (one(Window(16)),))]

    assert plan_storage(layers).tree_slots == ("full", "window-32", "window-8", "state")
    plan = plan_storage(layers, draft=draft)
    assert plan.tree_slots == ("full", "window-32", "window-64", "window-16", "window-8", "state")
    assert plan.names == ("state", "window-64", "window-32", "window-16", "window-8", "full")
    assert [pool.name for pool in plan.sub_pools if pool.draft] == ["window-64", "window-16"]


def test_a_draft_shares_the_bands_that_the_target_has() -> None:
    """A draft layer of a lifetime that the target has lies in the target's pages."""
    plan = plan_storage([Layer(0, (one(Full()),))], draft=[Layer(1, (one(Full()),))])

    assert plan["full"].layers == (0, 1)
    assert not plan["full"].draft


def test_a_recurrent_draft_needs_checkpoints() -> None:
    """Rejected tokens of a recurrent draft can be rolled back only to a checkpoint of the target."""
    draft = [Layer(2, (one(State()),))]
    with pytest.raises(PlanError, match=r"draft layers 2 are recurrent"):
        plan_storage([Layer(0, (one(Full()),)), Layer(1, (one(State()),))], draft=draft)

    plan = plan_storage([Layer(0, (one(Full()),)), Layer(1, (one(State(256)),))], draft=draft)
    assert plan["state"].layers == (1, 2)


@pytest.mark.req("DEC-4")
def test_the_page_size_fits_every_rate() -> None:
    """16 tokens, raised to what all rates divide; an explicit size that tears an entry apart names the layers."""
    layers = [
        Layer(0, (one(Full()),)),
        Layer(1, (one(Full(), tokens_per_entry=4),)),
        Layer(2, (one(Full(), tokens_per_entry=128),)),
    ]

    assert plan_storage(layers[:1]).page_tokens == DEFAULT_PAGE_TOKENS == 16
    assert plan_storage(layers[:2]).page_tokens == 16
    assert plan_storage(layers).page_tokens == 128
    assert plan_storage(layers, page_tokens=256)["full"].entry_bytes == Fraction(32) + Fraction(32, 4) + Fraction(
        32, 128
    )
    with pytest.raises(
        PlanError, match="page size 64 is no multiple of the tokens per entry of layers 2; use a multiple of 128"
    ):
        plan_storage(layers, page_tokens=64)
    with pytest.raises(PlanError, match="of layers 1-2;"):
        plan_storage(layers, page_tokens=2)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "16"])
def test_a_page_holds_at_least_a_token(tokens: Any) -> None:
    """A page of nothing, or of half a token, is refused."""
    with pytest.raises(PlanError, match="page size"):
        plan_of(Full(), page_tokens=tokens)


@pytest.mark.req("DEC-4")
def test_shared_layers_are_planned_once() -> None:
    """A layer that reads another's rows adds no bytes, and must name a layer that has some."""
    alone = plan_storage([Layer(0, (one(Full()),))])
    shared = plan_storage([Layer(0, (one(Full()),)), Layer(1, shares=0), Layer(2)])

    assert shared["full"] == alone["full"]
    assert shared.shared_layers == ((1, 0),)
    with pytest.raises(PlanError, match="layer 1 shares the memory of layer 2, which owns none"):
        plan_storage([Layer(0, (one(Full()),)), Layer(1, shares=2), Layer(2)])


@pytest.mark.req("PLN-1")
def test_one_part_with_two_geometries_is_refused() -> None:
    """The same part of the same layer declared twice is refused, saying how the two differ."""
    with pytest.raises(PlanError, match=r"layer 3: its part 'kv' is declared with two geometries"):
        plan_storage([Layer(3, (one(Full()),)), Layer(3, (one(Full(), kv(heads=4)),))])
    part = one(Full())
    for layers in ([Layer(3, (part, part))], [Layer(3, (part,)), Layer(3, (part,))]):
        with pytest.raises(PlanError, match=r"layer 3: its part 'kv' is declared twice"):
            plan_storage(layers)
    with pytest.raises(PlanError, match="number a draft model's layers after the target's"):
        plan_storage([Layer(0, (part,))], draft=[Layer(0, (part,))])


def test_a_slot_has_no_rate() -> None:
    """A state kept once per so many tokens makes no sense, and would have no bytes."""
    with pytest.raises(PlanError, match="layer 0: its part 'kv' is a slot per request"):
        plan_storage([Layer(0, (one(State(), tokens_per_entry=4),))])


@pytest.mark.req("PLN-1")
def test_a_name_is_one_lifetime_and_slots_are_one_sub_pool() -> None:
    """A stranger's lifetime that takes another's name, or wants slots beside the state's, is refused by layer."""
    mine = attrs.make_class("Mine", {}, class_body={"name": "window-8"}, bases=(Full,), frozen=True)()
    with pytest.raises(PlanError, match=r"layers 1: their lifetime Mine\(.*\) has the name 'window-8' of Window"):
        plan_of(Window(8), mine)
    conv = attrs.make_class("Conv", {}, class_body={"name": "conv"}, bases=(State,), frozen=True)()
    with pytest.raises(PlanError, match=r"layers 0, 2 keep slots of the lifetimes 'state', 'conv'"):
        plan_of(State(), Full(), conv)


def test_nothing_to_keep_is_refused() -> None:
    """A model of MLPs needs no arena."""
    with pytest.raises(PlanError, match="keeps any memory"):
        plan_storage([Layer(0), Layer(1)])


def test_zeroing_is_the_sub_pools() -> None:
    """One layout that asks for zeroed pages makes its whole sub-pool zeroed; only when all decline is it not."""
    lax = Rows((Field("k", "int8", (4,)),), zero_on_take=False)

    assert not plan_storage([Layer(0, (one(Full(), lax),))])["full"].zero_on_take
    assert plan_storage([Layer(0, (one(Full(), lax),)), Layer(1, (one(Full()),))])["full"].zero_on_take


def test_an_unknown_sub_pool_is_a_key_error() -> None:
    """Asking a plan for what it does not hold is an error, not an empty answer."""
    with pytest.raises(KeyError, match="window-9"):
        plan_of(Full())["window-9"]
    assert isinstance(plan_of(Full())["full"], SubPool)
