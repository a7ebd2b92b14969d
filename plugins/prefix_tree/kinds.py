"""What a plan's sub-pools ask of a prefix cache: which pages a landing needs in each of them.

Landings and pages are counted in pages from the beginning: a landing at ``stop`` has ``stop`` pages before it.
"""

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvarena.planning.demand import whole_pages
from kvarena.planning.plan import Plan, SubPool
from kvarena.plugins.prefix_tree.node import Counts, Firsts, Needs, Node, needs_of
from kvarena.terms.lifetimes import Full, Window, prefix_floor
from kvarena.terms.ports import IntArray

Mask = npt.NDArray[np.bool_]
FIRSTS_MAX = 1 << 16


class Rows(Protocol):
    """How nodes hold the pages of one sub-pool that retires rows; ``column`` is its place in ``Node.rows``.

    ``in_order``: what retires are the first pages, so that what a node holds is the count of its last ones.
    """

    name: str
    index: int
    column: int
    unit_bytes: int
    has_gaps: bool
    in_order: bool

    def first(self, stop: int) -> int:
        """The first page that a landing needs; itself where it needs none."""
        ...

    def needs(self, stop: int, pages: IntArray) -> Mask:
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

    def count(self, held: Any) -> int:
        """How many pages are held."""
        ...

    def count_before(self, held: Any, count: int, at: int) -> int:
        """How many of these are among the first ``at`` pages of a node of ``count``; ``at`` may be below 0."""
        ...

    def let_go(self, held: Any, ids: bytes, at: int) -> tuple[bytes, Any]:
        """Of a node with these ids, those that it holds among its first ``at`` pages, and what it holds without them.

        ``at`` may be below 0, or beyond its end.
        """
        ...

    def first_at(self, length: int) -> int:
        """A page before which a query at this length, in tokens, needs none."""
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
        self.first = lru_cache(FIRSTS_MAX)(self._first)

    def _first(self, stop: int) -> int:
        return int(self._firsts(np.array([stop]))[0])

    def _firsts(self, stops: IntArray) -> IntArray:
        floor = prefix_floor(self._lifetime, stops * self._tokens)
        if floor is None:
            raise TypeError(f"{self.name} retires in no order")
        return np.minimum(floor // self._tokens, stops)

    def needs(self, stop: int, pages: IntArray) -> Mask:
        return pages >= self.first(stop)

    def whole(self, node: Node, stop: int) -> bool:
        first, column = self.first(stop), self.column
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

    def count(self, held: int) -> int:
        return held

    def count_before(self, held: int, count: int, at: int) -> int:
        return _below(held, count - held, at)

    def let_go(self, held: int, ids: bytes, at: int) -> tuple[bytes, int]:
        count = len(ids) // 8
        first, stop = count - held, min(at, count)
        return (ids[first * 8 : stop * 8], count - stop) if stop > first else (b"", held)

    def first_at(self, length: int) -> int:
        floor = prefix_floor(self._lifetime, np.array([length]))
        return 0 if floor is None else int(floor[0]) // self._tokens

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

    def _kept_at(self, stop: int) -> Mask:
        """Which of the pages before a landing it needs."""
        kept = np.ones(stop, dtype=np.bool_)
        for gone in whole_pages(self._lifetime.retired(0, stop * self._tokens), self._tokens):
            kept[gone.start : gone.stop] = False
        return kept

    def first(self, stop: int) -> int:
        kept = self._kept(stop)
        return int(kept.argmax()) if kept.any() else stop

    def needs(self, stop: int, pages: IntArray) -> Mask:
        return np.asarray(self._kept(stop)[pages])

    def whole(self, node: Node, stop: int) -> bool:
        kept = self._kept(stop)
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

    def count(self, held: bytes) -> int:
        return held.count(1)

    def count_before(self, held: bytes, count: int, at: int) -> int:
        return held[: max(0, at)].count(1)

    def let_go(self, held: bytes, ids: bytes, at: int) -> tuple[bytes, bytes]:
        at = max(0, at)
        gone = np.frombuffer(held, dtype=np.bool_)[:at]
        return np.frombuffer(ids, dtype=np.int64)[:at][gone].tobytes(), bytes(len(gone)) + held[at:]

    def first_at(self, length: int) -> int:
        return 0  # what retires in any order stays until all of it is passed

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
        self.needs_at = lru_cache(FIRSTS_MAX)(self._needs_at)
        """What a request needs that starts at a landing."""
        self.in_order = all(kind.in_order for kind in self.rows)  # then what nodes hold are counts

    def first(self, stop: int) -> int:
        """The first page that a landing needs in any sub-pool that retires rows; itself where it needs none."""
        return min([kind.first(stop) for kind in self.rows], default=stop)

    def firsts(self, stop: int) -> Firsts:
        """The first page that a landing needs, per sub-pool that retires rows."""
        return tuple([kind.first(stop) for kind in self.rows])

    def _needs_at(self, stop: int) -> Needs:
        return needs_of(self.firsts(stop), state=True)

    def firsts_at(self, length: int, stop: int) -> Firsts:
        """Of the pages before a landing, the first that a query at this length needs, likewise."""
        return tuple([min(kind.first_at(length), stop) for kind in self.rows])

    def counts(self, node: Node) -> Counts:
        """How many pages a node holds in each of ``rows``."""
        if self.in_order:
            return node.rows
        return tuple([kind.count(held) for kind, held in zip(self.rows, node.rows, strict=True)])

    def counts_below(self, node: Node, firsts: Firsts) -> Counts:
        """How many of these lie before a page, one for each of ``rows``."""
        start, stop = node.start, node.stop
        there = zip(self.rows, node.rows, firsts, strict=True)
        if self.in_order:
            return tuple([_below(held, stop - held, first) for _, held, first in there])
        return tuple([kind.count_before(held, stop - start, first - start) for kind, held, first in there])

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
