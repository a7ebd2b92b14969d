"""Where a sequence can be resumed: at a landing, every kind has what its next query needs."""

from collections.abc import Iterator

import numpy as np

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.node import Node


class Landings:
    """Landings of one tree, in pages from the beginning.

    With states, a landing is the end of a node that has one. Without, it is any page that has its window rows.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._rows = kinds.rows
        self._slots = kinds.slots is not None

    def deepest(self, node: Node, top: int) -> int:
        """The deepest landing in a node, up to ``top``; 0 where there is none."""
        if self._slots:
            return top if top == node.stop and node.state is not None and self.has_rows(node, top) else 0
        if self.has_rows(node, top):
            return top
        return self._search(node, top) if self._kinds.has_gaps else 0

    def before(self, node: Node) -> int:
        """The deepest landing before a node; 0 where there is none."""
        above = node.parent
        while above is not None and above.parent is not None:
            found = self.deepest(above, above.stop)
            if found:
                return found
            above = above.parent
        return 0

    def has_rows(self, node: Node, stop: int) -> bool:
        """Whether all window rows behind a place in a node are there."""
        for kind in self._rows:  # noqa: SIM110 - asked for every node of a walk: a generator costs more than the rest
            if not kind.whole(node, stop):
                return False
        return True

    def leaning(self, node: Node) -> Iterator[int]:
        """The landings behind a node, at ends of its descendants, that need window rows of it.

        What one landing does not need, none behind it does.
        """
        waiting = list((node.children or {}).values())
        while waiting:
            child = waiting.pop()
            if self._kinds.landing_needs(child.stop, node) and self._ends(child):
                yield child.stop
            if self._kinds.landing_needs(child.start + 1, node):
                waiting.extend((child.children or {}).values())

    def _ends(self, node: Node) -> bool:
        """Whether a node's end is a landing that somebody made."""
        return (node.state is not None if self._slots else node.is_end) and self.has_rows(node, node.stop)

    def _search(self, node: Node, top: int) -> int:
        """The deepest landing before one whose rows are not all there."""
        stops = np.arange(top, node.start, -1)
        there = np.ones(len(stops), dtype=np.bool_)
        for kind in self._rows:
            there &= kind.whole_at(node, stops)
        return int(stops[there.argmax()]) if there.any() else 0
