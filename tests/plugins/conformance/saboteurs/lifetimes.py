"""Lifetimes that break one promise each. All but the first are windows of four rows that are nearly right."""

import itertools
from typing import Any

import attrs
import numpy as np
from sabotage import saboteur

from kvarena.plugins.conformance import LifetimeConformance
from kvarena.terms.ports import IntArray

NO_FLOOR = ("floor",)
FEWEST = ("floor", "repeats")
WIDTH = 4


@attrs.frozen
class Rows:
    """Nothing is wrong with this one."""

    name = "rows"
    rank: Any = (1, -WIDTH)
    own_ids: Any = False

    def entries(self, length: int) -> int:
        return min(length, WIDTH)

    def retained(self, length: int) -> int:
        return min(length, WIDTH - 1)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        gone, going = self.gone(start), self.gone(stop)
        return (range(gone, going),) if going > gone else ()

    def gone(self, length: int) -> int:
        return max(0, length - WIDTH + 1)

    def floor(self, lengths: IntArray) -> IntArray:
        return np.maximum(lengths - (WIDTH - 1), 0)

    def reaches(self, rows: IntArray) -> IntArray:
        return rows + (WIDTH - 1)

    def repeats(self) -> tuple[int, int]:
        return WIDTH, 1


@attrs.frozen
class KeepsOneOfNothing(Rows):
    """A row is alive before there is any."""

    def entries(self, length: int) -> int:
        return max(1, min(length, WIDTH))


@attrs.frozen
class GivesAList(Rows):
    """A list of ranges."""

    def retired(self, start: int, stop: int) -> Any:
        return list(super().retired(start, stop))


@attrs.frozen
class ForgetsTheFirst(Rows):
    """Where several tokens come at once, one row is passed over."""

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        gone, going = self.gone(start), self.gone(stop)
        gone += start > 0 and stop > start + 1
        return (range(gone, going),) if going > gone else ()


@attrs.frozen
class RetiresEarly(Rows):
    """One row too many goes, which the next query reads."""

    def gone(self, length: int) -> int:
        return max(0, length - WIDTH + 2)

    def floor(self, lengths: IntArray) -> IntArray:
        return np.maximum(lengths - (WIDTH - 2), 0)

    def reaches(self, rows: IntArray) -> IntArray:
        return rows + (WIDTH - 2)


@attrs.frozen
class SaysTooFew(Rows):
    """One more row is alive than it says."""

    def entries(self, length: int) -> int:
        return min(length, WIDTH - 1)


@attrs.frozen
class LowFloor(Rows):
    """Its floor is a row behind."""

    def floor(self, lengths: IntArray) -> IntArray:
        return np.maximum(lengths - WIDTH, 0)

    def reaches(self, rows: IntArray) -> IntArray:
        return rows + WIDTH


@attrs.frozen
class ReachesEarly(Rows):
    """It says that a row goes a token before it does."""

    def reaches(self, rows: IntArray) -> IntArray:
        return rows + (WIDTH - 2)


@attrs.frozen
class RepeatsEarly(Rows):
    """Blocks of ten rows, of which it says that their needs repeat after each token."""

    floor = reaches = None

    def entries(self, length: int) -> int:
        return (length - 1) % 10 + 1 if length else 0

    def retained(self, length: int) -> int:
        return length % 10

    def gone(self, length: int) -> int:
        return length // 10 * 10

    def repeats(self) -> tuple[int, int]:
        return 0, 1


@attrs.frozen
class GrowsOld(Rows):
    """The longer it is asked, the less it retires."""

    name = "grows-old"
    floor = reaches = repeats = None
    calls: Any = attrs.field(factory=itertools.count, eq=False, repr=False)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return () if stop > 45 and next(self.calls) > 200 else super().retired(start, stop)


@attrs.frozen
class Undecided(Rows):
    """Asked often, it answers otherwise every other time."""

    name = "undecided"
    floor = reaches = repeats = None
    calls: Any = attrs.field(factory=itertools.count, eq=False, repr=False)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        number = 0 if start else next(self.calls)
        return () if number > 2000 and number % 2 else super().retired(start, stop)


def _of(cls: Any, **settings: Any) -> Any:
    return lambda: cls(**settings)


TestRankOfFloats = saboteur(LifetimeConformance, "test_has_a_rank", lifetime=_of(Rows, rank=(1, -4.0)))
TestNoneOfItsIds = saboteur(LifetimeConformance, "test_says_plainly_whose_ids_it_has", lifetime=_of(Rows, own_ids=0))
TestKeepsOneOfNothing = saboteur(LifetimeConformance, "test_keeps_between_none_and_all", lifetime=KeepsOneOfNothing)
TestGivesAList = saboteur(LifetimeConformance, "test_retires_rows_that_were_written", lifetime=GivesAList)
TestForgetsTheFirst = saboteur(LifetimeConformance, "test_retires_a_row_once", lifetime=ForgetsTheFirst)
TestRetiresEarly = saboteur(LifetimeConformance, "test_keeps_what_is_still_needed", lifetime=RetiresEarly)
TestSaysTooFew = saboteur(LifetimeConformance, "test_keeps_no_more_than_it_says", lifetime=SaysTooFew)
TestLowFloor = saboteur(LifetimeConformance, "test_its_floor_is_where_retired_rows_end", lifetime=LowFloor)
TestReachesEarly = saboteur(LifetimeConformance, "test_its_reaches_is_the_inverse_of_its_floor", lifetime=ReachesEarly)
TestRepeatsEarly = saboteur(LifetimeConformance, "test_its_repeats_changes_no_price", NO_FLOOR, lifetime=RepeatsEarly)
TestGrowsOld = saboteur(
    LifetimeConformance, "test_a_request_gets_by_with_what_it_is_charged", FEWEST, lifetime=GrowsOld
)
TestUndecided = saboteur(LifetimeConformance, "test_holds_in_the_stress_harness", FEWEST, lifetime=Undecided)
