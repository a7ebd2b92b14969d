"""Whole numbers in arrays: the one that stands for none, the first ones, and spans of them."""

import numpy as np

from kvarena.terms.ports import IntArray

UNBOUND = -1
"""What stands where a row has no page, or no slot."""

READY = 1 << 16
_FIRST: IntArray = np.arange(READY)
_FIRST.flags.writeable = False


def first(count: int) -> IntArray:
    """The numbers from 0 on, so many of them; to be read only."""
    return _FIRST[:count] if count <= READY else np.arange(count)


def constant(value: int) -> IntArray:
    """The number as an array of no dimension: in arithmetic with arrays it costs half of what a Python int does."""
    made = np.array(value, dtype=np.int64)
    made.flags.writeable = False
    return made


def spread(start: IntArray, counts: IntArray, ends: IntArray) -> IntArray:
    """Every number of the spans of ``counts`` from ``start`` on; ``ends`` is the running sum of the counts."""
    numbers = (start + counts - ends).repeat(counts)
    numbers += first(len(numbers))
    return numbers
