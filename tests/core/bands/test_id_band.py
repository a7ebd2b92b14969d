"""Bands without bytes: ids alone, and no page that could be anywhere."""

import numpy as np
import pytest

from kvarena.bands.grid import Grid
from kvarena.bands.id_band import IdBand
from kvarena.bands.unit_ids import UnitIds
from kvarena.terms.errors import InvariantError


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_band_without_bytes_counts_ids() -> None:
    """An id is its own page; a double free is caught as in any band."""
    grid = Grid("ids", 0, None, 0, 4, 5, 4, 4, zero_on_take=False)
    some = IdBand(grid, UnitIds(4, 5, 4))
    assert some.take(ids(1, 3)).tolist() == [1, 3]
    assert (some.shot().live, some.shot().ids_free, some.shot().unit_bytes) == (2, 2, 0)
    some.free(ids(1))
    with pytest.raises(InvariantError, match=r"band\.free_of_bound_page"):
        some.free(ids(1))
    some.verify()


@pytest.mark.req("IDS-4")
def test_a_band_without_bytes_passes_over_ids_that_it_does_not_have() -> None:
    """As any band does; one named twice is caught before it is freed, and a map that disagrees is found."""
    grid = Grid("ids", 0, None, 0, 4, 5, 4, 4, zero_on_take=False)
    some = IdBand(grid, UnitIds(4, 5, 4))
    some.take(ids(0, 1, 3))
    some.free_among(ids(2, 3))
    assert (some.live, some.shot().ids_free) == (2, 2)
    for wrong in (ids(1, 1), ids(1, 2), ids(-1), ids(4)):
        with pytest.raises(InvariantError, match=r"band\.free_of"):
            some.check_free(wrong)
    some.check_free(ids(1, 0))
    some.verify()
    some.ids.owners_of(slice(0, 2))[:] = [1, 0]
    with pytest.raises(InvariantError, match=r"unit_ids\.inverse"):
        some.verify()
