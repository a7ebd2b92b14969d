"""Admission: a concrete demand beside what was promised; answers that carry their sum."""

import numpy as np
import pytest
from chains import bytes_left
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import Entries
from toys import Bytes

from kvarena.admission.admission import Admission
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never, Refused, Wait
from kvarena.terms.errors import InvariantError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State, Window

CATALOG = Catalog.installed()


def storage_of(
    *parts: tuple[Lifetime, int], memory: int, page_tokens: int = 4, context: int = 64, running: int = 4
) -> Storage:
    """A host storage with one layer per (lifetime, bytes per entry)."""
    layers = [Layer(index, (Part(Bytes(size), lifetime, "part"),)) for index, (lifetime, size) in enumerate(parts)]
    config = StorageConfig(
        arena=ArenaConfig(
            memory=memory, page_tokens=page_tokens, context_tokens=context, max_running=running, mirrors=False
        ),
        backend="host",
    )
    return build_storage(layers, config, CATALOG)


def admission_of(storage: Storage, *, chunk: int = 8, fraction: float = 1.0, cache: Entries | None = None) -> Admission:
    return Admission(
        storage.chain, storage.sizing, storage.ownership, chunk_tokens=chunk, output_fraction=fraction, cache=cache
    )


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


@pytest.mark.req("ADM-1")
def test_a_charge_is_the_expected_output_and_never_is_the_whole_one() -> None:
    """A fraction lowers the charge of an arriving request, not the judgement that it can finish at all."""
    storage = storage_of((Full(), 2), memory=8 * 9)
    admission = admission_of(storage, fraction=0.25)
    assert admission.ask(8, 16) == Admit((3,))
    assert admission_of(storage).ask(8, 16) == Admit((6,))
    assert isinstance(admission.ask(8, 26), Never)


@pytest.mark.req("ADM-1")
@pytest.mark.req("CAP-1")
def test_what_was_charged_and_not_yet_taken_is_held_back() -> None:
    """Two requests that fit one by one do not fit together; what one has taken is not counted twice."""
    storage = storage_of((Full(), 2), memory=8 * 9)
    admission = admission_of(storage)
    charge = admission.ask(8, 9).charge
    admission.promise(charge)
    assert admission.promised() == (4,)
    row = storage.open()
    admission.start(rows_of(row), [charge])
    assert admission.promised() == (4,)
    assert isinstance(admission.ask(8, 9), Admit)
    waiting = admission.ask(8, 13)
    assert isinstance(waiting, Wait)
    assert "5 full" in waiting.reason
    assert "held back for running requests: 4 full" in waiting.reason
    storage.step(np.array([row]), np.array([16]))
    assert admission.promised() == (0,)
    assert isinstance(admission.ask(8, 13), Wait)
    storage.close(row)
    admission.forget(row)
    assert isinstance(admission.ask(8, 13), Admit)


@pytest.mark.req("CAP-1")
def test_enough_free_bytes_do_not_admit() -> None:
    """136 bytes are free and 130 are asked, but a slot of 50, a page of 44 and one of 36 lie on grids of their own."""
    storage = storage_of((State(), 50), (Window(8), 11), (Full(), 9), memory=440)
    admission = admission_of(storage)
    storage.step(np.array([storage.open()]), np.array([8]))
    charge = admission.demand(1, 1)
    asked = sum(units * pool.unit_bytes for units, pool in zip(charge, storage.plan.sub_pools, strict=True))
    assert (charge, asked, bytes_left(storage.chain)) == ((1, 1, 1), 130, 136)
    assert isinstance(admission.ask(1, 1), Wait)


