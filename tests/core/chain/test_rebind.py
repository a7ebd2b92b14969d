"""Pages of a window change their ids: nothing is taken, freed or copied, whatever runs."""

from collections.abc import Callable

import numpy as np
import pytest
from chains import chain_of, everything, nothing_changes, planned, take_tokens
from hypothesis import given
from hypothesis import strategies as st

from kvarena.backends.host import HostDevice
from kvarena.bands.id_band import IdBand
from kvarena.chain.chain import Chain
from kvarena.ledger.clearance import RECEIVING, SENDING
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.lifetimes import Chunk, Full, State, Window
from kvarena.terms.ports import IntArray


def ids(*numbers: int) -> IntArray:
    return np.array(numbers, dtype=np.int64)


def windowed(in_flight: int = 0) -> Chain:
    """Six ids, of which the first three have a page of the window; overlap on a device without bytes."""
    device = HostDevice()
    chain = chain_of(planned((State(), 50), (Window(8), 4), (Full(), 10)), 1000, device=device)
    if in_flight:
        chain = Chain(chain.plan, 1000, device=device, policies=chain.policies, slot_count=8, in_flight=in_flight)
    take_tokens(chain, 3, "window-8")
    take_tokens(chain, 3)
    return chain


@pytest.mark.req("TRE-2")
@given(st.permutations(range(3)), st.permutations(range(3, 6)), st.integers(0, 3))
def test_a_page_is_found_by_its_new_id(sources: list[int], targets: list[int], count: int) -> None:
    """And by no other; the owner's pages, the counts and the snapshot are as they were."""
    chain = windowed()
    pages, full = chain.pages("window-8", ids(*sources)).copy(), chain.pages("full", np.arange(6)).copy()
    snapshot, epoch = chain.snapshot(), chain.epoch
    chain.rebind("window-8", ids(*sources[:count]), ids(*targets[:count]))
    assert chain.epoch == epoch + (count > 0)
    assert chain.snapshot() is snapshot
    assert chain.pages("window-8", ids(*targets[:count])).tolist() == pages[:count].tolist()
    assert chain.pages("window-8", ids(*sources[count:])).tolist() == pages[count:].tolist()
    assert not chain.bands["window-8"].ids.is_bound(ids(*sources[:count], *targets[count:])).any()
    assert chain.pages("full", np.arange(6)).tolist() == full.tolist()
    chain.verify()
    chain.free_all({"full": np.arange(6)})
    assert all(band.live == 0 for band in chain.bands.values())
    chain.verify()


WRONG: dict[str, Callable[[Chain], None]] = {
    "chain.rebind_pairs": lambda chain: chain.rebind("window-8", ids(0, 1), ids(3)),
    "chain.rebind_by_the_minter": lambda chain: chain.rebind("full", ids(0), ids(7)),
    "chain.rebind_by_the_minter: sub_pool='state'": lambda chain: chain.rebind("state", ids(0), ids(1)),
    "chain.window_segment_bound": lambda chain: chain.rebind("window-8", ids(0, 3), ids(4, 5)),
    "chain.window_segment_bound: ": lambda chain: chain.rebind("window-8", ids(0, 0), ids(4, 5)),
    "chain.window_segment_bound:": lambda chain: chain.rebind("window-8", ids(-1), ids(4)),
    "chain.rebind_onto_bound_id": lambda chain: chain.rebind("window-8", ids(0, 1), ids(3, 2)),
    "chain.rebind_onto_bound_id:": lambda chain: chain.rebind("window-8", ids(0, 1), ids(3, 3)),
    "chain.rebind_onto_bound_id: ": lambda chain: chain.rebind("window-8", ids(0), ids(10**9)),
    "chain.take_of_id_not_minted": lambda chain: chain.rebind("window-8", ids(0), ids(9)),
    "chain.rebind_of_reserved_page": lambda chain: chain.rebind("window-8", ids(0, 2), ids(3, 4)),
}


@pytest.mark.req("CHK-1")
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("checks", [0, 1, 2])
def test_a_wrong_rebind_changes_nothing(name: str, checks: int) -> None:
    """At any level of checks."""
    chain = windowed()
    chain.checks = checks
    chain.usage.fix("window-8", ids(2))
    with nothing_changes(chain), pytest.raises(InvariantError, match="^" + name.replace(".", r"\.")):
        WRONG[name](chain)
    with nothing_changes(chain), pytest.raises(KvarenaError, match="no sub-pool 'window-9'"):
        chain.rebind("window-9", ids(0), ids(3))
    with nothing_changes(chain):
        chain.rebind("window-8", ids(), ids())


@pytest.mark.req("TRE-2")
def test_a_page_under_a_transfer_may_change_its_id_if_it_is_known_by_page() -> None:
    """A send reads it where it is; a receive whose pages nobody was told yet is found by its ids."""
    chain = windowed(in_flight=2)
    send = chain.usage.record(SENDING, {"window-8": ids(0)})
    held = chain.usage.record(RECEIVING, {"window-8": ids(1)}, held=True)
    page = int(chain.pages("window-8", ids(0))[0])
    before = everything(chain)
    with pytest.raises(InvariantError, match=r"^chain\.rebind_of_reserved_page"):
        chain.rebind("window-8", ids(0, 1), ids(3, 4))
    assert everything(chain) == before
    chain.rebind("window-8", ids(0), ids(3))
    chain.free("window-8", ids(3))  # reserved, until the send is over
    assert [int(page) for page in chain.bands["window-8"].still.reserved] == [page]  # type: ignore[union-attr]
    chain.usage.end(send)
    assert not len(chain.bands["window-8"].still.reserved)  # type: ignore[union-attr]
    chain.usage.publish(held)
    chain.rebind("window-8", ids(1), ids(4))
    chain.usage.end(held)
    chain.verify()


@pytest.mark.req("LIF-4")
def test_no_page_changes_its_id_between_a_launch_and_its_record() -> None:
    """What an open forward reads and writes is found by the ids; recorded, it is known by page."""
    chain = windowed(in_flight=2)
    steps, event = chain.ledger.steps, chain.device.record(chain.device.current())
    forward = steps.launch()
    with pytest.raises(InvariantError, match=r"^forwards\.change_before_record: asked='rebind'"):
        chain.rebind("window-8", ids(0), ids(3))
    page = chain.pages("window-8", ids(0)).copy()
    steps.record(forward, event, {"window-8": page})
    chain.rebind("window-8", ids(0), ids(3))
    assert steps.writes.newest("window-8", chain.pages("window-8", ids(3))) == forward.number
    assert chain.pages("window-8", ids(3)).tolist() == page.tolist()


def test_a_sub_pool_without_bytes_changes_its_ids_too() -> None:
    """A stage that keeps no layer of a kind counts its ids all the same: each is its own page."""
    chain = chain_of(planned((Chunk(8), 3), (Window(6), 3)), 100)
    band = chain.bands[str(chain.plan.owner)]
    assert isinstance(band, IdBand)
    band.take(ids(0, 1, 2))
    band.rebind(ids(0, 2), ids(5, 4))
    band.verify()
    assert band.ids.is_bound(np.arange(6)).tolist() == [False, True, False, False, True, True]
    band.take(ids(0, 2))
    assert band.live == 5
    band.verify()


def test_a_mirror_is_told_of_both_ids() -> None:
    """The one that has no page any more, and the one that has."""
    chain = windowed()
    changed: list[IntArray] = []
    chain.bands["window-8"].ids.changed = changed
    chain.rebind("window-8", ids(0, 1), ids(3, 5))
    assert sorted(np.concatenate(changed).tolist()) == [0, 1, 3, 5]
