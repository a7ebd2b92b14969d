"""What of a node may go, and what an eviction policy is told of it."""

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import KV, ROWS, STATE, WHOLE, Firsts, Node
from kvarena.terms.lifetimes import NEVER
from kvarena.terms.ports import Piece

ALL = KV | ROWS | STATE
DEPENDANTS_MAX = 32
"""So many landings are looked at to say what the window rows of a node are needed for."""


class Facts:
    """Facts of the nodes of one tree, found from the nodes alone."""

    def __init__(self, kinds: Kinds, landings: Landings, *, splits: bool) -> None:
        """``splits``: whether a policy lets states and window rows go alone."""
        self._kinds = kinds
        self._landings = landings
        self._splits = splits
        self._has_parts = splits and kinds.has_parts
        self._none, self._all = (0,) * len(kinds.rows), (NEVER,) * len(kinds.rows)

    def free_of(self, node: Node) -> int:
        """What of a node no lock protects: KV, STATE. Of its window rows see ``free_below``."""
        if not self._splits:
            return 0 if node.pins else KV | STATE
        return (0 if node.pins else KV) | (0 if _holds_state(node) else STATE)

    def free_below(self, node: Node) -> Firsts:
        """Per sub-pool that retires rows, the page before which no lock protects those of a node."""
        if not self._splits and node.pins:
            return self._none
        leases = node.leases
        if not leases:
            return self._all
        return next(iter(leases)) if len(leases) == 1 else tuple(map(min, zip(*leases, strict=True)))

    def pieces_of(self, node: Node) -> int:
        """Which pieces of a node may go now: WHOLE, or STATE and ROWS."""
        if not node.pins and not node.children:
            return WHOLE
        if not self._has_parts:
            return 0
        state = STATE if node.state is not None and not _holds_state(node) else 0
        return state | (ROWS if any(self._kinds.counts_below(node, self.free_below(node))) else 0)

    def piece(self, node: Node, what: int) -> Piece:
        """What is known now of one piece of a node: WHOLE, STATE or ROWS."""
        kinds = self._kinds
        if what & WHOLE:
            size, tokens = (node.stop - node.start) * kinds.kv_bytes, node.stop - node.start
            if kinds.has_parts:
                size += kinds.rows_bytes(node) + (0 if node.state is None else kinds.slot_bytes)
                tokens = self._gained(node)
        elif what & ROWS:
            size, tokens = kinds.rows_bytes(node), self._tokens_of_rows(node)
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


def _holds_state(node: Node) -> bool:
    """Whether a reader needs the state at a node's end."""
    return node.readers is not None and any(needs.state for needs in node.readers)
