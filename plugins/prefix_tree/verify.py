"""Whether a tree is what it says: every sum is counted again from its nodes, and every page looked up."""

from collections.abc import Hashable, Iterator, Mapping

import numpy as np

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.node import KV, ROWS, STATE, WHOLE, Node, Root, RowNeeds
from kvarena.plugins.prefix_tree.shelf import Shelf, Totals
from kvarena.plugins.prefix_tree.store import Store
from kvarena.terms.invariants import invariant
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray


def verify_tree(roots: Mapping[Hashable, Root], shelf: Shelf, kinds: Kinds, store: Store) -> None:
    """Raises InvariantError at the first promise that does not hold."""
    nodes = list(_nodes(roots))
    held, evictable, listed = Totals(kinds), Totals(kinds), 0
    leases = _leases(nodes)
    for node in nodes:
        _check_place(node, shelf, kinds)
        _check_locks(node, leases.get(node.number))
        counted, free_rows, pieces = shelf.facts.free(node)
        free = node.counted == counted and node.free_rows == free_rows
        invariant("prefix_tree.counted_is_free", free, stop=node.stop)
        invariant("prefix_tree.listed_may_go", node.listed == pieces, stop=node.stop)
        held.add(node, KV | STATE, kinds.counts(node), 1)
        evictable.add(node, counted, free_rows, 1)
        listed += bool(node.listed & (WHOLE | STATE)) + bool(node.listed & ROWS)
    invariant("prefix_tree.nodes_add_up", len(nodes) == len(shelf), found=len(nodes), kept=len(shelf))
    invariant("prefix_tree.held_adds_up", held.units() == shelf.held.units(), found=held.units())
    kept = shelf.evictable.units()
    invariant("prefix_tree.evictable_adds_up", evictable.units() == kept, found=evictable.units(), kept=kept)
    invariant("prefix_tree.pieces_add_up", listed == len(shelf.victims), found=listed, kept=len(shelf.victims))
    states = {node.state for node in nodes if node.state is not None}
    invariant("prefix_tree.states_add_up", states == shelf.states, found=states, kept=shelf.states)
    _check_pages(nodes, kinds, store)


def _nodes(roots: Mapping[Hashable, Root]) -> Iterator[Node]:
    for root in roots.values():
        invariant("prefix_tree.namespace_without_prefixes", root.children, namespace=root.namespace)
        waiting = list((root.children or {}).values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend((node.children or {}).values())


def _check_place(node: Node, shelf: Shelf, kinds: Kinds) -> None:
    """A node is where its parent and its number say, and as long as its keys."""
    parent, count = node.parent, node.stop - node.start
    there = parent is not None and (parent.children or {}).get(node.keys[: kinds.page_bytes]) is node
    invariant("prefix_tree.child_of_its_parent", there and parent is not None and parent.stop == node.start)
    invariant("prefix_tree.node_has_its_number", shelf.nodes[node.number] is node, number=node.number)
    sizes = len(node.keys) == count * kinds.page_bytes and len(node.ids) == (count * 8 if kinds.has_pages else 0)
    invariant("prefix_tree.node_has_its_pages", count > 0 and sizes, start=node.start, stop=node.stop)
    invariant("prefix_tree.children_or_none", node.children is None or node.children, stop=node.stop)


def _check_locks(node: Node, leases: dict[RowNeeds, int] | None) -> None:
    """Pins are locks and pinned children; leases are those of readers here and below."""
    pinned = sum(1 for child in (node.children or {}).values() if child.pins)
    invariant("prefix_tree.pins_add_up", node.pins == node.locks + pinned, pins=node.pins, locks=node.locks)
    readers = sum((node.readers or {}).values())
    invariant("prefix_tree.readers_are_locks", 0 <= readers <= node.locks, readers=readers)
    invariant("prefix_tree.leases_add_up", node.leases == leases, kept=node.leases, found=leases)


def _leases(nodes: list[Node]) -> dict[int, dict[RowNeeds, int]]:
    """By the number of a node, its leases: how many readers need its window rows, by what they need."""
    found: dict[int, dict[RowNeeds, int]] = {}
    for node in nodes:
        for needs, count in (node.readers or {}).items():
            at = node
            while at.parent is not None and at.stop > needs.first_page:
                there = found.setdefault(at.number, {})
                there[needs.rows] = there.get(needs.rows, 0) + count
                at = at.parent
    return found


def _check_pages(nodes: list[Node], kinds: Kinds, store: Store) -> None:
    """What nodes hold is bound, and nothing else of them; no page is in two nodes."""
    if not kinds.has_pages or not nodes:
        return
    ids: IntArray = np.frombuffer(b"".join([node.ids for node in nodes]), dtype=np.int64)
    known = ids[ids != UNBOUND]
    invariant("prefix_tree.page_is_in_one_node", len(np.unique(known)) == len(known))
    invariant("prefix_tree.page_is_there", kinds.owner is not None or len(known) == len(ids))
    for name in [kinds.names[index] for index in kinds.staying]:
        invariant("prefix_tree.page_is_bound", store.sharing.bound(name, ids).all(), sub_pool=name)
    for kind in kinds.rows:
        masks = [kind.mask(node.rows[kind.column], node.stop - node.start) for node in nodes]
        bound = store.sharing.bound(kind.name, ids)
        invariant("prefix_tree.rows_are_bound", np.array_equal(np.concatenate(masks), bound), sub_pool=kind.name)
