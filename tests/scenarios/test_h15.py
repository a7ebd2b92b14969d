"""H15, its counting half: whatever moves in however many batches, every source comes back."""

import pytest
from storages import CATALOG, Tagged, assert_quiet
from toys import Bytes

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, Choice, PoliciesConfig, StorageConfig
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full

PAGES, ENTRY = 10, 16


@pytest.mark.req("CMP-1")
@pytest.mark.req("CMP-8")
@pytest.mark.req("CAP-5")
@pytest.mark.parametrize("freed", [(1, 3), (1, 3, 5), (1, 3, 4, 5)], ids=lambda freed: f"{len(freed)} batches")
@pytest.mark.parametrize("order", ["nearest", "recent"])
def test_every_vacated_page_comes_back(freed: tuple[int, ...], order: str) -> None:
    """One move a flush: after as many flushes as pages were freed they can all be taken, and not one more."""
    storage = build_storage(
        [Layer(0, (Part(Bytes(ENTRY), Full()),))],
        StorageConfig(
            arena=ArenaConfig(
                memory=(PAGES + 1) * ENTRY, page_tokens=1, context_tokens=4, max_running=PAGES, mirrors=False
            ),
            policies=PoliciesConfig(compaction=Choice("lazy", {"max_moves": 1}), holes=Choice(order)),
            backend="cpu",
        ),
        CATALOG,
    )
    tagged, chain = Tagged(storage), storage.chain
    rows = [storage.open() for _ in range(PAGES)]
    for row in rows:
        assert tagged.step((row, 1))
    assert storage.translate(storage.requests.open_rows()).tables["full"][:, 0].tolist() == list(range(9, -1, -1))
    kept, batches = [row for row in rows if row not in freed], len(freed)
    for row in freed:
        storage.close(row)

    for _ in range(batches):
        moves = chain.counters.moves
        assert storage.flush() == chain.counters.moves - moves == 1
        assert (chain.feasible((batches,)), chain.feasible((batches + 1,))) == (True, False)
        storage.verify()
    b = storage.open()
    assert tagged.step((b, 1))
    assert all(tagged.reads("full", row, [0]) for row in kept)
    storage.close(b)

    while storage.flush():
        storage.verify()
    shot = chain.snapshot().bands[0]
    assert (shot.live, shot.holes, shot.stop - shot.start) == (PAGES - batches, 0, PAGES - batches)
    taken = [storage.open() for _ in range(batches)]
    assert tagged.step(*((row, 1) for row in taken))
    assert not tagged.step((kept[0], 2))
    assert all(tagged.reads("full", row, [0]) for row in (*kept, *taken))
    storage.close(storage.requests.open_rows())
    assert_quiet(storage)
    tagged.release()
