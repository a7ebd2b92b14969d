"""What of a tree may go: running totals for admission, and pieces for the policy."""

from collections.abc import Iterable
from operator import add, sub
from typing import Any

import numpy as np

from kvarena.plugins.prefix_tree.facts import Facts
from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import GONE, KV, ROWS, STATE, WHOLE, Counts, Node
from kvarena.plugins.prefix_tree.victims import open_victims
from kvarena.terms.owners import misbehaves
from kvarena.terms.ports import Eviction, Piece


class Totals:
    """Units of one kind of holding, per sub-pool in chain order; and ``pages``, as nodes count them."""

    def __init__(self, kinds: Kinds) -> None:
        self.pages = 0
        self._units = [0] * len(kinds.names)
        self._staying = kinds.staying
        self._rows = [kind.index for kind in kinds.rows]
        self._slots = -1 if kinds.slots is None else kinds.slots

    def units(self) -> tuple[int, ...]:
        """Per sub-pool."""
        return tuple(self._units)

    def add(self, node: Node, what: int, rows: Counts, sign: int) -> None:
        """Count what a node has of these, KV and STATE, and so many of its window rows; or no more."""
        units = self._units
        if what & KV:
            pages = sign * (node.stop - node.start)
            self.pages += pages
            for index in self._staying:
                units[index] += pages
        if what & STATE and node.state is not None:
            units[self._slots] += sign
        for index, count in zip(self._rows, rows, strict=False):  # without rows there is nothing to add
            units[index] += sign * count

    def add_rows(self, counts: Iterable[int]) -> None:
        """Count so many more in the sub-pools that retire rows."""
        for index, count in zip(self._rows, counts, strict=True):
            self._units[index] += count


