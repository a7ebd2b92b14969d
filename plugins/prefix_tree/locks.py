"""Who reads what: locks keep the path to an entry, and what its readers have not moved past."""

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.node import GONE, Entry, Node
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.terms.invariants import fail, invariant


class Locks:
    """Locks of one tree.

    A lock's life:  1. lock    nothing that its reader needs may go: all pages of the path, the state at its end, the
                               window rows behind it.
                    2. relax   the reader has copied the state and has moved past the windows: the path stays.
                    3. unlock  all may go.
    """

    def __init__(self, shelf: Shelf, kinds: Kinds) -> None:
        self._shelf = shelf
        self._kinds = kinds

    def lock(self, node: Node, *, relaxed: bool) -> None:
        """Lock the landing at a node's end. Only the ancestors that were not locked before are visited."""
        first, pin = node.stop if relaxed else self._kinds.first(node.stop), True
        node.locks += 1
        if not relaxed:
            node.readers += 1
        at: Node = node
        while at.parent is not None and (pin or at.stop > first):
            if pin:
                at.pins += 1
                pin = at.pins == 1
            if at.stop > first:
                leases = at.leases = at.leases or {}
                leases[first] = leases.get(first, 0) + 1
            self._shelf.settle(at)
            at = at.parent

    def relax(self, node: Node) -> None:
        """One reader of the landing at a node's end needs the path alone."""
        invariant("prefix_tree.relax_of_unlocked_entry", node.readers > 0, stop=node.stop, locks=node.locks)
        self._let_go(node)

    def unlock(self, node: Node, *, relaxed: bool) -> None:
        """One reader, which was relaxed before or not, is gone."""
        held = node.locks - node.readers if relaxed else node.readers
        invariant("prefix_tree.unlock_of_unlocked_entry", held > 0, stop=node.stop, locks=node.locks, relaxed=relaxed)
        if not relaxed:
            self._let_go(node)
        node.locks -= 1
        at: Node = node
        while at.parent is not None:
            at.pins -= 1
            self._shelf.settle(at)
            if at.pins:
                return
            at = at.parent

    def _let_go(self, node: Node) -> None:
        """A reader needs the state and the window rows no more."""
        first = self._kinds.first(node.stop)
        node.readers -= 1
        self._shelf.settle(node)
        at: Node = node
        while at.parent is not None and at.stop > first:
            leases = at.leases
            if leases is None or first not in leases:
                fail("prefix_tree.lease_is_missing", first=first, stop=at.stop, leases=leases)
            leases[first] -= 1
            if not leases[first]:
                del leases[first]
            if not leases:
                at.leases = None
            self._shelf.settle(at)
            at = at.parent


def node_of(entry: Entry) -> Node | None:
    """The node that an entry's last page is in now; None where it was evicted."""
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
        upper.leases = {first: count for first, count in node.leases.items() if first < stop} or None
    node.keys, node.ids = node.keys[at * kinds.page_bytes :], node.ids[at * 8 :]
    node.rows, node.start, node.parent = tuple([below for _, below in cuts]), stop, upper
    upper.children = {node.keys[: kinds.page_bytes]: node}
    parent.children[upper.keys[: kinds.page_bytes]] = upper
    shelf.put(upper)
    shelf.restore(node)
    return upper
