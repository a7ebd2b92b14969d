"""Frees: exact, checked before anything changes, and ids that come back when nobody holds them; fixed pages."""

import numpy as np
import pytest
from chains import chain_of, nothing_changes, planned, take_new, take_tokens, three_kinds, unit

from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.lifetimes import Chunk, Full, State, Window
from kvarena.terms.ports import HIGH


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
    ids = chain.minters["full"].mint(6)
    assert ids is not None
    assert not isinstance(chain.take({"window-8": ids}), Refused)
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"chain\.give_back_of_bound_id.*window-8"):
        chain.minters["full"].give_back(ids)
    chain.free("window-8", ids)
    chain.minters["full"].give_back(ids)
    chain.verify()


@pytest.mark.req("IDS-4")
@pytest.mark.req("LIF-7")
def test_all_of_an_id_is_freed_in_one_call() -> None:
    """In every sub-pool that still has a page for it; the ids come back, and the pages are holes at once."""
    chain = three_kinds()
    ids, pool = take_new(chain, "full", 6).ids, chain.minters["full"].pool
    free = pool.free
    chain.free("window-8", ids[1:3])
    chain.free_all({"full": ids[:4]})
    assert (chain.bands["full"].live, chain.bands["window-8"].live, pool.free) == (2, 2, free + 4)
    chain.verify()
    chain.free_all({"full": ids[4:]})
    slots = take_new(chain, "state", 3).ids
    chain.free_all({"state": slots})
    assert all(shot.live == shot.holes == 0 for shot in chain.snapshot().bands)
    assert (pool.free, chain.minters["state"].pool.free) == (free + 6, 8)
    chain.verify()


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("checks", [1, 2])
def test_a_wrong_free_of_everything_changes_nothing(checks: int) -> None:
    """Named twice, not out, freed by the owner already, negative, beyond: also where the window could be freed."""
    chain = three_kinds(checks=checks)
    ids = take_new(chain, "full", 8).ids
    for name in ("window-8", "full"):
        chain.free(name, ids[7:])
    with nothing_changes(chain):
        for wrong in ([0, 0], [0, 9], [9], [7], [0, 7], [-1], [0, -1], [0, 10**6]):
            with pytest.raises(InvariantError):
                chain.free_all({"full": np.array(wrong)})


def test_without_checks_an_unbound_id_is_still_caught() -> None:
    """At level 0 nothing is freed that is not bound, so that no sink is ever handed out."""
    chain = three_kinds(checks=0)
    take_new(chain, "full", 8)
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
        chain.free_all({"full": np.array([8, 9])})


def test_without_checks_a_fixed_page_is_still_not_freed() -> None:
    """A page that others rely on stays, at any level."""
    chain = three_kinds(checks=0)
    ids = take_new(chain, "full", 8).ids
    chain.usage.fix("window-8", ids[3:4])
    with nothing_changes(chain):
        for act in (lambda: chain.free_all({"full": ids}), lambda: chain.free("window-8", ids[3:])):
            with pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
                act()
    chain.usage.fix("state", take_new(chain, "state", 1).ids)
    chain.usage.unfix("state", chain.minters["state"].owner.ids.owners_of(chain.bands["state"].still.fixed))
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
        chain.free_all({"full": ids[3:4]})
    chain.usage.unfix("window-8", ids[3:4])
    chain.free_all({"full": ids})
    chain.verify()


def test_an_id_that_its_minter_still_holds_is_not_given_back() -> None:
    """The band that mints ids may be the only one that has a page for them."""
    chain = three_kinds()
    ids = take_tokens(chain, 3)
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"chain\.give_back_of_bound_id.*full"):
        chain.minters["full"].give_back(ids[1:2])


@pytest.mark.req("IDS-4")
def test_an_id_that_was_minted_by_hand_comes_back_once() -> None:
    """Taken, and freed everywhere in one call, it is back: giving it back as well would give it to two holders."""
    chain = three_kinds()
    ids, pool = take_tokens(chain, 3, "window-8"), chain.minters["full"].pool
    chain.free_all({"full": ids})
    assert pool.free == pool.count
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"id_pool\.give_back_of_free_id"):
        chain.minters["full"].give_back(ids[:1])


def test_an_unknown_sub_pool_is_named_by_every_verb() -> None:
    """With the nearest one there is, and nothing has changed."""
    chain = three_kinds()
    ids = take_new(chain, "full", 4).ids
    with nothing_changes(chain):
        for verb in (chain.free, chain.usage.fix, chain.usage.unfix, chain.pages):
            with pytest.raises(KvarenaError, match="no sub-pool 'window-9'; did you mean 'window-8'"):
                verb("window-9", ids)
        with pytest.raises(KvarenaError, match="'fall' mints no ids; did you mean 'full'"):
            chain.free_all({"fall": ids})
        with pytest.raises(KvarenaError, match="'window-8' mints no ids; choose one of: full, state"):
            chain.take_new("window-8", 1)
        with pytest.raises(KvarenaError, match="no sub-pool 'ful'"):
            chain.bands["ful"]


