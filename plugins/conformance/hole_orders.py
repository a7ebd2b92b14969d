"""What a hole order promises: the holes of a band as a set, handed out in an order that is the same on every rank."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.plugins.conformance.base import TRIED, ValueConformance
from kvarena.plugins.conformance.swarm import MINE, Slice, broken_in
from kvarena.plugins.stress.swarm.lent import always
from kvarena.plugins.stress.swarm.world import Wanted
from kvarena.terms.ports import HIGH, LOW, End, HoleOrder, Holes, IntArray


class Freed(NamedTuple):
    """A grid, its end, and pages freed on it, lot by lot: no page twice."""

    pages: int
    end: End
    lots: list[list[int]]


@st.composite
def freed(draw: st.DrawFn) -> Freed:
    """A few lots of pages, single ones and runs."""
    pages = draw(st.sampled_from((1, 8, 40)))
    numbers = st.integers(0, pages - 1)
    runs = st.builds(lambda at, size: list(range(at, min(at + size, pages))), numbers, st.integers(1, 8))
    lots: list[list[int]] = []
    seen: set[int] = set()
    for lot in draw(st.lists(runs | st.lists(numbers, max_size=6), max_size=4)):
        lots.append([page for page in dict.fromkeys(lot) if page not in seen])
        seen.update(lot)
    return Freed(pages, draw(st.sampled_from((LOW, HIGH))), lots)


class HolePromises(ValueConformance):
    """What the holes of one band do."""

    word: ClassVar[str] = "hole order"

    @pytest.fixture
    def policy(self) -> HoleOrder:
        """The hole order to test."""
        return self._missing("policy", "MyOrder()")

    @pytest.fixture
    def value(self, policy: HoleOrder) -> HoleOrder:
        """The same, for what all values promise."""
        return policy

    @TRIED
    @given(lots=freed())
    def test_counts_its_holes(self, policy: HoleOrder, lots: Freed) -> None:
        """A band begins without holes, and has as many as were freed into it."""
        holes, count = policy.open(lots.pages, lots.end), 0
        for lot in ([], *lots.lots):
            holes.add(array(lot))
            count += len(lot)
            if len(holes) != count:
                self._fail(policy, f"{count} pages were freed, and it has {len(holes)} holes {told(lots)}")

    @TRIED
    @given(lots=freed(), data=st.data())
    def test_hands_out_each_hole_once(self, policy: HoleOrder, lots: Freed, data: st.DataObject) -> None:
        """``take`` gives exactly as many as asked, int64, each a hole and none twice; they are holes no more."""
        holes, there = opened(policy, lots)
        while there:
            count = data.draw(st.integers(1, len(there)), label="taken at once")
            taken = holes.take(count)
            self._check_pages(policy, "take", taken)
            pages = taken.tolist()
            if len(pages) != count:
                self._fail(policy, f"take({count}) of {len(there)} holes gave {pages} {told(lots)}")
            twice = sorted({page for page in pages if pages.count(page) > 1})
            if twice:
                self._fail(policy, f"take({count}) gave page {twice[0]} twice {told(lots)}")
            strange = sorted(set(pages) - there)
            if strange:
                self._fail(policy, f"take({count}) gave page {strange[0]}, which is no hole {told(lots)}")
            there -= set(pages)

    @TRIED
    @given(lots=freed(), data=st.data())
    def test_forgets_holes_that_moves_filled(self, policy: HoleOrder, lots: Freed, data: st.DataObject) -> None:
        """What ``remove`` was told of is neither counted nor handed out any more; all others are."""
        holes, there = opened(policy, lots)
        gone = data.draw(st.lists(st.sampled_from(sorted(there)), unique=True) if there else st.just([]))
        holes.remove(array(gone))
        left = there - set(gone)
        taken = set(holes.take(len(left)).tolist())
        if len(holes) or taken != left:
            page = min(taken ^ left, default=-1)
            self._fail(policy, f"{sorted(gone)} were removed, and page {page} is not as it should be {told(lots)}")

    @TRIED
    @given(lots=freed(), data=st.data())
    def test_finds_holes_inside_a_range(self, policy: HoleOrder, lots: Freed, data: st.DataObject) -> None:
        """``inside`` names as many holes of the range as asked or as there are, none twice, and removes none."""
        holes, there = opened(policy, lots)
        start = data.draw(st.integers(0, lots.pages), label="start")
        stop = data.draw(st.integers(start, lots.pages), label="stop")
        count = data.draw(st.integers(0, lots.pages), label="count")
        asked, inside = f"inside({count}, {start}, {stop})", {page for page in there if start <= page < stop}
        answer = holes.inside(count, start, stop)
        self._check_pages(policy, "inside", answer)
        pages = answer.tolist()
        if len(set(pages)) != len(pages) or len(pages) != min(count, len(inside)) or not set(pages) <= inside:
            self._fail(policy, f"{asked} gave {pages}, of the holes {sorted(inside)} {told(lots)}")
        if len(holes) != len(there):
            self._fail(policy, f"{asked} left {len(holes)} of {len(there)} holes {told(lots)}")

    @TRIED
    @given(lots=freed(), data=st.data())
    def test_drops_the_run_below_a_page(self, policy: HoleOrder, lots: Freed, data: st.DataObject) -> None:
        """``drop_below`` removes the holes directly below a page, up to the first gap, and says how many."""
        holes, there = opened(policy, lots)
        stop = data.draw(edges(lots.pages, {page + 1 for page in there}), label="stop")
        run = 0
        while stop - 1 - run in there:
            run += 1
        self._check_drop(policy, holes, there, (f"drop_below({stop})", holes.drop_below(stop), run, stop - run), lots)

    @TRIED
    @given(lots=freed(), data=st.data())
    def test_drops_the_run_above_a_page(self, policy: HoleOrder, lots: Freed, data: st.DataObject) -> None:
        """``drop_above`` removes the holes from a page upwards, up to the first gap, and says how many."""
        holes, there = opened(policy, lots)
        start = data.draw(edges(lots.pages, there), label="start")
        run = 0
        while start + run in there:
            run += 1
        self._check_drop(policy, holes, there, (f"drop_above({start})", holes.drop_above(start), run, start), lots)

    def _check_pages(self, policy: HoleOrder, verb: str, pages: Any) -> None:
        if not isinstance(pages, np.ndarray) or pages.dtype != np.int64 or pages.ndim != 1:
            self._fail(policy, f"{verb} gave {pages!r}; it must be a line of int64")

    def _check_drop(
        self, policy: HoleOrder, holes: Holes, there: set[int], answer: tuple[str, int, int, int], lots: Freed
    ) -> None:
        """``answer``: what was asked, what was said, how long the run is, and its first page."""
        asked, said, run, first = answer
        if said != run:
            self._fail(policy, f"{asked} said {said}, of a run of {run} {told(lots)}")
        left = there - set(range(first, first + run))
        taken = set(holes.take(len(holes)).tolist())
        if taken != left:
            page = min(taken ^ left)
            self._fail(policy, f"after {asked} page {page} is not as it should be {told(lots)}")


class HoleOrderConformance(HolePromises):
    """A hole order: give the fixture ``policy``."""

    @TRIED
    @given(lots=freed())
    def test_hands_out_pages_that_are_the_callers(self, policy: HoleOrder, lots: Freed) -> None:
        """The pages that were taken are not written over when others are freed, nor those freed when their list is."""
        holes, there = opened(policy, lots)
        taken = holes.take(len(there))
        kept = taken.tolist()
        again = array(kept)
        holes.add(again)
        again[:] = 0
        if taken.tolist() != kept:
            self._fail(policy, f"the pages taken were {kept}, and became {taken.tolist()} {told(lots)}")
        back = set(holes.take(len(there)).tolist())
        if back != there:
            self._fail(policy, f"a list of freed pages was changed, and page {min(there ^ back)} is wrong {told(lots)}")

    @TRIED
    @given(lots=freed(), data=st.data())
    def test_answers_alike_on_every_rank(self, policy: HoleOrder, lots: Freed, data: st.DataObject) -> None:
        """Two bands that are told the same hand out the same pages in the same order: ranks must agree."""
        one, other = (policy.open(lots.pages, lots.end) for _ in range(2))
        for lot in filter(None, lots.lots):
            for holes in (one, other):
                holes.add(array(lot))
            count = data.draw(st.integers(0, len(one)), label="taken")
            pages = [holes.take(count).tolist() for holes in (one, other)]
            if pages[0] != pages[1]:
                self._fail(policy, f"one band hands out {pages[0]}, another that was told the same {pages[1]}")
            asked = [holes.inside(3, 0, lots.pages).tolist() for holes in (one, other)]
            if asked[0] != asked[1]:
                self._fail(policy, f"one band names {asked[0]} inside, another that was told the same {asked[1]}")

    @TRIED
    @given(lots=freed())
    def test_keeps_bands_apart(self, policy: HoleOrder, lots: Freed) -> None:
        """What is freed in one band is no hole of another, of either end."""
        bands = [policy.open(lots.pages, end) for end in (LOW, HIGH, LOW)]
        for lot in filter(None, lots.lots):
            bands[0].add(array(lot))
        for band in bands[1:]:
            if len(band) or len(band.inside(lots.pages, 0, lots.pages)):
                self._fail(policy, f"pages freed in one band are holes of another: {len(band)} {told(lots)}")

    def test_holds_in_the_stress_harness(self, policy: HoleOrder) -> None:
        """Random requests over bands in this order keep every promise of the stress harness."""
        makers = {("policies", MINE): always(policy)}
        wanted = tuple(Wanted(policies={"holes": MINE, "compaction": other}) for other in ("eager", "lazy", "none"))
        found = broken_in(Slice(makers=makers, wanted=wanted))
        if found:
            self._fail(policy, found)


def array(pages: list[int]) -> IntArray:
    """Pages as core has them."""
    return np.array(pages, dtype=np.int64)


def opened(policy: HoleOrder, lots: Freed) -> tuple[Holes, set[int]]:
    """A band's holes with all lots freed, and the same as a set."""
    holes = policy.open(lots.pages, lots.end)
    for lot in filter(None, lots.lots):
        holes.add(array(lot))
    return holes, {page for lot in lots.lots for page in lot}


def edges(pages: int, beside: set[int]) -> st.SearchStrategy[int]:
    """A page of the grid, most often one beside a hole."""
    return st.sampled_from(sorted(beside)) | st.integers(0, pages) if beside else st.integers(0, pages)


def told(lots: Freed) -> str:
    """What was freed, in words."""
    freed_pages = ", then ".join(str(lot) for lot in lots.lots if lot) or "nothing"
    return f"(of {lots.pages} pages from the {lots.end.name} end, freed: {freed_pages})"
