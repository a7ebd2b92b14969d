"""Nobody waits in vain: a request waits only while something gives memory back; else smaller chunks, or never."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, Entries, nothing_changes, rows_of, storage_of

from kvarena.admission.admission import Admission, Asked
from kvarena.planning.demand import Purpose, RequestShape, request_demand
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never, Refused, Wait
from kvarena.terms.errors import KvarenaError
from kvarena.terms.lifetimes import Full, Window

pytestmark = pytest.mark.req("ADM-4")


def admission_of(storage: Storage, *, chunk: int = 8, cache: Entries | None = None) -> Admission:
    return Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=chunk, cache=cache)


def cached(storage: Storage, *tokens: int) -> Entries:
    """A cache with one entry of each length, called 0, 1, ..."""
    cache = Entries(storage)
    for number, count in enumerate(tokens):
        row = storage.open()
        assert isinstance(row, int)
        assert not isinstance(storage.step(rows_of(row), rows_of(count)), Refused)
        cache.keep(str(number), row, count)
    return cache


def test_it_waits_for_what_gives_memory_back_and_says_so() -> None:
    """An admitted request, then a running one, a forward in flight, a copy under way; for nothing nobody waits."""
    storage = storage_of((Full(),), memory=24 * 11, running=4, forwards_in_flight=2)
    admission = admission_of(storage)
    answer = admission.ask(20, 1)
    assert answer == Admit((5,))
    admission.promise(answer.charge)
    assert until(admission) == ("1 admitted request",)
    row = storage.open()
    assert isinstance(row, int)
    admission.start(rows_of(row), [answer])
    assert until(admission) == ("1 running request",)
    ids = storage.step(rows_of(row), rows_of(20))
    assert not isinstance(ids, Refused)
    forward = storage.forwards.launch(ids)
    storage.forwards.record(forward)
    assert until(admission) == ("1 running request", "1 forward in flight")
    storage.ownership.hand_over(row, 20)
    page_ids = storage.ownership.handed_over()
    storage.close(row)
    admission.forget(row)
    assert until(admission) == ("1 forward in flight",)
    storage.forwards.process(forward)
    copy = storage.copies.backup({"full": page_ids})
    storage.copies.submit(copy, {"full": (storage.device.host_memory(24, 5), np.arange(5))})
    assert until(admission) == ("1 copy or transfer under way",)
    storage.copies.end(copy)
    stuck = admission.ask(24, 1)
    assert isinstance(stuck, Never)
    assert "nothing is running or under way" in stuck.reason
    assert stuck.largest_prompt == 20
    storage.ownership.free_pages(page_ids)
    assert admission.ask(24, 1) == Admit((6,))


def until(admission: Admission) -> tuple[str, ...]:
    """What a request of six pages waits for."""
    answer = admission.ask(24, 1)
    assert isinstance(answer, Wait), answer
    assert "; waits for " + ", ".join(answer.until) in answer.reason
    return answer.until


def test_the_largest_chunks_that_fit_now_let_it_start() -> None:
    """What a cache keeps locked leaves less than an empty arena: chunks of 8 fit no more, chunks of 6 do (H06)."""
    storage = storage_of((Window(8), FULL), memory=16 + 24 * 22, running=2, context=80)
    assert admission_of(storage).ask(60, 4) == Admit((4, 16))
    cache = cached(storage, 4)
    cache.lock("0")
    answers = {chunk: admission_of(storage, chunk=chunk, cache=cache).ask(60, 4) for chunk in range(1, 9)}
    for chunk, answer in answers.items():
        need = request_demand(storage.plan, RequestShape(60, 4), chunk_tokens=chunk)
        if storage.chain.feasible(need):
            assert answer == Admit(need)
        else:
            smaller = [
                (limit, units)
                for limit in range(chunk - 1, 0, -1)
                if storage.chain.feasible(
                    units := request_demand(storage.plan, RequestShape(60, 4), chunk_tokens=limit)
                )
            ]
            assert answer == (Admit(smaller[0][1], False, smaller[0][0]) if smaller else answer)
            assert smaller or isinstance(answer, Never)


@given(
    memory=st.integers(500, 1500),
    entries=st.lists(st.tuples(st.sampled_from([4, 8]), st.booleans()), max_size=4),
    prompt=st.integers(1, 56),
    output=st.integers(0, 8),
    chunk=st.integers(1, 20),
)
@settings(max_examples=80, deadline=None)
def test_with_nothing_running_an_answer_is_final(
    memory: int, entries: list[tuple[int, bool]], prompt: int, output: int, chunk: int
) -> None:
    """It starts with the largest chunk limit with which all of it fits, evicting where it must; or never."""
    storage = storage_of((STATE, SHORT, FULL), memory=memory + 150 * len(entries), running=2)
    cache = cached(storage, *(tokens for tokens, _ in entries))
    for number, (_, is_locked) in enumerate(entries):
        if is_locked:
            cache.lock(str(number))
    admission = admission_of(storage, chunk=chunk, cache=cache)
    with nothing_changes(storage):
        answer = admission.ask(prompt, output)
    assert not isinstance(answer, Wait)
    fitting = {
        limit: units
        for limit in range(1, chunk + 1)
        if storage.chain.feasible_after(
            units := request_demand(storage.plan, RequestShape(prompt, output), chunk_tokens=limit), cache.evictable()
        )
    }
    if isinstance(answer, Never):
        alone = admission.never(prompt, output) is None
        assert not fitting or not alone
        assert answer.largest_prompt < prompt
        return
    limit = answer.chunk_tokens or chunk
    assert answer.charge == fitting[limit]
    assert all(fitting[larger] == answer.charge for larger in fitting if larger > limit)
    assert answer.evicts == (not storage.chain.feasible(answer.charge))
    assert admission.make_room(answer)
    row, length = storage.open(), 0
    assert isinstance(row, int)
    while length < prompt + max(0, output - 1):
        length = min(length + limit, prompt) if length < prompt else length + 1
        assert not isinstance(storage.step(rows_of(row), rows_of(length)), Refused)


@given(st.integers(500, 1400), st.integers(1, 50), st.integers(1, 8), st.integers(1, 30), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_wait_knows_the_longest_prompt_that_would_fit(
    memory: int, prompt: int, output: int, running: int, chunk: int
) -> None:
    """Asked of the answer after all has changed: it is that of the moment when it was given."""
    storage = storage_of((STATE, SHORT, FULL), memory=memory, running=3)
    admission = admission_of(storage, chunk=chunk, cache=(cache := cached(storage, 4)))
    first = admission.ask(running, 1)
    if not isinstance(first, Admit) or not admission.make_room(first):
        return
    admission.promise(first.charge)
    answer = admission.ask(prompt, output)
    longest = max((tokens for tokens in range(1, 60) if isinstance(admission.ask(tokens, output), Admit)), default=0)
    cache.evict(lambda _: False)
    admission.withdraw(first.charge)
    if isinstance(answer, Wait):
        assert answer.largest_prompt == longest < prompt


def test_a_reader_that_is_stuck_may_start_without_the_cache() -> None:
    """The entry that it would read is in its own way: never beside it, and yes with nothing cached."""
    storage = storage_of((STATE, FULL), memory=40 * 2 + 24 * 8, running=2)
    cache = cached(storage, 8)
    admission = admission_of(storage, cache=cache)
    assert isinstance(admission.ask(24, 1, cached_tokens=4, reading="0"), Never)
    assert admission.ask(24, 1) == Admit((1, 6), evicts=True)
    assert not any(cache.locks.values())


def test_a_queue_that_reads_keeps_its_entries_locked() -> None:
    """Who is admitted has its entry locked, who is not has it as it was; one that is no request changes nothing."""
    storage = storage_of((FULL,), memory=24 * 12, running=6)
    cache = cached(storage, 8, 8, 8)
    admission = admission_of(storage, cache=cache)
    asked = [Asked(12, 1, 8, "0"), Asked(12, 1, 8, "1"), Asked(40, 1, 8, "2")]
    with nothing_changes(storage), pytest.raises(KvarenaError, match="cached_tokens is -4"):
        admission.admit([*asked[:2], Asked(12, 1, -4, "2")])
    assert (admission.promised(), {name: count for name, count in cache.locks.items() if count}) == ((0,), {})
    answers, stopped = admission.admit(asked)
    assert answers == [Admit((1,)), Admit((1,))]
    assert isinstance(stopped, Wait)
    assert (stopped.charge, stopped.promised) == ((8,), (2,))
    assert cache.locks == {"0": 1, "1": 1}
    answers, stopped = admission.admit([Asked(20, 1, 8, "2")])
    assert (answers, stopped, cache.locks.get("2"), cache.evicted) == ([Admit((3,))], None, 1, [])


def test_what_is_loaded_back_has_its_next_row() -> None:
    """The purpose prices: a load of four pages is charged the page of the step behind it (H08)."""
    storage = storage_of((FULL,), memory=24 * 8)
    admission = admission_of(storage)
    assert admission.ask(16, 1) == Admit((4,))
    assert admission.ask(16, 1, purpose=Purpose.LOAD_BACK) == Admit((5,))
    with pytest.raises(KvarenaError, match="the purpose is 'load'"):
        admission.ask(16, 1, purpose="load")  # type: ignore[arg-type]
