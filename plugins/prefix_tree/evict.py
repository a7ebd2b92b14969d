"""Pieces go, in the order of the policy."""

from collections.abc import Callable

import numpy as np

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import KV, ROWS, Firsts, Node, Root
from kvarena.plugins.prefix_tree.shelf import Shelf, Totals
from kvarena.plugins.prefix_tree.store import Store
from kvarena.terms.ports import IntArray

UNBOUND = -1


class Evicting:
    """Gives pieces of one tree back to the storage.

    What was used below a node is used at it once that is gone: its hits and its last use go up to the parent.
    """

    def __init__(
        self, store: Store, kinds: Kinds, shelf: Shelf, landings: Landings, on_empty: Callable[[Root], None]
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._shelf = shelf
        self._landings = landings
        self._on_empty = on_empty
        self.pieces = 0
        self.gone = Totals(kinds)

    def evict(self, enough: Callable[[], bool]) -> int:
        """Give pieces back until ``enough()``, asked after each, or until there is none. Returns how many went."""
        shelf, before = self._shelf, self.pieces
        look = shelf.look if self._kinds.has_parts else None  # what a policy was told of whole ends stays true
        while (key := shelf.victims.pop(look)) is not None:
            node = shelf.popped(key)
            try:
                if key & 1:
                    self.drop_rows(node, shelf.facts.free_below(node))
                elif node.pins or node.children:
                    self.drop_state(node)
                else:
                    self.drop_whole(node)
            except BaseException:  # the storage refused, a copy reads it say: it stays a piece
                shelf.settle(node)
                raise
            self.pieces += 1
            if enough():
                break
        return self.pieces - before

    def drop_whole(self, node: Node) -> Node:
        """A node without children and locks goes. Returns its parent."""
        parent, kinds = node.parent, self._kinds
        assert parent is not None
        assert parent.children is not None
        if node.state is not None:
            self._free_state(node)
        if kinds.has_pages:
            ids = np.frombuffer(node.ids, dtype=np.int64)
            if kinds.owner is not None:
                ids = ids[ids != UNBOUND]
            self._store.ownership.free_pages(ids)
        self.gone.add(node, KV | ROWS, 1)
        self._shelf.take(node)
        del parent.children[node.keys[: kinds.page_bytes]]
        parent.hits += node.hits
        if node.used > parent.used:
            parent.used = node.used
        if not parent.children:
            parent.children = None
            if isinstance(parent, Root):
                self._on_empty(parent)
            elif not parent.pins:
                self._shelf.ends(parent)
        return parent

    def drop_state(self, node: Node) -> None:
        """A node's state goes alone."""
        self._free_state(node)
        self._shelf.settle(node)
        if self._kinds.rows:  # window rows were kept for it, in the node and before it
            first, at = self._kinds.first(node.stop), node
            while at.parent is not None and at.stop > first:
                self._shelf.touch(at, used=False)
                at = at.parent

    def drop_rows(self, node: Node, needed: Firsts) -> None:
        """A node's window rows go alone; those from the page ``needed`` on stay, one for each sub-pool."""
        count = node.stop - node.start
        pages = np.arange(node.start, node.stop)
        ids: IntArray = np.frombuffer(node.ids, dtype=np.int64).copy()
        owner, rows = self._kinds.owner, list(node.rows)
        self._shelf.withdraw(node)
        try:
            for column, (kind, first) in enumerate(zip(self._kinds.rows, needed, strict=True)):
                if kind is not owner:
                    mask, stays = kind.mask(rows[column], count), pages >= first
                    gone = mask & ~stays
                    if np.count_nonzero(gone):
                        self._store.sharing.free_in(kind.name, ids[gone])
                    rows[column] = kind.held(mask & stays)
                    self.gone.rows[column] += int(np.count_nonzero(gone))
            if owner is not None:  # it outlives the others
                gone = (ids != UNBOUND) & (pages < min(needed))
                self._store.ownership.free_pages(ids[gone])
                mask = owner.mask(rows[owner.column], count)
                rows[owner.column] = owner.held(mask & ~gone)
                self.gone.rows[owner.column] += int(np.count_nonzero(mask & gone))
                ids[gone] = UNBOUND
        finally:  # where the storage refuses one kind, what went before is gone
            node.rows, node.ids = tuple(rows), ids.tobytes()
            self._shelf.restore(node)

    def _free_state(self, node: Node) -> None:
        self._store.sharing.free_slots(np.array([node.state]))
        self._shelf.lose_state(node)
        self.gone.states += 1
