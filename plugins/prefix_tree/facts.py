"""What of a node may go, and what an eviction policy is told of it."""

from collections.abc import Iterable

from kvarena.plugins.prefix_tree.kinds import JointNeeds, Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import KV, ROWS, STATE, WHOLE, Counts, Needs, Node
from kvarena.terms.ports import Eviction, Piece

DEPENDANTS_MAX = 32
"""So many landings are looked at to say what the window rows of a node are needed for."""


class Facts:
    """Facts of the nodes of one tree, found from the nodes alone.

    ``weighs``: whether the policy is told a piece's bytes and tokens; else it is told zeros, for these cost walks.
    """

    def __init__(self, kinds: Kinds, landings: Landings, eviction: Eviction) -> None:
        self.weighs: bool = getattr(eviction, "weighs", True)
        self._kinds = kinds
        self._landings = landings
        self._splits = eviction.splits
        self._none = (0,) * len(kinds.rows)

    def free(self, node: Node) -> tuple[int, Counts, int]:
        """What of a node no lock protects: KV and STATE; its window rows; and the pieces that this makes of it.

        Pieces are WHOLE or, where the policy splits, STATE and ROWS.
        """
        if not self._splits:
            if node.pins:
                return 0, self._none, 0
            return KV | STATE, self._kinds.counts(node), 0 if node.children else WHOLE
        kinds = self._kinds
        if node.leases:
            rows = kinds.counts_unneeded(node, kinds.joint_needs(node.leases))
        else:
            rows = node.rows if kinds.in_order else kinds.counts(node)
        state = 0 if node.readers and _any_state(node.readers) else STATE
        if not node.pins:
            counted = KV | state
            if not node.children:
                return counted, rows, WHOLE
        else:
            counted = state
        if node.state is None:
            state = 0
        return counted, rows, state | ROWS if any(rows) else state

    def needed_by_readers(self, node: Node) -> JointNeeds:
        """What the readers of a node need of its window rows, all together."""
        return self._kinds.joint_needs(node.leases or ())

    def piece(self, node: Node, what: int) -> Piece:
        """What is known now of one piece of a node: WHOLE, STATE or ROWS."""
        if not self.weighs:
            return Piece(0, 0, node.hits, node.priority, node.used)
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


def _any_state(readers: Iterable[Needs]) -> bool:
    """Whether one of these needs the state at a node's end."""
    for needs in readers:  # noqa: SIM110 - asked at every change of a node: a generator costs more than the rest
        if needs.state:
            return True
    return False
