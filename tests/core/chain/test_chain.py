"""The chain: takes that are whole or nothing, and refusals that carry their sum."""

import tracemalloc

import numpy as np
import pytest
from chains import Raw, arena, bytes_left, chain_of, nothing_changes, planned, take_new, take_tokens, three_kinds, unit

import kvarena.chain.chain as chain_module
from kvarena.backends.host import HostDevice
from kvarena.chain.chain import Chain
from kvarena.chain.describe import stats
from kvarena.planning.plan import plan_storage
from kvarena.policies.compaction import Lazy
from kvarena.policies.hole_order import Nearest, Recent
from kvarena.policies.placement import Middle
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError, PlanError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Window
from kvarena.terms.ports import HoleOrder, Policies

GIB = 1 << 30


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
    assert not chain.bands["window-8"].ids.is_bound(ids).any()
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
    assert not chain.bands["window-8"].ids.is_bound(good).any()
    chain.verify()


def test_ids_that_run_out_are_named() -> None:
    """A refusal for ids is not one for bytes."""
    chain = three_kinds()
    assert chain.minters["state"].mint(9) is None
    assert not chain.feasible((9, 0, 0))
    assert chain.feasible((8, 0, 0))


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


@pytest.mark.req("ALC-5")
def test_pages_are_zeroed_when_they_are_used_again() -> None:
    """A take that only fills holes hands out clean pages too, of every sub-pool that it binds, and touches no other."""
    chain = three_kinds()
    ids, slots = take_new(chain, "full", 12).ids, take_new(chain, "state", 3).ids
    arena(chain)[50:990] = 9
    chain.free_all({"full": ids[2:7], "state": slots[:2]})
    again = {"full": take_new(chain, "full", 5), "state": take_new(chain, "state", 2)}
    sizes = {"full": 10, "window-8": 4, "state": 50}
    for taken in again.values():
        for name, pages in taken.pages.items():
            for page in pages.tolist():
                assert not arena(chain)[page * sizes[name] : (page + 1) * sizes[name]].any()
    for name, kept in (("full", ids[7:]), ("window-8", ids[7:]), ("state", slots[2:])):
        for id_ in kept.tolist():
            assert (unit(chain, name, id_) == 9).all()


@pytest.mark.req("ALC-4")
def test_a_chain_of_one_band_takes_all_its_bytes() -> None:
    """Slots from the bottom, tokens from the top; beyond the last page it refuses."""
    slots = chain_of(planned((State(), 16)), 160, slots=20)
    ids = slots.minters["state"].mint(9)
    assert ids is not None
    taken = slots.take({"state": ids})
    assert not isinstance(taken, Refused)
    assert taken["state"].tolist() == list(range(1, 10))
    more = slots.minters["state"].mint(1)
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
    assert bytes_left(chain) < 16 + sum(3 + n for n in range(2, 7)) + 40
    for name in (*names, "full"):
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
    assert (stats(chain)["ids"]["live"], stats(chain)["ids"]["unit_bytes"]) == (10, 0)
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
        chain.minters["window-8"].mint(1)


@pytest.mark.req("IDS-1")
@pytest.mark.req("ALC-1")
def test_a_take_mints_and_binds_wherever_the_ids_are_shared() -> None:
    """One call: the owner's ids in every token sub-pool; the state's slots are its own."""
    chain = three_kinds()
    tokens, slots = take_new(chain, "full", 3), take_new(chain, "state", 2)
    assert (tokens.ids.tolist(), slots.ids.tolist()) == ([0, 1, 2], [0, 1])
    assert (sorted(tokens.pages), sorted(slots.pages)) == (["full", "window-8"], ["state"])
    for name, pages in (tokens.pages | slots.pages).items():
        assert np.array_equal(pages, chain.pages(name, tokens.ids if name != "state" else slots.ids))
    assert (chain.counters.takes, chain.minters["full"].pool.free) == (2, chain.bands["full"].grid.id_count - 3)
    chain.verify()


@pytest.mark.req("ALC-2")
@pytest.mark.parametrize(("minter", "count"), [("full", 80), ("full", 10**18), ("state", 9), ("state", 10**18)])
def test_a_refused_take_of_new_ids_changes_nothing(minter: str, count: int) -> None:
    """Too many for the bytes, for the ids, or for anybody: no id is minted, no page taken."""
    chain = three_kinds()
    take_new(chain, "full", 20)
    with nothing_changes(chain):
        refused = chain.take_new(minter, count)
    assert isinstance(refused, Refused)
    assert refused.asked == dict.fromkeys(["window-8", "full"] if minter == "full" else ["state"], count)
    lacks_ids = count > chain.minters[minter].pool.free
    assert (f"{minter} has {chain.minters[minter].pool.free} ids left" in refused.reason) == lacks_ids
    assert chain.counters.refused_by == dict.fromkeys(refused.asked, 1)


@pytest.mark.req("CAP-5")
def test_the_last_unit_is_taken_and_one_more_is_not() -> None:
    """``feasible`` says how many, ``take_new`` gives exactly so many."""
    chain = three_kinds()
    count = next(n for n in range(1000) if not chain.feasible((0, n + 1, n + 1)))
    take_new(chain, "full", count)
    assert isinstance(chain.take_new("full", 1), Refused)
    assert bytes_left(chain) < 10 + 4 + 50
    chain.verify()


