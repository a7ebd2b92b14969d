"""H01: two pools look free, the pair does not fit; eviction stops exactly where the pair does."""

import pytest
from chains import bytes_left
from storages import Entries, Tagged, assert_quiet, built, rows_of
from toys import Bytes

from kvarena.admission.admission import Admission
from kvarena.terms.answers import Admit, Wait
from kvarena.terms.layers import Part
from kvarena.terms.lifetimes import Full, Window

UNIT = 256
PAIR = 2 * UNIT


@pytest.mark.req("CAP-1")
@pytest.mark.req("CAP-4")
@pytest.mark.req("ADM-2")
@pytest.mark.req("ADM-3")
@pytest.mark.req("ADM-7")
def test_the_pair_is_asked_for_and_evicted_for_as_a_pair() -> None:
    """Twelve pages for both kinds beside the sinks: 4 fit of either, not of both, and one entry pays for four."""
    storage = built(
        Part(Bytes(PAIR), Window(64)), Part(Bytes(PAIR), Full()),
        memory=24 * UNIT + PAIR, page_tokens=1, context_tokens=4, max_running=2,
    )  # fmt: skip
    chain, tagged, cache = storage.chain, Tagged(storage), Entries(storage)
    admission = Admission(chain, storage.sizing, storage.ownership, chunk_tokens=8, cache=cache)
    assert (storage.plan.names, len(chain.usable)) == (("window-64", "full"), 24 * UNIT)

    x = storage.open()
    assert tagged.step((x, 1))
    for name in ("E1", "E2"):
        row = storage.open()
        assert tagged.step((row, 1))
        cache.keep(name, row, 1)

    assert chain.feasible((0, 4))
    assert chain.feasible((4, 0))
    assert not chain.feasible((4, 4))

    answer = admission.ask(4, 1)
    assert answer == Admit((4, 4), evicts=True)
    assert cache.evicted == []
    assert admission.make_room(answer)
    assert cache.evicted == ["E1"]
    admission.promise(answer.charge)
    y = storage.open()
    admission.start(rows_of(y), [answer.charge])
    assert tagged.step((y, 4))
    assert bytes_left(chain) == 0

    assert not chain.feasible((1, 1))
    assert chain.feasible_after((1, 1), cache.evictable())
    waiting = admission.ask(2, 1)
    assert waiting == Wait(("window-64", "full"), (2, 2), (0, 0))
    assert cache.evicted == ["E1"]

    for name in ("window-64", "full"):
        assert tagged.reads(name, x, [0])
        assert tagged.reads(name, y, range(4))
    storage.close(y)
    admission.forget(y)
    cache.evict(lambda _: True)
    assert cache.evicted == ["E1", "E2"]
    assert chain.feasible((5, 5))
    assert not chain.feasible((5, 6))
    assert all(tagged.reads(name, x, [0]) for name in ("window-64", "full"))
    storage.close(x)
    assert_quiet(storage)
    tagged.release()
