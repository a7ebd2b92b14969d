"""Eviction policies that break one promise each: the least recently used first, and one thing that is nearly right."""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
from sabotage import saboteur

from kvarena.plugins.conformance import EvictionConformance
from kvarena.policies.eviction import Lru, RankedVictims
from kvarena.terms.ports import Piece

Look = Callable[[int], Piece] | None


@attrs.frozen
class Order(Lru):
    """Least recently used first; makes one sort of victims."""

    victims: Any = RankedVictims
    name = "order"

    def open(self) -> Any:
        return self.victims(self)


@attrs.frozen
class Perhaps(Order):
    """A number for a yes."""

    splits: Any = attrs.field(default=1)


class Miscounts(RankedVictims):
    """Once one has gone, it counts one too many."""

    popped = 0

    def pop(self, look: Look) -> int | None:
        self.popped = 1
        return super().pop(look)

    def __len__(self) -> int:
        return super().__len__() + (self.popped if super().__len__() else 0)


class LetsOneGoTwice(RankedVictims):
    """The last of several goes a second time, where nothing was touched or removed."""

    ghost: int | None = None
    changed = False

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        self.changed = True
        super().touch(key, piece, used=used)

    def remove(self, key: int) -> None:
        self.changed = True
        super().remove(key)

    def pop(self, look: Look) -> int | None:
        key = super().pop(look)
        if key is None and look is not None and not self.changed:
            key, self.ghost = self.ghost, None
        else:
            self.ghost = key
        return key


class LetsReadersDown(RankedVictims):
    """What was removed still goes."""

    def __init__(self, order: Any) -> None:
        super().__init__(order)
        self.read: set[int] = set()

    def remove(self, key: int) -> None:
        self.read.add(key)

    def add(self, key: int, piece: Piece) -> None:
        if key not in self.read:
            super().add(key, piece)


class DropsUnused(RankedVictims):
    """A piece that changed and was not used is lost."""

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        if used:
            super().touch(key, piece, used=True)
        else:
            super().remove(key)


class NeedsALook(RankedVictims):
    """Without a look there is none to go."""

    def pop(self, look: Look) -> int | None:
        return None if look is None else super().pop(look)


class Scans:
    """Every pop looks at every piece."""

    def __init__(self, order: Any) -> None:
        self.pieces: dict[int, Piece] = {}

    def __len__(self) -> int:
        return len(self.pieces)

    def add(self, key: int, piece: Piece) -> None:
        self.pieces[key] = piece

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        self.pieces[key] = piece

    def remove(self, key: int) -> None:
        del self.pieces[key]

    def pop(self, look: Look) -> int | None:
        key = min(self.pieces, key=lambda key: (self.pieces[key].used, key), default=None)
        if key is not None:
            del self.pieces[key]
        return key


NUMBERS = itertools.count()


class Backwards(RankedVictims):
    """The other way round, in every other cache, once it has seen more than so many pieces."""

    least = 0

    def __init__(self, order: Any) -> None:
        super().__init__(order)
        self.is_odd, self.seen = next(NUMBERS) % 2, 0

    def add(self, key: int, piece: Piece) -> None:
        self.seen += 1
        super().add(key, self.turned(piece))

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        super().touch(key, self.turned(piece), used=used)

    def turned(self, piece: Piece) -> Piece:
        return piece._replace(used=type(piece.used)(-piece.used)) if self.is_odd and self.seen > self.least else piece

    def pop(self, look: Look) -> int | None:
        return super().pop(None)


class BackwardsLate(Backwards):
    """After a while."""

    least = 13


class Tolerant(RankedVictims):
    """A piece may be added twice."""

    def add(self, key: int, piece: Piece) -> None:
        if key in self:
            self.remove(key)
        super().add(key, piece)

    def __contains__(self, key: int) -> bool:
        try:
            self.remove(key)
        except KeyError:
            return False
        super().add(key, Piece(0, 0, 0, 0, 0))
        return True


@attrs.frozen
class OneForAll(Order):
    """One for all caches."""

    one: Any = attrs.field(factory=lambda: Tolerant(Lru()), eq=False, repr=False)

    def open(self) -> Any:
        return self.one


def _of(victims: Any) -> Any:
    return lambda: Order(victims=victims)


TestPerhaps = saboteur(EvictionConformance, "test_says_plainly_what_it_looks_at", policy=Perhaps)
TestMiscounts = saboteur(EvictionConformance, "test_counts_its_pieces", policy=_of(Miscounts))
TestLetsOneGoTwice = saboteur(EvictionConformance, "test_lets_each_piece_go_once", policy=_of(LetsOneGoTwice))
TestLetsReadersDown = saboteur(EvictionConformance, "test_keeps_what_may_not_go", policy=_of(LetsReadersDown))
TestDropsUnused = saboteur(EvictionConformance, "test_a_piece_that_changed_is_still_one", policy=_of(DropsUnused))
TestNeedsALook = saboteur(EvictionConformance, "test_lets_pieces_go_without_a_look", policy=_of(NeedsALook))
TestBackwards = saboteur(EvictionConformance, "test_answers_alike_on_every_rank", policy=_of(Backwards))
TestOneForAll = saboteur(EvictionConformance, "test_keeps_caches_apart", policy=OneForAll)
TestScans = saboteur(EvictionConformance, "test_is_quick_however_many_there_are", policy=_of(Scans))
TestBackwardsLate = saboteur(EvictionConformance, "test_holds_in_the_stress_harness", policy=_of(BackwardsLate))
