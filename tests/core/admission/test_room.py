"""What was refused is remembered while nothing can have changed; and room is made for nothing that it cannot serve."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, LONG, SHORT, STATE, Entries, nothing_changes, rows_of, storage_of

from kvarena.admission import room
from kvarena.admission.admission import Admission
from kvarena.chain.chain import Chain
from kvarena.planning.pricing import serves as of_pricing
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Refused, Wait

Kept = tuple[Storage, Entries, Admission]


def kept(*tokens: int, memory: int = 24 * 12, running: int = 4) -> Kept:
    """A storage of full attention alone whose cache has entries 0, 1, ... of so many tokens."""
    storage = storage_of((FULL,), memory=memory, running=running)
    cache = Entries(storage)
    for number, count in enumerate(tokens):
        keep(storage, cache, str(number), count)
    return storage, cache, admission_of(storage, cache)


def keep(storage: Storage, cache: Entries, name: str, tokens: int) -> bool:
    """One more entry, if there is room for it."""
    row = storage.open()
    if isinstance(row, Refused):
        return False
    fits = not isinstance(storage.step(rows_of(row), rows_of(tokens)), Refused)
    if fits:
        cache.keep(name, row, tokens)
    else:
        storage.close(row)
    return fits


def admission_of(storage: Storage, cache: Entries | None) -> Admission:
    return Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8, cache=cache)


@contextmanager
def questions(patch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What is asked of pricing inside, by whatever way."""
    asked: list[object] = []
    of_chain = Chain.feasible

    def serves(snapshot: object, demand: object) -> bool:
        asked.append(demand)
        return of_pricing(snapshot, demand)  # type: ignore[arg-type]

    def chain_feasible(chain: Chain, demand: tuple[int, ...]) -> bool:
        asked.append(demand)
        return of_chain(chain, demand)

    with patch.context() as patched:
        patched.setattr(room, "serves", serves)
        patched.setattr(Chain, "feasible", chain_feasible)
        yield asked


@pytest.mark.req("ADM-4")
def test_nobody_is_asked_about_twice_while_nothing_can_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor who asks for as much and more, promised what may be since; until a page comes back."""
    storage, cache, admission = kept(8, 8)
    admission.promise((6,))
    with questions(monkeypatch) as asked:
        assert isinstance(admission.ask(24, 1), Wait)
        count = len(asked)
        assert count
        for prompt in (24, 24, 28, 40, 27):
            assert isinstance(admission.ask(prompt, 1), Wait)
        admission.promise((1,))
        assert isinstance(admission.ask(20, 1), Wait)
        cache.lock("0")
        assert isinstance(admission.ask(24, 1), Wait)
        assert isinstance(admission.ask(16, 1), Wait)
        assert len(asked) == count
        cache.unlock("0")
        assert admission.ask(16, 1) == Admit((4,), evicts=True)
        assert len(asked) > count
        storage.ownership.free_pages(cache.pages.pop("0"))
        admission.withdraw((7,))
        assert isinstance(admission.ask(24, 1), Admit)


@pytest.mark.req("ADM-4")
@given(st.data(), st.integers(900, 2000))
@settings(max_examples=60, deadline=None)
def test_what_is_remembered_never_changes_an_answer(data: st.DataObject, memory: int) -> None:
    """After any takes, frees, promises, locks and evictions: as an admission answers that remembers nothing."""
    storage = storage_of((STATE, SHORT, LONG, FULL), memory=memory, running=4)
    cache, names = Entries(storage), iter(range(10**6))
    admission = admission_of(storage, cache)
    promises: list[tuple[int, ...]] = []
    for _ in range(data.draw(st.integers(5, 30))):
        act = data.draw(
            st.sampled_from(("ask", "ask", "ask", "keep", "lock", "unlock", "evict", "promise", "withdraw"))
        )
        entry = data.draw(st.sampled_from(sorted(cache.pages))) if cache.pages else None
        if act == "keep":
            keep(storage, cache, str(next(names)), data.draw(st.sampled_from([4, 8, 20])))
        elif act == "lock" and entry:
            cache.lock(entry)
        elif act == "unlock" and entry and cache.locks.get(entry):
            cache.unlock(entry)
        elif act == "evict":
            cache.evict(lambda _: True)
        elif act == "withdraw" and promises:
            admission.withdraw(promises.pop())
        else:
            prompt, output = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 8))
            fresh = admission_of(storage, cache)
            for charge in promises:
                fresh.promise(charge)
            with nothing_changes(storage):
                answer = admission.ask(prompt, output, reading=entry)
                assert answer == fresh.ask(prompt, output, reading=entry)
            if act == "promise" and isinstance(answer, Admit) and not answer.evicts:
                admission.promise(answer.charge)
                promises.append(answer.charge)


@pytest.mark.req("ADM-3")
def test_room_is_made_beside_what_was_promised() -> None:
    """For a checkpoint's slot, say: as few entries go as do; what was promised already needs no second room."""
    _, cache, admission = kept(8, 8)
    admission.promise((6,))
    assert admission.room_for((1,))
    assert cache.evicted == []
    assert admission.room_for((2,))
    assert cache.evicted == ["0"]
    assert admission.free_for((9,))
    assert cache.evicted == ["0"]
    assert admission.free_for((10,))
    assert cache.evicted == ["0", "1"]
    assert not admission.room_for((6,))


@pytest.mark.req("ADM-3")
def test_nothing_is_evicted_in_vain() -> None:
    """Where all that is not locked would not make room, nothing is thrown away for it."""
    storage, cache, admission = kept(8, 8)
    cache.lock("1")
    with nothing_changes(storage):
        assert not admission.room_for((10,))
        assert not admission.free_for((10,))
        assert not admission.make_room(Admit((10,), evicts=True))
        assert not admission.make_room(Admit((8,), evicts=True), reading="0")
    assert (cache.evicted, cache.locks) == ([], {"0": 0, "1": 1})
    assert admission.make_room(Admit((9,), evicts=True))
    assert cache.evicted == ["0"]


def test_only_the_least_of_what_was_refused_is_remembered() -> None:
    """A smaller refusal takes the place of those above it, and there are never many."""
    storage = storage_of((SHORT, LONG, FULL), memory=600)
    space = room.Room(storage.chain, None)
    for count in range(60):
        assert space.look((80 - count, 20 + count, 90)) == room.NO
    assert space.look((0, 90, 0)) == room.NO
    assert space.look((0, 1, 0)) == room.NOW