def test_nothing_asked_of_a_minter_is_nothing_taken() -> None:
    """No id, no page, also where a sub-pool is empty."""
    chain = three_kinds()
    taken = take_new(chain, "full", 0)
    assert (taken.ids.tolist(), {name: pages.tolist() for name, pages in taken.pages.items()}) == (
        [],
        {"window-8": [], "full": []},
    )
    chain.verify()


@pytest.mark.req("CAP-1")
@pytest.mark.req("ALC-2")
def test_wrong_demands_are_named_and_change_nothing() -> None:
    """Negative counts, a demand of other sub-pools, more frees than live; an absurd count is merely a no."""
    chain = three_kinds()
    take_new(chain, "full", 5)
    with nothing_changes(chain):
        for demand, name in (((0, -1, 0), "negative_demand"), ((0, 1), "demand_of_other_bands")):
            with pytest.raises(InvariantError, match=name):
                chain.feasible(demand)
        with pytest.raises(InvariantError, match=r"chain\.negative_demand"):
            chain.take_new("full", -1)
        for frees in ((0, 6, 0), (0, 0, -1), (1, 0, 0)):
            with pytest.raises(InvariantError, match=r"credit\.more_than_lives"):
                chain.feasible_after((0, 1, 1), frees)
        assert not chain.feasible((0, 10**18, 0))
        assert not chain.feasible_after((0, 10**18, 0), (0, 5, 5))


@pytest.mark.req("ADM-2")
@pytest.mark.req("CAP-1")
def test_what_frees_would_make_room_for_is_known_before_them() -> None:
    """The same answer as after the frees; asking changes nothing."""
    chain = three_kinds()
    ids = take_new(chain, "full", 60).ids
    with nothing_changes(chain):
        assert not chain.feasible((0, 20, 20))
        answers = [chain.feasible_after((0, 20, 20), (0, gone, gone)) for gone in range(21)]
    assert answers == [False] * 13 + [True] * 8  # 67 of 14 bytes in the 938 from 52 to 990
    chain.free_all({"full": ids[10:22]})
    assert not chain.feasible((0, 20, 20))
    chain.free_all({"full": ids[22:23]})
    assert chain.feasible((0, 20, 20))


@pytest.mark.req("CAP-2")
@pytest.mark.parametrize("act", ["take", "take new", "free", "free all", "fix", "unfix", "flush"])
def test_an_answer_is_remembered_until_something_changes(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again it is not worked out again; after a change it is, and it is the answer of then."""
    chain = three_kinds()
    ids, loose = take_new(chain, "full", 40).ids, take_new(chain, "full", 1).ids
    chain.free("window-8", loose)
    chain.free_all({"full": ids[10:20]})
    chain.usage.fix("full", ids[5:6])
    asked: list[object] = []
    answer = chain_module.feasible
    monkeypatch.setattr(chain_module, "feasible", lambda *args: asked.append(args) or answer(*args))
    demand = (0, 30, 30)
    assert chain.feasible(demand) is chain.feasible(demand)
    assert len(asked) == 1
    acts = {
        "take": lambda: chain.take({"window-8": loose}),
        "take new": lambda: take_new(chain, "full", 5),
        "free": lambda: chain.free("window-8", ids[:5]),
        "free all": lambda: chain.free_all({"full": ids[:5]}),
        "fix": lambda: chain.usage.fix("full", ids[6:7]),
        "unfix": lambda: chain.usage.unfix("full", ids[5:6]),
        "flush": chain.flush,
    }
    epoch = chain.epoch
    acts[act]()
    assert (chain.epoch > epoch) == (act not in ("fix", "unfix")), "ids of a step are good until pages change hands"
    before = len(asked)
    assert chain.feasible(demand) == answer(chain.snapshot(), demand)
    assert len(asked) > before


def test_refusals_are_counted_by_sub_pool() -> None:
    """Of all that was asked of, whichever was short."""
    chain = three_kinds()
    assert not chain.take_new("full", 99)
    assert not chain.take_new("full", 98)
    assert not chain.take_new("state", 9)
    assert (chain.counters.refusals, chain.counters.takes) == (3, 0)
    assert chain.counters.refused_by == {"window-8": 2, "full": 2, "state": 1}


def test_a_refusal_for_ids_names_who_mints_them_alone() -> None:
    """Not the sub-pools that would bind them, though they have no more ids either."""
    chain = three_kinds()
    free = chain.minters["full"].pool.free
    reason = f"full has {free} ids left"
    assert chain.take_new("full", free + 1).reason == reason
    assert chain.minters["full"].mint(free - 3) is not None
    assert chain.take_new("full", 4).reason == "full has 3 ids left"


@pytest.mark.req("CAP-2")
def test_only_so_many_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that asks for ever new demands fills no memory; those remembered first stay."""
    chain, asked = three_kinds(), []
    answer = chain_module.feasible
    monkeypatch.setattr(chain_module, "feasible", lambda *args: asked.append(args[1]) or answer(*args))
    monkeypatch.setattr(chain_module, "ANSWERS_MAX", 3)
    demands = [(0, count, count) for count in range(5)]
    for _ in range(2):
        assert all(chain.feasible(demand) for demand in demands)
    assert asked == demands + demands[3:]
