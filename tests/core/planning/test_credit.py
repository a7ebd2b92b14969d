"""What frees that did not happen yet would make room for: as a chain in which they had answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.planning.credit import feasible_after
from kvarena.planning.pricing import feasible
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW

STATE = BandShot("state", 10, LOW, 4, 1, 0, 5, 0, fixed_start=1, fixed_stop=2)
WINDOW = BandShot("window", 4, None, 6, 0, 20, 29, 9, pending=2, reserved=1, fixed_start=28, fixed_stop=29)
FULL = BandShot("full", 5, HIGH, 8, 0, 32, 40, 3)
WINDOW_RELEASED = BandShot("window", 4, None, 6, 3, 20, 29, 9)
RELEASED = (STATE._replace(fixed_start=0, fixed_stop=0), WINDOW_RELEASED, FULL)


def snapshot() -> ChainSnapshot:
    """Three bands on 200 bytes; a send reads a state and a page of the window that lost its owner."""
    return ChainSnapshot(0, 200, (STATE, WINDOW, FULL), RELEASED)


def freed(bands: tuple[BandShot, ...], frees: tuple[int, ...]) -> tuple[BandShot, ...]:
    """These bands once so many live units are holes, and their ids free; the spans and all other pages as before."""
    return tuple(
        shot._replace(live=shot.live - count, holes=shot.holes + count, ids_free=shot.ids_free + count)
        for shot, count in zip(bands, frees, strict=True)
    )


@pytest.mark.req("ADM-2")
@given(
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 8)),
    st.tuples(st.integers(0, 6), st.integers(0, 24), st.integers(0, 14)),
    st.booleans(),
)
@settings(max_examples=400)
def test_the_answer_is_that_of_a_chain_in_which_the_units_are_holes(
    frees: tuple[int, ...], demand: tuple[int, ...], waits: bool
) -> None:
    """With ids to bind, and after the wait for transfers too, where the host may wait; what is fixed stays so."""
    now = snapshot() if waits else snapshot()._replace(released=None)
    after = ChainSnapshot(0, 200, freed(now.bands, frees), freed(RELEASED, frees) if waits else None)
    assert feasible_after(now, demand, frees) == feasible(after, demand)
    assert feasible_after(after, demand, None) == feasible(after, demand)


@pytest.mark.req("ADM-2")
@pytest.mark.req("CAP-1")
def test_ids_that_come_back_answer_for_want_of_ids() -> None:
    """Room there is, and no id: the frees bring one each, and no more."""
    alone = ChainSnapshot(0, 200, (STATE,))
    assert not feasible(alone, (1,))
    assert feasible_after(alone, (1,), (1,))
    assert not feasible_after(alone, (2,), (1,))


@pytest.mark.parametrize("frees", [(5, 0, 0), (0, -1, 0), (0, 0, 9)], ids=str)
def test_more_than_lives_is_not_credited(frees: tuple[int, ...]) -> None:
    """Nor less than nothing."""
    with pytest.raises(InvariantError, match=r"credit\.more_than_lives"):
        feasible_after(snapshot(), (0, 0, 0), frees)
