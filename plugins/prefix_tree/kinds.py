"""What a plan's sub-pools ask of a prefix cache: which pages a landing needs in each of them.

Landings and pages are counted in pages from the beginning: a landing at ``stop`` has ``stop`` pages before it.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvarena.planning.demand import whole_pages
from kvarena.planning.plan import Plan, SubPool
from kvarena.plugins.prefix_tree.node import NO_ID, Counts, Needs, Node, RowNeeds
from kvarena.terms.lifetimes import NEVER, Full, Window, prefix_floor
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray
from kvarena.terms.units import ceil_div

Mask = npt.NDArray[np.bool_]
NEEDS_MAX = 1 << 16

JointNeeds = tuple[Any, ...]
"""Per sub-pool that retires rows, what several readers need of it together, see ``Rows.joint_need``."""


class Rows(Protocol):
    """How nodes hold the pages of one sub-pool that retires rows; ``column`` is its place in ``Node.rows``.

    A *need* is a number that says which pages a reader needs, see ``RowNeeds``; the joint need of several readers is
    what any of them needs. A landing needs the pages that a query at its end needs.

    ``in_order``: what retires are the first pages, so that what a node holds is the count of its last ones.
    """

    name: str
    index: int
    column: int
    unit_bytes: int
    has_gaps: bool
    in_order: bool

    def pages_needed(self, stop: int, pages: IntArray) -> Mask:
        """Which of these pages, all before it, a landing needs."""
        ...

    def whole(self, node: Node, stop: int) -> bool:
        """Whether all that a landing in the node needs is there, up to the root."""
        ...

    def whole_at(self, node: Node, stops: IntArray) -> Mask:
        """``whole`` of many landings in one node."""
        ...

    def held(self, mask: Mask) -> Any:
        """What a node holds that has these of its pages."""
        ...

    def mask(self, held: Any, count: int) -> Mask:
        """Which of a node's pages it holds."""
        ...

    def need(self, length: int, stop: int) -> int:
        """The need of a query at this length, in tokens, among the pages before a landing at or before it.

        It rises with the length, and what it stands for only shrinks.
        """
        ...

    def first_page(self, need: int) -> int:
        """The first page that is needed; ``NEVER`` or a page behind the landing where none is."""
        ...

    def joint_need(self, needs: Sequence[int]) -> Any:
        """What any of these needs, of which there may be none: for ``count_unneeded`` and ``unneeded``."""
        ...

    def count_unneeded(self, node: Node, joint: Any) -> int:
        """How many of the pages that a node holds nobody needs."""
        ...

    def unneeded(self, node: Node, joint: Any) -> tuple[bytes, Any]:
        """The ids of those pages, and what the node holds without them."""
        ...

    def left(self, ids: bytes, held: Any) -> bytes:
        """The ids of a node's pages, -1 where it does not hold the page."""
        ...

    def cut(self, held: Any, count: int, at: int) -> tuple[Any, Any]:
        """What the two parts of a node of ``count`` pages hold, split behind its first ``at``."""
        ...


