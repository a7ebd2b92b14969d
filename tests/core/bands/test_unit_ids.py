"""Ids and maps: nothing is handed out twice, nothing is lost, and mistakes change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.bands.unit_ids import IdPool, UnitIds
from kvarena.terms.errors import InvariantError


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.req("IDS-4")
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.randoms(use_true_random=False)), max_size=40))
def test_a_pool_mints_each_id_to_one_holder(steps: list) -> None:
    """Under any order of mints and returns, what is out and what is free are all ids, each once."""
    pool, out = IdPool(20), set()
    for taking, count, rng in steps:
        if taking:
            minted = pool.mint(min(count, pool.free)).tolist()
            assert len(set(minted)) == len(minted)
            assert not out & set(minted)
            out |= set(minted)
        else:
            back = rng.sample(sorted(out), min(count, len(out)))
            pool.accept(ids(*back))
            out -= set(back)
        assert pool.free == 20 - len(out)
        pool.verify()
    assert sorted(pool.mint(pool.free).tolist()) == sorted(set(range(20)) - out)


@pytest.mark.req("BLD-2")
def test_unbound_ids_read_as_the_sink() -> None:
    """So does -1, in an array of any shape; a freed id does again."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0, 3), ids(2, 4))
    assert maps.pages_of(np.array([[0, 1], [3, -1]])).tolist() == [[2, 5], [4, 5]]
    assert maps.is_bound(ids(0, 1, 3, -1)).tolist() == [True, False, True, False]
    assert maps.unbind(ids(3)).tolist() == [4]
    assert maps.pages_of(ids(3)).tolist() == [5]
    assert maps.bound == 1
    maps.verify()


@pytest.mark.req("IDS-2")
def test_a_move_rewrites_the_maps_alone() -> None:
    """The ids stay, the pages change, also onto a page that an earlier source left."""
    maps = UnitIds(4, 8, sink_page=7)
    maps.bind(ids(1, 2), ids(5, 6))
    maps.rebind(ids(5, 6), ids(0, 1))
    assert maps.pages_of(ids(1, 2)).tolist() == [0, 1]
    assert maps.owners_of(ids(0, 1, 5, 6)).tolist() == [1, 2, -1, -1]
    maps.verify()


@pytest.mark.parametrize(
    "wrong",
    [ids(0, 0), ids(0, 1), ids(0, -1), ids(0, 4), ids(1)],
    ids=["twice", "one unbound", "negative", "beyond", "unbound"],
)
def test_a_wrong_free_is_caught_before_anything_changes(wrong: np.ndarray) -> None:
    """Counts and maps are as before, whichever id of the call was wrong."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0, 3), ids(2, 4))
    with pytest.raises(InvariantError, match=r"band\.free_of"):
        maps.check_bound(wrong)
    maps.verify()
    assert maps.bound == 2
    assert maps.pages_of(ids(0, 3)).tolist() == [2, 4]
    maps.check_bound(ids(3, 0))


@pytest.mark.parametrize(
    "wrong",
    [ids(0, 1), ids(1), ids(2, 3), ids(-1), ids(0, -1)],
    ids=["one unbound", "unbound", "the first", "what reads the sink", "one that reads the sink"],
)
def test_an_unbound_id_is_never_unbound(wrong: np.ndarray) -> None:
    """At any level of checks: its page is the sink's, which would be handed out; so is that of -1."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0, 3), ids(2, 4))
    with pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
        maps.unbind(wrong)
    maps.verify()
    assert maps.bound == 2
    assert maps.pages_of(ids(0, 1, 3, -1)).tolist() == [2, 5, 4, 5]


