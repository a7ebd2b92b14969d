"""A cache that chooses first and gives back in one go: as many entries go as if each had come back at once."""

from collections.abc import Callable

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, Entries, nothing_changes, rows_of, storage_of

from kvarena.admission.admission import Admission
from kvarena.admission.room import Enough
from kvarena.ledger.clearance import SENDING
from kvarena.planning.pricing import feasible
from kvarena.storage.storage import Storage
from kvarena.terms.lifetimes import Lifetime

Kinds = tuple[Lifetime, ...]
KINDS: Kinds = (STATE, SHORT, FULL)


class Batches(Entries):
    """It asks with what it has chosen, and frees all of that before it returns."""

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """The oldest first."""
        chosen: list[np.ndarray] = []
        for name in [name for name in self.pages if not self.locks.get(name)]:
            chosen.append(self.pages.pop(name))
            self.evicted.append(name)
            if enough(self.storage.ownership.units(np.concatenate(chosen))):
                break
        if chosen:
            self.storage.ownership.free_pages(np.concatenate(chosen))


@attrs.define
class Liar(Entries):
    """It says what it has chosen, and frees nothing."""

    asked: int = 0

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Ask once."""
        self.asked += 1
        assert enough(tuple(self.evictable()))


def kept(
    kind: type[Entries], entries: list[int], memory: int, *, kinds: Kinds = KINDS
) -> tuple[Storage, Entries, Admission]:
    """A storage whose cache has entries of so many tokens, as many as fit."""
    storage = storage_of(kinds, memory=memory, running=3)
    cache = kind(storage)
    for name, tokens in enumerate(entries):
        row = storage.open()
        if not isinstance(row, int) or not storage.step(rows_of(row), rows_of(tokens)):
            break
        cache.keep(str(name), row, tokens)
    return storage, cache, Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8, cache=cache)


@pytest.mark.req("ADM-3")
@given(
    st.lists(st.sampled_from([4, 8, 12, 20]), max_size=8),
    st.integers(700, 1600),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 25)), min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_a_batch_takes_what_one_by_one_would(
    entries: list[int], memory: int, asked: list[tuple[int, int, int]]
) -> None:
    """The same entries go for the same demands, and the same ones are refused."""
    _, one_by_one, plain = kept(Entries, entries, memory)
    storage, cache, admission = kept(Batches, entries, memory)
    for units in asked:
        assert admission.room_for(units) == plain.room_for(units)
        assert cache.evicted == one_by_one.evicted
    storage.verify()


@pytest.mark.req("ADM-3")
@given(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 40)), st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_it_is_enough_where_it_would_fit_after_the_frees(units: tuple[int, int, int], chosen: int) -> None:
    """From counts alone, which answer as the chain would; nothing has changed."""
    storage, cache, _ = kept(Entries, [4, 8, 12, 20, 8, 4], 900)
    ids = [*cache.pages.values()][:chosen]
    frees = storage.ownership.units(np.concatenate(ids)) if ids else (0, 0, 0)
    with nothing_changes(storage):
        says = Enough(storage.chain, units)(frees)
        assert says == storage.chain.feasible_after(units, frees)
    for some in ids:
        storage.ownership.free_pages(some)
    assert says == feasible(storage.chain.snapshot(), units)
    assert says == Enough(storage.chain, units)((0, 0, 0))


@pytest.mark.req("ADM-3")
def test_what_a_send_still_reads_makes_no_room_and_more_goes() -> None:
    """What was chosen came back and cannot be had: others go in its stead."""
    storage, cache, admission = kept(Batches, [20, 20, 20], 24 * 20, kinds=(FULL,))
    chain = storage.chain
    chain.usage.waiter = None  # the host may not wait for it
    use = chain.usage.record(SENDING, {"full": cache.pages["0"]})
    wanted = (next(count for count in range(99, 0, -1) if chain.feasible((count,))) + 5,)
    assert admission.free_for(wanted)
    assert cache.evicted == ["0", "1"]
    assert chain.feasible(wanted)
    chain.usage.end(use)
    storage.verify()


def test_a_cache_that_gives_nothing_back_is_not_asked_for_ever() -> None:
    """It says what it could free, and does not."""
    _, cache, admission = kept(Liar, [32], 24 * 12, kinds=(FULL,))
    assert isinstance(cache, Liar)
    assert not admission.room_for((8,))
    assert cache.asked == 1
