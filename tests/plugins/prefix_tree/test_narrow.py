"""A reader that moves on lets go of the window rows that it has passed, one page after another."""

import numpy as np
import pytest
from storages import FULL, STATE, assert_quiet, storage_of
from toys import SinksAndWindow
from trees import Reader, cached, keys_of, tree_of

from kvarena.storage.storage import Storage
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Lifetime, Window

LONG, SHORT = Window(16), Window(8)
KEYS = keys_of(*range(1, 13))
POOLS = (STATE, LONG, SHORT, FULL)


def live(storage: Storage) -> dict[str, int]:
    """The pages of each window."""
    return {name: storage.chain.bands[name].ids.bound for name in (LONG.name, SHORT.name)}


def reader() -> tuple[Storage, Reader]:
    """One that has written 24 tokens, and whose first 24 are cached with their state."""
    storage = storage_of(POOLS)
    one = Reader(storage, tree_of(storage), KEYS)
    assert one.grow(24)
    one.insert(24)
    return storage, one


@pytest.mark.req("DEM-3")
@pytest.mark.req("TRE-1")
def test_what_a_reader_has_passed_may_go_kind_by_kind() -> None:
    """At 24 the windows need rows from 9 and 17 on; at 29 from 14 and 22, at 32 from 17 and 25."""
    storage, one = reader()
    one.tree.evict(lambda _: False)
    assert live(storage) == {LONG.name: 4, SHORT.name: 2}

    one.tree.narrow(one.entry, 29)
    before = one.tree.evictable()
    one.tree.evict(lambda _: False)
    assert live(storage) == {LONG.name: 3, SHORT.name: 1}
    assert sum(before) - sum(one.tree.evictable()) == 3, "a page of each window, and the state"
    one.tree.verify()

    one.tree.narrow(one.entry, 32)
    one.tree.evict(lambda _: False)
    assert live(storage) == {LONG.name: 2, SHORT.name: 0}
    assert one.tree.match(KEYS).tokens == 0, "nobody can start there any more"
    one.tree.unlock(one.entry)
    storage.close(one.row)
    one.tree.clear()
    assert_quiet(storage)


@pytest.mark.req("DEM-3")
@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("pools", [(LONG, SHORT), (LONG, SHORT, STATE)], ids=["alone", "with a state"])
def test_a_page_that_any_window_needs_keeps_its_id(pools: tuple[Lifetime, ...]) -> None:
    """Where ids come back with the last window: at 29 the long one needs rows from 14 on, the short one from 22 on."""
    storage = storage_of(pools)
    one = Reader(storage, tree_of(storage), KEYS)
    assert one.grow(24)
    one.insert(24)
    one.tree.narrow(one.entry, 29)
    assert one.grow(29)
    one.tree.evict(lambda _: False)
    own = storage.requests.pages[one.row, :6]
    assert storage.sharing.bound(LONG.name, own).tolist() == [False] * 3 + [True] * 3
    assert storage.sharing.bound(SHORT.name, own).tolist() == [False] * 5 + [True]
    one.tree.verify()
    storage.verify()
    assert one.grow(40)
    one.leave()
    one.tree.clear()
    assert_quiet(storage)


@pytest.mark.req("ADM-6")
def test_a_lock_that_is_taken_off_and_put_back_keeps_what_was_needed() -> None:
    """A question takes the locks of victims off: a reader that has moved on gets back what it had, and no more."""
    storage, one = reader()
    one.tree.narrow(one.entry, 29)
    one.tree.evict(lambda _: False)
    held = live(storage)
    one.tree.unlock(one.entry)
    assert one.tree.evictable() == tuple(
        len(np.flatnonzero(storage.chain.bands[name].ids.is_bound(storage.requests.pages[one.row, :6])))
        if name != STATE.name
        else 0
        for name in storage.plan.names
    )
    one.tree.lock(one.entry)
    one.tree.evict(lambda _: False)
    assert live(storage) == held
    one.tree.verify()


def test_two_readers_keep_what_either_needs() -> None:
    """One moves on, another has just started: its rows stay."""
    storage, one = reader()
    other = Reader(storage, one.tree, KEYS)
    assert other.match.tokens == 24
    one.tree.narrow(one.entry, 40)
    one.tree.evict(lambda _: False)
    assert live(storage) == {LONG.name: 4, SHORT.name: 2}
    one.tree.narrow(other.entry, 29)
    one.tree.evict(lambda _: False)
    assert live(storage) == {LONG.name: 3, SHORT.name: 1}
    one.tree.verify()


def test_only_readers_narrow() -> None:
    """Who has not locked the entry, or was relaxed, has nothing to let go of."""
    _, one = reader()
    one.tree.relax(one.entry)
    with pytest.raises(InvariantError, match=r"prefix_tree\.narrow_of_unlocked_entry"):
        one.tree.narrow(one.entry, 30)


SINKS = SinksAndWindow(4, 8)


def bound_pages(storage: Storage, row: int) -> list[int]:
    """The pages of a row that its sinks and its window have."""
    return np.flatnonzero(storage.sharing.bound(SINKS.name, storage.requests.pages[row, :12])).tolist()


@pytest.mark.req("DEM-3")
@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("pools", [(SINKS, FULL), (SINKS,), (STATE, SINKS)], ids=["full", "alone", "with a state"])
def test_a_reader_locks_the_rows_it_needs_and_none_between(pools: tuple[Lifetime, ...]) -> None:
    """What retires in no order: at 24 page 0 and the rows from 17 on are needed; at 32 page 0 alone of what is cached.

    The window that an earlier landing had, at 12, is nobody's need, though it lies between.
    """
    storage = storage_of(pools)
    tree = tree_of(storage)
    one = Reader(storage, tree, KEYS)
    for length in (12, 24):
        assert one.grow(length)
        one.insert(length)
    assert bound_pages(storage, one.row) == [0, 1, 2, 4, 5]
    tree.clear()
    assert bound_pages(storage, one.row) == [0, 4, 5]
    assert tree.match(KEYS).tokens == 24, "and so it lands where it landed"

    tree.narrow(one.entry, 32)
    assert one.grow(32)
    tree.clear()
    assert bound_pages(storage, one.row)[:1] == [0]
    assert not {4, 5} & set(bound_pages(storage, one.row))
    tree.verify()
    storage.verify()
    one.leave()
    tree.clear()
    assert_quiet(storage)


@pytest.mark.req("TRE-1")
def test_an_entry_that_is_dropped_leaves_others_their_sinks() -> None:
    """The sinks of a long entry are in the pages of a short one; the short one's window is needed by it alone."""
    storage = storage_of((SINKS, FULL))
    tree = tree_of(storage)
    short = cached(storage, tree, KEYS[:12])
    cached(storage, tree, KEYS[:32])
    tree.drop(short.entry)
    assert tree.match(KEYS).tokens == 32
    assert tree.match(KEYS[:13]).tokens == 4, "behind page 0 alone, whose rows are sinks"
    assert storage.chain.bands[SINKS.name].ids.bound == 3, "the sinks and the window of the long one"
    tree.verify()
    tree.clear()
    assert_quiet(storage)
