"""Which piece of a prefix cache goes first.

A piece is the end of a branch with all that it holds or, where a policy ``splits``, the state or the window rows of a
place in the middle. All orders here are heaps of ranks: a piece whose facts changed is ranked anew, its old rank stays
behind and is skipped when its turn comes.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

import attrs

from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Piece, Victims

STALE_MAX = 1024
LOOKS_MAX = 16
"""So many pieces are looked at anew for one that goes: what changed far from a piece is found when its turn comes."""

_SPLITS = attrs.validators.instance_of(bool)


class Order(Protocol):
    """Ranks pieces: the least goes first. ``floor`` is the value at which it was ranked, see ``Worth``."""

    def rank(self, piece: Piece, floor: float) -> tuple[Any, ...]: ...


@attrs.frozen
class Lru:
    """What was used longest ago goes first. ``splits = false`` is the order that ignores kinds."""

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "lru"

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[Any, ...]:
        """When it was used last."""
        return (piece.used,)


@attrs.frozen
class Lfu:
    """What fewest requests started from goes first; among these, what was used longest ago."""

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "lfu"

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[Any, ...]:
        """How often it was started from, then when it was used last."""
        return (piece.hits, piece.used)


@attrs.frozen
class Priority:
    """What the least important requests brought goes first; among these, what was used longest ago."""

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "priority"

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[Any, ...]:
        """The priority that it came with, then when it was used last."""
        return (piece.priority, piece.used)


@attrs.frozen
class Worth:
    """What is worth least goes first: tokens that can really be resumed, per byte, times how often they were.

    GreedyDual-Size-Frequency: a piece is worth ``floor + (hits + 1) * tokens / bytes``, where the floor is the worth
    of what went last, so that what was worth much once gives way in time. What nothing can be resumed from, pages
    behind the last state or without their window, goes before all else.
    """

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "worth"

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[Any, ...]:
        """What it is worth, -1 where that is nothing; then when it was used last."""
        if not piece.tokens:
            return (-1.0, piece.used)
        return (floor + (piece.hits + 1) * piece.tokens / max(1, piece.bytes), piece.used)


class RankedVictims:
    """Pieces in a heap, by rank.

    A piece's way:  1. add, touch  it is ranked; a rank that it had before is stale.
                    2. pop         stale ranks are skipped. The first piece is looked at: one that ranks higher by now
                                   is ranked anew, and the next one looked at.
                    3. remove      its rank is stale.
    Always:  the heap has the last rank of every piece, and at most as many stale ones + STALE_MAX
    """

    def __init__(self, order: Order) -> None:
        self._rank = order.rank
        self._items: dict[int, tuple[Any, ...]] = {}
        self._heap: list[tuple[Any, ...]] = []
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, key: int, piece: Piece) -> None:
        """This piece may go from here on."""
        invariant("eviction.piece_is_there_already", key not in self._items, key=key)
        self._put(key, piece, self._floor)

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        """What is known of a piece has changed."""
        rank, _, floor = self._items[key]
        if used or self._rank(piece, floor) != rank:
            self._put(key, piece, self._floor if used else floor)

    def remove(self, key: int) -> None:
        """This piece may not go, or has gone with another."""
        del self._items[key]
        self._tidy()

    def pop(self, look: Callable[[int], Piece]) -> int | None:
        """Remove and return the piece that goes first; None where there is none."""
        items, heap, looks = self._items, self._heap, LOOKS_MAX
        while heap:
            item = heappop(heap)
            rank, key, floor = item
            if items.get(key) is not item:
                continue
            if looks:
                looks -= 1
                now = look(key)
                if self._rank(now, floor) > rank:
                    self._put(key, now, floor)
                    continue
            del items[key]
            self._floor = max(self._floor, float(rank[0]))
            return key
        return None

    def _put(self, key: int, piece: Piece, floor: float) -> None:
        item = (self._rank(piece, floor), key, floor)
        self._items[key] = item
        heappush(self._heap, item)
        self._tidy()

    def _tidy(self) -> None:
        """Forget stale ranks once there are as many as pieces."""
        if len(self._heap) > 2 * len(self._items) + STALE_MAX:
            self._heap = list(self._items.values())
            heapify(self._heap)
