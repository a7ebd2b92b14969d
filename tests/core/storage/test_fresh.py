"""Rows to be reset: each once, by the first forward after it was handed out."""

import numpy as np

from kvarena.storage.fresh import Fresh


def test_a_row_is_fresh_from_when_it_is_handed_out_until_it_is_done() -> None:
    """In order; one that is done, or was never added, is not among them."""
    fresh = Fresh(6)
    assert fresh.rows().tolist() == []
    fresh.done(np.array([2]))
    fresh.add(np.array([4, 1, 3]))
    fresh.done(np.array([3, 0]))
    assert fresh.rows().tolist() == [1, 4]
    fresh.done(fresh.rows())
    assert fresh.rows().tolist() == []
