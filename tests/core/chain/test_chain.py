"""The chain: takes that are whole or nothing, relief, and refusals that carry their sum."""

import tracemalloc

import attrs
import numpy as np
import pytest

from kvarena.backends.cpu import CpuDevice
from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain, Policies
from kvarena.chain.describe import describe, stats
from kvarena.planning.plan import Plan, plan_storage
from kvarena.policies.compaction import Lazy
from kvarena.policies.hole_order import Nearest, Recent
from kvarena.policies.placement import Middle
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError, PlanError
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ports import FieldView, HoleOrder

POLICIES = Policies(Nearest(), Lazy(), Middle())
GIB = 1 << 30


@attrs.frozen
class Raw:
    """An entry of so many bytes, zeroed when it is handed out or not."""

    size: int
    zero_on_take: bool = True
    name = "raw"

    def fields(self) -> tuple[Field, ...]:
        return (Field("bytes", "uint8", (self.size,)),)


def planned(*parts: tuple[Lifetime, int]) -> Plan:
    layers = [Layer(index, (Part(Raw(size), lifetime),)) for index, (lifetime, size) in enumerate(parts)]
    return plan_storage(layers, page_tokens=1)


def chain_of(plan: Plan, arena_bytes: int, *, slots: int = 8, device: CpuDevice | HostDevice | None = None) -> Chain:
    device = device or CpuDevice()
    device.reserve(arena_bytes)
    return Chain(plan, arena_bytes, device=device, policies=POLICIES, slot_count=slots)


def three_kinds(arena_bytes: int = 1000) -> Chain:
    """State units of 50 bytes, window rows of 4, full rows of 10."""
    return chain_of(planned((State(), 50), (Window(8), 4), (Full(), 10)), arena_bytes)


def take_tokens(chain: Chain, count: int, *names: str) -> np.ndarray:
    """Fresh ids of the owner, bound in it and in these sub-pools."""
    ids = chain.minters["full"].mint(count)
    assert ids is not None
    taken = chain.take(dict.fromkeys(("full", *names), ids))
    assert not isinstance(taken, Refused), str(taken)
    return ids


def arena(chain: Chain) -> np.ndarray:
    size = chain.device.arena_bytes
    return chain.device.view(FieldView("uint8", (), 1, 0, 1, size)).numpy().reshape(-1)


@pytest.mark.req("IDS-1")
def test_a_take_binds_one_id_in_several_sub_pools() -> None:
    """The owner mints; a window binds the same ids to pages of its own; slots have their own ids."""
    chain = three_kinds()
    ids = chain.minters["full"].mint(3)
    slots = chain.minters["state"].mint(2)
    assert ids is not None
    assert slots is not None
    taken = chain.take({"full": ids, "window-8": ids, "state": slots})
    assert not isinstance(taken, Refused)
    assert taken["state"].tolist() == [1, 2]
    assert sorted(taken["full"].tolist()) == [96, 97, 98]
    assert np.array_equal(chain.pages("window-8", ids), taken["window-8"])
    chain.verify()


@pytest.mark.req("BLD-2")
def test_unbound_reads_go_to_the_sink() -> None:
    """Per sub-pool: the top page of a token grid, slot 0 of the states; they are zero and nobody's."""
    chain = three_kinds()
    take_tokens(chain, 5)
    assert chain.pages("window-8", np.array([[0, -1]])).tolist() == [[249, 249]]
    assert chain.pages("full", np.array([7, -1])).tolist() == [99, 99]
    assert chain.pages("state", np.array([0])).tolist() == [0]
    assert not arena(chain)[:50].any()
    assert not arena(chain)[990:].any()


@pytest.mark.req("ALC-2")
@pytest.mark.req("CAP-5")
def test_a_refused_take_changes_nothing_and_says_why() -> None:
    """All of the demand or none: the sub-pool that would fit is not taken either."""
    chain = three_kinds()
    take_tokens(chain, 40, "window-8")
    before, epoch = chain.snapshot(), chain.epoch
    ids = chain.minters["full"].mint(30)
    assert ids is not None
    refused = chain.take({"full": ids, "window-8": ids})
    assert isinstance(refused, Refused)
    assert str(refused) == (
        "no arrangement of the arena serves this take (window-8: asked 30, live 40, holes 0; full: asked 30, live 40, "
        "holes 0; 380 bytes free)"
    )
    assert (chain.snapshot(), chain.epoch, chain.counters.refusals) == (before, epoch, 1)
    assert not chain.is_bound("window-8", ids).any()
    assert not chain.feasible((0, 30, 30))
    assert chain.feasible((0, 27, 27))
    assert not isinstance(chain.take({"full": ids[:27], "window-8": ids[:27]}), Refused)
    chain.verify()