def test_the_sink_is_nobodys_page() -> None:
    """No id owns it, not even the -1 that reads it; it neither moves nor is moved onto."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0), ids(2))
    assert maps.owners_of(ids(5, 2, 0)).tolist() == [-2, 0, -1]
    with pytest.raises(InvariantError, match=r"band\.move_of_unowned_page"):
        maps.rebind(ids(5), ids(1))
    maps.owners_of(slice(5, 6))[:] = -1
    with pytest.raises(InvariantError, match=r"unit_ids\.sink_is_bound"):
        maps.verify()


def test_a_run_is_bound_in_order() -> None:
    """As one by one would be."""
    maps, other = UnitIds(6, 8, sink_page=7), UnitIds(6, 8, sink_page=7)
    maps.bind_run(ids(4, 1, 2), 3)
    other.bind(ids(4, 1, 2), ids(3, 4, 5))
    assert maps.pages_of(np.arange(6)).tolist() == other.pages_of(np.arange(6)).tolist() == [7, 4, 5, 7, 3, 7]
    assert maps.owners_of(slice(None)).tolist() == other.owners_of(slice(None)).tolist()
    assert maps.bound == 3
    maps.bind_run(ids(), 0)
    maps.verify()


def test_the_bound_among_ids_keep_their_order() -> None:
    """All, some or none of them; -1 never."""
    maps = UnitIds(6, 8, sink_page=7)
    maps.bind(ids(5, 0, 3), ids(1, 2, 3))
    assert maps.bound_among(ids(3, 5)).tolist() == [3, 5]
    assert maps.bound_among(ids(4, 3, -1, 0)).tolist() == [3, 0]
    assert maps.bound_among(ids(4, 1)).tolist() == maps.bound_among(ids()).tolist() == []


def test_accepted_ids_are_minted_again_first() -> None:
    """Before any that was never out."""
    pool = IdPool(6)
    pool.mint(4)
    pool.accept(ids(1, 3))
    pool.verify()
    assert pool.free == 4
    assert sorted(pool.mint(2).tolist()) == [1, 3]
    pool.accept(ids(0, 3))
    pool.accept(ids(2))
    assert pool.mint(1).tolist() == [2]
    assert sorted(pool.mint(3).tolist()) == [0, 3, 4]
    pool.verify()


@pytest.mark.parametrize("count", [-1, 4, 10**18])
def test_a_pool_mints_no_absurd_number(count: int) -> None:
    """Negative, one too many, or beyond anything: nothing is out afterwards."""
    pool = IdPool(3)
    with pytest.raises(InvariantError, match=r"id_pool\.mint_beyond_free"):
        pool.mint(count)
    assert pool.free == 3
    pool.verify()


def test_a_last_page_that_is_bound_hides_no_unbound_id() -> None:
    """An unbound id's sink may be any page, the first or the last: it is nobody's."""
    maps = UnitIds(4, 6, sink_page=0)
    maps.bind(ids(3), ids(5))
    with pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
        maps.unbind(ids(2))


@pytest.mark.parametrize("wrong", [ids(0), ids(1, 1), ids(-1), ids(4)], ids=["bound", "twice", "negative", "beyond"])
def test_a_wrong_take_is_caught_before_anything_changes(wrong: np.ndarray) -> None:
    """An id that is bound, named twice or unknown is not taken."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0), ids(2))
    with pytest.raises(InvariantError, match=r"band\.take_of"):
        maps.check_unbound(wrong)
    maps.verify()
    maps.check_unbound(ids(1, 2, 3))


def test_ids_are_int64() -> None:
    """A narrower array is refused: it would be read as other ids."""
    maps = UnitIds(4, 6, sink_page=5)
    with pytest.raises(InvariantError, match=r"unit_ids\.ids_are_int64.*int32"):
        maps.check_unbound(np.array([0, 1], dtype=np.int32))


def test_moves_are_checked() -> None:
    """Nothing moves from a page without an owner, nor onto one that has an owner."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0, 1), ids(2, 3))
    with pytest.raises(InvariantError, match=r"band\.move_of_unowned_page"):
        maps.rebind(ids(4), ids(0))
    with pytest.raises(InvariantError, match=r"band\.move_onto_owned_page"):
        maps.rebind(ids(2), ids(3))


def test_a_map_that_disagrees_is_found() -> None:
    """``verify`` sees an owner that its id does not know."""
    maps = UnitIds(4, 6, sink_page=5)
    maps.bind(ids(0, 1), ids(2, 3))
    maps.owners_of(slice(2, 4))[:] = [1, 0]
    with pytest.raises(InvariantError, match=r"unit_ids\.inverse"):
        maps.verify()


@pytest.mark.req("IDS-4")
def test_minted_ids_are_the_callers_to_keep() -> None:
    """What comes back later is not written over them."""
    pool = IdPool(8)
    first = pool.mint(8)
    pool.accept(first[:6])
    ours = pool.mint(3)
    kept = ours.copy()
    pool.accept(first[6:])
    assert ours.tolist() == kept.tolist() == [3, 4, 5]
    assert sorted(pool.mint(5).tolist()) == [0, 1, 2, 6, 7]
    pool.verify()


def test_a_move_of_a_page_that_its_id_has_left_is_caught() -> None:
    """The maps disagree: nothing is moved on the word of one of them."""
    maps = UnitIds(4, 8, sink_page=7)
    maps.bind(ids(1, 2), ids(5, 6))
    maps.owners_of(slice(0, 1))[:] = 1
    with pytest.raises(InvariantError, match=r"band\.move_of_stale_page"):
        maps.rebind(ids(0), ids(3))
    assert maps.pages_of(ids(1, 2)).tolist() == [5, 6]


def test_verify_finds_an_id_that_came_back_and_was_never_out() -> None:
    """The lowest of those that were never out would be minted twice."""
    pool = IdPool(4)
    pool.mint(2)
    pool.accept(ids(2))
    with pytest.raises(InvariantError, match=r"id_pool\.returned_was_never_out"):
        pool.verify()


def test_verify_finds_a_page_that_unbound_reads_would_see() -> None:
    """What -1 reads is the sink, always."""
    maps, other = UnitIds(4, 6, sink_page=5), UnitIds(4, 6, sink_page=5)
    maps.bind(ids(-1), ids(2))
    maps.bound = 0
    other.owners_of(slice(5, 6))[:] = -1
    for harmed in (maps, other):
        with pytest.raises(InvariantError, match=r"unit_ids\.sink_is_bound"):
            harmed.verify()
