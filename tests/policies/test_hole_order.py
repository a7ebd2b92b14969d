"""Orders of holes: each keeps exactly the holes it was given, and hands them out in its order."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarena.policies.hole_order import Nearest, Recent
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW, End, HoleOrder

ORDERS = (Nearest(), Nearest(recent_max=0), Nearest(recent_max=1), Nearest(recent_max=3), Recent())


def pages(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class HolesMachine(RuleBasedStateMachine):
    """Beside a set: adds, takes, removes, and every question, in any order that a band may ask them in.

    A page that was dropped at a frontier is freed again only after the span grew over it, which it does only once
    every hole is taken.
    """

    @initialize(
        order=st.sampled_from(ORDERS), end=st.sampled_from((LOW, HIGH)), count=st.sampled_from((1, 40, 200, 200, 1000))
    )
    def open(self, order: HoleOrder, end: End, count: int) -> None:
        self.count = count
        self.holes = order.open(count, end)
        self.order, self.end = order, end
        self.model: set[int] = set()
        self.dropped: set[int] = set()

    @rule(data=st.data(), most=st.sampled_from((1, 1, 3, 6, 40)))
    def add(self, data: st.DataObject, most: int) -> None:
        """Pages become holes: a few, which are recent ones, or more."""
        free = sorted(set(range(self.count)) - self.model - self.dropped)
        added = data.draw(st.lists(st.sampled_from(free), unique=True, min_size=1, max_size=most)) if free else []
        self.holes.add(pages(*added))
        self.model |= set(added)

    @rule(data=st.data())
    def add_a_run(self, data: st.DataObject) -> None:
        """A request ends: a run of pages comes back in one call."""
        start = data.draw(st.integers(0, self.count - 1))
        run = set(range(start, data.draw(st.integers(start, self.count)))) - self.model - self.dropped
        self.holes.add(pages(*sorted(run, reverse=data.draw(st.booleans()))))
        self.model |= run

    @rule(data=st.data(), most=st.sampled_from((1, 4, 1000, 1000)), everything=st.booleans())
    def take(self, data: st.DataObject, most: int, everything: bool) -> None:
        """So many, each once, all of them holes; the strict order is from the anchored end."""
        count = len(self.model) if everything else data.draw(st.integers(0, min(most, len(self.model))))
        taken = self.holes.take(count).tolist()
        assert len(taken) == len(set(taken)) == count
        assert set(taken) <= self.model
        if self.order == Nearest(recent_max=0):
            assert taken == sorted(self.model, reverse=self.end is HIGH)[:count]
        self.model -= set(taken)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), asked_first=st.booleans())
    def fill_by_moves(self, data: st.DataObject, asked_first: bool) -> None:
        """Those that a move filled are gone: found by a question, or any."""
        if asked_first:
            count, start, stop = self.draw_question(data)
            gone = self.holes.inside(count, start, stop).tolist()
        else:
            gone = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, max_size=40))
        self.holes.remove(pages(*gone))
        self.model -= set(gone)

    @rule(data=st.data())
    def ask_inside(self, data: st.DataObject) -> None:
        """As many as asked or as there are, between the two pages; nothing is removed by asking."""
        count, start, stop = self.draw_question(data)
        found = self.holes.inside(count, start, stop).tolist()
        there = self.model & set(range(start, stop))
        assert len(found) == len(set(found)) == min(count, len(there))
        assert set(found) <= there

    @rule(data=st.data(), below=st.booleans())
    def drop_at_a_frontier(self, data: st.DataObject, below: bool) -> None:
        """The run of holes at this page goes, and no other."""
        at = [page + 1 for page in self.model] if below else list(self.model)
        edge = data.draw(st.integers(0, self.count) | st.sampled_from(sorted(at)) if at else st.integers(0, self.count))
        step = -1 if below else 1
        first = edge - 1 if below else edge
        run = {
            first + step * n
            for n in range(next(n for n in range(self.count + 2) if first + step * n not in self.model))
        }
        assert (self.holes.drop_below(edge) if below else self.holes.drop_above(edge)) == len(run)
        self.model -= run
        self.dropped |= run

    def draw_question(self, data: st.DataObject) -> tuple[int, int, int]:
        start = data.draw(st.integers(0, self.count) | st.just(0))
        count = data.draw(st.integers(0, len(self.model)) | st.integers(0, self.count + 1))
        return count, start, data.draw(st.integers(start, self.count) | st.just(self.count))

    @precondition(lambda self: hasattr(self, "holes"))
    @invariant()
    def they_are_the_same(self) -> None:
        assert len(self.holes) == len(self.model)
        assert set(self.holes.inside(len(self.model), 0, self.count).tolist()) == self.model
        if not self.model:
            self.dropped = set()

    def teardown(self) -> None:
        if hasattr(self, "holes"):
            assert set(self.holes.take(len(self.holes)).tolist()) == self.model


TestHolesAreKeptExactly = HolesMachine.TestCase
TestHolesAreKeptExactly.pytestmark = [pytest.mark.req("IDS-4")]
TestHolesAreKeptExactly.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("end", "expected"), [(LOW, [3, 8, 20]), (HIGH, [90, 50, 20])], ids=["low", "high"])
def test_nearest_hands_out_from_the_anchored_end(end: End, expected: list[int]) -> None:
    """Whatever the order in which the pages were freed."""
    holes = Nearest(recent_max=0).open(100, end)
    holes.add(pages(50, 8, 90))
    holes.add(pages(20, 3))
    assert holes.take(3).tolist() == expected


def test_nearest_hands_recent_frees_before_its_search_out_newest_first() -> None:
    """They lie before every hole that a search would find; past the limit the order is strict again."""
    holes = Nearest(recent_max=2).open(100, LOW)
    holes.add(pages(40, 50, 60))
    assert holes.take(1).tolist() == [40]
    holes.add(pages(10))
    holes.add(pages(20))
    assert holes.take(1).tolist() == [20]
    holes.add(pages(20, 30))
    assert holes.take(4).tolist() == [10, 20, 30, 50]


@pytest.mark.parametrize("order", [Nearest(recent_max=5), Recent()], ids=str)
def test_holes_that_went_are_not_handed_out(order: HoleOrder) -> None:
    """Filled by moves or absorbed at a frontier, they leave the recent frees too; freed again, they are newest."""
    holes = order.open(200, LOW)
    holes.add(pages(10, 20, 30, 40))
    holes.remove(pages(20))
    assert holes.drop_below(41) == 1
    assert holes.take(1).tolist() == [30]
    holes.add(pages(40))
    assert holes.take(2).tolist() == [40, 10]
    assert len(holes) == 0


def test_recent_is_last_in_first_out() -> None:
    """Also across calls, and around pages that were removed or came again."""
    holes = Recent().open(100, LOW)
    holes.add(pages(5, 6, 7))
    holes.add(pages(1))
    assert holes.take(2).tolist() == [1, 7]
    holes.remove(pages(5))
    holes.add(pages(2, 5))
    assert holes.take(3).tolist() == [5, 2, 6]


def test_recent_keeps_its_stack_bounded() -> None:
    """Pages that come and are removed again and again leave no entries behind that matter."""
    holes = Recent().open(8, LOW)
    holes.add(pages(0))
    for _ in range(50):
        holes.add(pages(1, 2, 3))
        holes.remove(pages(1, 2, 3))
    holes.add(pages(4))
    assert holes.take(2).tolist() == [4, 0]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_more_holes_than_there_are_cannot_be_taken(order: HoleOrder) -> None:
    """Asking for more is the band's mistake, and is caught."""
    holes = order.open(100, LOW)
    holes.add(pages(3, 9))
    with pytest.raises(InvariantError, match=r"holes\.fewer_than_counted"):
        holes.take(3)


