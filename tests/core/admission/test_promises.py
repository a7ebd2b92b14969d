"""What is promised and held back, to the unit; and a queue that is admitted in one call as it would be one by one."""

import numpy as np
import pytest
from storages import FULL, SHORT, STATE, Entries, one_by_one, rows_of, storage_of

from kvarena.admission.admission import TOGETHER, Admission
from kvarena.planning.demand import expected as expected_of
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never, Wait


class Stubborn(Entries):
    """A cache that evicts nothing, whatever it said."""

    def evict(self, enough: object) -> None:
        """Keep it all."""


def admission_of(storage: Storage, *, fraction: float = 1.0, cache: Entries | None = None) -> Admission:
    """Admission over a storage, prefills in chunks of 8."""
    return Admission(
        storage.chain, storage.sizing, storage.ownership, chunk_tokens=8, output_fraction=fraction, cache=cache
    )


def cached(*, entries: int = 3, memory: int = 1200, running: int = 20) -> tuple[Storage, Entries, Admission]:
    """A storage whose cache holds so many entries of two pages."""
    storage = storage_of((STATE, SHORT, FULL), memory=memory, running=running)
    cache = Entries(storage)
    for name in range(entries):
        row = storage.open()
        storage.step(rows_of(row), rows_of(8))
        cache.keep(f"entry {name}", row, 8)
    return storage, cache, admission_of(storage, cache=cache)


@pytest.mark.req("ADM-1")
@pytest.mark.req("ADM-2")
def test_a_queue_is_admitted_as_one_by_one() -> None:
    """The same charges and the same answer to the first that may not; as much is promised, and evicted, afterwards."""
    rng, stopped, evicted = np.random.default_rng(5), set(), 0
    for _ in range(60):
        size = int(rng.integers(0, 2 * TOGETHER + 3))
        requests = [(int(rng.integers(1, 13)), int(rng.integers(1, 9))) for _ in range(size)]
        if rng.random() < 0.3 and size:
            requests[int(rng.integers(size))] = (200, 5)
        entries, memory = int(rng.integers(0, 6)), int(rng.choice([1200, 1800, 3500]))
        (storage, cache, admission), (_, twin_cache, twin) = (cached(entries=entries, memory=memory) for _ in range(2))
        answers, stop = admission.admit(iter(requests))
        charges = [answer.charge for answer in answers]
        assert (charges, stop) == one_by_one(twin, requests)
        assert admission.promised() == twin.promised()
        assert cache.evicted == twin_cache.evicted
        assert sum(map(np.array, charges), np.zeros(3, dtype=int)).tolist() == list(admission.promised())
        assert len(charges) == size or stop == admission.ask(*requests[len(charges)])
        rows = storage.open_batch(len(charges))
        admission.start(rows, charges)
        storage.step(rows, rows_of(*(prompt + output - 1 for prompt, output in requests[: len(charges)])))
        storage.verify()
        stopped.add(type(stop))
        evicted += len(cache.evicted)
    assert stopped == {type(None), Wait, Never}
    assert evicted


@pytest.mark.req("ADM-1")
def test_starting_one_request_holds_the_others_back_still() -> None:
    """Only its own charge goes from what was promised to its row."""
    storage = storage_of((FULL,), running=4)
    admission = admission_of(storage)
    for charge in ((4,), (3,), (2,)):
        admission.promise(charge)
    rows = storage.open_batch(2)
    admission.start(rows[:1], [(3,)])
    assert admission.promised() == (9,)
    storage.step(rows[:1], rows_of(12))
    assert admission.promised() == (6,)
    admission.start(rows[1:], [(2,)])
    storage.step(rows[1:], rows_of(8))
    assert admission.promised() == (4,)


@pytest.mark.req("ADM-1")
def test_a_slot_that_an_opened_row_has_is_not_held_back_once_it_started() -> None:
    """Asked between the opening and the start, it is told for both; the start makes it one again."""
    storage = storage_of((STATE, FULL))
    admission = admission_of(storage)
    admission.promise((1, 3))
    row = storage.open()
    assert admission.promised() == (1, 3)
    admission.start(rows_of(row), [(1, 3)])
    assert admission.promised() == (0, 3)


@pytest.mark.req("ADM-1")
def test_what_a_row_has_beyond_its_charge_is_not_taken_from_others() -> None:
    """Each owes at least nothing: a row that took more than it was charged makes no room."""
    storage = storage_of((FULL,))
    admission = admission_of(storage)
    rows = storage.open_batch(2)
    for charge in ((1,), (4,)):
        admission.promise(charge)
    admission.start(rows, [(1,), (4,)])
    storage.step(rows, rows_of(16, 0))
    assert admission.promised() == (4,)


@pytest.mark.req("ADM-1")
@pytest.mark.parametrize(
    ("fraction", "output", "expected"), [(0.5, 7, 4), (0.5, 3, 2), (0.3, 6, 2), (0.1, 1, 1), (0.01, 9, 1), (1.0, 9, 9)]
)
def test_the_expected_output_is_a_rounded_share(fraction: float, output: int, expected: int) -> None:
    """To the nearest token, and at least one."""
    assert expected_of(output, fraction) == expected


@pytest.mark.req("ADM-1")
def test_a_request_may_fill_its_row_to_the_last_token() -> None:
    """As many rows as a request row has fit; one more never does, and the answer says why."""
    storage = storage_of((FULL,), context=60)
    admission = admission_of(storage)
    assert storage.sizing.context_tokens == 60
    prompt = next(n for n in range(99) if not admission.prices.fits_alone(n + 1, 5))
    assert admission.demand(prompt, 5) == (15,)
    assert isinstance(admission.ask(prompt, 5), Admit)
    never = admission.ask(prompt + 1, 5)
    assert isinstance(never, Never)
    assert never.largest_prompt == prompt
    assert "61 rows are more than the 60 of a request row" in never.reason
    row = storage.open()
    assert storage.step(rows_of(row), rows_of(60))


@pytest.mark.req("ADM-2")
def test_what_a_cache_could_free_is_asked_beside_what_was_promised() -> None:
    """Evicting for one request what another was promised would let it run dry."""
    storage, cache, admission = cached(entries=4, memory=900)
    charge = admission.demand(8, 1)
    count = 0
    while isinstance(answer := admission.ask(8, 1), Admit):
        assert admission.make_room(answer)
        admission.promise(charge)
        count += 1
    assert isinstance(answer, Wait)
    assert answer.charge == charge
    assert answer.promised == tuple(count * units for units in charge)
    rows = storage.open_batch(count)
    admission.start(rows, [charge] * count)
    assert storage.step(rows, rows_of(*[8] * count))
    assert cache.evicted
    storage.verify()


@pytest.mark.req("ADM-3")
def test_a_cache_that_makes_no_room_lets_nobody_start() -> None:
    """It said what it could free, and then kept it: those before are admitted, the next one waits."""
    storage, _, _ = cached(entries=4, memory=900)
    fits = one_by_one(admission_of(storage), [(8, 1)] * TOGETHER)[0]
    admission = admission_of(storage, cache=Stubborn(storage, {"entry": storage.ownership.handed_over()}))
    answers, stop = admission.admit([(8, 1)] * TOGETHER)
    assert [answer.charge for answer in answers] == fits
    assert stop == Wait(storage.plan.names, admission.demand(8, 1), admission.promised())
    assert isinstance(admission.ask(8, 1), Admit)
