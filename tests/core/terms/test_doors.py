"""What comes in from outside is a whole number or an int64 line, or one clear error."""

from typing import Any

import numpy as np
import pytest

from kvarena.policies.compaction import Eager
from kvarena.terms.doors import line, whole, whole_answer, wholes
from kvarena.terms.errors import KvarenaError, PluginError


@pytest.mark.parametrize("value", [7, np.int32(7), np.uint8(7), True])
def test_a_whole_number_becomes_a_python_int(value: Any) -> None:
    """So that no sum overflows in the few bits that it came in."""
    assert type(whole(value, "count")) is int
    assert all(type(each) is int for each in wholes((value, 1), "demand"))


@pytest.mark.parametrize("value", [1.5, 2.0, "3", None, np.float64(4), float("nan")])
def test_anything_else_is_refused_by_name(value: Any) -> None:
    """The place and the value; whose answer it was where a policy gave it."""
    with pytest.raises(KvarenaError, match=r"^storage\.open: count is .*whole number"):
        whole(value, "storage.open: count")
    with pytest.raises(KvarenaError, match=r"^chain\.feasible: the demand is .*whole numbers"):
        wholes((1, value), "chain.feasible: the demand")
    with pytest.raises(PluginError, match=r"^compaction 'eager' \(kvarena .*\): answered .*policy\.no_whole_number"):
        whole_answer(value, "compaction", Eager())


def test_a_line_is_handed_on_as_it_is() -> None:
    """No copy, no conversion."""
    rows = np.arange(3)
    assert line(rows, "rows") is rows


@pytest.mark.parametrize(
    "values",
    [
        [1, 2], 3, None, np.arange(3, dtype=np.int32), np.arange(3, dtype=np.uint64), np.zeros(2),
        np.zeros((2, 1), dtype=np.int64), np.array([1, None], dtype=object), np.ma.array([1, 2]),
    ],
)  # fmt: skip
def test_no_other_array_passes(values: Any) -> None:
    """A narrower, unsigned, floating or object array, another shape, a list: the error says the cure."""
    with pytest.raises(KvarenaError, match=r"^rows must be an int64 array of one dimension, not .*; use np\.asarray"):
        line(values, "rows")
