"""Faults planted in what requests share: the cache, adoption, checkpoints, locks. ``planted`` has all the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
from planted import Fault, Patch, instead

from kvarena.chain.chain import Chain
from kvarena.ledger.timeline import Timeline
from kvarena.plugins.prefix_tree import match as matching
from kvarena.plugins.prefix_tree import tree as trees
from kvarena.plugins.prefix_tree.evict import Evicting
from kvarena.plugins.prefix_tree.going import Going
from kvarena.plugins.prefix_tree.insert import Giving
from kvarena.plugins.prefix_tree.kinds import Tail
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.locks import Locks
from kvarena.plugins.prefix_tree.node import Node
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.plugins.prefix_tree.tree import PrefixTree
from kvarena.plugins.stress.stage import forwards as stage_forwards
from kvarena.storage import advance
from kvarena.storage.copies import Copies
from kvarena.storage.handed import Handed
from kvarena.storage.requests import RequestTable
from kvarena.storage.sharing import Sharing

SHARED_FAULTS: list[Fault] = []


def fault(name: str, *, within: int = 20_000) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Add a fault to the list."""

    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        SHARED_FAULTS.append(Fault(name, plant, within))
        return plant

    return add


def during(patch: Patch, owner: Any, method: str, other: Any, name: str, stand_in: Callable[..., Any]) -> None:
    """While a method runs, another is ``stand_in``, which gets the original in front."""

    def both(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with Patch.context() as inner:
            instead(inner, other, name, stand_in)
            return original(self, *args, **kwargs)

    instead(patch, owner, method, both)


# -- pages


@fault("adopt forgets to free the row's own copies")
def adopt_keeps_duplicates(patch: Patch) -> None:
    """They are nobody's."""
    during(patch, Sharing, "adopt", Chain, "free_all", lambda original, self, frees: None)


@fault("adopt frees the row's own copies as if nothing ran on them", within=60_000)
def adopt_frees_at_once(patch: Patch) -> None:
    """They are holes under the forward that reads them."""

    def adopt(original: Any, self: Sharing, row: int, ids: Any) -> None:
        steps = self._maps.chain.ledger.steps
        processed, steps.processed = steps.processed, steps.recorded
        try:
            original(self, row, ids)
        finally:
            steps.processed = processed

    instead(patch, Sharing, "adopt", adopt)


@fault("adopt leaves the row its own ids")
def adopt_leaves_ids(patch: Patch) -> None:
    """The row reads pages that came back."""
    during(
        patch, Sharing, "adopt", RequestTable, "hand",
        lambda original, self, row, stop, ids=None: original(self, row, stop),
    )  # fmt: skip


@fault("a rebind forgets a map entry", within=60_000)
def rebind_forgets(patch: Patch) -> None:
    """The last window page of an adoption stays with the id that goes."""
    during(
        patch, Sharing, "adopt", Chain, "rebind",
        lambda original, self, name, sources, targets: original(self, name, sources[:-1], targets[:-1]),
    )  # fmt: skip


@fault("a rebind mixes up two pages", within=60_000)
def rebind_mixes_up(patch: Patch) -> None:
    """Window rows stand at each other's places."""
    during(
        patch, Sharing, "adopt", Chain, "rebind",
        lambda original, self, name, sources, targets: original(self, name, sources, targets[::-1]),
    )  # fmt: skip


@fault("a row that started on shared pages owns them")
def start_owns(patch: Patch) -> None:
    """They go with it."""

    def put(original: Any, table: RequestTable, row: int, ids: Any, length: int, *, shared: bool = False) -> None:
        original(table, row, ids, length, shared=shared)
        if shared:
            table.handed[row] = table.shared[row] = 0

    instead(patch, RequestTable, "put", put)


@fault("rows come back in a window that a reader still needs")
def leases_forgotten(patch: Patch) -> None:
    """Locks keep the path, and no window row."""
    instead(patch, Shelf, "settle", _without("leases", {}))


@fault("a locked entry is evicted")
def locks_forgotten(patch: Patch) -> None:
    """Nothing pins."""
    instead(patch, Shelf, "settle", _without("pins", 0))


@fault("the state of a locked entry is evicted")
def readers_forgotten(patch: Patch) -> None:
    """Its reader has not copied it yet."""
    instead(patch, Shelf, "settle", _without("readers", None))


def _without(name: str, nothing: Any) -> Callable[..., None]:
    def settle(original: Any, shelf: Shelf, node: Node) -> None:
        had = getattr(node, name)
        setattr(node, name, nothing)
        try:
            original(shelf, node)
        finally:
            setattr(node, name, had)

    return settle


@fault("a request starts without a lock")
def no_lock(patch: Patch) -> None:
    """Whoever is short takes what it reads."""
    for name in ("lock", "change", "unlock"):
        patch.setattr(Locks, name, lambda self, *args, **named: None)
    for name in ("put", "put_below"):
        patch.setattr(Locks, name, _put_without_lock)


def _put_without_lock(locks: Locks, node: Node, *needs: Any) -> None:
    locks._shelf.put(node)
    if node.parent is not None and node.parent.parent is not None:
        locks._shelf.settle(node.parent)


@fault("a lock that goes on to what its reader has cached stays behind too")
def lock_stays_behind(patch: Patch) -> None:
    """What it has moved past never goes."""

    def put(original: Any, self: Locks, node: Node, needs: Any, before: Any) -> None:
        self.put(node, needs)

    instead(patch, Locks, "put_below", put)


@fault("a lock that goes on keeps the windows of where it was")
def lease_stays_behind(patch: Patch) -> None:
    """And not those of where it is."""

    def put(original: Any, self: Locks, node: Node, needs: Any, before: Any) -> None:
        original(self, node, needs if before is None else before, before)

    instead(patch, Locks, "put_below", put)


@fault("window rows are kept for the present length, and not for the last grid point", within=60_000)
def no_grid(patch: Patch) -> None:
    """A checkpoint whose forward is processed late has lost them."""
    patch.setattr(advance, "on_grid", lambda lifetime, grid: lifetime)


@fault("evicted pages do not come back")
def evicted_pages_stay(patch: Patch) -> None:
    """The node is gone, and its pages are nobody's."""
    during(patch, Going, "give_back", Handed, "drop", lambda original, self, ids: None)


@fault("what is evictable leaves out states")
def evictable_without_states(patch: Patch) -> None:
    """Admission is told less than would come back."""
    instead(patch, PrefixTree, "evictable", lambda original, self: (0, *original(self)[1:]))


# -- tokens


@fault("namespaces are one", within=60_000)
def one_namespace(patch: Patch) -> None:
    """A prefix is found under every salt, though what it was computed with differs."""
    instead(
        patch, PrefixTree, "match", lambda original, self, keys, *, namespace=None: original(self, keys, namespace="")
    )


@fault("a landing is said to be one page further on", within=60_000)
def lands_too_far(patch: Patch) -> None:
    """Without states; its last page was computed from other tokens."""

    def walk(original: Any, node: Any, keys: Any, page_tokens: int) -> Any:
        found, agreed = original(node, keys, page_tokens)
        return found, min(agreed + 1, found.stop) if agreed else agreed

    instead(patch, matching, "walk", walk)


@fault("a split gives the lower part its keys and the upper part's pages")
def split_mixes_up(patch: Patch) -> None:
    """Whoever starts from it reads others' pages."""

    def split(original: Any, node: Node, *args: Any) -> Node:
        ids = node.ids
        upper: Node = original(node, *args)
        upper.ids, node.ids = ids[len(node.ids) :], ids[: len(node.ids)]
        return upper

    instead(patch, trees, "split", split)


# -- states


@fault("a checkpoint is copied on the allocator's stream, in no order")
def copied_beside(patch: Patch) -> None:
    """It reads what the kernels are writing."""

    def copy(original: Any, self: Copies, sources: Any, targets: Any, forward: Any = None) -> None:
        timeline: Timeline = self._ledger.timeline
        behind = timeline.forward
        if forward is not None and timeline.overlaps:
            timeline.forward = timeline.device.stream("beside")
        try:
            original(self, sources, targets, forward)
        finally:
            timeline.forward = behind

    instead(patch, Copies, "copy_state", copy)


@fault("a checkpoint is copied before the kernels that make it")
def copied_before(patch: Patch) -> None:
    """It keeps the state of a step earlier."""
    patch.setattr(stage_forwards.Forwards, "with_kernels", lambda self, forward: self._flight(forward).forward)


@fault("a slot that was handed over stays in its row's place")
def slot_stays(patch: Patch) -> None:
    """The next checkpoint is copied over it, before it is in the cache or after."""
    during(patch, Sharing, "hand_over_slots", RequestTable, "put_slots", _not_emptied)


def _not_emptied(original: Any, table: RequestTable, rows: Any, at: int, slots: Any) -> None:
    if isinstance(slots, np.ndarray):
        original(table, rows, at, slots)


@fault("a spare slot is one that waits to be inserted")
def spare_is_pending(patch: Patch) -> None:
    """Two checkpoints are copied to it before the first is in the cache."""

    def take(original: Any, self: Sharing, rows: Any, at: int) -> Any:
        pending = self._ownership.slots.ids()
        if not len(pending):
            return original(self, rows, at)
        slots = np.full(len(rows), pending[-1])
        self._maps.table.put_slots(rows, at, slots)
        return slots

    instead(patch, Sharing, "take_slots", take)


@fault("a state is kept one landing too high", within=60_000)
def state_too_high(patch: Patch) -> None:
    """Of a branch, whose end has the state, its beginning has it too."""

    def deepest(original: Any, self: Landings, node: Node, top: int) -> int:
        found: int = original(self, node, top)
        if found or not self._slots or node.state is None:
            return found
        return top if self.has_rows(node, top) else 0

    instead(patch, Landings, "deepest", deepest)


@fault("the state of an evicted entry does not come back")
def state_leaks(patch: Patch) -> None:
    """One slot less each time."""
    during(patch, Going, "give_back", Sharing, "free_slots", lambda original, self, ids: None)


@fault("a state that the cache has already does not come back", within=60_000)
def second_state_leaks(patch: Patch) -> None:
    """Two requests came to one point."""
    during(patch, PrefixTree, "insert", Sharing, "free_slots", lambda original, self, ids: None)


# -- what the tree keeps


@fault("a tree tells whoever asks for room that it has chosen more than it has", within=60_000)
def chosen_too_much(patch: Patch) -> None:
    """It is believed, and what was promised is not there."""

    instead(
        patch, Evicting, "_chosen", lambda original, self, before: tuple([n + 1 for n in original(self, before)])
    )  # fmt: skip


@fault("a tree keeps one window page fewer than a landing needs")
def window_cut_short(patch: Patch) -> None:
    """Whoever starts there lacks a row."""
    instead(patch, Tail, "_first_of", lambda original, self, stop: min(original(self, stop) + 1, stop))


@fault("a tree says that a page is not there which it has")
def ids_turned(patch: Patch) -> None:
    """Of what is handed over the first two pages change places."""

    def give(original: Any, self: Giving, row: int, parent: Node, stop: int, keys: bytes) -> Node:
        node: Node = original(self, row, parent, stop, keys)
        if len(node.ids) >= 16:
            node.ids = node.ids[8:16] + node.ids[:8] + node.ids[16:]
        return node

    instead(patch, Giving, "give", give)
