"""What is handed on when a piece goes: its hits and its last use to its parent, its worth to what stood with it."""

import numpy as np
import pytest
from storages import FULL, SHORT, STATE, assert_quiet, storage_of
from trees import cached, holds, keys_of, tree_of

from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Window

ABOVE, WHOLE = keys_of(1, 2, 3), keys_of(1, 2, 3, 4, 5, 6)
OTHER, BESIDE = keys_of(21, 22, 23, 24, 25, 26), keys_of(1, 2, 3, 9, 9, 9)
DEEPER = keys_of(1, 2, 3, 4, 5, 6, 7, 8, 9)
NARROW, SMALL = Window(4), Window(7)


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
    """A child that was used after another entry goes while this is locked: the parent stays longer than the other."""
    storage = storage_of((FULL,))
    tree = tree_of(storage, policy)
    parent, other = cached(storage, tree, ABOVE).entry, cached(storage, tree, OTHER).entry
    touch(tree, other, 1)
    tree.lock(other)
    child = cached(storage, tree, WHOLE[:12], state=False).entry
    assert child.tokens == parent.tokens