@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_holes_inside_a_range(order: HoleOrder, end: End) -> None:
    """Fewer than asked where there are fewer, none in an empty range, and the last page as well as the first."""
    holes = order.open(200, end)
    holes.add(pages(0, 50, 51, 52, 120, 199))
    assert sorted(holes.inside(9, 50, 53).tolist()) == [50, 51, 52]
    assert sorted(holes.inside(2, 50, 53).tolist()) in ([50, 51], [50, 52], [51, 52])
    assert (
        holes.inside(9, 53, 120).tolist() == holes.inside(9, 50, 50).tolist() == holes.inside(0, 0, 200).tolist() == []
    )
    assert holes.inside(1, 0, 50).tolist() == [0]
    assert holes.inside(1, 121, 200).tolist() == [199]
    assert len(holes) == 6


@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
def test_recent_frees_and_the_map_never_tell_the_same_hole(end: End) -> None:
    """A question that both must answer has each hole once."""

    def at(*places: int) -> np.ndarray:
        return pages(*(199 - place if end is HIGH else place for place in places))

    holes = Nearest(recent_max=2).open(200, end)
    holes.add(at(60, 70, 80, 90))
    holes.add(at(10))
    assert set(holes.inside(2, 0, 200).tolist()) == set(at(10, 60).tolist())
    assert set(holes.inside(4, 0, 200).tolist()) == set(at(10, 60, 70, 80).tolist())
    assert holes.take(2).tolist() == at(10, 60).tolist()