class Tail:
    """Rows that retire from the first on: what a node holds are its last pages, as a count.

    Every landing behind a node needs some of its last pages, so that what all of them need are its last pages too.
    """

    in_order = True

    def __init__(self, pool: SubPool, index: int, column: int, page_tokens: int) -> None:
        self.name, self.index, self.column = pool.name, index, column
        self.unit_bytes = pool.unit_bytes
        self.has_gaps = not isinstance(pool.lifetime, Window)  # landings before one that lacks its rows may have theirs
        self._lifetime = pool.lifetime
        self._tokens = page_tokens
        self._first = lru_cache(NEEDS_MAX)(self._first_of)

    def _first_of(self, stop: int) -> int:
        """The first page that a landing needs; itself where it needs none."""
        return int(self._firsts(np.array([stop]))[0])

    def _firsts(self, stops: IntArray) -> IntArray:
        floor = prefix_floor(self._lifetime, stops * self._tokens)
        if floor is None:
            raise TypeError(f"{self.name} retires in no order")
        return np.minimum(floor // self._tokens, stops)

    def pages_needed(self, stop: int, pages: IntArray) -> Mask:
        return pages >= self._first(stop)

    def whole(self, node: Node, stop: int) -> bool:
        first, column = self._first(stop), self.column
        if first >= stop:
            return True
        at: Node | None = node
        while at is not None:
            start = at.start
            if at.stop - at.rows[column] > (first if first > start else start):
                return False
            if first >= start:
                return True
            at = at.parent
        return False

    def whole_at(self, node: Node, stops: IntArray) -> Mask:
        """``whole`` of many landings in one node."""
        low, at = node.stop, node
        while at.parent is not None:
            low = at.stop - at.rows[self.column]
            if low > at.start:
                break
            at = at.parent
        firsts = self._firsts(stops)
        return np.asarray((firsts >= low) | (firsts >= stops))

    def held(self, mask: Mask) -> int:
        return int(np.count_nonzero(mask))

    def mask(self, held: int, count: int) -> Mask:
        return np.arange(count) >= count - held

    def need(self, length: int, stop: int) -> int:
        """The first page that is needed."""
        floor = prefix_floor(self._lifetime, np.array([length]))
        return min(0 if floor is None else int(floor[0]) // self._tokens, stop)

    def first_page(self, need: int) -> int:
        return need

    def joint_need(self, needs: Sequence[int]) -> int:
        return min(needs, default=NEVER)

    def count_unneeded(self, node: Node, joint: int) -> int:
        held: int = node.rows[self.column]
        return _below(held, node.stop - held, joint)

    def unneeded(self, node: Node, joint: int) -> tuple[bytes, int]:
        held: int = node.rows[self.column]
        first, stop = node.stop - held, min(joint, node.stop)
        if stop <= first:
            return b"", held
        return node.ids[(first - node.start) * 8 : (stop - node.start) * 8], node.stop - stop

    def left(self, ids: bytes, held: int) -> bytes:
        gone = len(ids) // 8 - held
        return NO_ID * gone + ids[gone * 8 :]

    def cut(self, held: int, count: int, at: int) -> tuple[int, int]:
        behind = count - at
        return max(0, held - behind), min(held, behind)


class Scattered:
    """Rows that retire in any order: what a node holds is a byte for each of its pages."""

    in_order = False

    def __init__(self, pool: SubPool, index: int, column: int, page_tokens: int) -> None:
        self.name, self.index, self.column = pool.name, index, column
        self.unit_bytes = pool.unit_bytes
        self.has_gaps = True
        self._lifetime = pool.lifetime
        self._tokens = page_tokens
        self._kept = lru_cache(1 << 10)(self._kept_at)
        self._kept_for = lru_cache(1 << 10)(self._landing_keeps)  # apart: lengths are many, and come once

    def _kept_at(self, length: int) -> Mask:
        """Which of the pages before it a query at this length needs."""
        kept = np.ones(ceil_div(length, self._tokens), dtype=np.bool_)
        for gone in whole_pages(self._lifetime.retired(0, length), self._tokens):
            kept[gone.start : gone.stop] = False
        return kept

    def _landing_keeps(self, stop: int) -> Mask:
        """Which of the pages before a landing it needs."""
        return self._kept_at(stop * self._tokens)

    def pages_needed(self, stop: int, pages: IntArray) -> Mask:
        return np.asarray(self._kept_for(stop)[pages])

    def whole(self, node: Node, stop: int) -> bool:
        kept = self._kept_for(stop)
        at, end = node, stop
        while at.parent is not None:
            there = np.frombuffer(at.rows[self.column], dtype=np.bool_)[: end - at.start]
            if np.count_nonzero(kept[at.start : end] & ~there):
                return False
            end, at = at.start, at.parent
        return True

    def whole_at(self, node: Node, stops: IntArray) -> Mask:
        """``whole`` of many landings in one node."""
        return np.array([self.whole(node, stop) for stop in stops.tolist()], dtype=np.bool_)

    def held(self, mask: Mask) -> bytes:
        return mask.tobytes()

    def mask(self, held: bytes, count: int) -> Mask:
        return np.frombuffer(held, dtype=np.bool_)

    def need(self, length: int, stop: int) -> int:
        """The length: what a query there needs are pages here and there."""
        return length

    def first_page(self, need: int) -> int:
        kept = self._kept(need)
        return int(kept.argmax()) if kept.any() else NEVER

    def joint_need(self, needs: Sequence[int]) -> tuple[int, ...]:
        return tuple(set(needs))

    def count_unneeded(self, node: Node, joint: tuple[int, ...]) -> int:
        if not joint:
            held: bytes = node.rows[self.column]
            return held.count(1)
        return int(np.count_nonzero(self._unneeded(node, joint)))

    def unneeded(self, node: Node, joint: tuple[int, ...]) -> tuple[bytes, bytes]:
        gone = self._unneeded(node, joint)
        held = np.frombuffer(node.rows[self.column], dtype=np.bool_)
        return np.frombuffer(node.ids, dtype=np.int64)[gone].tobytes(), (held & ~gone).tobytes()

    def left(self, ids: bytes, held: bytes) -> bytes:
        return np.where(np.frombuffer(held, dtype=np.bool_), np.frombuffer(ids, dtype=np.int64), UNBOUND).tobytes()

    def _unneeded(self, node: Node, joint: tuple[int, ...]) -> Mask:
        """Which pages of a node are held, and needed at none of these lengths."""
        free = np.frombuffer(node.rows[self.column], dtype=np.bool_).copy()
        for length in joint:
            free &= ~self._kept(length)[node.start : node.stop]
        return free

    def cut(self, held: bytes, count: int, at: int) -> tuple[bytes, bytes]:
        return held[:at], held[at:]


class Kinds:
    """The sub-pools of one plan, as a prefix cache sees them.

    ``staying``: the chain indices of those that never retire. ``rows``: those that do, each with how nodes hold their
    pages. ``owner``: the one of ``rows`` that mints the page ids, so that a page it lets go of is gone for all; None
    where the owner never retires. ``slots``: the chain index of the states, None where there are none.
    """

    def __init__(self, plan: Plan) -> None:
        self.page_tokens = plan.page_tokens
        self.page_bytes = plan.page_tokens * 8
        self.names = plan.names
        self.has_pages = plan.owner is not None
        pools = list(enumerate(plan.sub_pools))
        self.staying = tuple(index for index, pool in pools if isinstance(pool.lifetime, Full))
        retiring = [(i, pool) for i, pool in pools if not pool.is_slots and not isinstance(pool.lifetime, Full)]
        self.rows: tuple[Rows, ...] = tuple(
            _rows_of(pool, index, column, plan.page_tokens) for column, (index, pool) in enumerate(retiring)
        )
        self.owner = next((kind for kind in self.rows if kind.name == plan.owner), None)
        self.slots = next((index for index, pool in pools if pool.is_slots), None)
        self.kv_bytes = sum(plan.sub_pools[index].unit_bytes for index in self.staying)
        self.slot_bytes = plan.sub_pools[self.slots].unit_bytes if self.slots is not None else 0
        self.has_gaps = any(kind.has_gaps for kind in self.rows)
        self.has_parts = bool(self.rows) or self.slots is not None
        self.needs_of_landing = lru_cache(NEEDS_MAX)(self._needs_of_landing)
        """What a request needs that starts at a landing: ``Needs``, by the landing's page."""
        self._no_needs: JointNeeds = tuple([kind.joint_need(()) for kind in self.rows])
        self.in_order = all(kind.in_order for kind in self.rows)  # then what nodes hold are counts

    def landing_needs(self, stop: int, node: Node) -> bool:
        """Whether the landing at ``stop``, behind a node, needs any of the node's window rows."""
        if self.in_order:
            return self.needs_of_landing(stop).first_page < node.stop
        pages = np.arange(node.start, node.stop)
        return any(bool(kind.pages_needed(stop, pages).any()) for kind in self.rows)

    def row_needs(self, length: int, stop: int) -> RowNeeds:
        """The window rows before a landing that a query at this length, in tokens, needs."""
        return tuple([kind.need(length, stop) for kind in self.rows])

    def first_page(self, rows: RowNeeds) -> int:
        """The first page that is needed in any sub-pool; ``NEVER`` where none retires rows."""
        if self.in_order:
            return min(rows, default=NEVER)
        return min([kind.first_page(need) for kind, need in zip(self.rows, rows, strict=True)])

    def needs_of(self, rows: RowNeeds, *, state: bool) -> Needs:
        """All that a reader needs: these window rows, and maybe the state."""
        return Needs(rows, state, self.first_page(rows))

    def _needs_of_landing(self, stop: int) -> Needs:
        return self.needs_of(self.row_needs(stop * self.page_tokens, stop), state=True)

    def joint_needs(self, readers: Collection[RowNeeds]) -> JointNeeds:
        """What any of these readers, of whom there may be none, needs."""
        if not readers:
            return self._no_needs
        if self.in_order:
            first, *others = readers
            return tuple(map(min, first, *others)) if others else first
        return tuple([kind.joint_need([rows[kind.column] for rows in readers]) for kind in self.rows])

    def counts(self, node: Node) -> Counts:
        """How many pages a node holds in each of ``rows``."""
        if self.in_order:
            return node.rows
        return self.counts_unneeded(node, self._no_needs)

    def counts_unneeded(self, node: Node, joint: JointNeeds) -> Counts:
        """How many of these nobody needs."""
        if self.in_order:
            stop = node.stop
            return tuple([_below(held, stop - held, first) for held, first in zip(node.rows, joint, strict=True)])
        return tuple([kind.count_unneeded(node, need) for kind, need in zip(self.rows, joint, strict=True)])

    def rows_bytes(self, node: Node) -> int:
        """The bytes of a node's window rows."""
        return sum([count * kind.unit_bytes for kind, count in zip(self.rows, self.counts(node), strict=True)])


def _below(held: int, low: int, first: int) -> int:
    """Of so many pages from ``low`` on, those before a page."""
    if first <= low:
        return 0
    return first - low if first - low < held else held


def _rows_of(pool: SubPool, index: int, column: int, page_tokens: int) -> Rows:
    in_order = prefix_floor(pool.lifetime, np.zeros(1, dtype=np.int64)) is not None
    return (Tail if in_order else Scattered)(pool, index, column, page_tokens)
