"""Snapshots that are kept, and what ``verify`` finds."""

import pytest
from chains import chain_of, planned, take_tokens, three_kinds

from kvarena.chain.describe import stats
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Full, State, Window


@pytest.mark.req("CAP-2")
def test_a_snapshot_is_kept_until_something_changes() -> None:
    """The same object while the epoch stands; it holds counts and frontiers, no positions."""
    chain = three_kinds()
    ids = take_tokens(chain, 5)
    kept, epoch = chain.snapshot(), chain.epoch
    assert chain.snapshot() is kept
    assert chain.feasible((0, 1, 1))
    assert (chain.snapshot(), chain.epoch) == (kept, epoch)
    chain.free("full", ids[:1])
    assert chain.epoch > epoch
    assert chain.snapshot() != kept
    assert stats(chain)["full"]["live"] == 4


@pytest.mark.parametrize("band", ["state", "window-8", "full"])
def test_verify_finds_a_lost_page(band: str) -> None:
    """A frontier that is off by a page is seen, in whichever band."""
    chain = three_kinds()
    take_tokens(chain, 9, "window-8")
    slots = chain.minters["state"].mint(2)
    assert slots is not None
    chain.take({"state": slots})
    chain.verify()
    chain.bands[band].stop += 1  # type: ignore[union-attr]
    with pytest.raises(InvariantError, match=r"band\.sum"):
        chain.verify()


def test_verify_finds_two_bands_on_the_same_bytes() -> None:
    """Each by itself is in order; together they are not."""
    chain = three_kinds()
    take_tokens(chain, 9, "window-8")
    other = chain_of(planned((State(), 60), (Window(8), 4), (Full(), 10)), 1000)
    slots = other.minters["state"].mint(8)
    assert slots is not None
    assert not isinstance(other.take({"state": slots}), Refused)
    other.verify()
    chain.bands["state"] = other.bands["state"]
    with pytest.raises(InvariantError, match=r"chain\.spans_in_order"):
        chain.verify()


@pytest.mark.req("CAP-2")
def test_verify_finds_a_snapshot_that_was_kept_past_a_change() -> None:
    """Somebody changed a band behind the chain's back: each band agrees with itself, the snapshot with none."""
    chain = three_kinds()
    ids = take_tokens(chain, 9, "window-8")
    chain.snapshot()
    chain.verify()
    chain.bands["window-8"].free(ids[:2])
    with pytest.raises(InvariantError, match=r"chain\.stale_snapshot"):
        chain.verify()
