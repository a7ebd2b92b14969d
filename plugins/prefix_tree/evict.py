"""Pieces go, in the order of the policy."""

from collections.abc import Callable
from operator import add, sub
from typing import Any

from kvarena.plugins.prefix_tree.going import Going
from kvarena.plugins.prefix_tree.kinds import JointNeeds, Kinds, Rows
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import Node, Root
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.plugins.prefix_tree.store import Store

Units = tuple[int, ...]
"""Per sub-pool, in chain order."""


class Evicting:
    """Gives pieces of one tree back to the storage.

    A piece's way:  1. pop   the policy lets go of it.
                    2. drop  the tree has it no more; it is *going*.
                    3. and all that go come back together.
    What was used below a node is used at it once that is gone: its hits and its last use go up to the parent.
    ``pieces`` and ``gone`` are what was evicted; what was dropped by name is not.
    """

    def __init__(
        self, store: Store, kinds: Kinds, shelf: Shelf, landings: Landings, on_empty: Callable[[Root], None]
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._shelf = shelf
        self._landings = landings
        self._on_empty = on_empty
        self._going = Going(store, kinds)
        self.pieces = 0
        self.gone = self._nothing = (0,) * len(kinds.names)

    def evict(self, enough: Callable[[Units], bool]) -> tuple[int, Units]:
        """Let pieces go until ``enough(units)``, asked after each, or until there is none.

        ``units``: what of them is not given back yet; all of it is when this returns or raises.

        Returns:
            How many pieces went, and their units.
        """
        shelf, going, pieces = self._shelf, self._going, 0
        before = shelf.evictable.units()
        # a policy that weighs was not told of what changed far away, and nothing does where there are whole ends alone
        look = shelf.look if shelf.facts.weighs and self._kinds.has_parts else None
        going.at_once = self._store.sharing.may_refuse
        try:
            while (key := shelf.victims.pop(look)) is not None:
                node = shelf.popped(key)
                try:
                    if key & 1:
                        self._drop_rows(node, shelf.facts.needed_by_readers(node))
                    elif node.pins or node.children:
                        self._drop_state(node)
                    else:
                        self._drop_whole(node)
                except BaseException:  # the storage refused it: it stays a piece
                    shelf.settle(node)
                    raise
                pieces += 1
                if enough(self._nothing if going.at_once else self._chosen(before)):
                    break
        finally:
            going.give_back()
            gone = self._chosen(before)
            self.pieces += pieces
            self.gone = tuple(map(add, self.gone, gone))
        return pieces, gone

    def drop(self, node: Node) -> None:
        """What a node has that no other landing, lock or path needs goes, and what stands before it for it alone."""
        going = self._going
        going.at_once = self._store.sharing.may_refuse
        try:
            if node.state is not None:
                self._drop_state(node)
            if self._kinds.rows and not node.leases:
                self._drop_rows(node, self._needed_behind(node))
            while node.parent is not None and not (node.children or node.pins or node.is_end):
                node = self._drop_whole(node)
        finally:
            going.give_back()

    # -- inside

    def _chosen(self, before: Units) -> Units:
        """What was evictable before and is not now, for nothing else happens to the tree meanwhile."""
        return tuple(map(sub, before, self._shelf.evictable.units()))

    def _needed_behind(self, node: Node) -> JointNeeds:
        """What landings behind a node need of its window rows."""
        return self._kinds.joint_needs(
            [self._kinds.needs_of_landing(stop).rows for stop in self._landings.leaning(node)]
        )

    def _drop_whole(self, node: Node) -> Node:
        """A node without children and locks goes. Returns its parent."""
        parent, kinds, shelf = node.parent, self._kinds, self._shelf
        assert parent is not None
        assert parent.children is not None
        if node.state is not None:
            self._going.add_state(node.state)
            if self._going.at_once:  # the pages may be refused yet
                shelf.lose_state(node)
        if kinds.has_pages:
            self._going.add_pages(node.ids)
        shelf.take(node)
        del parent.children[node.keys[: kinds.page_bytes]]
        parent.hits += node.hits
        if node.used > parent.used:
            parent.used = node.used
        if not parent.children:
            parent.children = None
            if isinstance(parent, Root):
                self._on_empty(parent)
                return parent
            shelf.settle(parent)
        if parent.listed and not shelf.facts.weighs:  # a policy that weighs looks at it when its turn comes
            shelf.touch(parent, used=False)
        return parent

    def _drop_state(self, node: Node) -> None:
        """A node's state goes alone."""
        shelf = self._shelf
        assert node.state is not None
        self._going.add_state(node.state)
        shelf.lose_state(node)
        shelf.settle(node)
        if self._kinds.rows and shelf.facts.weighs:  # window rows were kept for it, in the node and before it
            first, at = self._kinds.needs_of_landing(node.stop).first_page, node
            while at.parent is not None and at.stop > first:
                shelf.touch(at, used=False)
                at = at.parent

    def _drop_rows(self, node: Node, needed: JointNeeds) -> None:
        """A node's window rows go alone; those that are needed stay."""
        owner, shelf = self._kinds.owner, self._shelf
        for kind, need in zip(self._kinds.rows, needed, strict=True):
            if kind is not owner:
                self._let_go(node, kind, need)
        if owner is not None:  # it outlives the others
            self._let_go(node, owner, needed[owner.column])
        shelf.settle(node)
        if shelf.facts.weighs:
            shelf.touch(node, used=False)

    def _let_go(self, node: Node, kind: Rows, need: Any) -> None:
        """What a node holds of one sub-pool goes, but for what is needed."""
        ids, left = kind.unneeded(node, need)
        if not ids:
            return
        if kind is self._kinds.owner:
            self._going.add_pages(ids)
            node.ids = kind.left(node.ids, left)
        else:
            self._going.add_rows(kind.column, ids)
        self._shelf.lose_rows(node, kind.column, left, len(ids) // 8)
