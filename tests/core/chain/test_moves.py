"""Relief and flushes: bytes move, ids stay, and no more moves than the policy or the demand asks for."""

import numpy as np
import pytest
from chains import arena, chain_of, planned, take_new, take_tokens, three_kinds, unit

from kvarena.policies.compaction import Eager, Lazy, Never
from kvarena.policies.hole_order import Nearest
from kvarena.policies.placement import Middle
from kvarena.terms.answers import Refused
from kvarena.terms.errors import PluginError
from kvarena.terms.lifetimes import Full, State, Window
from kvarena.terms.ports import Compaction, IntArray, Policies


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


@pytest.mark.req("CMP-1")
@pytest.mark.req("IDS-2")
def test_a_flush_closes_holes_within_the_policys_bound() -> None:
    """Ids stay; the frontier retreats; floats are left alone; nothing to do is 0."""
    chain = chain_of(planned((Window(8), 4), (Full(), 4)), 4000)
    ids = take_tokens(chain, 300, "window-8")
    pages = chain.pages("full", ids)
    near = ids[np.argsort(pages)[::-1][:150]]
    chain.free("window-8", near)
    chain.free("full", near)
    assert chain.flush() == 64
    assert chain.flush() == 64
    assert chain.flush() == 22
    assert chain.flush() == 0
    shot = chain.snapshot().bands[1]
    assert (shot.live, shot.holes) == (150, 0)
    assert chain.counters.moved_bytes == 150 * 4
    chain.verify()


def scattered(*, compaction: Compaction) -> tuple[object, IntArray]:
    """A state band of 90 slots of which every third is left, each written with its id."""
    chain = chain_of(
        planned((State(), 4), (Full(), 4)), 800, slots=150, policies=Policies(Nearest(), compaction, Middle())
    )
    ids = take_new(chain, "state", 90).ids
    for id_ in ids.tolist():
        unit(chain, "state", id_)[:] = id_ + 1
    kept = ids[::3]
    chain.free_all({"state": np.setdiff1d(ids, kept)})
    return chain, kept


@pytest.mark.req("CMP-8")
@pytest.mark.req("IDS-2")
@pytest.mark.parametrize(
    ("compaction", "passes"), [(Lazy(max_moves=7), [7, 7, 6, 0]), (Eager(), [20, 0]), (Never(), [0])], ids=str
)
def test_a_pass_moves_what_its_policy_allows(compaction: Compaction, passes: list[int]) -> None:
    """Bounded, all, or none; each page moves at most once, and its id reads what was written."""
    chain, kept = scattered(compaction=compaction)
    for expected in passes:
        before = chain.pages("state", kept)
        epoch = chain.epoch
        assert chain.flush() == expected
        assert np.count_nonzero(chain.pages("state", kept) != before) == expected
        assert chain.epoch == epoch + (expected > 0)
        chain.verify()
    assert chain.counters.moves == sum(passes) == chain.counters.moved_by.get("state", 0)
    for id_ in kept.tolist():
        assert (unit(chain, "state", id_) == id_ + 1).all()


@pytest.mark.req("CMP-1")
@pytest.mark.req("CMP-8")
def test_what_a_pass_would_not_move_relief_moves() -> None:
    """A policy that never moves costs nobody a byte: a take that needs the room has it."""
    chain, kept = scattered(compaction=Never())
    assert chain.flush() == 0
    assert chain.bands["state"].shot().stop > 80
    take_new(chain, "full", 160)
    assert chain.bands["state"].shot().holes == 0
    assert chain.counters.moved_by == {"state": 20}
    for id_ in kept.tolist():
        assert (unit(chain, "state", id_) == id_ + 1).all()
    chain.verify()


@pytest.mark.req("CMP-1")
def test_every_take_free_and_pass_that_moves_is_an_epoch() -> None:
    """It tells who keeps pages of live ids when to read them again; a pass that moves nothing is none."""
    chain = three_kinds()
    ids = take_new(chain, "full", 50).ids
    assert chain.epoch == 1
    chain.free_all({"full": ids[::2]})
    take_new(chain, "full", 3)
    assert chain.epoch == 3
    assert chain.flush() > 0
    assert chain.epoch == 4
    assert chain.flush() == 0
    assert chain.epoch == 4


