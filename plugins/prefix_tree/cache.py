"""The side of a prefix tree that admission and running requests see: entries are locked, used and evicted."""

from collections.abc import Callable, Hashable

from kvarena.plugins.prefix_tree.evict import Evicting
from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.landings import Landings
from kvarena.plugins.prefix_tree.locks import Locks, node_of, split
from kvarena.plugins.prefix_tree.node import Entry, Needs, Node, Root
from kvarena.plugins.prefix_tree.shelf import Shelf
from kvarena.plugins.prefix_tree.store import Store
from kvarena.terms.doors import whole
from kvarena.terms.events import event_log, tells_debug
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import Eviction

_log = event_log()


class TreeCache:
    """A ``Cache`` of the entries of one tree.

    An entry's life:  1. lock    a request reads it: its pages, window rows and state stay.
                         narrow  the request has moved on: the window rows that it still needs stay, and its pages.
                      2. relax   the request has moved past the windows and copied the state: its pages alone stay.
                      3. unlock  what no other request reads may go.
                      4. evict   pieces come back, in the order of the policy; or ``drop``: this one does.
    """

    def __init__(self, store: Store, eviction: Eviction) -> None:
        self._store = store
        self._kinds = Kinds(store.plan)
        self._landings = Landings(self._kinds)
        self._shelf = Shelf(self._kinds, self._landings, eviction)
        self._locks = Locks(self._shelf)
        self._evicting = Evicting(store, self._kinds, self._shelf, self._landings, self._forget)
        self._roots: dict[Hashable, Root] = {}
        self._now = 0

    def evictable(self) -> tuple[int, ...]:
        """The units per sub-pool, in chain order, that come back if everything that no lock protects is evicted."""
        return self._shelf.evictable.units()

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Choose pieces until ``enough(units)``, asked after each, or until none is left that may go; they come back.

        ``units``: those per sub-pool that this call has chosen and not given back yet. It gives them back together
        before it returns or raises; where a page is reserved anywhere, piece by piece.

        Raises:
            InvariantError: one of them is reserved, and nobody has locked it; it stays.
        """
        pieces, units = self._evicting.evict(enough)
        if pieces and tells_debug():
            told = {name: gone for name, gone in zip(self._kinds.names, units, strict=True) if gone}
            _log.debug("cache.evicted", entries=pieces, units=told)

    def lock(self, entry: Entry, relaxed: bool = False) -> None:
        """A request is about to read this entry: nothing that it needs may go. Locks count; none is a use (``touch``).

        ``relaxed``: it has read it before, and needs the pages of its path alone, as after ``relax``.

        Raises:
            InvariantError: it can be read no more, since it was evicted; nothing has changed.
        """
        node = node_of(entry)
        if node is None:
            fail("prefix_tree.lock_of_gone_entry", entry=entry)
        returns = relaxed or entry.narrowed is not None
        there = returns or not entry.lands or self._landings.deepest(node, entry.stop) == entry.stop
        invariant("prefix_tree.lock_of_gone_entry", there, entry=entry)
        invariant("prefix_tree.entry_of_another_tree", self._shelf.has(node), entry=entry)
        if node.stop != entry.stop:
            node = split(node, entry.stop, self._shelf, self._kinds)
        self._locks.lock(node, None if relaxed else self._needs(entry))

    def unlock(self, entry: Entry, relaxed: bool = False) -> None:
        """The request reads it no more. ``relaxed``: ``relax`` was called for it.

        Raises:
            InvariantError: it was not locked so; nothing has changed.
        """
        node = self._locked(entry)
        invariant("prefix_tree.unlock_of_unlocked_entry", relaxed or entry.leased, entry=entry, relaxed=relaxed)
        needs = None if relaxed else entry.leased.pop()
        self._locks.unlock(node, needs)
        if needs is not None and not needs.state:  # it had moved on: should it come back, it needs no more than now
            entry.narrowed = needs

    def narrow(self, entry: Entry, length: int) -> None:
        """The reader of a locked entry is ``length`` tokens long, and has copied the state: what a query there needs of
        the window rows behind the entry stays for it; the others, and the state, may go.

        ``lock`` after ``unlock`` brings back just what it needs, so the handle is its reader's alone: another who
        starts here has one of its own, from ``match``.

        Raises:
            KvarenaError: the length is none.
            InvariantError: it is not locked, or was relaxed; nothing has changed.
        """
        node, length = self._locked(entry), whole(length, "prefix_tree.narrow: length")
        invariant("prefix_tree.narrow_of_unlocked_entry", entry.leased, entry=entry)
        before = entry.leased[-1]
        rows = tuple(map(max, before.rows, self._kinds.row_needs(length, entry.stop)))
        needs = self._kinds.needs_of(rows, state=False)
        entry.leased[-1] = needs
        if needs != before:
            self._locks.change(node, before, needs)

    def relax(self, entry: Entry) -> None:
        """The reader of a locked entry has copied its state and has moved past its windows: these may go.

        Raises:
            InvariantError: it is not locked, or was relaxed before; nothing has changed.
        """
        node = self._locked(entry)
        invariant("prefix_tree.relax_of_unlocked_entry", entry.leased, entry=entry)
        self._locks.change(node, entry.leased.pop(), None)

    def drop(self, entry: Entry) -> None:
        """This entry goes now: its state, and the window rows and pages that no other entry, lock or path needs.

        Raises:
            InvariantError: it is locked itself, or was evicted; nothing has changed.
        """
        node = node_of(entry)
        if node is None:
            fail("prefix_tree.drop_of_gone_entry", entry=entry)
        if node.stop != entry.stop:
            return
        invariant("prefix_tree.drop_of_locked_entry", not node.locks, entry=entry, locks=node.locks)
        node.is_end = False
        self._evicting.drop(node)

    def clear(self) -> None:
        """Everything that no lock protects comes back."""
        self.evict(lambda _: False)

    def touch(self, entry: Entry) -> None:
        """A request starts from this entry: a hit, for policies that count them.

        Raises:
            InvariantError: the entry was evicted.
        """
        node = node_of(entry)
        if node is None:
            fail("prefix_tree.touch_of_gone_entry", entry=entry)
        node.hits += 1
        node.used = self._tick()
        self._shelf.touch(node, used=True)

    # -- inside

    def _forget(self, root: Root) -> None:
        """Nothing of a namespace is left."""
        del self._roots[root.namespace]

    def _tick(self) -> int:
        """A use: later than all before it."""
        self._now += 1
        return self._now

    def _needs(self, entry: Entry) -> Needs:
        """What a lock of this entry is for; kept until it is taken off."""
        needs, entry.narrowed = entry.narrowed or self._kinds.needs_of_landing(entry.stop), None
        entry.leased.append(needs)
        return needs

    def _locked(self, entry: Entry) -> Node:
        """The node that a locked entry ends."""
        node = node_of(entry)
        if node is None or node.stop != entry.stop:
            fail("prefix_tree.unlock_of_unlocked_entry", entry=entry)
        return node
