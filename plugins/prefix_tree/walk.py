"""Down the tree along a sequence of keys."""

import numpy as np

from kvarena.plugins.prefix_tree.node import Node
from kvarena.terms.ports import IntArray


def walk(node: Node, keys: IntArray, page_tokens: int) -> tuple[Node, int]:
    """As far as keys agree, by whole pages, from the end of a node on.

    Returns the last node that has agreeing pages, and how many pages agree up to there: they may end inside it.
    """
    if node.children is None or keys[:page_tokens].tobytes() not in node.children:
        return node, 0
    raw, at, page_bytes = keys.tobytes(), 0, page_tokens * 8
    while node.children is not None:
        child = node.children.get(raw[at : at + page_bytes])
        if child is None:
            break
        node, mine = child, child.keys
        if not raw.startswith(mine, at):
            return node, (at + _agreeing(mine, raw, at)) // page_bytes
        at += len(mine)
    return node, at // page_bytes


def _agreeing(keys: bytes, raw: bytes, at: int) -> int:
    """How many bytes of a node's keys, which are not all there, agree with the sequence from ``at`` on."""
    count = min(len(keys), len(raw) - at)
    differ = np.frombuffer(keys, np.int64, count // 8) != np.frombuffer(raw, np.int64, count // 8, at)
    first = int(differ.argmax())
    return first * 8 if differ[first] else count