@pytest.mark.req("ALC-6")
@pytest.mark.req("ALC-1")
def test_an_empty_float_is_seen_through_and_put_where_the_policy_says() -> None:
    """Its neighbours take every byte; emptied and taken anew it starts in the middle of what is left."""
    chain = three_kinds()
    ids = chain.minters["full"].mint(94)
    assert ids is not None
    assert not isinstance(chain.take({"full": ids}), Refused)
    chain.free("full", ids)
    chain.minters["full"].give_back(ids)
    take_new(chain, "state", 4)
    first = take_new(chain, "full", 1)
    low, high = 250, int(first.pages["full"][0]) * 10
    assert abs(int(first.pages["window-8"][0]) * 4 - (low + high) // 2) <= 4
    chain.verify()


@pytest.mark.req("ALC-4")
@pytest.mark.parametrize("name", ["state", "full"])
def test_a_band_alone_is_relieved_like_any(name: str) -> None:
    """Its holes are taken first, then its frontier grows: no hole is lost, none is moved for."""
    lifetime = State() if name == "state" else Full()
    chain = chain_of(planned((lifetime, 16)), 176, slots=10)
    ids = take_new(chain, name, 10).ids
    chain.free_all({name: ids[[2, 5, 6]]})
    pages = {int(page) for page in take_new(chain, name, 3).pages[name]}
    assert len(pages) == 3
    assert not chain.take_new(name, 1)
    assert chain.counters.moves == 0
    chain.verify()


@pytest.mark.req("ALC-1")
def test_a_float_grows_towards_its_larger_gap() -> None:
    """Down while the room is below, up while it is above; a hole of its own comes first."""
    chain = three_kinds()
    ids = chain.minters["full"].mint(40)
    assert ids is not None
    assert not isinstance(chain.take({"window-8": ids[:10]}), Refused)
    start, stop = chain.snapshot().bands[1][5:7]
    assert not isinstance(chain.take({"full": ids[15:]}), Refused)
    assert not isinstance(chain.take({"window-8": ids[10:13]}), Refused)
    assert chain.snapshot().bands[1][5:7] == (start - 3, stop)
    chain.free("window-8", ids[4:6])
    chain.free("full", ids[15:])
    take_new(chain, "state", 7)
    assert not isinstance(chain.take({"window-8": ids[13:18]}), Refused)
    assert chain.snapshot().bands[1][5:7] == (start - 3, stop + 3)
    assert chain.counters.moves == 0
    chain.verify()


@pytest.mark.req("ALC-3")
def test_relief_packs_an_end_whole() -> None:
    """Also where every hole lies deep inside, and each takes one of the pages that are in the way."""
    chain = chain_of(planned((State(), 50), (Full(), 10)), 1000)
    taken = take_new(chain, "full", 60)
    near = taken.ids[np.argsort(taken.pages["full"])[::-1][:20]]
    chain.free_all({"full": near})
    take_new(chain, "state", 8)
    assert chain.counters.moved_by == {"full": 20}
    assert (chain.bands["full"].shot().live, chain.bands["full"].shot().holes) == (40, 0)
    chain.verify()


@pytest.mark.req("ALC-3")
@pytest.mark.req("IDS-2")
@pytest.mark.parametrize("minter", ["state", "full"])
def test_floats_that_give_way_together_keep_their_bytes(minter: str) -> None:
    """Each goes onto bytes that the one before it has left, whichever way they go."""
    names = ("window-64", "window-16", "window-4")
    kinds = [(State(), 10), (Window(64), 6), (Window(16), 7), (Window(4), 5), (Full(), 10)]
    chain = chain_of(planned(*kinds), 2000, slots=150)
    ids = take_new(chain, "full", 30).ids
    for name in names:
        for id_ in ids.tolist():
            unit(chain, name, id_)[:] = id_ + 1
    for _ in range(12):
        if minter == "state":
            if not chain.feasible((8, 0, 0, 0, 0)):
                break
            take_new(chain, "state", 8)
        else:
            more = chain.minters["full"].mint(8)
            assert more is not None
            if isinstance(chain.take({"full": more}), Refused):
                break
        chain.verify()
        for name in names:
            for id_ in ids.tolist():
                assert (unit(chain, name, id_) == id_ + 1).all()
    assert chain.counters.relocations > 3


class Backwards:
    """A third party's compaction that asks for less than nothing."""

    name = "backwards"

    def moves(self, live: int, holes: int) -> int:
        """One less than none."""
        return -1


def test_less_than_nothing_is_refused() -> None:
    """Whose policy it is and what it answered; nothing has moved."""
    chain, kept = scattered(compaction=Backwards())
    epoch, before = chain.epoch, chain.pages("state", kept)
    said = r"^compaction 'backwards' \(.*Backwards\): moves\(\d+, \d+\) answered -1; 0 is for none"
    with pytest.raises(PluginError, match=said):
        chain.flush()
    assert chain.epoch == epoch
    assert np.array_equal(chain.pages("state", kept), before)
    chain.verify()


@pytest.mark.req("ALC-1")
def test_holes_are_used_from_the_end_that_a_band_is_anchored_to() -> None:
    """The lowest of a low end, the highest of a high one: so each stays short without a move."""
    policies = Policies(Nearest(recent_max=0), Never(), Middle())
    chain = chain_of(planned((State(), 10), (Full(), 10)), 1000, slots=40, policies=policies)
    for name, sign in (("state", 1), ("full", -1)):
        taken = take_new(chain, name, 20)
        near = np.argsort(taken.pages[name] * sign)[[3, 9, 12, 17]]
        chain.free_all({name: taken.ids[near[::-1]]})
        assert take_new(chain, name, 3).pages[name].tolist() == taken.pages[name][near[:3]].tolist()
    chain.verify()
