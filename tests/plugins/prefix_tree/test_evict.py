"""What is handed on when a piece goes: its hits and its last use to its parent, its worth to what stood with it."""

import numpy as np
import pytest
from storages import FULL, SHORT, STATE, assert_quiet, storage_of
from trees import cached, holds, keys_of, tree_of

from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.storage.storage import Storage
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Window

ABOVE, WHOLE = keys_of(1, 2, 3), keys_of(1, 2, 3, 4, 5, 6)
OTHER, BESIDE = keys_of(21, 22, 23, 24, 25, 26), keys_of(1, 2, 3, 9, 9, 9)
DEEPER = keys_of(1, 2, 3, 4, 5, 6, 7, 8, 9)


def evict(tree: PrefixTree, pieces: int = 1) -> None:
    """So many pieces go."""
    left = iter(range(pieces - 1, -1, -1))
    tree.evict(lambda _: not next(left))
    assert next(left, None) is None
    tree.verify()


def touch(tree: PrefixTree, entry: object, times: int) -> None:
    """So many requests more start there."""
    for _ in range(times):
        tree.touch(entry)  # type: ignore[arg-type]


# -- to the parent


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize(("policy", "hits"), [("lfu", 3), ("worth", 6)])
def test_a_parent_has_the_hits_of_a_child_that_went(policy: str, hits: int) -> None:
    """It was started from once, its child three times: together they are worth more than another entry."""
    storage = storage_of((FULL,))
    tree = tree_of(storage, policy)
    parent = cached(storage, tree, ABOVE).entry
    child = cached(storage, tree, WHOLE).entry  # starts from its parent
    touch(tree, child, 3)
    other = cached(storage, tree, OTHER).entry
    touch(tree, other, hits)
    evict(tree)
    assert not holds(storage, child)
    evict(tree)
    assert holds(storage, parent)
    assert not holds(storage, other)


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_parent_was_used_when_its_child_was(policy: str) -> None:
    """A child that was used after another entry goes while this is locked: the parent then stays longer than that."""
    storage = storage_of((FULL,))
    tree = tree_of(storage, policy)
    parent, child = cached(storage, tree, ABOVE).entry, cached(storage, tree, WHOLE).entry
    other = cached(storage, tree, OTHER).entry
    touch(tree, other, 2)
    touch(tree, child, 1)  # as often as the other with its parent's, and later
    tree.lock(other)
    evict(tree)
    assert not holds(storage, child)
    tree.unlock(other)
    evict(tree)
    assert holds(storage, parent)
    assert not holds(storage, other)


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_state_in_the_middle_was_used_when_what_stood_behind_it_was(policy: str) -> None:
    """One of two branches goes, which was used last: the state where they part stays, and another entry goes."""
    storage = storage_of((STATE, FULL))
    tree = tree_of(storage, policy)
    parent = cached(storage, tree, ABOVE).entry
    child, branch = cached(storage, tree, WHOLE).entry, cached(storage, tree, BESIDE).entry
    tree.lock(branch)
    other = cached(storage, tree, OTHER).entry
    touch(tree, other, 2)
    touch(tree, child, 1)
    tree.drop(child)
    evict(tree)
    assert holds(storage, parent)
    assert not holds(storage, other)
    tree.unlock(branch)
    tree.clear()
    assert_quiet(storage)


# -- to what stood with it


def live(storage: Storage, *names: str) -> tuple[int, ...]:
    """The pages of these sub-pools."""
    return tuple(storage.chain.bands[name].ids.bound for name in names)


@pytest.mark.req("TRE-1")
@pytest.mark.req("CKP-1")
@pytest.mark.parametrize(("window", "pieces"), [(Window(4), 1), (Window(7), 2)], ids=["in its node", "and before it"])
def test_window_rows_are_worth_nothing_without_their_state(window: Window, pieces: int) -> None:
    """A state goes, and next the window rows that were kept for it, though another entry is worth less than they were.

    Tokens per byte, times how often: the state 24 / 40 * 2, the window rows 24 / 20 * 2, or 24 / 40 * 4 where they
    stand before its node, and the other at the most 24 / 204 * 16.
    """
    storage = storage_of((STATE, window, FULL), memory=9000)
    tree = tree_of(storage, "worth")
    if pieces > 1:
        touch(tree, cached(storage, tree, WHOLE[:20], state=False).entry, 3)
    cached(storage, tree, WHOLE)
    tree.lock(cached(storage, tree, DEEPER).entry)
    other = cached(storage, tree, OTHER).entry
    touch(tree, other, 15)
    states, rows = live(storage, STATE.name, window.name)
    evict(tree)
    assert live(storage, STATE.name, window.name) == (states - 1, rows)
    evict(tree, pieces)
    assert live(storage, STATE.name, window.name) == (states - 1, 2 * pieces), "the deeper entry's and the other's"
    assert holds(storage, other)


@pytest.mark.req("TRE-1")
@pytest.mark.req("CKP-1")
def test_a_state_is_worth_nothing_without_its_window_rows() -> None:
    """Window rows go, 24 / 80 * 2, and next their state, though it was 24 / 40 * 2 and another is 24 / 264 * 10."""
    storage = storage_of((STATE, SHORT, FULL), memory=9000)
    tree = tree_of(storage, "worth")
    cached(storage, tree, WHOLE)
    tree.lock(cached(storage, tree, DEEPER).entry)
    other = cached(storage, tree, OTHER).entry
    touch(tree, other, 9)
    evict(tree)
    assert live(storage, STATE.name, SHORT.name) == (3, 4)
    evict(tree)
    assert live(storage, STATE.name, SHORT.name) == (2, 4)
    assert holds(storage, other)


# -- what may not go


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("name", [STATE.name, SHORT.name, FULL.name])
def test_a_drop_that_the_storage_refuses_leaves_what_is_reserved(name: str) -> None:
    """The tree still has what did not come back, and no more: it goes when it is dropped again."""
    storage = storage_of((STATE, SHORT, FULL))
    tree = tree_of(storage)
    entry = cached(storage, tree, WHOLE).entry
    match = tree.match(np.append(WHOLE, 1))
    fixed = np.array([match.state]) if name == STATE.name else match.ids[-1:]
    storage.chain.usage.fix(name, fixed)
    with pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
        tree.drop(entry)
    tree.verify()
    storage.verify()
    assert tree.match(WHOLE).agreed == len(WHOLE)
    assert tree.stats().units == live(storage, *storage.plan.names)
    storage.chain.usage.unfix(name, fixed)
    tree.drop(entry)
    tree.verify()
    assert_quiet(storage)
