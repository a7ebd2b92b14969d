"""Which numbers of one list are in another: small lists against each other, many times a second."""

import numpy as np
import numpy.typing as npt

from kvarena.terms.ports import IntArray


def is_once(values: IntArray) -> bool:
    """Whether no value stands twice."""
    order = np.sort(values)
    return not np.count_nonzero(order[1:] == order[:-1])


def among(values: IntArray, others: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each value is one of the others; neither need be sorted. A tenth of what ``numpy.isin`` takes."""
    if not len(others):
        return np.zeros(len(values), dtype=np.bool_)
    order = np.sort(others)
    at = order.searchsorted(values)
    at[at == len(order)] = 0
    found: npt.NDArray[np.bool_] = order[at] == values
    return found
