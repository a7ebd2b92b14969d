"""Whole numbers in arrays, against lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms.numbers import READY, constant, first, spread


@pytest.mark.parametrize("count", [0, 1, READY, READY + 3])
def test_the_first_numbers_are_counted_from_0(count: int) -> None:
    """However many: of the most that are kept ready, and of more."""
    numbers = first(count)
    assert numbers.dtype == np.int64
    assert np.array_equal(numbers, np.arange(count))


def test_what_is_shared_is_only_read() -> None:
    """The numbers kept ready, and a constant, belong to all."""
    for shared in (first(4), constant(3)):
        with pytest.raises(ValueError, match="read-only"):
            shared += 1
    assert (np.arange(3) + constant(3)).tolist() == [3, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_spans_are_spread(spans: list[tuple[int, int]]) -> None:
    """One after another, the empty ones left out."""
    start, counts = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    expected = [number for low, count in spans for number in range(low, low + count)]
    assert spread(start, counts, counts.cumsum()).tolist() == expected
