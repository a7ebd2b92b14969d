"""Rows that do not simply step: held by a load or a receive, or with drafts."""

import numpy as np
import pytest

from kvarena.storage.away import Away
from kvarena.terms.errors import InvariantError


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_a_row_that_was_closed_is_not_let_go_of_by_who_held_it_before() -> None:
    """A holder's number is its own: a row that was closed and taken again is another's."""
    away = Away(3)
    first = away.hold(1)
    away.close(rows(1))
    second = away.hold(1, receives=True)
    assert (first > 0, second < 0) == (True, True)
    away.let_go(1, first)
    assert (away.is_held_by(1, first), away.is_held_by(1, second), away.count) == (False, True, 1)
    away.let_go(1, second)
    away.check_none(rows(0, 1, 2), asked_by="a test")
    assert away.count == 0


@pytest.mark.req("SPC-1")
def test_a_row_has_drafts_until_every_reservation_is_settled() -> None:
    """Two reservations of one row count once; who drafts may reserve again, and may do nothing else."""
    away = Away(3)
    away.reserve(rows(0, 2), rows(5, 7))
    away.reserve(rows(2), rows(9))
    assert (away.count, away.reserved.tolist(), away.drafts.tolist()) == (2, [5, 0, 9], [1, 0, 2])
    away.check_none(rows(0, 2), asked_by="a test", drafting=True)
    with pytest.raises(InvariantError, match=r"^storage\.row_has_drafts: rows=array\(\[2\]\) asked_by='a test'"):
        away.check_none(rows(1, 2), asked_by="a test")
    away.settle(rows(2))
    assert (away.count, away.reserved.tolist()) == (2, [5, 0, 9])
    away.settle(rows(0, 2))
    assert (away.count, away.reserved.tolist()) == (0, [0, 0, 0])
    away.verify(np.zeros(3, dtype=np.int64))


def test_what_does_not_add_up_is_named() -> None:
    """A count of rows that are away, and a reservation that its row has outgrown."""
    away = Away(2)
    away.reserve(rows(1), rows(4))
    away.verify(rows(9, 4))
    with pytest.raises(InvariantError, match=r"^storage\.reserved_below_the_length"):
        away.verify(rows(0, 5))
    away.count = 2
    with pytest.raises(InvariantError, match=r"^storage\.away_adds_up: counted=1 kept=2"):
        away.verify(rows(0, 4))
