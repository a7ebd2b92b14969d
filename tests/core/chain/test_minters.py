"""Who may name an id: ids are minted, bound, let go and given back in that order, and the owner lets go last."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from chains import chain_of, nothing_changes, planned, take_new, three_kinds
from hypothesis import given
from hypothesis import strategies as st

from kvarena.chain.chain import Chain
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Chunk, State, Window
from kvarena.terms.ports import IntArray

pytestmark = pytest.mark.req("IDS-4")


def ids(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def minted(chain: Chain, minter: str, count: int) -> IntArray:
    """Ids of a minter that nobody has bound."""
    found = chain.minters[minter].mint(count)
    assert found is not None
    return found


def bound(chain: Chain, **demand: IntArray) -> None:
    """A take that must succeed; ``window`` stands for ``window-8``."""
    taken = chain.take({name.replace("window", "window-8"): asked for name, asked in demand.items()})
    assert not isinstance(taken, Refused)


# -- what comes back


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.randoms(use_true_random=False)), max_size=40))
def test_a_minter_gives_each_id_to_one_holder(steps: list[tuple[bool, int, random.Random]]) -> None:
    """Under any order of mints and returns, what is out and what is free are all ids, each once."""
    chain = chain_of(planned((State(), 10)), 210, slots=20)
    minter, out = chain.minters["state"], set[int]()
    for taking, count, rng in steps:
        if taking:
            found = minter.mint(count)
            assert (found is None) == (count > 20 - len(out))
            fresh = [] if found is None else found.tolist()
            assert len(set(fresh)) == len(fresh)
            assert not out & set(fresh)
            out |= set(fresh)
        else:
            back = rng.sample(sorted(out), min(count, len(out)))
            minter.give_back(ids(*back))
            out -= set(back)
        assert minter.pool.free == 20 - len(out)
        chain.verify()
    assert sorted(minted(chain, "state", minter.pool.free).tolist()) == sorted(set(range(20)) - out)


WRONG_RETURNS: dict[str, tuple[list[int], str]] = {
    "named twice": ([4, 5, 4], "id_pool.give_back_twice"),
    "came back before": ([4, 7], "id_pool.give_back_of_free_id"),
    "never out": ([4, 8], "id_pool.give_back_of_free_id"),
    "negative": ([4, -1], "id_pool.give_back_of_unknown_id"),
    "beyond": ([4, 0], "id_pool.give_back_of_unknown_id"),
    "absurd": ([4, 10**6], "id_pool.give_back_of_unknown_id"),
    "bound by its minter": ([4, 1], "chain.give_back_of_bound_id"),
    "bound by a window alone": ([4, 3], "chain.give_back_of_bound_id"),
}


@pytest.mark.parametrize("checks", [0, 1, 2])
@pytest.mark.parametrize("case", WRONG_RETURNS)
def test_a_wrong_give_back_changes_nothing(case: str, checks: int) -> None:
    """At any level, also beside a good one: by its name, and the good ones can come back afterwards."""
    chain = three_kinds(checks=checks)
    take_new(chain, "full", 3)
    loose = minted(chain, "full", 5)
    bound(chain, window=loose[:1])
    minter = chain.minters["full"]
    minter.give_back(loose[4:])
    wrong, name = WRONG_RETURNS[case]
    wrong = [minter.pool.count if case == "beyond" and id_ == 0 else id_ for id_ in wrong]
    with nothing_changes(chain), pytest.raises(InvariantError, match=name.replace(".", r"\.") + ".*'full'"):
        minter.give_back(ids(*wrong))
    free = minter.pool.free
    minter.give_back(loose[1:4])
    assert minter.pool.free == free + 3
    assert sorted(minted(chain, "full", 4).tolist()) == sorted(loose[1:].tolist())
    chain.verify()


def test_an_id_comes_back_once_however_it_went() -> None:
    """After a take that minted it and a free of each sub-pool, after ``free_all``, and after it was never bound."""
    chain = three_kinds()
    minter = chain.minters["full"]
    free = minter.pool.free
    taken = take_new(chain, "full", 4).ids
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"chain\.give_back_of_bound_id"):
        minter.give_back(taken[:1])
    chain.free_all({"full": taken[:2]})
    chain.free("window-8", taken[2:])
    chain.free("full", taken[2:])
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"id_pool\.give_back_of_free_id"):
        minter.give_back(taken[1:3])
    assert minter.pool.free == free - 2
    minter.give_back(taken[2:])
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"id_pool\.give_back_of_free_id"):
        minter.give_back(taken[2:])
    assert minter.pool.free == free
    chain.verify()


# -- what a take may name


@pytest.mark.req("ALC-2")
@pytest.mark.parametrize("checks", [1, 2])
@pytest.mark.parametrize("case", ["never out", "given back", "freed"])
@pytest.mark.parametrize("name", ["full", "window-8"])
def test_a_take_of_an_id_that_is_not_out_changes_nothing(name: str, case: str, checks: int) -> None:
    """It would be minted a second time, for somebody else; good ones beside it are not taken either."""
    chain = three_kinds(checks=checks)
    good, back, gone = minted(chain, "full", 2), minted(chain, "full", 1), take_new(chain, "full", 2).ids
    chain.minters["full"].give_back(back)
    chain.free_all({"full": gone})
    wrong = {"never out": 9, "given back": int(back[0]), "freed": int(gone[1])}[case]
    other = "window-8" if name == "full" else "full"
    for demand in ({name: ids(wrong)}, {name: np.append(good, wrong)}, {other: good, name: ids(wrong)}):
        expected = rf"^chain\.take_of_id_not_minted: sub_pool='{name}' minted_by='full' ids=array\(\[{wrong}\]"
        with nothing_changes(chain), pytest.raises(InvariantError, match=expected):
            chain.take(demand)
    bound(chain, full=good, window=good)
    everyone = minted(chain, "full", chain.minters["full"].pool.free).tolist()
    assert sorted([*everyone, *good.tolist()]) == list(range(chain.minters["full"].pool.count))
    chain.verify()


def test_slots_and_ids_without_bytes_are_minted_before_they_are_taken() -> None:
    """As tokens are; each by the minter that has the ids."""
    chain, bare = three_kinds(), chain_of(planned((Chunk(10), 3), (Window(8), 4)), 400)
    minted(chain, "full", 4)
    for some, name, minter in ((chain, "state", "state"), (bare, "ids", "ids"), (bare, "chunk-10", "ids")):
        expected = rf"chain\.take_of_id_not_minted: sub_pool='{name}' minted_by='{minter}'"
        with nothing_changes(some), pytest.raises(InvariantError, match=expected):
            some.take({name: ids(7)})
        assert not isinstance(some.take({name: minted(some, minter, 2)}), Refused)
        some.verify()


def test_an_id_that_is_out_is_bound_in_any_order() -> None:
    """By a window before its owner, by its owner again after it let go, by a window again and again."""
    chain = three_kinds()
    out = minted(chain, "full", 3)
    bound(chain, window=out)
    bound(chain, full=out)
    chain.free("window-8", out)
    chain.free("full", out[:2])
    bound(chain, window=out)
    bound(chain, full=out[:1])
    chain.verify()
    chain.free("window-8", out)
    chain.free("full", out[[0, 2]])
    chain.minters["full"].give_back(out)
    assert chain.minters["full"].pool.free == chain.minters["full"].pool.count
    chain.verify()


# -- who lets go last


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("checks", [1, 2])
def test_whoever_mints_an_id_lets_go_of_it_last(checks: int) -> None:
    """A page of a window would be left under an id that nobody owns: caught, also for one id among good ones."""
    chain = three_kinds(checks=checks)
    taken, slots = take_new(chain, "full", 6).ids, take_new(chain, "state", 2).ids
    chain.free("window-8", taken[:4])
    expected = r"^chain\.window_segment_released: minted_by='full' still_bound_in=\['window-8'\]$"
    for wrong in (taken, taken[4:], taken[3:5]):
        with nothing_changes(chain), pytest.raises(InvariantError, match=expected):
            chain.free("full", wrong)
    chain.free("full", taken[:4])
    chain.free("state", slots)
    chain.free("window-8", taken[4:])
    chain.free("full", taken[4:])
    assert [shot.live for shot in chain.snapshot().bands] == [0, 0, 0]
    chain.minters["full"].give_back(taken)
    chain.minters["state"].give_back(slots)
    chain.verify()


def test_every_window_that_still_has_a_page_is_named() -> None:
    """Whether the owner has bytes or not; ``free_all`` lets all of them go at once."""
    kinds = [(Chunk(10), 3), (Window(8), 4), (Window(4), 5)]
    chain = chain_of(planned(*kinds), 600)
    taken = take_new(chain, "ids", 6).ids
    chain.free("window-8", taken[:3])
    for wrong, held in ((taken[:2], ["chunk-10", "window-4"]), (taken, ["chunk-10", "window-4", "window-8"])):
        with nothing_changes(chain), pytest.raises(InvariantError, match=r"window_segment_released") as told:
            chain.free("ids", wrong)
        assert all(f"'{name}'" in str(told.value) for name in held)
        assert ("'window-8'" in str(told.value)) == ("window-8" in held)
    chain.free_all({"ids": taken})
    assert not any(shot.live for shot in chain.snapshot().bands)
    assert chain.minters["ids"].pool.free == chain.minters["ids"].pool.count
    chain.verify()


def test_a_wrong_free_of_an_owner_is_told_by_its_own_name() -> None:
    """Unbound, twice, fixed: what is wrong with the ids comes before who else has them."""
    chain = three_kinds()
    taken = take_new(chain, "full", 4).ids
    chain.usage.fix("full", taken[3:])
    for wrong, name in ((ids(9), "free_of_bound_page"), (taken[[0, 0]], "free_of_bound_page"), (taken, "reservation")):
        with nothing_changes(chain), pytest.raises(InvariantError, match=name):
            chain.free("full", wrong)


def test_without_checks_an_owner_is_looked_at_while_pages_are_fixed() -> None:
    """At level 0 a free that harms what others rely on is still caught, with nothing changed."""
    chain = three_kinds(checks=0)
    taken = take_new(chain, "full", 4).ids
    chain.usage.fix("window-8", taken[:1])
    with nothing_changes(chain), pytest.raises(InvariantError, match=r"chain\.window_segment_released"):
        chain.free("full", taken[:1])
    chain.usage.unfix("window-8", taken[:1])
    chain.free_all({"full": taken})
    chain.verify()


# -- without checks


@pytest.mark.parametrize("wrong", [[-1], [0, -1], [9]], ids=["negative", "negative beside a good one", "unbound"])
def test_without_checks_nothing_reaches_the_sink(wrong: list[int]) -> None:
    """-1 reads the sink as an unbound id does, and no more than that one is it freed: in one sub-pool or in all."""
    chain = three_kinds(checks=0)
    take_new(chain, "full", 4)
    acts: tuple[Callable[[], None], ...] = (
        lambda: chain.free_all({"full": ids(*wrong)}),
        lambda: chain.free("window-8", ids(*wrong)),
        lambda: chain.free("full", ids(*wrong)),
    )
    for act in acts:
        with nothing_changes(chain), pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
            act()
    assert chain.pages("full", ids(-1)).tolist() == [99]


def test_a_take_that_the_device_fails_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No id stays bound, none is lost, and what moved for it is priced anew: the next take succeeds."""
    chain = three_kinds()
    named = minted(chain, "full", 6)
    state = chain.snapshot()

    def breaks(*_: object) -> None:
        raise RuntimeError("no more device")

    monkeypatch.setattr(type(chain.device), "zero_pages", breaks)
    for take in (lambda: chain.take({"full": named, "window-8": named}), lambda: chain.take_new("full", 4)):
        with pytest.raises(RuntimeError, match="no more device"):
            take()
        chain.verify()
        assert [shot.live for shot in chain.snapshot().bands] == [shot.live for shot in state.bands]
    monkeypatch.undo()
    assert not isinstance(chain.take({"full": named, "window-8": named}), Refused)
    chain.free_all({"full": named})
    chain.verify()
