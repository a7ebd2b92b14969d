"""Requests that share prefixes over a tree: they lock what they read, insert what they wrote, and unlock at the end."""

from typing import Any

import numpy as np
from storages import CATALOG, opened, rows_of

from kvarena.assembly.config import Choice, PrefixConfig
from kvarena.assembly.loader import make_eviction
from kvarena.plugins.prefix_tree import Inserted, Match, PrefixTree
from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.locks import node_of
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.lifetimes import NEVER, Full, floor_reaches
from kvarena.terms.ports import Eviction, IntArray

POLICIES = ("lru", "lfu", "priority", "worth")


def policy(name: str = "lru", *, splits: bool = True) -> Eviction:
    """An eviction policy, found as a config finds it."""
    made: Eviction = make_eviction(CATALOG, PrefixConfig(eviction=Choice(name, {"splits": splits})))
    return made


def tree_of(storage: Storage, name: str = "lru", *, splits: bool = True) -> PrefixTree:
    """An empty tree over a storage."""
    return PrefixTree(storage, policy(name, splits=splits))


def keys_of(*pages: int, size: int = 4) -> IntArray:
    """The keys of a sequence of pages: a page of sevens has the tokens 700, 701, ..."""
    return np.concatenate([np.arange(size) + 100 * page for page in pages] or [rows_of()]).astype(np.int64)


class Reader:
    """A request on its row: what it started from, and what of it the tree has."""

    def __init__(self, storage: Storage, tree: PrefixTree, keys: IntArray, namespace: Any = None) -> None:
        self.storage, self.tree, self.keys, self.namespace = storage, tree, keys, namespace
        self.entry: Any = None
        self.relaxed = False
        self.row = opened(storage)
        self.match = self._begin()

    def _begin(self) -> Match:
        match = self.tree.match(self.keys, namespace=self.namespace)
        if match.entry is not None:
            self.tree.lock(match.entry)
            self.tree.touch(match.entry)
            self.storage.sharing.start(self.row, match.ids, match.tokens)
            self.entry = match.entry
        return match

    @property
    def length(self) -> int:
        """The tokens that it has written."""
        return int(self.storage.requests.lengths[self.row])

    def grow(self, length: int) -> bool:
        """Write up to so many tokens; False where it was refused."""
        return not isinstance(self.storage.step(rows_of(self.row), rows_of(length)), Refused)

    def insert(
        self, tokens: int, *, state: bool = True, follow: bool = True, lock: bool = True, **settings: Any
    ) -> Inserted:
        """Cache the first tokens, with the state where the plan has one, and read the new entry from here on.

        ``lock``: in one call, where it follows what it read before, or has read nothing; else its locks are its own.
        """
        slot = None
        if state and self.storage.plan.slots is not None:
            slot = self.storage.sharing.hand_over_slot(self.row, 0)
            taken = self.storage.sharing.take_slot(self.row, 0)
            assert not isinstance(taken, Refused)
        after = self.entry if follow and self.entry is not None and self.entry.tokens <= tokens else None
        passes = lock and (after is not None or self.entry is None)
        inserted = self.tree.insert(
            self.row, self.keys, tokens, namespace=self.namespace, state=slot, after=after, lock=passes, **settings
        )
        if not passes:
            self.tree.lock(inserted.entry)
            if self.entry is not None:
                self.tree.unlock(self.entry, relaxed=self.relaxed)
        self.entry, self.relaxed = inserted.entry, False
        return inserted

    def is_past(self) -> bool:
        """Whether no window row below its entry is needed any more, so that the entry may be relaxed."""
        windows = [pool.lifetime for pool in self.storage.plan.token_pools if not isinstance(pool.lifetime, Full)]
        reached = [floor_reaches(lifetime, rows_of(self.entry.tokens)) for lifetime in windows]
        return self.length >= max((NEVER if found is None else int(found[0]) for found in reached), default=0)

    def relax(self) -> None:
        """It has moved past the windows of its entry."""
        self.tree.relax(self.entry)
        self.relaxed = True

    def leave(self) -> None:
        """It ends."""
        if self.entry is not None:
            self.tree.unlock(self.entry, relaxed=self.relaxed)
        self.storage.close(self.row)


def cached(storage: Storage, tree: PrefixTree, keys: IntArray, **settings: Any) -> Inserted:
    """A request that ran over all of these keys, was cached at its end, and is gone."""
    reader = Reader(storage, tree, keys, settings.pop("namespace", None))
    assert reader.grow(len(keys))
    inserted = reader.insert(len(keys), **settings)
    reader.leave()
    return inserted


def spelled(tree: PrefixTree, keys: IntArray, **settings: Any) -> tuple[int, int, str]:
    """How far a match lands, how far it agrees, and why it stopped."""
    match = tree.match(keys, **settings)
    return match.tokens, match.agreed, match.stopped


def holds(storage: Storage, entry: Any) -> bool:
    """Whether a request can still start from an entry that was matched: it may have been evicted since."""
    node = node_of(entry)
    return node is not None and Landings(Kinds(storage.plan)).deepest(node, entry.stop) == entry.stop
