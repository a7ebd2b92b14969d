"""A snapshot after frees that did not happen yet: what is counted, and what is left as it was."""

import pytest

from kvarena.planning.credit import credited
from kvarena.planning.pricing import feasible
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import HIGH, LOW

STATE = BandShot("state", 10, LOW, 4, 1, 0, 5, 0, fixed_start=1, fixed_stop=2)
WINDOW = BandShot("window", 4, None, 6, 0, 20, 29, 9, pending=2, reserved=1, fixed_start=28, fixed_stop=29)
FULL = BandShot("full", 5, HIGH, 8, 0, 32, 40, 3)
WINDOW_RELEASED = BandShot("window", 4, None, 6, 3, 20, 29, 9)


def snapshot() -> ChainSnapshot:
    """Three bands on 200 bytes; a send reads a state and a page of the window that lost its owner."""
    released = (STATE._replace(fixed_start=0, fixed_stop=0), WINDOW_RELEASED, FULL)
    return ChainSnapshot(0, 200, (STATE, WINDOW, FULL), released)


@pytest.mark.req("ADM-2")
def test_a_credited_unit_is_a_hole_and_an_id() -> None:
    """It lives no more, its page can be taken and its id be bound; the span and all other pages are as before."""
    after = credited(snapshot(), (3, 0, 8))
    state, window, full = after.bands
    assert state == STATE._replace(live=1, holes=4, ids_free=3)
    assert window == WINDOW
    assert full == FULL._replace(live=0, holes=8, ids_free=11)
    for shot in after.bands:
        assert shot.live + shot.holes + shot.pending + shot.reserved == shot.stop - shot.start


@pytest.mark.req("ADM-2")
def test_what_waits_for_transfers_is_credited_too() -> None:
    """After the wait the frees have happened as well; until then the page that a send reads stays reserved."""
    after = credited(snapshot(), (1, 2, 3))
    assert (after.bands[1].reserved, after.bands[1].pending) == (1, 2)
    assert after.released is not None
    assert [(shot.live, shot.holes, shot.ids_free) for shot in after.released] == [(3, 2, 1), (4, 5, 11), (5, 3, 6)]
    assert (after.released[0].fixed_start, after.released[0].fixed_stop, after.released[1].reserved) == (0, 0, 0)
    assert credited(snapshot()._replace(released=None), (1, 2, 3)).released is None


@pytest.mark.req("ADM-2")
@pytest.mark.req("CAP-1")
def test_ids_that_come_back_answer_for_want_of_ids() -> None:
    """Room there is, and no id: the frees bring one each, and no more."""
    alone = ChainSnapshot(0, 200, (STATE,))
    assert not feasible(alone, (1,))
    assert feasible(credited(alone, (1,)), (1,))
    assert not feasible(credited(alone, (1,)), (2,))


@pytest.mark.parametrize("frees", [(5, 0, 0), (0, -1, 0), (0, 0, 9)], ids=str)
def test_more_than_lives_is_not_credited(frees: tuple[int, ...]) -> None:
    """Nor less than nothing."""
    with pytest.raises(InvariantError, match=r"credit\.more_than_lives"):
        credited(snapshot(), frees)