@pytest.mark.req("ALC-2")
@pytest.mark.parametrize("wrong", [[0], [7, 7], [-1], [10**6]], ids=["bound", "twice", "negative", "beyond"])
def test_a_wrong_take_is_caught_before_any_sub_pool_is_taken(wrong: list[int]) -> None:
    """The window's ids are good and come first in the chain; for the owner's bad ones they are not bound either."""
    chain = three_kinds()
    take_tokens(chain, 6)
    good, before = chain.minters["full"].mint(2), chain.snapshot()
    assert good is not None
    with pytest.raises(InvariantError, match=r"band\.take_of"):
        chain.take({"window-8": good, "full": np.array(wrong)})
    assert chain.snapshot() == before
    assert not chain.is_bound("window-8", good).any()
    chain.verify()


def test_ids_that_run_out_are_named() -> None:
    """A refusal for ids is not one for bytes."""
    chain = three_kinds()
    assert chain.minters["state"].mint(9) is None
    assert not chain.feasible((9, 0, 0))
    assert chain.feasible((8, 0, 0))


@pytest.mark.req("ALC-3")
def test_relief_compacts_the_end_that_is_in_the_way() -> None:
    """The full band's holes lie deep inside; its farthest pages fill them and the state grows."""
    chain = chain_of(planned((State(), 50), (Full(), 10)), 1000)
    ids = take_tokens(chain, 60)
    tags = {int(id_): index % 200 + 1 for index, id_ in enumerate(ids)}
    for id_, tag in tags.items():
        page = int(chain.pages("full", np.array([id_]))[0])
        arena(chain)[page * 10 : page * 10 + 10] = tag
    gone = ids[::2][1:]
    chain.free("full", gone)
    slots = chain.minters["state"].mint(8)
    assert slots is not None
    before = chain.epoch
    assert not isinstance(chain.take({"state": slots}), Refused)
    assert chain.counters.moves > 0
    assert chain.epoch > before
    for id_ in set(ids.tolist()) - set(gone.tolist()):
        page = int(chain.pages("full", np.array([id_]))[0])
        assert (arena(chain)[page * 10 : page * 10 + 10] == tags[id_]).all()
    chain.verify()


@pytest.mark.req("ALC-3")
def test_relief_moves_a_float_that_lies_in_the_way() -> None:
    """Its pages are copied, its ids stay, and the free bytes of both its sides become one."""
    chain = three_kinds()
    ids = take_tokens(chain, 20, "window-8")
    start = chain.bands["window-8"].shot().start * 4
    assert 300 < start < 600
    for id_, page in zip(ids.tolist(), chain.pages("window-8", ids).tolist(), strict=True):
        arena(chain)[page * 4 : page * 4 + 4] = id_ + 1
    take_tokens(chain, 40)
    assert chain.counters.relocations == 1
    for id_, page in zip(ids.tolist(), chain.pages("window-8", ids).tolist(), strict=True):
        assert (arena(chain)[page * 4 : page * 4 + 4] == id_ + 1).all()
    slots = chain.minters["state"].mint(4)
    assert slots is not None
    assert not isinstance(chain.take({"state": slots}), Refused)
    chain.verify()


@pytest.mark.req("ALC-5")
def test_pages_are_zeroed_on_hand_out() -> None:
    """Old bytes of any sub-pool, an end or a float, are gone, unless the layout declines."""
    parts = (Part(Raw(8), Full()), Part(Raw(8), Window(4)), Part(Raw(8, zero_on_take=False), Window(9)))
    plan = plan_storage([Layer(index, (part,)) for index, part in enumerate(parts)], page_tokens=1)
    chain = chain_of(plan, 400)
    arena(chain)[: 400 - 8] = 9
    ids = take_tokens(chain, 4, "window-4", "window-9")
    for name, old in (("full", 0), ("window-4", 0), ("window-9", 9)):
        for page in chain.pages(name, ids).tolist():
            assert (arena(chain)[page * 8 : page * 8 + 8] == old).all()


@pytest.mark.req("LIF-7")
@pytest.mark.req("IDS-4")
def test_a_double_free_is_caught_with_nothing_changed() -> None:
    """In a second call, or named twice in one."""
    chain = three_kinds()
    ids = take_tokens(chain, 6, "window-8")
    chain.free("window-8", ids[:2])
    before = chain.snapshot()
    for wrong in (ids[:1], ids[[3, 3]], ids[1:4], np.array([-1]), np.array([10**6])):
        with pytest.raises(InvariantError, match=r"band\.free_of"):
            chain.free("window-8", wrong)
    assert chain.snapshot() == before
    chain.verify()


