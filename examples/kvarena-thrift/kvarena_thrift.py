"""Two policies: a compaction that moves no more than a share of what lives, and an eviction whose hits fade."""

import math

import attrs
from attrs import validators

from kvarena.policies.eviction import RankedVictims
from kvarena.terms.ports import Piece, Victims


@attrs.frozen
class Thrift:
    """Close holes where they are more than a ``share`` of the live pages, down to that share; else let them be."""

    share: float = attrs.field(default=0.05, validator=[validators.ge(0), validators.le(1)])
    name = "thrift"

    def moves(self, live: int, holes: int) -> int:
        return max(0, holes - math.ceil(self.share * live))


@attrs.frozen
class Fading:
    """What was started from least goes first, where a hit is worth half after ``half_life`` uses of the cache.

    A piece is worth ``(hits + 1) / 2 ** (age / half_life)``, its age counted in uses since its own last one. All pieces
    age alike, so the order of two never turns by time alone: their logarithms with the age left out rank as well.
    """

    half_life: float = attrs.field(default=64, validator=validators.gt(0))
    splits: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    name = "thrift-fading"
    ages = weighs = False

    def open(self) -> Victims:
        return RankedVictims(self)

    def rank(self, piece: Piece, floor: float) -> tuple[float, ...]:
        """The logarithm of what it is worth, and the age left out."""
        return (math.log2(piece.hits + 1) + piece.used / self.half_life, piece.used)
