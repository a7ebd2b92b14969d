"""What comes in through a public call: whole numbers, and arrays of rows, lengths or ids; or one clear error."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from kvarena.terms.errors import KvarenaError
from kvarena.terms.owners import misbehaves
from kvarena.terms.ports import IntArray

_INT64 = np.dtype(np.int64)


def whole(value: Any, what: str) -> int:
    """A count as a Python int: a numpy one of few bits would overflow in the sums that follow.

    Raises:
        KvarenaError: it is no whole number; ``what`` says whose place it is.
    """
    try:
        return index(value)
    except TypeError:
        raise KvarenaError(f"{what} is {value!r}; it must be a whole number") from None


def wholes(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Counts as Python ints.

    Raises:
        KvarenaError: one of them is no whole number.
    """
    try:
        return tuple(map(index, values))
    except TypeError:
        raise KvarenaError(f"{what} is {values!r}; whole numbers are needed") from None


def units(values: Any, what: str, names: Sequence[str]) -> tuple[int, ...]:
    """Units per sub-pool, of those with these names, as Python ints.

    Raises:
        KvarenaError: there is not one count for each, or one is no whole number, or negative.
    """
    counts = wholes(values, what)
    if len(counts) != len(names) or min(counts, default=0) < 0:
        raise KvarenaError(f"{what} are {values!r}; needed is a count, 0 or more, for each of: {', '.join(names)}")
    return counts


def share(value: Any, what: str) -> float:
    """A share of a whole, above 0.

    Raises:
        KvarenaError: it is no number above 0 and at most 1.
    """
    if not is_share(value):
        raise KvarenaError(f"{what} is {value!r}; it must be above 0 and at most 1")
    return float(value)


def is_share(value: Any) -> bool:
    """Whether it is a number above 0 and at most 1."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and bool(0 < value <= 1)


def whole_answer(answer: Any, kind: str, policy: Any) -> int:
    """A policy's answer as a Python int; ``kind`` is the word for what the policy is.

    Raises:
        PluginError: it is no whole number.
    """
    try:
        return index(answer)
    except TypeError:
        finding = f"answered {answer!r} where a whole number was asked for"
        raise misbehaves("policy.no_whole_number", kind, policy, finding) from None


def line(values: Any, what: str) -> IntArray:
    """An int64 array of one dimension, as it is.

    Raises:
        KvarenaError: it is something else; with the cure.
    """
    if type(values) is np.ndarray and values.dtype == _INT64 and values.ndim == 1:
        return values
    found = f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
    raise KvarenaError(
        f"{what} must be an int64 array of one dimension, not {found}; use np.asarray(x, dtype=np.int64)"
    )
