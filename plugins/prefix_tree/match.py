"""How much of a sequence the cache has, and where it can be resumed."""

from typing import Any, NamedTuple

import numpy as np

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.node import Entry, Node
from kvarena.plugins.prefix_tree.walk import walk
from kvarena.terms.ports import IntArray

END, DIFFERS, NO_STATE, NO_ROWS = "end", "differs", "no state checkpoint", "window rows gone"
NO_IDS: IntArray = np.empty(0, dtype=np.int64)


class Match(NamedTuple):
    """What a sequence can start from.

    ``entry`` is what to lock, None where nothing is there; ``tokens`` of the sequence are before it, in the pages
    ``ids``: int64 (pages,), -1 where no sub-pool needs the page any more. ``state`` is the slot to copy from, None in a
    plan without states. ``agreed`` tokens are in the cache, by whole pages. ``stopped`` says why the landing is not
    further on: "end" (all is there; one token at least is left to compute), "differs" (the cache has no more of it),
    "no state checkpoint" or "window rows gone" (it has more, which cannot be resumed). ``origin`` is what the insert
    that brought the landing said of itself.
    """

    entry: Entry | None
    tokens: int
    ids: IntArray
    state: int | None
    agreed: int
    stopped: str
    origin: Any


def find(root: Node, keys: IntArray, kinds: Kinds, landings: Landings) -> Match:
    """The deepest landing along the keys, one of which at least is left to compute."""
    node, agreed = walk(root, keys, kinds.page_tokens)
    last = max(0, len(keys) - 1) // kinds.page_tokens
    top = agreed if agreed < last else last
    while node.start >= top and node.parent is not None:
        node = node.parent
    stop, place = 0, node
    while place.parent is not None:
        stop = landings.deepest(place, top if top < place.stop else place.stop)
        if stop:
            break
        place = place.parent
    if stop == top:
        stopped = END if last <= agreed else DIFFERS
    else:
        ends = kinds.slots is None or (top == node.stop and node.state is not None)
        stopped = NO_ROWS if ends else NO_STATE
    tokens = kinds.page_tokens
    if not stop:
        return Match(None, 0, NO_IDS, None, agreed * tokens, stopped, None)
    state = place.state if kinds.slots is not None else None
    ids = pages_of(place, stop, kinds)
    entry = Entry(place, stop, stop * tokens, lands=True)
    return Match(entry, stop * tokens, ids, state, agreed * tokens, stopped, place.origin)


def pages_of(node: Node, stop: int, kinds: Kinds) -> IntArray:
    """The page ids from the beginning to a place in a node; -1 where a landing there needs none."""
    if not kinds.has_pages:
        return np.full(stop, -1, dtype=np.int64)
    parts, at = [node.ids[: (stop - node.start) * 8]], node.parent
    while at is not None:
        parts.append(at.ids)
        at = at.parent
    parts.reverse()
    ids = np.frombuffer(b"".join(parts), dtype=np.int64)
    if kinds.owner is not None:
        ids = np.where(kinds.owner.pages_needed(stop, np.arange(stop)), ids, -1)
    return ids
