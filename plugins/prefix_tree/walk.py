"""Down the tree along a sequence of keys."""

import numpy as np

from kvarena.plugins.prefix_tree.node import Node


def walk(node: Node, raw: bytes, at: int, page_bytes: int) -> tuple[Node, int]:
    """As far as the keys agree, by whole pages, from the end of a node, ``at`` bytes from the beginning.

    Returns the last node that has agreeing pages, and how many bytes agree up to there: they may end inside it.
    """
    while node.children is not None:
        child = node.children.get(raw[at : at + page_bytes])
        if child is None:
            break
        node, keys = child, child.keys
        if not raw.startswith(keys, at):
            return node, at + _agreeing(keys, raw, at) // page_bytes * page_bytes
        at += len(keys)
    return node, at


def _agreeing(keys: bytes, raw: bytes, at: int) -> int:
    """How many bytes of a node's keys, which are not all there, agree with the sequence from ``at`` on."""
    count = min(len(keys), len(raw) - at)
    differ = np.frombuffer(keys, np.int64, count // 8) != np.frombuffer(raw, np.int64, count // 8, at)
    first = int(differ.argmax())
    return first * 8 if differ[first] else count
