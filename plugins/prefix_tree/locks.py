"""Who reads what: locks keep the path to an entry, and what its readers have not moved past."""

from typing import TypeVar

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.node import GONE, Entry, Firsts, Needs, Node
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail, invariant

Key = TypeVar("Key", Firsts, Needs)


class Locks:
    """Locks of one tree.

    A lock's life:  1. lock    nothing that its reader needs may go: all pages of the path, the state at its end, the
                               window rows behind it.
                    2. change  the reader has moved on, and needs less of them.
                    3. relax   the reader has copied the state and has moved past the windows: the path stays.
                    4. unlock  all may go.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def lock(self, node: Node, needs: Needs | None) -> None:
        """Lock the end of a node; for its path alone where nothing else is needed.

        Only the ancestors that were not locked before are visited.
        """
        first, pin = node.stop if needs is None else min(needs.firsts, default=node.stop), True
        node.locks += 1
        if needs is not None:
            node.readers = _add(node.readers, needs)
        at: Node = node
        while at.parent is not None and (pin or at.stop > first):
            if pin:
                at.pins += 1
                pin = at.pins == 1
            if needs is not None and at.stop > first:
                at.leases = _add(at.leases, needs.firsts)
            self._shelf.settle(at)
            at = at.parent

    def change(self, node: Node, before: Needs, needs: Needs) -> None:
        """One reader of the end of a node needs this, no more than before."""
        self._let_go(node, before)
        first, at = min(needs.firsts, default=node.stop), node
        node.readers = _add(node.readers, needs)
        self._shelf.settle(node)
        while at.parent is not None and at.stop > first:
            at.leases = _add(at.leases, needs.firsts)
            self._shelf.settle(at)
            at = at.parent

    def relax(self, node: Node, needs: Needs) -> None:
        """One reader of the end of a node needs the path alone."""
        self._let_go(node, needs)

    def unlock(self, node: Node, needs: Needs | None) -> None:
        """One reader is gone; one that was relaxed before needed nothing else."""
        readers = sum((node.readers or {}).values())
        invariant(
            "prefix_tree.unlock_of_unlocked_entry", node.locks > (readers if needs is None else 0), stop=node.stop
        )
        if needs is not None:
            self._let_go(node, needs)
        node.locks -= 1
        at: Node = node
        while at.parent is not None:
            at.pins -= 1
            self._shelf.settle(at)
            if at.pins:
                return
            at = at.parent

    def _let_go(self, node: Node, needs: Needs) -> None:
        """A reader needs the state and the window rows no more."""
        first, at = min(needs.firsts, default=node.stop), node
        node.readers = _drop(node.readers, needs)
        self._shelf.settle(node)
        while at.parent is not None and at.stop > first:
            at.leases = _drop(at.leases, needs.firsts)
            self._shelf.settle(at)
            at = at.parent


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
        upper.leases = {firsts: count for firsts, count in node.leases.items() if min(firsts) < stop} or None
    node.keys, node.ids = node.keys[at * kinds.page_bytes :], node.ids[at * 8 :]
    node.rows, node.start, node.parent = tuple([below for _, below in cuts]), stop, upper
    upper.children = {node.keys[: kinds.page_bytes]: node}
    parent.children[upper.keys[: kinds.page_bytes]] = upper
    shelf.put(upper)
    shelf.restore(node)
    return upper
