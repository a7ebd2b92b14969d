"""Open uses of pages, and which pages share a byte with one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.ledger.clearance import CLEARANCE, COPY_READ, SENDING, Hazard
from kvarena.ledger.uses import Pages, Uses
from kvarena.terms.errors import InvariantError

UNITS = st.sampled_from([1, 2, 3, 4, 6])
SETS = st.sets(st.integers(0, 20), max_size=6)


def array(pages: set[int]) -> np.ndarray:
    return np.array(sorted(pages), dtype=np.int64)


def in_bytes(unit: int, pages: set[int]) -> set[int]:
    return {page * unit + byte for page in pages for byte in range(unit)}


@pytest.mark.req("LED-1")
@given(unit=UNITS, mine=SETS, other=UNITS, pages=SETS)
def test_pages_of_two_grids_overlap_where_they_share_a_byte(
    unit: int, mine: set[int], other: int, pages: set[int]
) -> None:
    """Whatever the two units are, against sets of bytes."""
    uses = Uses(CLEARANCE)
    uses.record(COPY_READ, {"full": Pages(unit, array(mine))}, None)
    assert bool(uses.over(other, array(pages))) == bool(in_bytes(unit, mine) & in_bytes(other, pages))
    assert not uses.over(other, array(pages), (SENDING,))


@pytest.mark.req("LED-4")
def test_a_use_is_open_until_it_is_ended_once() -> None:
    """It is found by its pages until then; a second end, or one of another ledger's, is named."""
    uses, others = Uses(CLEARANCE), Uses(CLEARANCE)
    first = uses.record(COPY_READ, {"full": Pages(8, array({1, 2}))}, None)
    second = uses.record(SENDING, {"full": Pages(8, array({2})), "state": Pages(4, array({9}))}, None)
    assert uses.over(8, array({2})) == [first, second]
    assert uses.over(2, array({18})) == [second]
    assert str(second) == "NETWORK_SEND 2 (1 full, 1 state pages)"
    with pytest.raises(InvariantError, match=r"ledger\.end_of_unknown_use"):
        others.end(first)
    uses.end(first)
    with pytest.raises(InvariantError, match=r"ledger\.end_of_unknown_use: use='COPY_READ 1"):
        uses.end(first)
    assert list(uses) == [second]
    uses.end(second)
    assert not len(uses)


def test_a_use_has_a_hazard_of_the_table() -> None:
    """What nobody has an answer for cannot be recorded."""
    with pytest.raises(InvariantError, match=r"ledger\.unknown_hazard: hazard='SCRUB'"):
        Uses(CLEARANCE).record(Hazard("SCRUB"), {}, None)
