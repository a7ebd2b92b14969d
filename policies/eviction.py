"""Which piece of a prefix cache goes first.

A piece is the end of a branch with all that it holds or, where a policy ``splits``, the state or the window rows of a
place in the middle. All orders here are heaps of ranks: a piece whose facts changed is ranked anew, its old rank stays
behind and is skipped when its turn comes.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

import attrs

from kvarena.terms.invariants import fail
from kvarena.terms.ports import Piece, Victims

STALE_MAX = 1024
LOOKS_MAX = 16
"""So many pieces are looked at anew for one that goes: what changed far from a piece is found when its turn comes."""

_SPLITS = attrs.validators.instance_of(bool)


class Order(Protocol):
    """What ``RankedVictims`` asks of a policy.

    ``ages`` says whether ranks look at ``floor``: then the floor is the first number of the rank of what went last, as
    it was when the piece was last used, and a policy that adds it lets what was worth much once give way in time
    (GreedyDual). Where ``ages`` is False it stands for nothing.
    """

    ages: bool

    def rank(self, piece: Piece, floor: float) -> tuple[float, ...]:
        """The piece's rank, as many numbers for every piece: the least goes first."""
        ...


@attrs.frozen
class Lru:
    """What was used longest ago goes first. ``splits = false`` is the order that ignores kinds."""

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "lru"
    ages = weighs = False

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[float, ...]:
        """When it was used last."""
        return (piece.used,)


@attrs.frozen
class Lfu:
    """What fewest requests started from goes first; among these, what was used longest ago."""

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "lfu"
    ages = weighs = False

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[float, ...]:
        """How often it was started from, then when it was used last."""
        return (piece.hits, piece.used)


@attrs.frozen
class Priority:
    """What the least important requests brought goes first; among these, what was used longest ago."""

    splits: bool = attrs.field(default=True, validator=_SPLITS)
    name = "priority"
    ages = weighs = False

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[float, ...]:
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
    ages = weighs = True

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[float, ...]:
        """What it is worth, -1 where that is nothing; then when it was used last."""
        if not piece.tokens:
            return (-1.0, piece.used)
        return (floor + (piece.hits + 1) * piece.tokens / max(1, piece.bytes), piece.used)


class RankedVictims:
    """The ``Victims`` of a policy that ranks pieces, in a heap; for policies of plugins too: ``open`` may return one.

    Adding, touching and popping take logarithmic time. What ``pop`` looks at anew may go later than it was ranked for,
    never sooner: a rank that can fall by itself, without a touch, is not seen to fall.

    A piece's way:  1. add, touch  it is ranked; a rank that it had before is stale.
                    2. pop         stale ranks are skipped. The first piece is looked at: one that ranks higher by now
                                   is ranked anew, and the next one looked at.
                    3. remove      its rank is stale.
    Always:  the heap has the last rank of every piece, and at most as many stale ones + STALE_MAX
    A rank ends with its piece's key. Where values age, the floor at which each key was ranked is kept beside with its
    last use, also while the piece may not go.
    """

    def __init__(self, order: Order) -> None:
        self._rank = order.rank
        self._ranks: dict[int, tuple[float, ...]] = {}
        self._heap: list[tuple[float, ...]] = []
        self._floors: dict[int, tuple[int, float]] | None = {} if order.ages else None
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, key: int, piece: Piece) -> None:
        """This piece may go from here on."""
        ranks, floors = self._ranks, self._floors
        if key in ranks:
            fail("eviction.piece_is_there_already", key=key)
        floor = self._floor
        if floors is not None:  # a piece that was locked meanwhile, and not used, is no newer for it
            used, before = floors.get(key, (-1, floor))
            floor = before if used == piece.used else floor
            floors[key] = (piece.used, floor)
        ranks[key] = rank = (*self._rank(piece, floor), key)
        heappush(self._heap, rank)

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        """What is known of a piece has changed."""
        floor = self._floor if used or self._floors is None else self._floors[key][1]
        rank = (*self._rank(piece, floor), key)
        if self._floors is not None:
            self._floors[key] = (piece.used, floor)
        if rank != self._ranks[key]:
            self._put(key, rank)

    def remove(self, key: int) -> None:
        """This piece may not go, or has gone with another."""
        del self._ranks[key]
        self._tidy()

    def pop(self, look: Callable[[int], Piece] | None) -> int | None:
        """Remove and return the piece that goes first; None where there is none."""
        ranks, heap, floors, looks = self._ranks, self._heap, self._floors, LOOKS_MAX
        while heap:
            rank = heappop(heap)
            key = int(rank[-1])
            if ranks.get(key) is not rank:
                continue
            if looks and look is not None:
                looks -= 1
                piece, floor = look(key), 0.0 if floors is None else floors[key][1]
                now = (*self._rank(piece, floor), key)
                if now > rank:
                    self._put(key, now)
                    continue
            del ranks[key]
            if floors is not None:
                del floors[key]
                self._floor = max(self._floor, rank[0])
            return key
        return None

    def _put(self, key: int, rank: tuple[float, ...]) -> None:
        self._ranks[key] = rank
        heappush(self._heap, rank)
        self._tidy()

    def _tidy(self) -> None:
        """Forget stale ranks once there are as many as pieces."""
        if len(self._heap) > 2 * len(self._ranks) + STALE_MAX:
            self._heap[:] = self._ranks.values()
            heapify(self._heap)
