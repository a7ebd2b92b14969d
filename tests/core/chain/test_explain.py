"""A chain's answer with its reasons: what it says would move is what a take then moves."""

import numpy as np
import pytest
from chains import chain_of, nothing_changes, planned, take_new, take_tokens, three_kinds

from kvarena.backends.host import HostDevice
from kvarena.bands.float_band import FloatBand
from kvarena.bands.grid import Grid
from kvarena.bands.unit_ids import UnitIds
from kvarena.chain.chain import Chain
from kvarena.chain.explain import explain, live_outside
from kvarena.ledger.ledger import Ledger
from kvarena.planning.pricing import Action
from kvarena.policies.hole_order import Nearest
from kvarena.terms.answers import Refused
from kvarena.terms.lifetimes import Full, State, Window
from kvarena.terms.ports import LOW


def told_and_done(chain: Chain, minter: str, count: int) -> tuple[dict[str, int], dict[str, int]]:
    """Pages by sub-pool that an explanation says would move for new ids, and those that moved in the take."""
    names = chain.minters[minter].names
    before = dict(chain.counters.moved_by)
    with nothing_changes(chain):
        found = explain(chain, tuple(count if name in names else 0 for name in chain.bands))
    assert found.exact
    for band in found.moved:
        assert band.pages > 0
        assert band.bytes == band.pages * chain.bands[band.name].grid.unit_bytes
    assert not isinstance(chain.take_new(minter, count), Refused)
    chain.verify()
    after = {name: pages - before.get(name, 0) for name, pages in chain.counters.moved_by.items()}
    return {band.name: band.pages for band in found.moved}, {name: pages for name, pages in after.items() if pages}


@pytest.mark.req("CAP-5")
@pytest.mark.parametrize("count", [1, 4, 8])
def test_the_pages_of_a_packed_end_are_counted(count: int) -> None:
    """Those beyond where its live pages end, once packed: also where the take grows the end that is packed."""
    chain = chain_of(planned((State(), 50), (Full(), 10)), 1000)
    ids = take_tokens(chain, 60)
    chain.free("full", ids[5:50:2])
    told, done = told_and_done(chain, "state", count)
    assert told == done
    assert (count > 6) == bool(done)


@pytest.mark.req("CAP-5")
def test_an_end_that_is_packed_for_its_own_growth_moves_as_told() -> None:
    """A float in the middle keeps the ends apart; the end's holes are used where they lie, and none moves for them."""
    chain = three_kinds()
    ids = take_new(chain, "full", 40).ids
    chain.free_all({"full": ids[1:30:3]})
    most = next(n for n in range(99) if not chain.feasible((0, n + 1, n + 1)))
    told, done = told_and_done(chain, "full", most)
    assert told == done
    assert set(done) <= {"window-8"}


@pytest.mark.req("CAP-5")
def test_a_relocated_float_is_counted_without_what_stays() -> None:
    """Its pages inside the new place are not moved; holes are nobody's."""
    chain = three_kinds()
    ids = take_tokens(chain, 40, "window-8")
    chain.free("window-8", ids[10:20])
    told, done = told_and_done(chain, "state", 6)
    assert told == done
    assert 0 < done["window-8"] < 30


@pytest.mark.req("CAP-5")
def test_what_does_not_move_is_not_listed() -> None:
    """A yes in place, an end without a page outside, a no: no band is named."""
    chain = three_kinds()
    take_new(chain, "full", 20)
    assert explain(chain, (1, 1, 1)).moved == ()
    refused = explain(chain, (0, 80, 80))
    assert not refused.fits
    assert refused.moved == ()


@pytest.mark.req("CAP-5")
def test_any_ask_moves_what_was_told() -> None:
    """Over chains with holes everywhere: every band that moves is told, page for page."""
    acts = set()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        chain = chain_of(planned((State(), 40), (Window(8), 6), (Window(30), 9), (Full(), 10)), 2000, slots=40)
        slots, ids = take_new(chain, "state", int(rng.integers(1, 14))).ids, take_new(chain, "full", 40).ids
        chain.free_all({"state": rng.choice(slots, len(slots) // 3, replace=False)})
        chain.free_all({"full": rng.choice(ids, 10, replace=False)})
        for name in ("window-8", "window-30"):
            bound = chain.bands[name].ids.bound_among(ids)
            chain.free(name, rng.choice(bound, 8, replace=False))
        minter = ("state", "full")[seed % 2]
        names = chain.minters[minter].names
        most = next(
            n for n in range(99) if not chain.feasible(tuple((n + 1) * (name in names) for name in chain.bands))
        )
        count = int(rng.integers(max(1, most - 3), most + 1))
        found = explain(chain, tuple(count * (name in names) for name in chain.bands))
        assert found.arrangement is not None
        acts |= {place.action for place in found.arrangement.places}
        told, done = told_and_done(chain, minter, count)
        assert told == done
    assert {Action.FLUSH, Action.MOVE} <= acts


@pytest.mark.req("CAP-5")
def test_an_end_that_is_packed_and_taken_from_at_once_is_counted_whole() -> None:
    """Its farthest pages go to the holes near its end first, and the ids that are taken have their places then."""
    chain = chain_of(planned((State(), 50), (Full(), 10)), 1000)
    ids = take_tokens(chain, 60)
    chain.free_all({"full": ids[35:55]})
    slots, more = chain.minters["state"].mint(8), chain.minters["full"].mint(6)
    assert slots is not None
    assert more is not None
    found = explain(chain, (8, 6))
    assert not isinstance(chain.take({"state": slots, "full": more}), Refused)
    assert {band.name: band.pages for band in found.moved} == chain.counters.moved_by == {"full": 20}
    chain.verify()


def test_live_pages_outside_a_range_are_counted() -> None:
    """To the page, on both sides, wherever the range lies; holes are not counted."""
    grid = Grid("window", 8, None, 0, 40, 41, 40, 40, zero_on_take=False)
    some = FloatBand(grid, UnitIds(40, 41, 40), Nearest().open(41, LOW), Ledger(HostDevice()))
    some.take(np.arange(10), 10, 20)
    some.free(np.array([3, 4, 7]))
    live = {10, 11, 12, 15, 16, 18, 19}
    for start in range(30):
        for stop in range(start, 31):
            assert live_outside(some, range(start, stop)) == len(live - set(range(start, stop)))
