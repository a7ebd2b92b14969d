"""Hole orders that break one promise each: a set of pages, and one method that is nearly right."""

import itertools
from typing import Any

import attrs
import numpy as np
from sabotage import saboteur

from kvarena.plugins.conformance import HoleOrderConformance
from kvarena.terms.ports import HIGH, End, IntArray


class Pages:
    """Nothing is wrong with these: the lowest first."""

    def __init__(self, pages: int, end: End) -> None:
        self.pages, self.end = pages, end
        self.there: set[int] = set()

    def __len__(self) -> int:
        return len(self.there)

    def add(self, pages: IntArray) -> None:
        self.there |= set(pages.tolist())

    def take(self, count: int) -> IntArray:
        taken = sorted(self.there)[:count]
        self.there -= set(taken)
        return np.array(taken, dtype=np.int64)

    def remove(self, pages: IntArray) -> None:
        self.there -= set(pages.tolist())

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        return np.array(sorted(page for page in self.there if start <= page < stop)[:count], dtype=np.int64)

    def drop_below(self, stop: int) -> int:
        return self.drop(stop - 1, -1)

    def drop_above(self, start: int) -> int:
        return self.drop(start, 1)

    def drop(self, page: int, step: int) -> int:
        count = 0
        while page in self.there:
            self.there.remove(page)
            page, count = page + step, count + 1
        return count


class CountsLots(Pages):
    """A lot of no pages counts for one."""

    empty = 0

    def add(self, pages: IntArray) -> None:
        self.empty += not len(pages)
        super().add(pages)

    def __len__(self) -> int:
        return len(self.there) + self.empty


class GivesTwice(Pages):
    """Of some holes, but not all, the first is given twice."""

    def take(self, count: int) -> IntArray:
        partly = 1 < count < len(self.there)
        taken = super().take(count)
        return np.append(taken[:1], taken[:-1]) if partly else taken


class KeepsTheLast(Pages):
    """Of several holes that were filled it keeps one."""

    def remove(self, pages: IntArray) -> None:
        super().remove(pages[:-1] if len(pages) > 1 else pages)


class EndsLate(Pages):
    """The page behind a range is in it."""

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        return super().inside(count, start, stop + 1)


class StopsBelow(Pages):
    """A run of two is one below."""

    def drop_below(self, stop: int) -> int:
        return self.drop(stop - 1, -1) if stop - 2 not in self.there else int(not self.there.discard(stop - 1))


class StopsAbove(Pages):
    """A run of two is one above."""

    def drop_above(self, start: int) -> int:
        return self.drop(start, 1) if start + 1 not in self.there else int(not self.there.discard(start))


class Reuses(Pages):
    """What it hands out is its own, and written over."""

    def __init__(self, pages: int, end: End) -> None:
        super().__init__(pages, end)
        self.buffer = np.zeros(pages, dtype=np.int64)

    def take(self, count: int) -> IntArray:
        self.buffer[:count] = super().take(count)
        return self.buffer[:count]

    def add(self, pages: IntArray) -> None:
        self.buffer[: len(pages)] = -1
        super().add(pages.copy())


class Backwards(Pages):
    """The highest first."""

    def take(self, count: int) -> IntArray:
        taken = sorted(self.there)[::-1][:count]
        self.there -= set(taken)
        return np.array(taken, dtype=np.int64)


class Tires(Pages):
    """After many calls it hands out a page that is none of its holes."""

    calls = 0

    def take(self, count: int) -> IntArray:
        self.calls += 1
        taken = super().take(count)
        if self.calls > 12 and count:
            taken[0] = (taken[0] + 1) % self.pages
        return taken


@attrs.frozen
class Order:
    """Makes one sort of holes."""

    holes: Any
    name = "order"

    def open(self, page_count: int, end: End) -> Any:
        return self.holes(page_count, end)


NUMBERS = itertools.count()


@attrs.frozen
class Alternates:
    """Every other band hands out from the other end."""

    name = "alternates"

    def open(self, page_count: int, end: End) -> Any:
        return (Pages, Backwards)[next(NUMBERS) % 2](page_count, end)


@attrs.frozen
class Recycles:
    """A band that was opened two bands ago and is empty is as good as a new one."""

    made: Any = attrs.field(factory=list, eq=False, repr=False)
    name = "recycles"

    def open(self, page_count: int, end: End) -> Any:
        old = self.made[-2] if len(self.made) > 1 else None
        is_like_new = old is not None and not len(old) and (old.pages, old.end) == (page_count, end)
        self.made.append(old if is_like_new and end is not HIGH else Pages(page_count, end))
        return self.made[-1]


def _of(holes: Any) -> Any:
    return lambda: Order(holes)


TestCountsLots = saboteur(HoleOrderConformance, "test_counts_its_holes", policy=_of(CountsLots))
TestGivesTwice = saboteur(HoleOrderConformance, "test_hands_out_each_hole_once", policy=_of(GivesTwice))
TestKeepsTheLast = saboteur(HoleOrderConformance, "test_forgets_holes_that_moves_filled", policy=_of(KeepsTheLast))
TestEndsLate = saboteur(HoleOrderConformance, "test_finds_holes_inside_a_range", policy=_of(EndsLate))
TestStopsBelow = saboteur(HoleOrderConformance, "test_drops_the_run_below_a_page", policy=_of(StopsBelow))
TestStopsAbove = saboteur(HoleOrderConformance, "test_drops_the_run_above_a_page", policy=_of(StopsAbove))
TestReuses = saboteur(HoleOrderConformance, "test_hands_out_pages_that_are_the_callers", policy=_of(Reuses))
TestAlternates = saboteur(HoleOrderConformance, "test_answers_alike_on_every_rank", policy=Alternates)
TestRecycles = saboteur(HoleOrderConformance, "test_keeps_bands_apart", policy=Recycles)
TestTires = saboteur(HoleOrderConformance, "test_holds_in_the_stress_harness", policy=_of(Tires))
