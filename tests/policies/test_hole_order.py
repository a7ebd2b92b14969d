"""Orders of holes: each keeps exactly the holes it was given, and hands them out in its order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.policies.hole_order import Nearest, Recent
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW, End, HoleOrder

ORDERS = (Nearest(), Nearest(recent_max=0), Nearest(recent_max=3), Recent())


def pages(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("end", [LOW, HIGH], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_holes_are_kept_exactly(order: HoleOrder, end: End, data: st.DataObject) -> None:
    """Beside a set: adds, takes, removes, and every question, in any order."""
    count = 200
    holes, model = order.open(count, end), set()
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from(("add", "take", "remove", "drop below", "drop above")))
        if act == "add":
            free = sorted(set(range(count)) - model)
            added = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=40)) if free else []
            holes.add(pages(*added))
            model |= set(added)
        elif act == "take":
            taken = holes.take(data.draw(st.integers(0, len(model)))).tolist()
            assert len(set(taken)) == len(taken)
            assert set(taken) <= model
            model -= set(taken)
        elif act == "remove" and model:
            gone = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True, max_size=40))
            holes.remove(pages(*gone))
            model -= set(gone)
        assert len(holes) == len(model)
        asked = data.draw(st.integers(0, count))
        expected = sorted(model, reverse=end is HIGH)[:asked]
        assert holes.nearest(asked).tolist() == expected
        edge = data.draw(st.integers(0, count))
        below = next(n for n in range(count + 1) if edge - n - 1 not in model)
        above = next(n for n in range(count + 1) if edge + n not in model)
        if act == "drop below":
            assert holes.drop_below(edge) == below
            model -= set(range(edge - below, edge))
        elif act == "drop above":
            assert holes.drop_above(edge) == above
            model -= set(range(edge, edge + above))
        assert len(holes) == len(model)
    assert set(holes.take(len(holes)).tolist()) == model


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
def test_a_page_is_a_hole_once(order: HoleOrder) -> None:
    """Adding a hole again, or removing what is none, is caught."""
    holes = order.open(10, LOW)
    holes.add(pages(3))
    with pytest.raises(InvariantError, match=r"holes\.added_twice"):
        holes.add(pages(3))
    with pytest.raises(InvariantError, match=r"holes\.removed_is_a_hole"):
        holes.remove(pages(4))


@pytest.mark.parametrize("wrong", [-1, "many", 1.5])
def test_settings_are_checked(wrong: object) -> None:
    """A bad setting is refused when the policy is made."""
    with pytest.raises((ValueError, TypeError), match="recent_max"):
        Nearest(recent_max=wrong)  # type: ignore[arg-type]
