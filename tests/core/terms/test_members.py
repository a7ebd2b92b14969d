"""Membership of small lists, against sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms.members import among

LISTS = st.lists(st.integers(-3, 12), max_size=12)


@given(LISTS, LISTS)
def test_values_that_are_among_others(values: list[int], others: list[int]) -> None:
    """Repeated ones too, in any order, of empty lists as well."""
    found = among(np.array(values, dtype=np.int64), np.array(others, dtype=np.int64))
    assert found.tolist() == [value in others for value in values]