def test_ids_come_back_when_nobody_holds_them() -> None:
    """Giving back an id that a window still holds would give it to two holders."""
    chain = three_kinds()
    ids = take_tokens(chain, 6, "window-8")
    chain.free("full", ids)
    with pytest.raises(InvariantError, match=r"chain\.give_back_of_bound_id.*window-8"):
        chain.minters["full"].give_back(ids)
    chain.free("window-8", ids)
    chain.minters["full"].give_back(ids)
    chain.verify()


@pytest.mark.req("CMP-1")
@pytest.mark.req("IDS-2")
def test_a_flush_closes_holes_within_the_policys_bound() -> None:
    """Ids stay; the frontier retreats; floats are left alone; nothing to do is 0."""
    chain = chain_of(planned((Window(8), 4), (Full(), 4)), 4000)
    ids = take_tokens(chain, 300, "window-8")
    pages = chain.pages("full", ids)
    near = ids[np.argsort(pages)[::-1][:150]]
    chain.free("full", near)
    assert chain.flush() == 64
    assert chain.flush() == 64
    assert chain.flush() == 22
    assert chain.flush() == 0
    shot = chain.snapshot().bands[1]
    assert (shot.live, shot.holes) == (150, 0)
    assert chain.counters.moved_bytes == 150 * 4
    chain.verify()


@pytest.mark.req("ALC-4")
def test_a_chain_of_one_band_takes_all_its_bytes() -> None:
    """Slots from the bottom, tokens from the top; beyond the last page it refuses."""
    slots = chain_of(planned((State(), 16)), 160, slots=20)
    ids = slots.mint("state", 9)
    assert ids is not None
    taken = slots.take({"state": ids})
    assert not isinstance(taken, Refused)
    assert taken["state"].tolist() == list(range(1, 10))
    more = slots.mint("state", 1)
    assert more is not None
    assert isinstance(slots.take({"state": more}), Refused)
    tokens = chain_of(planned((Full(), 16)), 160)
    take_tokens(tokens, 9)
    assert not tokens.feasible((1,))
    tokens.verify()


def test_a_chain_with_five_floats() -> None:
    """Every kind at once, full to the last unit that fits, then freed and taken anew."""
    kinds = [(State(), 40), *((Window(2**n), 3 + n) for n in range(2, 7)), (Full(), 16)]
    chain = chain_of(planned(*kinds), 4000)
    names = [name for name in chain.bands if name not in ("full", "state")]
    assert len(names) == 5
    held = []
    while chain.feasible((0, 1, 1, 1, 1, 1, 1)):
        held.append(take_tokens(chain, 1, *names))
    assert chain.free_bytes < 16 + sum(3 + n for n in range(2, 7)) + 40
    for name in ("full", *names):
        chain.free(name, np.concatenate(held[::2]))
    chain.verify()
    assert chain.feasible((8, 5, 5, 5, 5, 5, 5))
    slots = chain.minters["state"].mint(8)
    assert slots is not None
    assert not isinstance(chain.take({"state": slots}), Refused)
    take_tokens(chain, 5, *names)
    chain.verify()


def test_an_owner_without_bytes() -> None:
    """It is taken and freed like a band, and only its ids can run out."""
    chain = chain_of(planned((Chunk(10), 3), (Window(8), 4)), 400)
    ids = chain.minters["ids"].mint(10)
    assert ids is not None
    assert not isinstance(chain.take({"ids": ids, "chunk-10": ids, "window-8": ids[5:]}), Refused)
    assert chain.feasible((1, 1, chain.bands["ids"].grid.id_count - 10))
    assert not chain.feasible((1, 1, chain.bands["ids"].grid.id_count - 9))
    assert "ids: 10 ids, no bytes" in describe(chain)
    chain.free("window-8", ids[5:])
    chain.free("chunk-10", ids)
    chain.free("ids", ids)
    chain.minters["ids"].give_back(ids)
    chain.verify()


def test_units_of_a_gibibyte_and_grids_of_four_kibibytes() -> None:
    """Bytes are counted in 64 bits, and the maps of a 192 GiB arena are made."""
    chain = chain_of(planned((State(), GIB), (Full(), 4096)), 192 * GIB, slots=190, device=HostDevice())
    slots = chain.minters["state"].mint(100)
    ids = chain.minters["full"].mint(1_000_000)
    assert ids is not None
    assert slots is not None
    taken = chain.take({"state": slots, "full": ids})
    assert not isinstance(taken, Refused)
    assert int(taken["full"].max()) == 192 * GIB // 4096 - 2
    assert chain.feasible((87, 0))
    assert not chain.feasible((88, 0))


