"""Who reads what: locks keep the path to an entry, and what its readers have not moved past."""

from typing import TypeVar

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.node import GONE, Entry, Needs, Node, RowNeeds
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail
from kvarena.terms.lifetimes import NEVER

Key = TypeVar("Key", RowNeeds, Needs)


class Locks:
    """Locks of one tree.

    A lock's life:  1. lock    nothing that its reader needs may go: all pages of the path, the state at its end, the
                               window rows behind it.
                       pass on  its reader has cached more: it is a lock of the new end.
                    2. change  the reader has moved on, and needs less of them.
                    3. relax   the reader has copied the state and has moved past the windows: the path stays.
                    4. unlock  all may go.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def lock(self, node: Node, needs: Needs | None) -> None:
        """Lock the end of a node; for its path alone where nothing else is needed."""
        node.locks += 1
        if needs is not None:
            node.readers = _add(node.readers, needs)
        self._walk(node, 1, None, needs)

    def put(self, node: Node, needs: Needs) -> None:
        """A new node comes on the shelf, and is locked."""
        parent = self._begin(node, needs)
        if parent.parent is not None:
            self._walk(parent, 1, None, needs)

    def put_below(self, node: Node, needs: Needs, before: Needs | None) -> None:
        """A new node comes on the shelf, and a lock of its parent's end, for what was needed there, is one of its own.

        A pinned child takes the place of a lock: the pins of the path stay as they are.
        """
        parent = self._begin(node, needs)
        parent.locks -= 1
        if before is not None:
            parent.readers = _drop(parent.readers, before)
        self._walk(parent, 0, before, needs)

    def change(self, node: Node, before: Needs, needs: Needs | None) -> None:
        """One reader of the end of a node needs this, no more than before; or the path alone."""
        node.readers = _drop(node.readers, before)
        if needs is not None:
            node.readers = _add(node.readers, needs)
        self._walk(node, 0, before, needs)

    def unlock(self, node: Node, needs: Needs | None) -> None:
        """One reader is gone; one that was relaxed before needed nothing but the path."""
        self.check_locked(node, needs)
        if needs is not None:
            node.readers = _drop(node.readers, needs)
        node.locks -= 1
        self._walk(node, -1, needs, None)

    def check_locked(self, node: Node, needs: Needs | None) -> None:
        """The end of a node has such a lock."""
        readers = sum(node.readers.values()) if needs is None and node.readers else 0
        if node.locks <= readers:
            fail("prefix_tree.unlock_of_unlocked_entry", stop=node.stop, locks=node.locks, readers=readers)

    def _begin(self, node: Node, needs: Needs) -> Node:
        """A new node is locked before it is counted. Returns its parent."""
        assert node.parent is not None
        node.locks = node.pins = 1
        node.readers = {needs: 1}
        if node.stop > needs.first_page:
            node.leases = {needs.rows: 1}
        self._shelf.put(node)
        return node.parent

    def _walk(self, node: Node, pins: int, before: Needs | None, needs: Needs | None) -> None:
        """A lock of a node's end came, 1, went, -1, or changed, 0: the path has its pin and its leases.

        Only those are visited that had no other lock, or that windows of what is or was needed reach into.
        """
        ends, begins = NEVER if before is None else before.first_page, NEVER if needs is None else needs.first_page
        low, at = min(ends, begins), node
        while True:
            if pins:
                at.pins += pins
                changed = at.pins == (1 if pins > 0 else 0)
                if not changed:  # another lock keeps the path above
                    pins = 0
            stop = at.stop
            if before is not None and stop > ends:
                at.leases = _drop(at.leases, before.rows)
            if needs is not None and stop > begins:
                at.leases = _add(at.leases, needs.rows)
            self._shelf.settle(at)
            above = at.parent
            if above is None or above.parent is None or not (pins or above.stop > low):
                return
            at = above


def _add(counts: dict[Key, int] | None, key: Key) -> dict[Key, int]:
    """One more of these."""
    counts = {} if counts is None else counts
    counts[key] = counts.get(key, 0) + 1
    return counts


def _drop(counts: dict[Key, int] | None, key: Key) -> dict[Key, int] | None:
    """One fewer of these; None where none is left."""
    if counts is None or key not in counts:
        fail("prefix_tree.lease_is_missing", lease=key, found=counts)
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
    return counts or None


def node_of(entry: Entry) -> Node | None:
    """The node that an entry's last page is in now; None where it was evicted.

    Raises:
        KvarenaError: it is no entry.
    """
    if not isinstance(entry, Entry):
        raise KvarenaError(f"{entry!r} is no entry of a prefix tree; give what match or insert gave")
    node, stop = entry.node, entry.stop
    while node.start >= stop and node.parent is not None:
        node = node.parent
    return node if node.number != GONE else None


def split(node: Node, stop: int, shelf: Shelf, kinds: Kinds) -> Node:
    """Cut a node in two, ``stop`` pages from the beginning. Returns the upper part; the node is the lower one.

    Every lock keeps what it kept: locks end at the lower part's end, and pin the upper one as its parent; windows that
    reach into the upper part lease it too.
    """
    parent = node.parent
    assert parent is not None
    assert parent.children is not None
    at, count = stop - node.start, node.stop - node.start
    cuts = [kind.cut(held, count, at) for kind, held in zip(kinds.rows, node.rows, strict=True)]
    shelf.withdraw(node)
    upper = Node(
        parent, node.start, stop,
        keys=node.keys[: at * kinds.page_bytes], ids=node.ids[: at * 8], rows=tuple([above for above, _ in cuts]),
    )  # fmt: skip
    upper.pins = 1 if node.pins else 0
    upper.used, upper.priority, upper.origin = node.used, node.priority, node.origin
    if node.leases:
        upper.leases = {rows: count for rows, count in node.leases.items() if kinds.first_page(rows) < stop} or None
    node.keys, node.ids = node.keys[at * kinds.page_bytes :], node.ids[at * 8 :]
    node.rows, node.start, node.parent = tuple([below for _, below in cuts]), stop, upper
    upper.children = {node.keys[: kinds.page_bytes]: node}
    parent.children[upper.keys[: kinds.page_bytes]] = upper
    shelf.put(upper)
    shelf.restore(node)
    return upper