@pytest.mark.req("ADM-1")
@pytest.mark.req("ADM-4")
def test_a_window_is_charged_what_it_will_hold() -> None:
    """F page 2u, W page 1u, P=4, W=8: 60 prompt tokens and 4 more need 35 to 37 units by their chunk.

    With 36 units and chunks of 7 it starts in chunks of 6, the most that fits; with 34 no chunk lets it.
    """
    unit = 8
    for chunk, units in {1: 35, 2: 35, 3: 36, 4: 35, 5: 36, 6: 36, 7: 37, 8: 36}.items():
        for arena in (34, 36, 38):
            # both token sinks lie at the top of the arena, the larger one over the other
            storage = storage_of((Window(8), unit // 4), (Full(), unit // 2), memory=unit * (arena + 2))
            answer = admission_of(storage, chunk=chunk).ask(60, 4)
            if arena == 34:
                assert isinstance(answer, Never)
            elif units <= arena:
                assert answer == Admit((units - 32, 16))
            else:
                assert answer == Admit((4, 16), chunk_tokens=6)


@given(st.integers(1, 64), st.integers(1, 40), st.integers(100, 600), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_never_names_the_longest_prompt_that_would_fit(prompt: int, output: int, memory: int, chunk: int) -> None:
    """One token more than the longest is refused, the longest itself is not."""
    storage = storage_of((State(), 40), (Window(8), 3), (Full(), 2), memory=memory + 100)
    admission = admission_of(storage, chunk=chunk)
    answer = admission.ask(prompt, output)
    longest = admission.largest_prompt(output)
    if isinstance(answer, Never):
        assert answer.largest_prompt == longest < prompt
    else:
        assert longest >= prompt
    assert longest == 0 or admission.prices.fits_alone(longest, output)
    assert not admission.prices.fits_alone(longest + 1, output)


@given(st.integers(1, 50), st.integers(1, 14), st.integers(150, 700), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_an_admitted_request_never_runs_dry(prompt: int, output: int, memory: int, chunk: int) -> None:
    """What admission promises at a fraction of 1.0, every step of the request's life delivers."""
    storage = storage_of((State(), 40), (Window(8), 3), (Full(), 2), memory=memory + 100)
    admission = admission_of(storage, chunk=chunk)
    answer = admission.ask(prompt, output)
    if not isinstance(answer, Admit):
        return
    row, length, chunk = storage.open(), 0, answer.chunk_tokens or chunk
    while length < prompt + output - 1:
        length = min(length + chunk, prompt) if length < prompt else length + 1
        assert not isinstance(storage.step(np.array([row]), np.array([length])), Refused)
        held = storage.ownership.held()[:, row].tolist()
        assert all(now <= peak for now, peak in zip(held, answer.charge, strict=True))


@pytest.mark.req("ADM-7")
def test_a_wait_carries_its_sum() -> None:
    """Units per sub-pool, in chain order, what was asked and what is held back for others; falsy, like a refusal."""
    storage = storage_of((State(), 16), (Full(), 2), memory=8 * 14)
    admission = admission_of(storage)
    answer = admission.ask(20, 5)
    assert answer == Admit((1, 6))
    admission.promise(answer.charge)
    waiting = admission.ask(20, 9)
    assert waiting == Wait(("state", "full"), (1, 7), (1, 6))
    assert not waiting
    assert waiting.reason == (
        "asked 1 state, 7 full (units per sub-pool); held back for running requests: 1 state, 6 full; "
        "waits for 1 admitted request"
    )
    assert str(waiting) == waiting.reason + "; no prompt would fit now"


@pytest.mark.req("ADM-1")
def test_a_promise_is_held_back_until_its_row_has_taken_it() -> None:
    """From the promise on, through the start, less what was taken, until it is forgotten."""
    storage = storage_of((Full(), 2), memory=8 * 20, running=4)
    admission = admission_of(storage)
    admission.promise((4,))
    admission.promise((3,))
    assert admission.promised() == (7,)
    rows = storage.open_batch(2)
    admission.start(rows, [(4,), (3,)])
    assert admission.promised() == (7,)
    storage.step(rows, rows_of(9, 20))
    assert admission.promised() == (1,)
    admission.recharge(0, (6,))
    assert admission.promised() == (3,)
    admission.forget(0)
    assert admission.promised() == (0,)
    admission.recharge(1, (7,))
    admission.forget(rows)
    assert admission.promised() == (0,)


def test_a_wrong_start_or_charge_changes_nothing() -> None:
    """More than was promised, a charge too few, a negative one: what is held back is as before."""
    storage = storage_of((Full(), 2), memory=8 * 20)
    admission = admission_of(storage)
    admission.promise((4,))
    rows = storage.open_batch(2)
    for charges in ([(3,), (2,)], [(4,)]):
        with pytest.raises(InvariantError, match=r"admission\.(started_unpromised|a_charge_for_each_row)"):
            admission.start(rows, charges)
        assert admission.promised() == (4,)
    with pytest.raises(InvariantError, match=r"admission\.negative_charge"):
        admission.recharge(0, (-1,))
    assert admission.promised() == (4,)
    admission.start(rows, [(3,), (1,)])
    admission.start(rows_of(), [])
    assert admission.promised() == (4,)


@pytest.mark.req("ADM-2")
@pytest.mark.req("ADM-3")
def test_eviction_stops_as_soon_as_the_charge_fits() -> None:
    """Asking evicts nothing; making room frees the oldest entries, one at a time, and no more than it needs."""
    storage = storage_of((Window(64), 2), (Full(), 2), memory=8 * 15, context=32)
    cache = Entries(storage)
    for name in ("old", "middle", "young"):
        row = storage.open()
        storage.step(rows_of(row), rows_of(8))
        cache.keep(name, row, 8)
    admission = admission_of(storage, cache=cache)
    assert admission.ask(1, 1) == Admit((1, 1))
    before = storage.chain.epoch
    answer = admission.ask(8, 1)
    assert answer == Admit((2, 2), evicts=True)
    assert (storage.chain.epoch, cache.evicted) == (before, [])
    assert admission.make_room(answer)
    assert cache.evicted == ["old"]
    assert storage.chain.feasible((2, 2))
    assert admission.make_room(admission.ask(8, 1))
    assert cache.evicted == ["old"]
    storage.verify()


@pytest.mark.req("ADM-3")
@pytest.mark.req("ADM-7")
def test_an_entry_that_a_request_reads_is_not_evicted_for_it() -> None:
    """It is locked first, and stays so; where no room can be made without it, the lock is given back."""
    storage = storage_of((Full(), 2), memory=8 * 7)
    cache = Entries(storage)
    for name in ("old", "young"):
        row = storage.open()
        storage.step(rows_of(row), rows_of(8))
        cache.keep(name, row, 8)
    admission = admission_of(storage, cache=cache)
    answer = admission.ask(12, 1)
    assert answer == Admit((3,), evicts=True)
    assert admission.make_room(answer, reading="old")
    assert (cache.evicted, cache.locks) == (["young"], {"old": 1})
    assert isinstance(admission.ask(20, 1, cached_tokens=0, reading="old"), Never)
    assert not admission.make_room(Admit((5,), evicts=True), reading="old")
    assert (cache.evicted, cache.locks) == (["young"], {"old": 1})
    cache.unlock("old")
    assert admission.ask(20, 1) == Admit((5,), evicts=True)
    assert admission.make_room(Admit((5,), evicts=True))
    assert cache.evicted == ["young", "old"]
    storage.verify()


@pytest.mark.req("ADM-3")
def test_without_a_cache_nothing_is_evicted() -> None:
    """Room is there or it is not."""
    admission = admission_of(storage_of((Full(), 2), memory=8 * 7))
    assert admission.make_room(Admit((3,)))
    assert not admission.make_room(Admit((3,), evicts=True))


@pytest.mark.req("ADM-1")
@pytest.mark.req("ADM-2")
def test_a_row_that_handed_pages_over_is_charged_anew() -> None:
    """Past its prompt it needs less of a window: what is held back for it is its new charge less what it owns."""
    storage = storage_of((Window(64), 2), (Full(), 2), memory=8 * 40)
    admission = admission_of(storage)
    admission.promise((5, 5))
    row = storage.open()
    admission.start(rows_of(row), [(5, 5)])
    storage.step(rows_of(row), rows_of(16))
    assert admission.promised() == (1, 1)
    storage.ownership.hand_over(row, 8)
    assert admission.promised() == (3, 1)
    admission.recharge(rows_of(row), [(3, 6)])
    assert admission.promised() == (1, 2)


@pytest.mark.req("ADM-1")
@pytest.mark.req("ADM-2")
@pytest.mark.parametrize("tokens", [4, 8, 16])
def test_what_a_row_hands_over_is_owed_to_it_at_once(tokens: int) -> None:
    """Its charge stands and it owns less of a window, which it may come to hold as much of again behind it.

    What never retires it needs no second time. No page was taken, freed or moved.
    """
    storage = storage_of((Window(64), 2), (Full(), 2), memory=8 * 40)
    admission = admission_of(storage)
    admission.promise((5, 5))
    row = storage.open()
    admission.start(rows_of(row), [(5, 5)])
    storage.step(rows_of(row), rows_of(16))
    assert admission.promised() == (1, 1)
    epoch, version = storage.chain.epoch, storage.ownership.version
    storage.ownership.hand_over(row, tokens)
    assert (storage.chain.epoch, storage.ownership.version > version) == (epoch, True)
    assert admission.promised() == (1 + tokens // 4, 1) == admission_again(storage, (5, 5), row)
    storage.ownership.free_rows(row, [range(16, 16)])
    assert admission.promised() == admission_again(storage, (5, 5), row)
    storage.close(row)
    assert admission.promised() == (5, 5)
    admission.forget(row)
    assert admission.promised() == (0, 0)


def admission_again(storage: Storage, charge: tuple[int, ...], row: int) -> tuple[int, ...]:
    """What an admission that remembers nothing says is held back for the row."""
    fresh = admission_of(storage)
    fresh.promise(charge)
    fresh.start(rows_of(row), [charge])
    return fresh.promised()


@pytest.mark.req("CAP-1")
@pytest.mark.req("ADM-1")
@given(st.data(), st.integers(300, 900), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_admitted_requests_never_run_dry_beside_each_other(data: st.DataObject, memory: int, chunk: int) -> None:
    """Whatever was promised is there when it is taken, for all of them, in any order of their steps."""
    storage = storage_of((State(), 40), (Window(8), 3), (Full(), 2), memory=memory, running=6)
    cache = Entries(storage)
    admission = admission_of(storage, chunk=chunk, cache=cache)
    lengths: dict[int, tuple[int, int, int, int]] = {}
    for _ in range(data.draw(st.integers(5, 40))):
        if data.draw(st.booleans()):
            prompt, output = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 12))
            answer = admission.ask(prompt, output)
            if isinstance(answer, Admit) and storage.requests.free_count:
                assert admission.make_room(answer)
                admission.promise(answer.charge)
                row = storage.open()
                assert isinstance(row, int)
                admission.start(rows_of(row), [answer.charge])
                lengths[row] = (0, prompt, prompt + output - 1, answer.chunk_tokens or chunk)
        elif lengths:
            row = data.draw(st.sampled_from(sorted(lengths)))
            length, prompt, stop, limit = lengths[row]
            if length == stop:
                cache.keep(f"{row} {storage.chain.epoch}", row, length - length % 4)
                admission.forget(row)
                del lengths[row]
                continue
            length = min(length + limit, prompt) if length < prompt else length + 1
            assert not isinstance(storage.step(rows_of(row), rows_of(length)), Refused)
            lengths[row] = (length, prompt, stop, limit)
        storage.verify()
