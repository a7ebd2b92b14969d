"""Membership of small lists, against sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms.members import all_of, among, any_of, is_once

LISTS = st.lists(st.integers(-3, 12), max_size=12)


@given(LISTS, LISTS)
def test_values_that_are_among_others(values: list[int], others: list[int]) -> None:
    """Repeated ones too, in any order, of empty lists as well."""
    found = among(np.array(values, dtype=np.int64), np.array(others, dtype=np.int64))
    assert found.tolist() == [value in others for value in values]


@given(LISTS)
def test_whether_any_or_every_flag_is_set(values: list[int]) -> None:
    """Of views that skip some too; of no flags every one is set, and none."""
    for flags in ((array := np.array(values, dtype=np.int64)) > 4, array[::2] > 4):
        assert any_of(flags) == bool(flags.any())
        assert all_of(flags) == bool(flags.all())


@given(LISTS)
def test_whether_each_stands_once(values: list[int]) -> None:
    """And what is looked at stays as it is."""
    array = np.array(values, dtype=np.int64)
    assert is_once(array) == (len(set(values)) == len(values))
    assert array.tolist() == values