def test_ids_are_minted_and_given_back_by_hand() -> None:
    """None where too few are free; wrong returns are caught with nothing changed."""
    chain = three_kinds()
    minter = chain.minters["state"]
    assert minter.mint(9) is None
    ids = minter.mint(8)
    assert ids is not None
    assert minter.mint(1) is None
    minter.give_back(ids[:3])
    for wrong in (ids[:1], ids[[4, 4]], np.array([-1]), np.array([8])):
        with nothing_changes(chain), pytest.raises(InvariantError):
            minter.give_back(wrong)
    assert minter.pool.free == 3
    minter.give_back(ids[3:])
    assert minter.pool.free == 8


@pytest.mark.req("CMP-3")
@pytest.mark.req("ALC-3")
@pytest.mark.parametrize("end", ["state", "full"])
def test_an_end_is_packed_around_its_fixed_pages(end: str) -> None:
    """They stay where they are, whoever is short; once loose they give way."""
    chain = chain_of(planned((State(), 10), (Full(), 10)), 1010, slots=99)
    other = "full" if end == "state" else "state"
    ids = take_new(chain, end, 80).ids
    pages = chain.pages(end, ids)
    outermost = ids[int(pages.argmin() if chain.bands[end].grid.end is HIGH else pages.argmax())]
    fixed = np.array([outermost])
    chain.usage.fix(end, fixed)
    where = int(chain.pages(end, fixed)[0])
    unit(chain, end, int(outermost))[:] = 7
    others = ids[ids != outermost]
    chain.free_all({end: others[::2]})
    assert chain.flush() == 0 or int(chain.pages(end, fixed)[0]) == where
    with nothing_changes(chain):
        assert not chain.feasible(demand(chain, other, 20))
        assert isinstance(chain.take_new(other, 20), Refused)
    assert int(chain.pages(end, fixed)[0]) == where
    chain.usage.unfix(end, fixed)
    take_new(chain, other, 20)
    assert int(chain.pages(end, fixed)[0]) != where
    assert (unit(chain, end, int(outermost)) == 7).all()
    chain.verify()


def demand(chain: object, name: str, count: int) -> tuple[int, ...]:
    """So many units of one sub-pool."""
    return tuple(count if name == other else 0 for other in chain.bands)  # type: ignore[attr-defined]


@pytest.mark.req("ALC-3")
@pytest.mark.req("CMP-6")
def test_a_relocated_float_covers_its_fixed_pages() -> None:
    """It moves around them; a demand that would need their bytes is refused with nothing changed."""
    chain = three_kinds()
    ids = chain.minters["full"].mint(20)
    assert ids is not None
    assert not isinstance(chain.take({"window-8": ids}), Refused)
    span = chain.snapshot().bands[1]
    fixed = ids[[9, 10]]
    chain.usage.fix("window-8", fixed)
    where = chain.pages("window-8", fixed).tolist()
    chain.free("window-8", ids[[0, 3, 5, 8, 12, 13, 19]])
    while chain.feasible((1, 0, 0)):
        take_new(chain, "state", 1)
        assert chain.pages("window-8", fixed).tolist() == where
    while chain.feasible((0, 0, 1)):
        minted = chain.minters["full"].mint(1)
        assert minted is not None
        assert not isinstance(chain.take({"full": minted}), Refused)
        chain.verify()
        assert chain.pages("window-8", fixed).tolist() == where
    after = chain.snapshot().bands[1]
    assert after.start <= min(where) <= max(where) < after.stop
    assert (after.stop - after.start, span.stop - span.start) == (13, 20)
    assert chain.counters.relocations > 0