@pytest.mark.parametrize("recent_max", [1, 2, 5, 6])
def test_recent_frees_that_were_absorbed_are_never_handed_out(recent_max: int) -> None:
    """Dropped at a frontier while they stand among the recent ones: neither taken, nor found, nor counted."""
    for end, run, kept in ((LOW, (97, 98, 99), 40), (HIGH, (0, 1, 2), 60)):
        holes = Nearest(recent_max=recent_max).open(200, end)
        holes.add(pages(kept))
        holes.add(pages(*run))
        dropped = holes.drop_below(100) if end is LOW else holes.drop_above(0)
        assert (dropped, len(holes)) == (3, 1)
        assert holes.inside(4, 0, 200).tolist() == [kept]
        assert holes.inside(1, 0, 200).tolist() == [kept]
        holes.add(pages(kept + 1))
        assert sorted(holes.take(2).tolist()) == [kept, kept + 1]
        holes.add(pages(*run))
        assert sorted(holes.take(3).tolist()) == sorted(run)


@pytest.mark.parametrize("wrong", [-1, "many", 1.5])
def test_settings_are_checked(wrong: object) -> None:
    """A bad setting is refused when the policy is made."""
    with pytest.raises((ValueError, TypeError), match="recent_max"):
        Nearest(recent_max=wrong)  # type: ignore[arg-type]


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_pages_that_were_taken_are_the_callers_to_keep(order: HoleOrder) -> None:
    """What is freed later is not written over them."""
    holes = order.open(200, LOW)
    holes.add(pages(150))
    assert holes.take(1).tolist() == [150]
    holes.add(pages(10, 20, 30))
    ours = holes.take(2)
    kept = ours.tolist()
    holes.add(pages(40, 50))
    assert ours.tolist() == kept


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
@pytest.mark.parametrize("place", [59, 60, 61, 62])
def test_a_page_freed_beside_the_hint_is_one_hole(end: End, place: int) -> None:
    """The search goes on at the page after the last one found: freed, that one is found by it, and not told twice."""

    def at(*places: int) -> np.ndarray:
        return pages(*(199 - place if end is HIGH else place for place in places))

    holes = Nearest(recent_max=3).open(200, end)
    holes.add(at(59, 60, 90, 95))
    assert holes.take(2).tolist() == at(59, 60).tolist()
    holes.add(at(place))
    assert sorted(holes.inside(2, 0, 200).tolist()) == sorted(at(place, 90).tolist())
    assert holes.take(3).tolist() == at(place, 90, 95).tolist()


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("gone", [10, 20, 30])
def test_a_hole_that_a_move_filled_is_not_handed_out(order: HoleOrder, gone: int) -> None:
    """Alone among recent frees, with nothing absorbed: the others are, each once; and when all are filled, none."""
    holes = order.open(200, LOW)
    holes.add(pages(150))
    holes.add(pages(10, 20, 30))
    holes.remove(pages(gone))
    assert sorted(holes.inside(2, 0, 140).tolist()) == sorted({10, 20, 30} - {gone})
    assert sorted(holes.take(3).tolist()) == sorted({10, 20, 30, 150} - {gone})
    holes.add(pages(5, 6))
    holes.remove(pages(6, 5))
    holes.add(pages(7))
    assert holes.take(1).tolist() == [7]


