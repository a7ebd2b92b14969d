"""What a span asks of a third party's holes."""

import attrs
import numpy as np
import pytest
from chains import POLICIES, chain_of, planned, take_new

from kvarena.backends.host import HostDevice
from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.grid import Grid
from kvarena.bands.unit_ids import UnitIds
from kvarena.ledger.ledger import Ledger
from kvarena.policies.hole_order import Nearest
from kvarena.terms.errors import InvariantError, PluginError
from kvarena.terms.lifetimes import Full, State, Window
from kvarena.terms.ports import HIGH, LOW, End, Holes, IntArray

pytestmark = pytest.mark.req("CMP-8")


class OffByOne:
    """Holes that hand out one page too few, or too many; everything else is as it should be."""

    def __init__(self, holes: Holes, extra: int) -> None:
        self.holes = holes
        self.extra = extra

    def __len__(self) -> int:
        return len(self.holes)

    def take(self, count: int) -> IntArray:
        """Not as many."""
        return self.holes.take(count + self.extra)

    def __getattr__(self, name: str) -> object:
        return getattr(self.holes, name)


@attrs.frozen
class Miscounting:
    """A third party's hole order."""

    extra: int
    name = "miscounting"

    def open(self, page_count: int, end: End) -> Holes:
        """One per band."""
        return OffByOne(Nearest(recent_max=0).open(page_count, end), self.extra)  # type: ignore[return-value]


@pytest.mark.parametrize("extra", [-1, 1])
@pytest.mark.parametrize("end", [LOW, HIGH, None], ids=str)
def test_a_hole_order_gives_as_many_pages_as_were_asked_for(end: End | None, extra: int) -> None:
    """One that does not is named, with what it gave, and nobody is bound to a page of it."""
    grid = Grid("full", 8, end, 1, 39, 40, 39, 40, zero_on_take=True)
    kind = FloatBand if end is None else Band
    some = kind(grid, UnitIds(40, 40, 39), Miscounting(extra).open(40, end or LOW), Ledger(HostDevice()))
    some.take(np.arange(8), *((12, 20) if end is None else (1, 9) if end is LOW else (31, 39)))
    some.free(some.ids.owners_of(np.sort(some.ids.pages_of(np.arange(8)))[2:6]))
    ids = np.array([10, 11])
    with pytest.raises(InvariantError, match=r"^band\.hole_order_gave_too_few: sub_pool='full' asked=2 pages="):
        some.reuse(ids)
    assert some.live == 4
    assert not some.ids.is_bound(ids).any()


@pytest.mark.parametrize("count", [3, 9])
def test_a_take_that_a_hole_order_fails_keeps_no_id(count: int) -> None:
    """Whether holes alone would serve it or the spans grow too: no id is out or bound in any sub-pool."""
    policies = attrs.evolve(POLICIES, hole_order=Miscounting(-1))
    chain = chain_of(planned((State(), 50), (Window(8), 4), (Full(), 10)), 1000, policies=policies)
    taken = take_new(chain, "full", 12)
    inner = np.sort(taken.pages["full"])[3:8]
    chain.free_all({"full": chain.bands["full"].ids.owners_of(inner)})
    free, live = chain.minters["full"].pool.free, [band.live for band in chain.bands.values()]
    with pytest.raises(PluginError, match=r"^hole order 'miscounting' \(.*Miscounting\): take\(.*holes\.wrong_count"):
        chain.take_new("full", count)
    assert chain.minters["full"].pool.free == free
    assert [band.live for band in chain.bands.values()] == live