def test_fixed_pages_are_checked() -> None:
    """A free, a second fix, a fix of an unbound id, an unfix of a loose one: named, and nothing changes."""
    chain = three_kinds()
    ids = take_new(chain, "full", 8).ids
    chain.usage.fix("full", ids[2:4])
    chain.usage.fix("window-8", ids[6:7])
    wrong = [
        (lambda: chain.free("full", ids[3:5]), "band.free_outside_reservation"),
        (lambda: chain.free_all({"full": ids[5:7]}), "band.free_outside_reservation"),
        (lambda: chain.usage.fix("full", ids[3:5]), "band.fix_of_fixed_page"),
        (lambda: chain.usage.unfix("full", ids[3:5]), "band.unfix_of_loose_page"),
        (lambda: chain.usage.unfix("window-8", ids[2:3]), "band.unfix_of_loose_page"),
        (lambda: chain.usage.fix("full", ids[[4, 4]]), "band.free_of"),
        (lambda: chain.usage.fix("full", np.array([9])), "band.free_of"),
        (lambda: chain.usage.unfix("full", np.array([-1])), "band.free_of"),
    ]
    for act, name in wrong:
        with nothing_changes(chain), pytest.raises(InvariantError, match=name.replace(".", r"\.")):
            act()
    chain.usage.unfix("full", ids[2:4])
    chain.usage.unfix("window-8", ids[6:7])
    chain.free_all({"full": ids})
    assert chain.minters["full"].pool.free == chain.bands["full"].grid.id_count
    chain.verify()


def test_a_snapshot_says_where_the_outermost_fixed_pages_lie() -> None:
    """And nothing of those between; the fixed pages are live all the same."""
    chain = three_kinds()
    taken = take_new(chain, "full", 9)
    pages = taken.pages["full"]
    chain.usage.fix("full", taken.ids[[2, 7]])
    chain.usage.fix("full", taken.ids[[4]])
    shot = chain.snapshot().bands[2]
    low, *_, high = sorted(pages[[2, 4, 7]].tolist())
    assert (shot.fixed_start, shot.fixed_stop, shot.live, shot.reserved) == (low, high + 1, 9, 0)
    chain.usage.unfix("full", taken.ids[[2, 4, 7]])
    assert chain.snapshot().bands[2][-2:] == (0, 0)


def test_an_owner_without_bytes_is_freed_with_the_rest() -> None:
    """Its ids come back once no band has them; a double free is caught there too."""
    chain = chain_of(planned((Chunk(10), 3), (Window(8), 4)), 400)
    ids = take_new(chain, "ids", 10).ids
    chain.free("window-8", ids[:5])
    chain.free_all({"ids": ids[:5]})
    with nothing_changes(chain):
        with pytest.raises(InvariantError, match=r"band\.free_of"):
            chain.free("ids", ids[:1])
        with pytest.raises(InvariantError, match=r"band\.free_of"):
            chain.free_all({"ids": ids[:1]})
    chain.free_all({"ids": ids[5:]})
    assert all(shot.live == 0 for shot in chain.snapshot().bands)
    chain.verify()


@pytest.mark.req("CMP-3")
@pytest.mark.parametrize("checks", [0, 1, 2])
def test_what_has_no_page_is_not_fixed(checks: int) -> None:
    """Neither fixed nor loosened, bound or not: named, nothing changed, and it can be freed as before."""
    chain = chain_of(planned((Chunk(10), 3), (Window(8), 4)), 400, checks=checks)
    ids = take_new(chain, "ids", 3).ids
    with nothing_changes(chain):
        for verb in (chain.usage.fix, chain.usage.unfix):
            for wrong in (ids, ids[:1], np.array([99]), np.array([-1])):
                with pytest.raises(InvariantError, match=r"^id_band\.fix_of_id_without_page: sub_pool='ids'"):
                    verb("ids", wrong)
    chain.usage.fix("chunk-10", ids[:1])
    chain.usage.unfix("chunk-10", ids[:1])
    chain.free_all({"ids": ids})
    assert chain.minters["ids"].pool.free == chain.minters["ids"].pool.count
    chain.verify()


@pytest.mark.req("ALC-2")
@pytest.mark.req("IDS-4")
def test_tokens_and_slots_are_freed_together_or_not_at_all() -> None:
    """One wrong id, of either kind, and both are as they were; nothing named is nothing freed."""
    chain = three_kinds()
    ids, slots = take_new(chain, "full", 6).ids, take_new(chain, "state", 3).ids
    wrong = np.array([0, 7])
    for frees in (
        {"full": ids, "state": wrong},
        {"state": slots, "full": wrong},
        {"full": ids, "state": slots[[1, 1]]},
    ):
        with nothing_changes(chain), pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
            chain.free_all(frees)
    chain.usage.fix("window-8", ids[2:3])
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
        chain.free_all({"state": slots, "full": ids})
    chain.usage.unfix("window-8", ids[2:3])
    chain.free_all({})
    chain.free_all({"full": ids[:0]})
    assert (chain.bands["full"].live, chain.bands["state"].live) == (6, 3)
    chain.free_all({"state": slots, "full": ids})
    assert all(shot.live == shot.holes == 0 for shot in chain.snapshot().bands)
    chain.verify()