@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
def test_the_search_skips_no_hole_between_two_windows(end: End) -> None:
    """It looks through wider and wider windows; each begins where the one before it ended."""
    holes = Nearest(recent_max=0).open(4000, end)
    places = [0, 255, 256, 257, 767, 768, 769, 1791, 1792, 3999]
    found = [3999 - place if end is HIGH else place for place in places]
    for kept in range(1, len(places)):
        holes.add(pages(*found[kept:], found[0]))
        assert set(holes.inside(2, 0, 4000).tolist()) == {found[0], found[kept]}
        assert holes.take(1 + len(found[kept:])).tolist() == [found[0], *found[kept:]]


@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_question_is_answered_from_its_range_alone(order: HoleOrder, end: End) -> None:
    """Where it holds fewer than asked, those near it do not stand in; the outermost page can be dropped by itself."""
    holes = order.open(200, end)
    holes.add(pages(0, 50, 51, 52, 53, 120, 199))
    assert sorted(holes.inside(4, 50, 53).tolist()) == [50, 51, 52]
    assert sorted(holes.inside(4, 51, 54).tolist()) == [51, 52, 53]
    assert (holes.drop_above(199), holes.drop_below(1), len(holes)) == (1, 1, 5)
    assert (holes.drop_above(200), holes.drop_below(0), len(holes)) == (0, 0, 5)


def test_a_single_recent_free_that_was_absorbed_is_gone() -> None:
    """Also where it was the only one: what is handed out next is found in the map."""
    holes = Nearest(recent_max=2).open(200, LOW)
    holes.add(pages(40, 50, 60))
    holes.add(pages(10))
    assert holes.drop_above(10) == 1
    assert holes.take(3).tolist() == [40, 50, 60]


def test_recent_hands_a_page_out_once_that_came_twice() -> None:
    """Removed and freed again, it stands in the stack twice; the stack has room for every page, however they came."""
    holes = Recent().open(100, LOW)
    holes.add(pages(6))
    holes.add(pages(5))
    holes.remove(pages(5))
    holes.add(pages(5))
    assert holes.take(2).tolist() == [5, 6]
    holes.add(np.arange(100))
    holes.remove(np.arange(60))
    holes.add(np.arange(60))
    assert holes.take(100).tolist() == [*range(59, -1, -1), *range(99, 59, -1)]


def test_a_last_hole_that_was_absorbed_and_came_again_is_one() -> None:
    """It was the only hole and a recent free: freed again it stands among the recent ones once, not twice."""
    holes = Nearest(recent_max=2).open(200, LOW)
    holes.add(pages(40, 50, 60))
    holes.take(3)
    holes.add(pages(10))
    assert holes.drop_below(11) == 1
    holes.add(pages(10))
    assert holes.take(1).tolist() == [10]
    holes.add(pages(100))
    assert holes.take(1).tolist() == [100]


def test_recent_frees_are_a_small_share_of_the_grid() -> None:
    """At most a 32nd of it, whatever was asked for: one more, and the order is strict."""
    for frees, first in ((10, 19), (11, 10)):
        holes = Nearest().open(320, LOW)
        for page in range(10, 10 + frees):
            holes.add(pages(page))
        assert holes.take(1).tolist() == [first]


def test_recent_has_room_for_one_page_at_a_time() -> None:
    """Its stack fills up to the last entry, and is cleared of what is no hole before the next."""
    for count in range(60):
        holes = Recent().open(8, LOW)
        holes.add(pages(0))
        for _ in range(count):
            holes.add(pages(1))
            holes.remove(pages(1))
        holes.add(pages(5))
        holes.add(pages(6))
        assert holes.take(3).tolist() == [6, 5, 0]


@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
def test_a_question_is_not_answered_with_recent_frees_that_were_absorbed(end: End) -> None:
    """Though they are the newest, and other holes are there to be named."""

    def at(*places: int) -> np.ndarray:
        return pages(*(199 - place if end is HIGH else place for place in places))

    holes = Nearest(recent_max=6).open(200, end)
    holes.add(at(40, 45))
    holes.add(at(97, 98, 99))
    assert (holes.drop_below(100) if end is LOW else holes.drop_above(100)) == 3
    assert holes.inside(1, 0, 200).tolist()[0] in at(40, 45).tolist()
    assert sorted(holes.take(2).tolist()) == sorted(at(40, 45).tolist())
