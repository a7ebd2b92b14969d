"""Of a long list that breaks a promise, the shortest part that still does is found."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvarena.plugins.stress.swarm.shrink import shrink


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_what_is_left_is_a_part_of_which_nothing_can_go(whole: list[int], chance: random.Random) -> None:
    """The least list breaks, keeps its order, and breaks no more without any one of its items."""
    guilty = chance.sample(range(len(whole)), min(3, len(whole)))
    needed = [whole[place] for place in sorted(guilty)]

    def breaks(part: Sequence[int]) -> bool:
        rest = iter(part)
        return all(item in rest for item in needed)

    shrunk = shrink(whole, breaks)

    assert list(shrunk.left) == needed
    assert shrunk.is_least


def test_items_take_their_simplest_form() -> None:
    """A number that must be above ten becomes eleven, and one that must only be there becomes nothing."""
    shrunk = shrink(
        [3, 40, 90],
        lambda part: len(part) > 1 and sum(part) > 10,
        lambda item: range(item),
    )

    assert sum(shrunk.left) == 11
    assert len(shrunk.left) == 2


def test_the_number_of_runs_is_bounded() -> None:
    """With few runs the shortest list so far is returned, and said not to be the least."""
    runs = 0

    def breaks(part: Sequence[int]) -> bool:
        nonlocal runs
        runs += 1
        return {1, 50, 99} <= set(part)

    shrunk = shrink(range(100), breaks, tries_max=12)

    assert runs == shrunk.tries == 12
    assert {1, 50, 99} <= set(shrunk.left)
    assert len(shrunk.left) < 100
    assert not shrunk.is_least
