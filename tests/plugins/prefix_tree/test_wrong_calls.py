"""A policy or a caller that is wrong is named, and the tree is as it was."""

from collections.abc import Callable
from typing import Any

import pytest
from storages import FULL, SHORT, STATE, storage_of
from trees import Reader, cached, keys_of, policy

from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.terms.errors import KvarenaError, PluginError


class Swaps:
    """LRU that lets go of one piece and names another."""

    name, splits, weighs = "swaps", True, False

    def __init__(self, swap: Callable[[int], int]) -> None:
        self.swap = swap

    def open(self) -> Any:
        """Its victims, as those of LRU."""
        victims, swap = policy("lru").open(), self.swap

        class Wrong:
            """Every answer but that of ``pop`` is right."""

            def __len__(self) -> int:
                return len(victims)

            def __getattr__(self, verb: str) -> Any:
                return getattr(victims, verb)

            def pop(self, look: Any) -> int | None:
                """Another than was let go of."""
                key = victims.pop(look)
                return None if key is None else swap(key)

        return Wrong()


@pytest.mark.parametrize(
    "swap",
    [lambda key: key ^ 1, lambda key: 10_000, lambda key: -3, lambda key: "a"],
    ids=["kind", "far", "negative", "text"],
)
def test_a_policy_that_names_no_piece_is_told(swap: Callable[[int], int]) -> None:
    """Another kind of piece of the node, one that never was, or none at all: nothing comes back for it."""
    storage = storage_of((STATE, SHORT, FULL), memory=6000, running=4)
    tree = PrefixTree(storage, Swaps(swap))
    for first in range(3):
        cached(storage, tree, keys_of(first, first + 10))
    before = tree.stats().units
    with pytest.raises(PluginError, match=r"^eviction policy 'swaps' \(.*Swaps\): pop\(\) .*policy_chose_no_piece\)$"):
        tree.evict(lambda _: False)
    assert tree.stats().units == before


@pytest.mark.parametrize("length", [None, "long", 2.5])
def test_a_narrow_to_no_length_leaves_the_lock(length: Any) -> None:
    """The reader has it still, and can go on and leave."""
    storage = storage_of((STATE, SHORT, FULL), memory=6000, running=4)
    tree = PrefixTree(storage, policy())
    cached(storage, tree, keys_of(1, 2))
    reader = Reader(storage, tree, keys_of(1, 2, 3))
    locked = tree.evictable()
    with pytest.raises(KvarenaError, match=r"prefix_tree\.narrow: length"):
        tree.narrow(reader.entry, length)
    assert tree.evictable() == locked
    tree.verify()
    reader.leave()
    tree.clear()
    assert tree.stats().entries == 0
