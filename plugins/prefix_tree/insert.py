"""A row's first pages become the cache's: what is there already is adopted, the rest handed over.

A page's way:  1. adopt   the cache has the tokens: the row reads the cache's page; a window page that the cache lacks
                          there is the cache's from here on.
               2. give    it does not, or has let go of the page: the row's own is handed over.
               3. keep    of what it got, the cache keeps the pages that the new landing needs in each sub-pool; the
                          others come back at once.
"""

import numpy as np

from kvarena.plugins.prefix_tree.kinds import Kinds, Mask, Rows
from kvarena.plugins.prefix_tree.node import NO_ID, Node
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.plugins.prefix_tree.store import Store
from kvarena.terms.invariants import invariant
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray


class Giving:
    """Pages of rows on their way into one tree."""

    def __init__(self, store: Store, kinds: Kinds, shelf: Shelf) -> None:
        self._store = store
        self._kinds = kinds
        self._shelf = shelf
        self._windows = [kind for kind in kinds.rows if kind is not kinds.owner]
        self._in_turn = self._windows if kinds.owner is None else [*self._windows, kinds.owner]  # it outlives them

    def adopt(self, row: int, node: Node, stop: int) -> None:
        """The row's own pages up to a node's end, which the tree has, are replaced; ``stop`` is the new landing."""
        kinds = self._kinds
        first = int(self._store.requests.handed[row])
        if not kinds.has_pages or first >= node.stop:
            return
        nodes: list[Node] = []
        at: Node | None = node
        while at is not None and at.stop > first:
            nodes.append(at)
            at = at.parent
        nodes.reverse()
        skip = first - nodes[0].start
        before = np.frombuffer(b"".join([there.ids for there in nodes]), dtype=np.int64)[skip:]
        if not kinds.rows:
            self._store.sharing.adopt(row, before)
            return
        bound = [self._store.sharing.bound(kind.name, before) for kind in self._windows]
        after = before if kinds.owner is None else self._merge(row, first, before)
        if kinds.owner is None:
            self._store.sharing.adopt(row, after)
        gained = {
            kind.column: self._store.sharing.bound(kind.name, after) & ~there
            for kind, there in zip(self._windows, bound, strict=True)
        }
        if kinds.owner is not None:
            gained[kinds.owner.column] = (after != UNBOUND) & (before == UNBOUND)
        if any(np.count_nonzero(pages) for pages in gained.values()):
            kept, after = self._keep(first, after, gained, stop)
            self._distribute(nodes, first, after, kept)

    def give(self, row: int, parent: Node, stop: int, keys: bytes) -> Node:
        """The row's pages from a node's end to ``stop`` are handed over: a new child of the node, not counted yet."""
        kinds, first = self._kinds, parent.stop
        if not kinds.has_pages:
            return Node(parent, first, stop, keys=keys, ids=b"", rows=())
        raw = self._store.requests.pages[row, first:stop].tobytes()
        lacks = kinds.owner is None and NO_ID in raw
        invariant("prefix_tree.row_lacks_a_page", not lacks, row=row, first=first, stop=stop)
        self._store.ownership.hand_over(row, stop * kinds.page_tokens)
        if not kinds.rows:
            return Node(parent, first, stop, keys=keys, ids=raw, rows=())
        if kinds.owner is None and kinds.in_order:
            rows = [self._tail(row, kind, raw, first, stop) for kind in kinds.rows]
            return Node(parent, first, stop, keys=keys, ids=raw, rows=tuple(rows))
        ids: IntArray = np.frombuffer(raw, dtype=np.int64).copy()
        gained = {kind.column: self._store.sharing.bound(kind.name, ids) for kind in self._windows}
        if kinds.owner is not None:
            gained[kinds.owner.column] = ids != UNBOUND
        kept, ids = self._keep(first, ids, gained, stop)
        held = tuple([kind.held(kept[kind.column]) for kind in kinds.rows])
        return Node(parent, first, stop, keys=keys, ids=ids.tobytes(), rows=held)

    # -- inside

    def _tail(self, row: int, kind: Rows, ids: bytes, first: int, stop: int) -> int:
        """How many of a row's pages in one sub-pool a new node keeps: those before its landing comes back.

        The row let go of its first pages there, as its table says.
        """
        retired = int(self._store.requests.retired[kind.index, row])
        needed = max(first, self._kinds.needs_of_landing(stop).rows[kind.column])
        there = first if retired < first else retired if retired < stop else stop
        if there < needed:
            gone = ids[(there - first) * 8 : (needed - first) * 8]
            self._store.sharing.free_in(kind.name, np.frombuffer(gone, dtype=np.int64))
        return stop - (needed if there < needed else there)

    def _merge(self, row: int, first: int, theirs: IntArray) -> IntArray:
        """Where pages of the owner retire: the tree's pages where it has them, else the row's; as they are then."""
        size, ids = self._kinds.page_tokens, theirs.copy()
        own: IntArray = self._store.requests.pages[row, first : first + len(ids)].copy()
        gives = (ids == UNBOUND) & (own != UNBOUND)
        turns = np.flatnonzero(gives[1:] != gives[:-1]) + 1
        for start, stop in zip([0, *turns.tolist()], [*turns.tolist(), len(ids)], strict=True):
            if gives[start]:
                self._store.ownership.hand_over(row, (first + stop) * size)
                ids[start:stop] = own[start:stop]
            else:
                self._store.sharing.adopt(row, ids[start:stop])
        return ids

    def _keep(self, first: int, ids: IntArray, gained: dict[int, Mask], stop: int) -> tuple[dict[int, Mask], IntArray]:
        """Free what was gained beyond what the landing at ``stop`` needs. Returns what was kept, and the ids left."""
        pages, kept = np.arange(first, first + len(ids)), {}
        for kind in self._in_turn:
            needed, there = kind.pages_needed(stop, pages), gained[kind.column]
            kept[kind.column] = there & needed
            excess = there & ~needed
            if not np.count_nonzero(excess):
                continue
            if kind is not self._kinds.owner:
                self._store.sharing.free_in(kind.name, ids[excess])
            else:
                self._store.ownership.free_pages(ids[excess])
                ids[excess] = UNBOUND
        return kept, ids

    def _distribute(self, nodes: list[Node], first: int, ids: IntArray, kept: dict[int, Mask]) -> None:
        """Nodes have the pages that the tree got and kept, from position ``first`` on."""
        for node in nodes:
            low, high = max(node.start, first) - first, node.stop - first
            if not any(np.count_nonzero(mask[low:high]) for mask in kept.values()):
                continue
            self._shelf.withdraw(node)
            count, offset = node.stop - node.start, max(0, first - node.start)
            rows = []
            for kind, held in zip(self._kinds.rows, node.rows, strict=True):
                mask = kind.mask(held, count).copy()
                mask[offset:] |= kept[kind.column][low:high]
                rows.append(kind.held(mask))
            node.rows = tuple(rows)
            if self._kinds.owner is not None:
                node.ids = node.ids[: offset * 8] + ids[low:high].tobytes()
            self._shelf.restore(node)