class Shelf:
    """The nodes of a tree by number, what they hold, and which pieces of them may go.

    A piece is a node without children and locks, whole. Where the policy splits, also the state or the window rows of
    a node that must stay, unless a reader needs them.
    Always:  held == what all nodes have; evictable == what of it no lock protects; the victims are all pieces
             (checked by ``verify``)
    A node's key is twice its number for the whole of it, or for its state, and one more for its window rows.
    """

    def __init__(self, kinds: Kinds, landings: Landings, eviction: Eviction) -> None:
        self.victims = open_victims(eviction)
        self.facts = Facts(kinds, landings, eviction)
        self._eviction = eviction
        self.nodes: list[Node | None] = []
        self._unused: list[int] = []
        self._kinds = kinds
        self._none: Counts = (0,) * len(kinds.rows)
        self.states: set[int] = set()
        self.held, self.evictable = Totals(kinds), Totals(kinds)

    def __len__(self) -> int:
        return len(self.nodes) - len(self._unused)

    # -- nodes

    def has(self, node: Node) -> bool:
        """Whether a node is of this tree."""
        return node.number < len(self.nodes) and self.nodes[node.number] is node

    def put(self, node: Node) -> None:
        """A new node has a number, and is counted."""
        if self._unused:
            node.number = self._unused.pop()
            self.nodes[node.number] = node
        else:
            node.number = len(self.nodes)
            self.nodes.append(node)
        node.free_rows = self._none
        self.restore(node)

    def take(self, node: Node) -> None:
        """A node is gone."""
        self.withdraw(node)
        if node.state is not None:
            self.states.discard(node.state)
        self.nodes[node.number] = None
        self._unused.append(node.number)
        node.number = GONE

    def withdraw(self, node: Node) -> None:
        """What a node has is about to change: it is counted and listed no more, until ``restore``."""
        self.held.add(node, KV | STATE, self._kinds.counts(node), -1)
        self.evictable.add(node, node.counted, node.free_rows, -1)
        if node.listed:
            self._list(node, 0)
        node.counted, node.free_rows = 0, self._none

    def restore(self, node: Node) -> None:
        """What a node has is as it will be."""
        self.held.add(node, KV | STATE, self._kinds.counts(node), 1)
        self.settle(node)

    def settle(self, node: Node) -> None:
        """Locks or children of a node changed: what of it may go is counted and listed."""
        counted, rows, listed = self.facts.free(node)
        if counted != node.counted:
            if gone := node.counted & ~counted:
                self.evictable.add(node, gone, (), -1)
            if new := counted & ~node.counted:
                self.evictable.add(node, new, (), 1)
            node.counted = counted
        if rows != node.free_rows:
            self.evictable.add_rows(map(sub, rows, node.free_rows))
            node.free_rows = rows
        if listed != node.listed:
            self._list(node, listed)

    def popped(self, key: int) -> Node:
        """The policy has let go of the piece with this key. Returns its node.

        Raises:
            PluginError: there is no such piece, or it went before; the tree is as it was.
        """
        if not isinstance(key, (int, np.integer)):
            finding = f"pop() returned {key!r}, no piece's key; the policy has lost sight of one"
            raise misbehaves("prefix_tree.policy_chose_no_piece", "eviction policy", self._eviction, finding)
        piece = ROWS if key & 1 else WHOLE | STATE
        node = self.nodes[key >> 1] if 0 <= key >> 1 < len(self.nodes) else None
        if node is None or not node.listed & piece:
            gone = "which there is not" if node is None else "which may not go, or went before"
            finding = (
                f"pop() returned piece {key!r}, {gone}; it stays in the cache, and the policy has lost sight of one"
            )
            raise misbehaves("prefix_tree.policy_chose_no_piece", "eviction policy", self._eviction, finding)
        node.listed &= ~piece
        return node

    def gain_state(self, node: Node, state: int) -> None:
        """A node, counted or new, has a state; its pieces are listed by the next ``settle``."""
        node.state = state
        self.states.add(state)
        if node.number != GONE:
            self._count_state(node, 1)

    def lose_state(self, node: Node) -> None:
        """A node's state is gone; its pieces are listed by the next ``settle``."""
        self._count_state(node, -1)
        if node.state is not None:
            self.states.discard(node.state)
        node.state = None

    def _count_state(self, node: Node, sign: int) -> None:
        self.held.add(node, STATE, (), sign)
        self.evictable.add(node, STATE & node.counted, (), sign)

    def lose_rows(self, node: Node, column: int, left: Any, gone: int) -> None:
        """So many of a node's window rows in one sub-pool are gone, which no lock protected. It has ``left`` there.

        Its pieces are listed by the next ``settle``.
        """
        node.rows = (*node.rows[:column], left, *node.rows[column + 1 :])
        counts = tuple([-gone if at == column else 0 for at in range(len(node.rows))])
        node.free_rows = tuple(map(add, node.free_rows, counts))
        self.held.add_rows(counts)
        self.evictable.add_rows(counts)

    def touch(self, node: Node, *, used: bool) -> None:
        """What is known of a node's pieces has changed."""
        key = 2 * node.number
        if node.listed & (WHOLE | STATE):
            self.victims.touch(key, self.look(key), used=used)
        if node.listed & ROWS:
            self.victims.touch(key + 1, self.look(key + 1), used=used)

    # -- pieces

    def look(self, key: int) -> Piece:
        """What is known now of the piece with this key."""
        node = self.nodes[key >> 1]
        assert node is not None
        return self.facts.piece(node, ROWS if key & 1 else node.listed & (WHOLE | STATE))

    def _list(self, node: Node, listed: int) -> None:
        """These are the pieces of a node that may go."""
        before, key = node.listed, 2 * node.number
        node.listed = listed
        gone, new = before & ~listed, listed & ~before
        if gone & (WHOLE | STATE):
            self.victims.remove(key)
        if gone & ROWS:
            self.victims.remove(key + 1)
        if new & (WHOLE | STATE):
            self.victims.add(key, self.look(key))
        if new & ROWS:
            self.victims.add(key + 1, self.look(key + 1))
