"""The prefix tree: what a scheduler matches and inserts, and what admission evicts."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import PrefixConfig
from kvarena.assembly.loader import make_eviction
from kvarena.plugins.prefix_tree.cache import TreeCache
from kvarena.plugins.prefix_tree.insert import Giving
from kvarena.plugins.prefix_tree.locks import node_of, split
from kvarena.plugins.prefix_tree.match import Match, find
from kvarena.plugins.prefix_tree.node import Entry, Node, Root
from kvarena.plugins.prefix_tree.stats import TreeStats
from kvarena.plugins.prefix_tree.store import Store
from kvarena.plugins.prefix_tree.verify import verify_tree
from kvarena.plugins.prefix_tree.walk import walk
from kvarena.terms.doors import line, whole
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail
from kvarena.terms.ports import Eviction, IntArray


class Inserted(NamedTuple):
    """What came of an insert: the ``entry`` at its end, locked if that was asked for, else to be locked by who goes on
    reading it; of ``tokens``, so many were new; ``state_kept``: the entry had no state, and has the one that came."""

    entry: Entry
    tokens: int
    new_tokens: int
    state_kept: bool


class PrefixTree(TreeCache):
    """Prefixes that requests computed, for others to start from.

    A prefix's life:  1. insert  a row's pages, up to a landing, are the tree's; the row reads them still.
                      2. match   a sequence that begins with them finds the landing. Nothing changes.
                      3. and then as an entry of a ``TreeCache``: locked, unlocked, evicted.
    Always:  what the tree holds == what was handed over to it, and not freed     (``verify``)
    """

    def __init__(self, store: Store, eviction: Eviction | None = None) -> None:
        """``store`` is a storage; ``eviction`` says what goes first, by default what its config names."""
        if isinstance(eviction, str) or not (eviction is None or hasattr(eviction, "open")):
            raise KvarenaError(
                f"prefix_tree: eviction is {eviction!r}; it must be a policy, which make_eviction finds by "
                "name, or None for the one that the storage's config names"
            )
        if eviction is None:
            eviction = make_eviction(Catalog.installed(), getattr(store, "prefix", None) or PrefixConfig())
        super().__init__(store, eviction)
        self.eviction = eviction
        self._giving = Giving(store, self._kinds, self._shelf)
        self._lookups = self._hits = self._hit_tokens = 0

    def match(self, keys: IntArray, *, namespace: Hashable = None) -> Match:
        """What of a sequence the cache has, and the deepest place in it where every kind can resume.

        At least the last token is left to compute. Nothing changes.

        Args:
            keys: int64 (tokens,): token values, or whatever tells blocks apart. namespace: only what was inserted under
                the same one is found (a salt, an adapter).

        Raises:
            KvarenaError: the keys are no such array.
        """
        keys, root = line(keys, "prefix_tree.match: keys"), self._root(namespace) or Root(namespace)
        found = find(root, keys, self._kinds, self._landings)
        self._lookups += 1
        if found.tokens:
            self._hits += 1
            self._hit_tokens += found.tokens
        return found

    def insert(
        self,
        row: int,
        keys: IntArray,
        tokens: int,
        *,
        namespace: Hashable = None,
        state: int | None = None,
        priority: float = 0,
        origin: Any = None,
        after: Entry | None = None,
        lock: bool = False,
    ) -> Inserted:
        """A row's first ``tokens`` are the cache's, for others to start from; the row reads them still.

        What is there already is adopted: the row's own copies come back. Of the window rows those stay that a request
        needs that starts at ``tokens``, and what earlier landings need.

        Args:
            row: an open row. What it handed over before is in the cache and locked for it.
            keys: int64, at least ``tokens`` of them. tokens: whole pages, at least one, that the row has written.
            state: a slot that was handed over, with the state after ``tokens``. Where one is there already, it comes
                back.
            priority: what the ``priority`` policy goes by. origin: handed out with matches that land here.
            after: the entry that the row reads, locked, of which ``keys`` are a continuation: the walk begins there.
            lock: the new entry is locked for the row's owner, who reads it from here on, and ``after`` is unlocked.

        Raises:
            KvarenaError: keys, tokens, state or priority are none; nothing has changed.
            InvariantError: the row is free or shorter; the state was not handed over; what the row handed over is not
                in the cache; nothing has changed.
        """
        size, row = self._kinds.page_tokens, whole(row, "prefix_tree.insert: row")
        tokens, state = self._check(row, keys, tokens, state, priority)
        stop = tokens // size
        start = self._start(row, stop, namespace, after)
        if lock and after is not None:
            self._locks.check_locked(self._locked(after), after.leased[-1] if after.leased else None)
        first, keys = start.stop, keys[start.stop * size : tokens]
        node, agreed = walk(start, keys, size)
        agreed += first
        handed = int(self._store.requests.handed[row])
        if agreed < handed and agreed < stop:
            fail("prefix_tree.insert_behind_a_gap", row=row, agreed=agreed, handed_over=handed)
        if node.stop != agreed:
            node = split(node, agreed, self._shelf, self._kinds)
        if agreed > handed:
            self._giving.adopt(row, node, stop)
        is_new = agreed < stop
        if is_new:
            node = self._giving.give(row, node, stop, keys[(agreed - first) * size :].tobytes())
        kept = self._mark(node, state, priority, origin)
        entry = Entry(node, stop, tokens, lands=False)
        if is_new:
            self._join(node, entry if lock else None, after)
        elif lock:
            self._locks.lock(node, self._needs(entry))
            self._leave(after)
        entry.lands = self._landings.deepest(node, stop) == stop
        return Inserted(entry, tokens, (stop - agreed) * size, kept)

    # -- what there is

    def stats(self) -> TreeStats:
        """What it holds and has done. May be called from any thread."""
        held, evicting = self._shelf.held, self._evicting
        return TreeStats(
            len(self._shelf), held.pages * self._kinds.page_tokens, held.units(), self._shelf.evictable.units(),
            self._lookups, self._hits, self._hit_tokens, evicting.pieces, evicting.gone,
        )  # fmt: skip

    def verify(self) -> None:
        """Check every sum, lock and piece against the nodes, and the nodes against the storage. Slow: for tests.

        Raises:
            InvariantError: one does not hold.
        """
        verify_tree(self._roots, self._shelf, self._kinds, self._store)

    # -- inside

    def _check(
        self, row: int, keys: IntArray, tokens: int, state: int | None, priority: float
    ) -> tuple[int, int | None]:
        """What comes with an insert is sound. Returns tokens and state as plain numbers."""
        size, given = self._kinds.page_tokens, tokens
        tokens, keys = whole(tokens, "prefix_tree.insert: tokens"), line(keys, "prefix_tree.insert: keys")
        if tokens < size or tokens % size or tokens > len(keys):
            raise KvarenaError(
                f"prefix_tree.insert: tokens is {given}; it must be whole pages of {size} tokens, at least one, "
                f"and there are {len(keys)} keys"
            )
        if isinstance(priority, bool) or not isinstance(priority, int | float) or priority != priority:
            raise KvarenaError(f"prefix_tree.insert: priority is {priority!r}; it must be a number")
        lengths = self._store.requests.lengths
        length = int(lengths[row]) if 0 <= row < len(lengths) else 0  # that of a free row is 0 too
        if tokens > length:
            fail("prefix_tree.insert_beyond_the_row", row=row, tokens=tokens, length=length)
        if state is None:
            return tokens, None
        if self._kinds.slots is None:
            raise KvarenaError(f"prefix_tree.insert: state is {state!r}, and the model keeps no state; leave it out")
        state = whole(state, "prefix_tree.insert: state")
        self._store.ownership.slots.check_freed(np.array([state]))
        if state in self._shelf.states:
            fail("prefix_tree.state_is_cached_already", state=state)
        return tokens, state

    def _root(self, namespace: Hashable) -> Root | None:
        """Where the prefixes of a namespace begin; None where there are none."""
        try:
            return self._roots.get(namespace)
        except TypeError:
            raise KvarenaError(f"prefix_tree: namespace is {namespace!r}; it must be hashable, a string say") from None

    def _start(self, row: int, stop: int, namespace: Hashable, after: Entry | None) -> Node:
        """Where the walk of an insert begins: the entry that the row reads, else the root."""
        if after is None or after.stop > stop:
            return self._root(namespace) or Root(namespace)
        node = node_of(after)
        if node is None or node.stop != after.stop or not node.locks:
            fail("prefix_tree.insert_after_unlocked_entry", row=row, after=after)
        return node

    def _mark(self, node: Node, state: int | None, priority: float, origin: Any) -> bool:
        """An insert ends at this node, which is new or was there. Returns whether its state is kept."""
        is_new, kept = node.number < 0, state is not None and node.state is None
        node.is_end, node.used = True, self._tick()
        if is_new or priority > node.priority:
            node.priority = priority
        if is_new or kept or node.origin is None:
            node.origin = origin
        if kept and state is not None:
            self._shelf.gain_state(node, state)
        if not is_new:
            self._shelf.settle(node)
            self._shelf.touch(node, used=True)
        if state is not None and not kept:
            self._store.sharing.free_slots(np.array([state]))
        return kept

    def _join(self, node: Node, reads: Entry | None, after: Entry | None) -> None:
        """A new node stands below its parent; whose owner ``reads`` it has locked it, and reads ``after`` no more."""
        parent, is_first = node.parent, False
        assert parent is not None
        if parent.children is None:
            parent.children, is_first = {}, True
        parent.children[node.keys[: self._kinds.page_bytes]] = node
        if isinstance(parent, Root):
            self._roots[parent.namespace] = parent
            is_first = False
        if reads is None:
            self._shelf.put(node)
            if is_first:
                self._shelf.settle(parent)
        elif after is not None and node_of(after) is parent:
            self._locks.put_below(node, self._needs(reads), after.leased.pop() if after.leased else None)
        else:
            self._locks.put(node, self._needs(reads))
            self._leave(after)

    def _leave(self, after: Entry | None) -> None:
        """The owner of a row has locked another entry, and reads this one no more."""
        if after is not None:
            self.unlock(after, relaxed=not after.leased)
