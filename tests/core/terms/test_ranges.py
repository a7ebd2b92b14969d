"""Sets of rows as ranges do what sets of integers do."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms import ranges

PIECES = st.lists(st.builds(range, st.integers(-5, 30), st.integers(-5, 30)), max_size=6)


def rows(pieces: object) -> set[int]:
    return {row for piece in pieces for row in piece}  # type: ignore[attr-defined]


def is_normal(pieces: tuple[range, ...]) -> bool:
    """Sorted, disjoint, no two touching, none empty."""
    apart = all(left.stop < right.start for left, right in itertools.pairwise(pieces))
    return apart and all(piece for piece in pieces)


@given(PIECES)
def test_merge_keeps_the_rows_and_joins_neighbours(pieces: list[range]) -> None:
    """The union of any pieces, in any order, overlapping or not."""
    merged = ranges.merge(pieces)

    assert rows(merged) == rows(pieces)
    assert is_normal(merged)


@given(PIECES, PIECES)
def test_intersect_is_what_lies_in_both(left: list[range], right: list[range]) -> None:
    """As sets of rows, and in normal form."""
    common = ranges.intersect(left, right)

    assert rows(common) == rows(left) & rows(right)
    assert is_normal(common)


@given(PIECES, PIECES)
def test_subtract_is_what_is_left(left: list[range], right: list[range]) -> None:
    """As sets of rows, and in normal form."""
    rest = ranges.subtract(left, right)

    assert rows(rest) == rows(left) - rows(right)
    assert is_normal(rest)
