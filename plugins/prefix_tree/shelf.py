"""What of a tree may go: running totals for admission, and pieces for the policy."""

from kvarena.plugins.prefix_tree.facts import ALL, Facts
from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import GONE, KV, ROWS, STATE, WHOLE, Node
from kvarena.terms.ports import Eviction, Piece


class Totals:
    """Units of one kind of holding: pages of sub-pools that never retire, pages per sub-pool that does, states."""

    def __init__(self, kinds: Kinds) -> None:
        self.pages = self.states = 0
        self.rows = [0] * len(kinds.rows)
        self._kinds = kinds

    def units(self) -> tuple[int, ...]:
        """Per sub-pool, in chain order."""
        kinds, units = self._kinds, [0] * len(self._kinds.names)
        for index in kinds.staying:
            units[index] = self.pages
        for kind, pages in zip(kinds.rows, self.rows, strict=True):
            units[kind.index] = pages
        if kinds.slots is not None:
            units[kinds.slots] = self.states
        return tuple(units)

    def add_rows(self, node: Node, sign: int) -> None:
        """Count those of a node's window rows that may go, or no more."""
        if self.rows and node.free_below:
            for column, count in enumerate(self._kinds.counts_below(node, node.free_below)):
                self.rows[column] += sign * count

    def add(self, node: Node, what: int, sign: int) -> None:
        """Count what a node has of these, KV, ROWS and STATE, or no more."""
        if what & KV:
            self.pages += sign * (node.stop - node.start)
        if what & ROWS and self.rows:
            for column, count in enumerate(self._kinds.counts(node)):
                self.rows[column] += sign * count
        if what & STATE and node.state is not None:
            self.states += sign


class Shelf:
    """The nodes of a tree by number, what they hold, and which pieces of them may go.

    A piece is a node without children and locks, whole. Where the policy splits, also the state or the window rows of
    a node that must stay, unless a reader needs them.
    Always:  held == what all nodes have; evictable == what of it no lock protects; the victims are all pieces
             (checked by ``verify``)
    A node's key is twice its number for the whole of it, or for its state, and one more for its window rows.
    """

    def __init__(self, kinds: Kinds, landings: Landings, eviction: Eviction) -> None:
        self.facts = Facts(kinds, landings, splits=eviction.splits)
        self.victims = eviction.open()
        self.nodes: list[Node | None] = []
        self._unused: list[int] = []
        self.states: set[int | None] = set()
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
        self.held.add(node, ALL, 1)
        self.settle(node)

    def take(self, node: Node) -> None:
        """A node is gone."""
        if node.listed:
            self._list(node, 0)
        self.held.add(node, ALL, -1)
        self.evictable.add(node, node.counted, -1)
        self.evictable.add_rows(node, -1)
        self.nodes[node.number] = None
        self._unused.append(node.number)
        node.number = GONE

    def withdraw(self, node: Node) -> None:
        """What a node has is about to change: it is counted and listed no more, until ``restore``."""
        self.held.add(node, ALL, -1)
        self.evictable.add(node, node.counted, -1)
        self.evictable.add_rows(node, -1)
        self._list(node, 0)
        node.counted, node.free_below = 0, ()

    def restore(self, node: Node) -> None:
        """What a node has is as it will be."""
        self.held.add(node, ALL, 1)
        self.settle(node)

    def settle(self, node: Node) -> None:
        """Locks or children of a node changed: what of it may go is counted and listed."""
        counted, before = self.facts.free_of(node), node.counted
        if counted != before:
            node.counted = counted
            if counted & ~before:
                self.evictable.add(node, counted & ~before, 1)
            if before & ~counted:
                self.evictable.add(node, before & ~counted, -1)
        if self.evictable.rows:
            below = self.facts.free_below(node)
            if below != node.free_below:
                self.evictable.add_rows(node, -1)
                node.free_below = below
                self.evictable.add_rows(node, 1)
        listed = self.facts.pieces_of(node)
        if listed != node.listed:
            self._list(node, listed)

    def popped(self, key: int) -> Node:
        """The policy has let go of the piece with this key. Returns its node."""
        node = self.nodes[key >> 1]
        assert node is not None
        node.listed &= ~ROWS if key & 1 else ROWS
        return node

    def gain_state(self, node: Node, state: int) -> None:
        """A node, counted or new, has a state; its pieces are listed by the next ``settle``."""
        node.state = state
        self.states.add(state)
        if node.number != GONE:
            self.held.add(node, STATE, 1)
            self.evictable.add(node, STATE & node.counted, 1)

    def lose_state(self, node: Node) -> None:
        """A node's state is gone; its pieces are listed by the next ``settle``."""
        self.held.add(node, STATE, -1)
        self.evictable.add(node, STATE & node.counted, -1)
        self.states.discard(node.state)
        node.state = None

    def ends(self, node: Node) -> None:
        """A node without locks has lost its last child: it may go whole."""
        if node.listed:
            self._list(node, WHOLE)
        else:
            node.listed = WHOLE
            self.victims.add(2 * node.number, self.facts.piece(node, WHOLE))

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