@pytest.mark.parametrize("order", [Nearest(), Recent()], ids=str)
def test_bookkeeping_is_small(order: HoleOrder) -> None:
    """At most 32 bytes of maps, pools and marks per page."""
    plan, pages = planned((Full(), 4096)), 1 << 18
    tracemalloc.start()
    chain = Chain(plan, pages * 4096, device=HostDevice(), policies=Policies(order, Lazy(), Middle()))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert chain.bands["full"].grid.page_count == pages
    assert 16 * pages < used <= 32 * pages


def test_too_many_pages_are_refused() -> None:
    """Before any map is made."""
    with pytest.raises(PlanError, match="can be numbered"):
        chain_of(planned((Full(), 2)), 4 * (2**31), device=HostDevice())


def test_nothing_asked_is_nothing_taken() -> None:
    """Empty arrays, or no sub-pool at all."""
    chain = three_kinds()
    none = np.empty(0, dtype=np.int64)
    taken = chain.take({"full": none})
    assert not isinstance(taken, Refused)
    assert taken["full"].tolist() == []
    assert chain.take({}) == {}
    chain.free("full", none)
    chain.verify()


def test_an_unknown_sub_pool_is_named() -> None:
    """With the nearest one there is."""
    chain = three_kinds()
    with pytest.raises(KvarenaError, match="no sub-pool 'ful'; did you mean 'full'"):
        chain.take({"ful": np.arange(1)})
    with pytest.raises(KvarenaError, match="'window-8' mints no ids"):
        chain.mint("window-8", 1)


@pytest.mark.req("CAP-2")
def test_a_snapshot_is_kept_until_something_changes() -> None:
    """The same object while the epoch stands; it holds counts and frontiers, no positions."""
    chain = three_kinds()
    ids = take_tokens(chain, 5)
    kept, epoch = chain.snapshot(), chain.epoch
    assert chain.snapshot() is kept
    assert chain.feasible((0, 1, 1))
    assert (chain.snapshot(), chain.epoch) == (kept, epoch)
    chain.free("full", ids[:1])
    assert chain.epoch > epoch
    assert chain.snapshot() != kept
    assert stats(chain)["full"]["live"] == 4


def test_the_arena_as_text() -> None:
    """In proportion: the sink, the bands from their ends, holes in their share, the free bytes between."""
    chain = chain_of(planned((State(), 100), (Full(), 10)), 7210)
    slots = chain.minters["state"].mint(6)
    assert slots is not None
    chain.take({"state": slots})
    ids = take_tokens(chain, 200)
    chain.free("full", ids[np.argsort(chain.pages("full", ids))][100:200:2])
    assert describe(chain).splitlines() == [
        "|x######" + " " * 45 + "ooooo" + "#" * 15 + "|",
        "  state (low end, grows up): live 6 · holes 0 units of 100 B; bytes 100 to 700; 2 ids left",
        "  full (high end, grows down): live 150 · holes 50 units of 10 B; bytes 5,200 to 7,200; 571 ids left",
        "free 4.88 KiB of 6.93 KiB",
        "takes 2 · refusals 0 · moves 0 (0 B) · relocations 0",
    ]


@pytest.mark.parametrize("band", ["state", "window-8", "full"])
def test_verify_finds_a_lost_page(band: str) -> None:
    """A frontier that is off by a page is seen, in whichever band."""
    chain = three_kinds()
    take_tokens(chain, 9, "window-8")
    slots = chain.minters["state"].mint(2)
    assert slots is not None
    chain.take({"state": slots})
    chain.verify()
    chain.bands[band].stop += 1  # type: ignore[union-attr]
    with pytest.raises(InvariantError, match=r"band\.sum"):
        chain.verify()


def test_verify_finds_two_bands_on_the_same_bytes() -> None:
    """Each by itself is in order; together they are not."""
    chain = three_kinds()
    take_tokens(chain, 9, "window-8")
    other = chain_of(planned((State(), 60), (Window(8), 4), (Full(), 10)), 1000)
    slots = other.mint("state", 8)
    assert slots is not None
    assert not isinstance(other.take({"state": slots}), Refused)
    other.verify()
    chain.bands["state"] = other.bands["state"]
    with pytest.raises(InvariantError, match=r"chain\.spans_in_order"):
        chain.verify()
