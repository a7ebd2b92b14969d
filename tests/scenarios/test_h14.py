"""H14: a borrowed id space; the window's map covers every id that the owner can mint."""

import pytest
from storages import Tagged, assert_quiet, built
from toys import Bytes

from kvarena.storage.storage import Storage
from kvarena.terms.layers import Part
from kvarena.terms.lifetimes import Full, Window

UNIT, LAYER = 320, 32
FULL_LAYERS, WINDOW_LAYERS = 10, 50
BANDS = ("window-4", "full")


def storage_of() -> Storage:
    """A page of F is 1 unit, one of W is 5; 100 units beside the sinks."""
    parts = [Part(Bytes(LAYER), Full())] * FULL_LAYERS + [Part(Bytes(LAYER), Window(4))] * WINDOW_LAYERS
    storage = built(*parts, memory=105 * UNIT, page_tokens=1, context_tokens=80, max_running=3)
    assert [shot.unit_bytes for shot in storage.chain.snapshot().bands] == [5 * UNIT, UNIT]
    assert len(storage.chain.usable) == 100 * UNIT
    return storage


def maps_cover_the_ids(storage: Storage) -> bool:
    """Every sub-pool that binds the owner's ids has a place for each of them."""
    minter = storage.chain.minters["full"]
    return all(storage.chain.bands[name].grid.id_count >= minter.pool.count for name in minter.names)


@pytest.mark.req("IDS-1")
@pytest.mark.req("IDS-2")
@pytest.mark.req("WIN-1")
@pytest.mark.req("PLN-2+")
def test_a_long_request_binds_far_more_ids_than_the_window_has_pages() -> None:
    """Seventy ids through a band that never holds more than four pages, each read back by its own tag."""
    storage = storage_of()
    tagged, window = Tagged(storage), storage.chain.bands["window-4"]
    assert maps_cover_the_ids(storage)
    one, bound = storage.open(), set()
    for length in range(1, 71):
        assert tagged.step((one, length))
        ids = storage.requests.pages[one, :length]
        assert window.live <= 4
        assert all(tagged.reads(name, one, range(max(0, length - 4), length)) for name in BANDS)
        bound |= {int(id_) for id_ in window.ids.bound_among(ids)}
        storage.verify()
    assert len(bound) == 70
    assert max(bound) > 20 > window.grid.page_count - 2
    assert tagged.reads_the_sink("window-4", one, range(66))
    assert tagged.reads("full", one, range(70))

    storage.flush()
    two, length = storage.open(), 1
    while tagged.step((two, length)):
        length += 1
    assert 1 <= length - 1 < 10
    assert tagged.reads_the_sink("window-4", one, range(66))
    assert tagged.reads("window-4", one, range(67, 70))
    assert tagged.reads("full", one, range(70))
    assert all(tagged.reads(name, two, range(max(0, length - 4), length - 1)) for name in BANDS)
    storage.close(one)
    storage.close(two)
    assert_quiet(storage)
    tagged.release()


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize(("requests", "rows", "times"), [(1, 1, 300), (3, 10, 30)])
def test_many_short_requests_use_every_id_again(requests: int, rows: int, times: int) -> None:
    """Ids go round and round, and come back from both bands; also in a smaller arena, whose maps are new."""
    storage = storage_of()
    for budget in (105 * UNIT, 97 * UNIT):
        storage.resize(budget)
        assert maps_cover_the_ids(storage)
        tagged = Tagged(storage)
        for _ in range(times):
            opened = [storage.open() for _ in range(requests)]
            for length in range(1, rows + 1):
                assert tagged.step(*((row, length) for row in opened))
            for row in opened:
                assert all(tagged.reads(name, row, range(max(0, rows - 4), rows)) for name in BANDS)
            for row in opened:
                storage.close(row)
        assert_quiet(storage)
    tagged.release()
