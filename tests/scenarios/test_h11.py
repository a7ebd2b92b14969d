"""H11: two pieces that share a page free it once."""

from collections.abc import Callable

import pytest
from storages import Tagged, assert_quiet, built, nothing_changes
from toys import Bytes

from kvarena.storage.storage import Storage
from kvarena.terms.errors import InvariantError
from kvarena.terms.layers import Part
from kvarena.terms.lifetimes import Full

PAGES, PAGE_TOKENS, ENTRY = 10, 8, 32


def two_calls(storage: Storage, row: int) -> None:
    """The piece before the last is refused before anything changes; from the end on, each page goes in its turn."""
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_leaves_rows_behind"):
        storage.ownership.free_rows(row, [range(8, 12)])
    storage.ownership.free_rows(row, [range(12, 20)])
    assert storage.chain.bands["full"].live == 2
    storage.ownership.free_rows(row, [range(8, 12)])


WAYS: dict[str, Callable[[Storage, int], None]] = {
    "one call": lambda storage, row: storage.ownership.free_rows(row, [range(8, 12), range(12, 20)]),
    "the other order": lambda storage, row: storage.ownership.free_rows(row, [range(12, 20), range(8, 12)]),
    "two calls": two_calls,
    "refused, then whole": lambda storage, row: storage.ownership.free_rows(row, [range(8, 20)]),
}


@pytest.mark.req("IDS-4")
@pytest.mark.req("CAP-5")
@pytest.mark.parametrize("way", WAYS)
def test_a_page_with_a_seam_in_it_comes_back_once(way: str) -> None:
    """Three pages, one of them the cache's; the other two come back, and nine requests find a page each."""
    storage = built(
        Part(Bytes(ENTRY), Full()),
        memory=(PAGES + 1) * PAGE_TOKENS * ENTRY, page_tokens=PAGE_TOKENS, context_tokens=24, max_running=12,
    )  # fmt: skip
    tagged, band = Tagged(storage), storage.chain.bands["full"]
    assert len(storage.chain.usable) == PAGES * PAGE_TOKENS * ENTRY
    r = storage.open()
    assert tagged.step((r, 20))
    cached = storage.ownership.hand_over(r, 8)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_straddles_an_owner"):
        storage.ownership.free_rows(r, [range(4, 20)])

    WAYS[way](storage, r)
    assert (band.live, storage.chain.feasible((9,)), storage.chain.feasible((10,))) == (1, True, False)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_leaves_rows_behind"):
        storage.ownership.free_rows(r, [range(8, 20)])
    assert tagged.reads("full", r, range(8))
    storage.close(r)
    assert band.live == 1

    nine = [storage.open() for _ in range(9)]
    assert tagged.step(*((row, 8) for row in nine))
    pages = [int(storage.translate(storage.requests.open_rows()).tables["full"][at, 0]) for at in range(9)]
    assert len({*pages, *storage.chain.pages("full", cached).tolist()}) == 10
    assert all(tagged.reads("full", row, range(8)) for row in nine)
    one_more = storage.open()
    assert not tagged.step((one_more, 8))
    storage.ownership.free_pages(cached)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_of_page_not_handed_over"):
        storage.ownership.free_pages(cached)
    assert tagged.step((one_more, 8))
    assert all(tagged.reads("full", row, range(8)) for row in (*nine, one_more))
    storage.close(storage.requests.open_rows())
    assert_quiet(storage)
    tagged.release()
