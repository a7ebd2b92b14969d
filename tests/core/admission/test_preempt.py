"""Priority preemption: whom to stop for another request, so that none could be spared; against trying every choice."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, Entries, nothing_changes, rows_of, storage_of

from kvarena.admission.admission import Admission, Asked
from kvarena.admission.preemption import Victim
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Refused
from kvarena.terms.errors import KvarenaError

pytestmark = pytest.mark.req("ADM-6")


@attrs.define
class Scene:
    """Running requests, some of which read an entry of the cache, and what of them is in flight."""

    storage: Storage
    cache: Entries
    admission: Admission
    victims: list[Victim]


def scene(memory: int, runs: Sequence[tuple[int, int]], entries: Sequence[int], *, flying: bool = False) -> Scene:
    """``runs``: (tokens of a running request, number of the entry that it reads, or -1). The last has begun first."""
    storage = storage_of((STATE, SHORT, FULL), memory=memory, running=8, forwards_in_flight=1 if flying else 0)
    cache = Entries(storage)
    for number, tokens in enumerate(entries):
        row = storage.open()
        assert isinstance(row, int)
        assert not isinstance(storage.step(rows_of(row), rows_of(tokens)), Refused)
        cache.keep(f"entry {number}", row, tokens)
    admission = Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8, cache=cache)
    victims: list[Victim] = []
    for tokens, entry in runs:
        answer = admission.ask(tokens, 4)
        if not isinstance(answer, Admit) or answer.evicts:
            continue
        admission.promise(answer.charge)
        row = storage.open()
        assert isinstance(row, int)
        admission.start(rows_of(row), [answer])
        reading = f"entry {entry}" if 0 <= entry < len(entries) else None
        if reading is not None:
            cache.lock(reading)
        victims.append(Victim(row, reading))
        for length in (*range(answer.chunk_tokens or 8, tokens, answer.chunk_tokens or 8), tokens):
            ids = storage.step(rows_of(row), rows_of(length))
            assert not isinstance(ids, Refused)
    if flying and victims:
        rows = rows_of(*(victim.row for victim in victims))
        ids = storage.step(rows, storage.requests.lengths[rows])
        assert not isinstance(ids, Refused)
        storage.forwards.record(storage.forwards.launch(ids))
    return Scene(storage, cache, admission, victims)


def stop(played: Scene, rows: Sequence[int]) -> None:
    """These requests are stopped, and all that they held comes back."""
    for victim in played.victims:
        if victim.row in rows:
            played.storage.close(victim.row)
            played.admission.forget(victim.row)
            if victim.reading is not None:
                played.cache.unlock(victim.reading)


def starts(played: Scene, asked: Asked) -> bool:
    """Whether the request may start now, in chunks of the configured size."""
    prompt, output, cached, reading, _ = asked
    answer = played.admission.ask(prompt, output, cached_tokens=cached, reading=reading)
    return isinstance(answer, Admit) and answer.chunk_tokens is None


RUNS = st.lists(st.tuples(st.integers(4, 40), st.integers(-1, 2)), max_size=4)


@given(
    memory=st.integers(900, 1500),
    runs=RUNS,
    entries=st.lists(st.sampled_from([4, 8, 12]), max_size=3),
    prompt=st.integers(1, 56),
    reads=st.integers(-1, 2),
    flying=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_those_stopped_make_room_and_none_could_be_spared(
    memory: int, runs: Sequence[tuple[int, int]], entries: Sequence[int], prompt: int, reads: int, flying: bool
) -> None:
    """Compared with stopping every choice for real: what their locks kept, and what a forward still reads, counts."""

    def again() -> Scene:
        return scene(memory, runs, entries, flying=flying)

    played = again()
    asked = Asked(prompt, 4, 0, f"entry {reads}" if 0 <= reads < len(entries) else None)
    if played.admission.never(prompt, 4) is not None:
        assert played.admission.preempt(asked, played.victims) is None
        return
    locks = dict(played.cache.locks)
    with nothing_changes(played.storage):
        found = played.admission.preempt(asked, played.victims)
    assert {name: count for name, count in played.cache.locks.items() if count} == {
        name: count for name, count in locks.items() if count
    }

    rows = [victim.row for victim in played.victims]
    makes_room: dict[tuple[int, ...], bool] = {}
    for count in range(len(rows) + 1):
        for chosen in combinations(rows, count):
            twin = again()
            stop(twin, chosen)
            makes_room[chosen] = starts(twin, asked)
    if found is None:
        assert not any(makes_room.values())
        return
    assert makes_room[found]
    assert not any(makes_room[tuple(row for row in found if row != spared)] for spared in found)
    first = next(count for count in range(len(rows) + 1) if makes_room[tuple(rows[:count])])
    assert set(found) <= set(rows[:first])
    assert list(found) == [row for row in rows if row in found]


def test_the_order_is_kept_and_the_worthiest_is_spared() -> None:
    """Small ones first do not do; the large one at the end does alone, and the small ones go on."""
    played = scene(1000, [(4, -1), (4, -1), (40, -1)], [])
    small, other, large = (victim.row for victim in played.victims)
    assert played.admission.preempt((40, 4), played.victims) == (large,)
    assert played.admission.preempt((40, 4), played.victims[:2]) is None
    assert played.admission.preempt((1, 1), played.victims) == ()
    stop(played, [large])
    assert starts(played, Asked(40, 4))
    assert played.storage.requests.is_open(rows_of(small, other))


def test_pages_that_a_forward_still_reads_help_at_once() -> None:
    """Under overlap a victim's pages pend; a request is admitted on them in the same pass."""
    played = scene(800, [(4, -1), (40, -1)], [], flying=True)
    found = played.admission.preempt((30, 4), played.victims)
    assert found == (played.victims[1].row,)
    stop(played, found)
    assert any(shot.pending for shot in played.storage.chain.snapshot().bands)
    assert starts(played, Asked(30, 4))


