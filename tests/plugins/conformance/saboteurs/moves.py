"""Compaction and placement policies that break one promise each."""

import itertools
from typing import Any

import attrs
from sabotage import saboteur

from kvarena.plugins.conformance import CompactionConformance, PlacementConformance


@attrs.frozen
class HalfAMove:
    """Half of the holes, exactly."""

    name = "half-a-move"

    def moves(self, live: int, holes: int) -> Any:
        return holes / 2


@attrs.frozen
class Moody:
    """All holes, then none."""

    calls: Any = attrs.field(factory=itertools.count, eq=False, repr=False)
    name = "moody"

    def moves(self, live: int, holes: int) -> int:
        return holes * (next(self.calls) % 3)


@attrs.frozen
class Impatient:
    """Who asks the same a second time is told none: so two ranks that share it differ."""

    last: Any = attrs.field(factory=lambda: [None], eq=False, repr=False)
    name = "impatient"

    def moves(self, live: int, holes: int) -> int:
        is_again, self.last[0] = self.last[0] == (live, holes) and live != holes, (live, holes)
        return 0 if is_again else holes


@attrs.frozen
class Beyond:
    """A page further than there is room."""

    name = "beyond"

    def start(self, lowest: int, highest: int) -> int:
        return highest + (highest > lowest)


@attrs.frozen
class Wavers:
    """At one end, then at the other."""

    calls: Any = attrs.field(factory=itertools.count, eq=False, repr=False)
    name = "wavers"

    def start(self, lowest: int, highest: int) -> int:
        return (lowest, highest, highest)[next(self.calls) % 3]


@attrs.frozen
class SecondThoughts:
    """Who asks the same a second time is told otherwise: so two ranks that share it differ."""

    last: Any = attrs.field(factory=lambda: [None], eq=False, repr=False)
    name = "second-thoughts"

    def start(self, lowest: int, highest: int) -> int:
        is_again, self.last[0] = self.last[0] == (lowest, highest) and lowest < highest, (lowest, highest)
        return highest if is_again else lowest


TestHalfAMove = saboteur(CompactionConformance, "test_says_a_whole_number_of_moves", policy=HalfAMove)
TestMoody = saboteur(CompactionConformance, "test_answers_alike_on_every_rank", policy=Moody)
TestImpatient = saboteur(CompactionConformance, "test_holds_in_the_stress_harness", policy=Impatient)
TestBeyond = saboteur(PlacementConformance, "test_places_between_the_lowest_and_the_highest", policy=Beyond)
TestWavers = saboteur(PlacementConformance, "test_answers_alike_on_every_rank", policy=Wavers)
TestSecondThoughts = saboteur(PlacementConformance, "test_holds_in_the_stress_harness", policy=SecondThoughts)
