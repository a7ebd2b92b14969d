"""What of a tree may go: running totals for admission, and pieces for the policy."""

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import GONE, KV, ROWS, STATE, WHOLE, Node
from kvarena.terms.ports import Eviction, Piece

ALL = KV | ROWS | STATE
DEPENDANTS_MAX = 32
"""So many landings are looked at to say what the window rows of a node are needed for."""


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
        self._kinds = kinds
        self._landings = landings
        self._splits = eviction.splits
        self._has_parts = eviction.splits and kinds.has_parts
        self.victims = eviction.open()
        self.nodes: list[Node | None] = []
        self._unused: list[int] = []
        self.states: set[int | None] = set()
        self.held, self.evictable = Totals(kinds), Totals(kinds)

    def __len__(self) -> int:
        return len(self.nodes) - len(self._unused)

    # -- nodes

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
        self.held.add(node, ALL, -1)
        self.evictable.add(node, node.counted, -1)
        if node.listed:
            self._list(node, 0)
        self.nodes[node.number] = None
        self._unused.append(node.number)
        node.number = GONE

    def withdraw(self, node: Node) -> None:
        """What a node has is about to change: it is counted and listed no more, until ``restore``."""
        self.held.add(node, ALL, -1)
        self.evictable.add(node, node.counted, -1)
        self._list(node, 0)
        node.counted = 0

    def restore(self, node: Node) -> None:
        """What a node has is as it will be."""
        self.held.add(node, ALL, 1)
        self.settle(node)

    def settle(self, node: Node) -> None:
        """Locks or children of a node changed: what of it may go is counted and listed."""
        counted, before = self.free_of(node), node.counted
        if counted != before:
            node.counted = counted
            if counted & ~before:
                self.evictable.add(node, counted & ~before, 1)
            if before & ~counted:
                self.evictable.add(node, before & ~counted, -1)
        listed = self.pieces_of(node)
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

    def touch(self, node: Node, *, used: bool) -> None:
        """What is known of a node's pieces has changed."""
        key = 2 * node.number
        if node.listed & (WHOLE | STATE):
            self.victims.touch(key, self.look(key), used=used)
        if node.listed & ROWS:
            self.victims.touch(key + 1, self.look(key + 1), used=used)

    # -- pieces

    def free_of(self, node: Node) -> int:
        """What of a node no lock protects: KV, ROWS, STATE."""
        if not self._splits:
            return 0 if node.pins else ALL
        return (0 if node.pins else KV) | (0 if node.leases else ROWS) | (0 if node.readers else STATE)

    def pieces_of(self, node: Node) -> int:
        """Which pieces of a node may go now: WHOLE, or STATE and ROWS."""
        if not node.pins and not node.children:
            return WHOLE
        if not self._has_parts:
            return 0
        state = STATE if node.state is not None and not node.readers else 0
        return state | (ROWS if not node.leases and any(self._kinds.counts(node)) else 0)

    def look(self, key: int) -> Piece:
        """What is known now of the piece with this key."""
        node = self.nodes[key >> 1]
        assert node is not None
        kinds = self._kinds
        if key & 1:
            size, tokens = kinds.rows_bytes(node), self._tokens_of_rows(node)
        elif node.listed & WHOLE:
            size, tokens = (node.stop - node.start) * kinds.kv_bytes, node.stop - node.start
            if kinds.has_parts:
                size += kinds.rows_bytes(node) + (0 if node.state is None else kinds.slot_bytes)
                tokens = self._gained(node)
        else:
            size, tokens = kinds.slot_bytes, self._gained(node)
        return Piece(size, tokens * kinds.page_tokens, node.hits, node.priority, node.used)

    def _gained(self, node: Node) -> int:
        """The pages that a node's deepest landing is beyond the one before it."""
        stop = self._landings.deepest(node, node.stop)
        return stop - self._landings.before(node) if stop else 0

    def _tokens_of_rows(self, node: Node) -> int:
        """The pages that can be resumed with a node's window rows alone: at its end, or behind it."""
        landings = self._landings
        stop = landings.deepest(node, node.stop)
        for _, leaning in zip(range(DEPENDANTS_MAX), landings.leaning(node), strict=False):
            stop = max(stop, leaning)
        return stop - landings.before(node) if stop else 0

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