@pytest.mark.parametrize("wrong", [[Victim(99)], [Victim(-1)], [Victim(0), Victim(0)]], ids=str)
def test_a_victim_that_is_none_is_named(wrong: list[Victim]) -> None:
    """Every row is looked at before anything is asked."""
    played = scene(1000, [(4, -1)], [])
    with (
        nothing_changes(played.storage),
        pytest.raises(KvarenaError, match="is no request row of 5, or is named twice"),
    ):
        played.admission.preempt((8, 4), wrong)


@attrs.define
class Relaxed:
    """A cache that notes which locks are held, and of which kind; all it holds is one entry's two pages."""

    log: list[tuple[str, Any, bool]] = attrs.Factory(list)
    locks: int = 2

    def evictable(self) -> Sequence[int]:
        """Nothing: what is asked about here are locks."""
        return [0, 0, 0]

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Nothing."""

    def lock(self, entry: Any, relaxed: bool = False) -> None:
        """Noted."""
        self.log.append(("lock", entry, relaxed))

    def unlock(self, entry: Any, relaxed: bool = False) -> None:
        """Noted."""
        self.log.append(("unlock", entry, relaxed))


def test_a_relaxed_lock_is_put_back_as_it_was() -> None:
    """Of its kind, also where the question fails."""
    played = scene(600, [(40, -1)], [])
    row = played.victims[0].row
    for cache, error in ((Relaxed(), None), (Failing(), RuntimeError)):
        storage = played.storage
        admission = Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=8, cache=cache)
        victims = [Victim(row, "old", relaxed=True)]
        if error is None:
            assert admission.preempt(Asked(40, 4, 0, "mine"), victims) == (row,)
        else:
            with pytest.raises(error):
                admission.preempt(Asked(40, 4, 0, "mine"), victims)
        assert cache.log == [
            ("lock", "mine", False), ("unlock", "old", True), ("lock", "old", True), ("unlock", "mine", False)
        ]  # fmt: skip


class Failing(Relaxed):
    """It fails once a victim's lock is off."""

    def evictable(self) -> Sequence[int]:
        """Nothing, or an error."""
        if any(act == "unlock" for act, _, _ in self.log):
            raise RuntimeError("boom")
        return [0, 0, 0]


def test_a_request_that_is_none_asks_for_nobody() -> None:
    """One clear error."""
    played = scene(1000, [(4, -1)], [])
    with nothing_changes(played.storage), pytest.raises(KvarenaError, match="prompt_tokens is 0"):
        played.admission.preempt((0, 4), played.victims)
    assert np.array(played.admission.promised()).min() >= 0
