"""A queue that is admitted in one call: beside running requests, with caches that do not keep their word."""

from collections.abc import Callable, Iterator, Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, Entries, nothing_changes, one_by_one, rows_of, storage_of

from kvarena.admission.admission import TOGETHER, Admission
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never, Refused, Wait
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import Cache

pytestmark = [pytest.mark.req("ADM-1"), pytest.mark.req("ADM-2")]

CHUNK = 8
Requests = list[tuple[int, int]]


def admission_of(storage: Storage, cache: Cache | None = None) -> Admission:
    return Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=CHUNK, cache=cache)


def busy(memory: int, entries: int, running: Requests) -> tuple[Admission, Storage, Entries]:
    """A storage with cached entries, and requests that were admitted and have been prefilled by a chunk."""
    storage = storage_of((STATE, SHORT, FULL), memory=memory, running=24)
    cache = Entries(storage)
    for name in range(entries):
        row = storage.open()
        assert isinstance(row, int)
        storage.step(rows_of(row), rows_of(8))
        cache.keep(f"entry {name}", row, 8)
    admission = admission_of(storage, cache)
    charges, _ = admission.admit(running)
    rows = storage.open_batch(len(charges))
    assert not isinstance(rows, Refused)
    admission.start(rows, charges)
    storage.step(rows, rows_of(*(min(prompt, CHUNK) for prompt, _ in running[: len(charges)])))
    return admission, storage, cache


REQUESTS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), max_size=2 * TOGETHER + 3)


@given(st.integers(1200, 4000), st.integers(0, 6), REQUESTS, REQUESTS)
@settings(max_examples=60, deadline=None)
def test_a_queue_is_admitted_beside_running_requests_as_one_by_one(
    memory: int, entries: int, running: Requests, queue: Requests
) -> None:
    """The same charges, answer, promises and evictions; and whoever was admitted has what it was promised."""
    memory += entries * 150
    (admission, storage, cache), (twin, other, twin_cache) = (busy(memory, entries, running) for _ in range(2))
    found = one_by_one(twin, queue)
    answers, last = admission.admit(queue)
    assert ([answer.charge for answer in answers], last) == found
    assert (admission.promised(), cache.evicted) == (twin.promised(), twin_cache.evicted)
    assert storage.chain.snapshot() == other.chain.snapshot()
    assert (last is None) == (len(answers) == len(queue))
    rows = storage.open_batch(len(answers))
    assert not isinstance(rows, Refused)
    admission.start(rows, answers)
    for row, answer, (prompt, _) in zip(rows.tolist(), answers, queue, strict=False):
        chunk = answer.chunk_tokens or CHUNK
        for length in (*range(chunk, prompt, chunk), prompt):
            assert not isinstance(storage.step(rows_of(row), rows_of(length)), Refused)
    storage.verify()


def test_what_comes_after_the_first_that_may_not_is_not_admitted() -> None:
    """Though it would fit: a queue is served in its order. No more of it is read than is asked about at once."""
    admission = admission_of(storage_of((FULL,), memory=24 * 8, running=20))
    read: list[int] = []

    def queue() -> Iterator[tuple[int, int]]:
        for at, request in enumerate([(8, 5), (12, 1), *[(4, 1)] * 30]):
            read.append(at)
            yield request

    charges, stopped = admission.admit(queue())
    assert charges == [Admit((3,)), Admit((3,)), Admit((1,))]
    assert stopped == Wait(("full",), (1,), (7,))
    assert len(read) <= TOGETHER
    assert admission.promised() == (7,)
    charges, stopped = admission.admit([(20, 1), (4, 1)])
    assert (charges, stopped) == ([], Wait(("full",), (5,), (7,)))
    charges, stopped = admission.admit([(59, 5), (4, 1)])
    assert charges == []
    assert isinstance(stopped, Never)


def test_nothing_in_the_queue_is_nothing_promised() -> None:
    """All of them may start."""
    storage = storage_of((FULL,))
    admission = admission_of(storage)
    with nothing_changes(storage):
        assert admission.admit([]) == admission.admit(iter(())) == ([], None)
    assert admission.promised() == (0,)


@attrs.define
class Boaster:
    """A cache that says it could free everything, and frees nothing, or fails."""

    storage: Storage
    fails: bool = False
    asked: int = 0

    def evictable(self) -> Sequence[int]:
        """All that lives."""
        return [shot.live for shot in self.storage.chain.snapshot().bands]

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Nothing."""
        self.asked += 1
        if self.fails:
            raise RuntimeError("boom")
        assert not enough((0,))

    def lock(self, entry: object) -> None:
        """Nothing to lock."""

    def unlock(self, entry: object) -> None:
        """Nothing to unlock."""


def full_of_boasts(*, fails: bool) -> tuple[Storage, Boaster, Admission]:
    """Half of the arena is under a row that the cache says it could free."""
    storage = storage_of((FULL,), memory=24 * 13, running=20)
    cache = Boaster(storage, fails)
    row = storage.open()
    assert isinstance(row, int)
    storage.step(rows_of(row), rows_of(24))
    return storage, cache, admission_of(storage, cache)


def test_a_cache_that_frees_less_than_it_said_stops_the_queue() -> None:
    """Those before are admitted; the one that it was asked for waits with its sum, and is promised nothing."""
    storage, cache, admission = full_of_boasts(fails=False)
    with nothing_changes(storage):
        charges, stopped = admission.admit([(12, 1), (8, 1), (8, 1), (4, 1)])
    assert charges == [Admit((3,)), Admit((2,))]
    assert stopped == Wait(("full",), (2,), (5,))
    assert (cache.asked, admission.promised()) == (1, (5,))


@pytest.mark.req("ALC-2")
def test_a_cache_that_fails_leaves_nobody_promised() -> None:
    """Nobody was told the charges of those before it, so nobody would start with them."""
    storage, cache, admission = full_of_boasts(fails=True)
    admission.promise((1,))
    with nothing_changes(storage), pytest.raises(RuntimeError, match="boom"):
        admission.admit([(8, 1), (8, 1), (8, 1)])
    assert (cache.asked, admission.promised()) == (1, (1,))


@pytest.mark.req("ALC-2")
@pytest.mark.parametrize("wrong", [(0, 4), (-3, 4), (4, -1), (2.5, 1), ("7", 1), (float("nan"), 1)], ids=str)
def test_a_request_that_is_none_stops_all_with_nothing_promised(wrong: tuple[int, int]) -> None:
    """Wherever it stands in the queue: one clear error, and the queue may be admitted without it."""
    storage = storage_of((FULL,), running=20)
    admission = admission_of(storage)
    good = [(4, 1)] * (TOGETHER + 1)
    for at in (0, 3, TOGETHER, TOGETHER + 1):
        with nothing_changes(storage), pytest.raises(KvarenaError):
            admission.admit([*good[:at], wrong, *good[at:]])
        assert admission.promised() == (0,)
    charges, stopped = admission.admit(good)
    assert (sum(answer.charge[0] for answer in charges), stopped) == (TOGETHER + 1, None)
