"""The device's copies of maps and rows: equal to the host's at every launch, written in few and whole updates."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import CHAINS, FULL, SHORT, STATE, opened, overlapped, process, rows_of, simulated, stepped, storage_of

from kvarena.backends.cpu import CpuDevice
from kvarena.backends.sim_mirror import SimMirror
from kvarena.planning.mirroring import ID_BYTES, mirror_shape
from kvarena.storage.mirrors import Mirrors
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import IntArray


def mirrors_of(storage: Storage) -> Mirrors:
    """The storage's mirrors, which it must have."""
    assert storage.mirrors is not None
    return storage.mirrors


def host_says(storage: Storage) -> dict[str, IntArray]:
    """What kernels should read of every row, the padding row included, by the host's maps as they are."""
    table, chain = storage.requests, storage.chain
    padding = np.full((1, table.pages_per_row), -1)
    found = {
        pool.name: chain.pages(pool.name, np.concatenate([table.pages, padding])) for pool in storage.plan.token_pools
    }
    if storage.plan.slots is not None:
        padding = np.full((1, table.slots.shape[1]), -1)
        found["slots"] = chain.pages(storage.plan.slots.name, np.concatenate([table.slots, padding]))
    return found


def mirrors_say(storage: Storage) -> dict[str, IntArray]:
    """The same, read on the device."""
    rows, width = np.arange(len(storage.requests) + 1), storage.requests.pages_per_row
    mirrors = mirrors_of(storage)
    found = {pool.name: mirrors.pages(pool.name, rows, width) for pool in storage.plan.token_pools}
    if storage.plan.slots is not None:
        found["slots"] = mirrors.slots(rows)
    return found


def assert_launches_equal(storage: Storage, seen: list[Any]) -> Any:
    """Launch a forward whose work reads everything; what it should find is noted beside it."""
    forward = storage.forwards.launch()
    expected = host_says(storage)
    storage.forwards.run(forward, lambda: seen.append((expected, mirrors_say(storage))))
    storage.forwards.record(forward)
    return forward


VERBS = st.tuples(
    st.sampled_from(["open", "step", "step", "close", "flush", "hand over", "free", "reserve", "load", "launch"]),
    st.integers(0, 3),
    st.integers(0, 20),
)


@pytest.mark.req("LIF-8")
@given(
    name=st.sampled_from(sorted(CHAINS)),
    in_flight=st.integers(0, 3),
    memory=st.integers(2500, 6000),
    verbs=st.lists(VERBS, min_size=5, max_size=40),
)
@settings(max_examples=80, deadline=None)
def test_kernels_read_what_the_host_would_translate(
    name: str, in_flight: int, memory: int, verbs: list[tuple[str, int, int]]
) -> None:
    """After random operations and moves, each forward's work reads page tables and slots as they were at its launch."""
    storage = storage_of(
        CHAINS[name], memory=memory, backend=simulated("late"), mirrors=True, forwards_in_flight=in_flight
    )
    seen: list[Any] = []
    flying: list[Any] = []
    handed: list[IntArray] = []
    for verb, which, amount in verbs:
        rows = storage.requests.open_rows().tolist()
        if verb == "launch":
            if flying and len(flying) >= in_flight:
                process(storage, flying.pop(0))
            flying.append(assert_launches_equal(storage, seen))
        elif verb == "open":
            storage.open()
        elif verb == "flush":
            storage.flush()
        elif verb == "free" and handed:
            storage.ownership.free_pages(handed.pop())
        elif rows:
            act(storage, verb, rows[which % len(rows)], amount, handed)
    while flying:
        process(storage, flying.pop(0))
    process(storage, assert_launches_equal(storage, seen))
    for expected, found in seen:
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert not [found for found in storage.device.violations if found.check == "staging_overwritten"]


def act(storage: Storage, verb: str, row: int, amount: int, handed: list[IntArray]) -> None:
    """One verb on one row, as far as it applies."""
    length, many = int(storage.requests.lengths[row]), rows_of(row)
    if verb == "close":
        storage.close(row)
    elif verb == "step":
        storage.step(many, rows_of(min(60, length + amount)))
    elif verb == "hand over":
        handed.append(storage.ownership.hand_over(row, length // 4 * 4))
    elif verb == "reserve":
        ids = storage.drafts.reserve(many, rows_of(min(60, length + amount)))
        if not isinstance(ids, Refused):
            storage.drafts.commit(many, rows_of(min(60, length + amount // 2)))
    elif verb == "load" and not length and not storage.requests.page_counts[row]:
        copy = storage.copies.load(row, amount + 1)
        if not isinstance(copy, Refused):
            storage.copies.cancel(copy)


def test_one_update_a_launch_and_none_where_nothing_changed(updates: list[tuple[IntArray, IntArray]]) -> None:
    """Each place once, its last value; a launch over what did not change writes nothing."""
    storage = overlapped(STATE, FULL, page_tokens=1, backend=simulated("early"), mirrors=True)
    row = opened(storage)
    process(storage, storage_launch(storage))
    updates.clear()
    stepped(storage, (row, 3))
    storage.close(row)
    row = opened(storage)
    stepped(storage, (row, 5))
    process(storage, storage_launch(storage))
    assert len(updates) == 1
    positions, _ = updates[0]
    assert len(np.unique(positions)) == len(positions) == 5 * 2 + 2  # five ids and places, a slot's id and its row's
    process(storage, storage_launch(storage))
    assert len(updates) == 1


def storage_launch(storage: Storage) -> Any:
    forward = storage.forwards.launch()
    storage.forwards.record(forward)
    return forward


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[IntArray, IntArray]]:
    """Every update that is applied to a simulated mirror."""
    calls: list[tuple[IntArray, IntArray]] = []
    apply = SimMirror.apply

    def told(mirror: SimMirror, stream: Any, slot: int, positions: IntArray, values: IntArray) -> None:
        calls.append((positions, values))
        apply(mirror, stream, slot, positions, values)

    monkeypatch.setattr(SimMirror, "apply", told)
    return calls


@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_an_update_larger_than_a_slot_is_split_in_order(
    in_flight: int, updates: list[tuple[IntArray, IntArray]]
) -> None:
    """Through the slots of the ring one after another; one still under way is waited for, never overwritten."""
    storage = storage_of(
        (FULL,), page_tokens=1, memory=4000, running=1, context=1, backend=simulated("late"), mirrors=True,
        forwards_in_flight=in_flight,
    )  # fmt: skip
    seen: list[Any] = []
    flying = [assert_launches_equal(storage, seen)]
    entries = max(len(positions) for positions, _ in updates)
    assert len(updates) > in_flight + 1
    assert np.concatenate([positions for positions, _ in updates]).tolist() == list(
        range(sum(len(p) for p, _ in updates))
    )
    row = opened(storage)
    stepped(storage, (row, 1))
    while len(flying) < in_flight:
        flying.append(assert_launches_equal(storage, seen))
    process(storage, *flying)
    updates.clear()
    minter = storage.chain.minters["full"]
    taken = storage.chain.take_new("full", 2 * entries * (in_flight + 1))
    assert not isinstance(taken, Refused)
    process(storage, assert_launches_equal(storage, seen))
    assert len(updates) >= 2 * (in_flight + 1)
    assert minter.pool.free
    storage.chain.free_all({"full": taken.ids})
    process(storage, assert_launches_equal(storage, seen))
    for expected, found in seen:
        np.testing.assert_array_equal(found["full"], expected["full"])
    assert storage.device.violations == []


@pytest.mark.req("SIZ-1")
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_what_is_built_is_what_was_charged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry of the mirror and of its staging is in a term of the sizing; without bytes, or off, there is none."""
    sizes: list[tuple[int, int, int]] = []
    storage = storage_of(CHAINS[name], backend="cpu", mirrors=True, forwards_in_flight=2)
    make = CpuDevice.mirror
    monkeypatch.setattr(CpuDevice, "mirror", lambda device, *shape: (sizes.append(shape), make(device, *shape))[1])
    storage.resize(3500)
    ((size, slots, entries),) = sizes
    fixed = storage.sizing.fixed
    assert size * ID_BYTES == fixed["id maps"] + fixed["request rows"]
    assert slots * entries * 2 * ID_BYTES == fixed["map updates"]
    shape = mirror_shape(
        storage.plan, arena_bytes=storage.sizing.arena_bytes, running=storage.sizing.running,
        row_pages=storage.requests.pages_per_row, slots_per_request=1, in_flight=2,
    )  # fmt: skip
    assert (shape.updates, shape.update_entries) == (slots, entries)
    storage.release()
    assert storage_of(CHAINS[name], backend="cpu").mirrors is None
    assert storage_of(CHAINS[name], backend="host", mirrors=True).mirrors is None


def test_a_resize_makes_the_mirrors_anew() -> None:
    """They follow the new maps and rows from the next launch on."""
    storage = overlapped(STATE, SHORT, FULL, backend="cpu", mirrors=True, memory=6000)
    seen: list[Any] = []
    stepped(storage, (row := opened(storage), 9))
    process(storage, assert_launches_equal(storage, seen))
    storage.close(row)
    before = storage.mirrors
    storage.resize(4000)
    assert storage.mirrors is not before
    stepped(storage, (opened(storage), 13))
    process(storage, assert_launches_equal(storage, seen))
    for expected, found in seen:
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value)
    storage.release()


def test_what_a_mirror_does_not_hold_is_refused_by_name() -> None:
    """Slots of a model without a state, and pages of a sub-pool that is not there or has slots."""
    storage = overlapped(FULL, backend="cpu", mirrors=True)
    with pytest.raises(KvarenaError, match="no token sub-pool 'fall'; did you mean 'full'"):
        mirrors_of(storage).pages("fall", rows_of(0), 1)
    with pytest.raises(KvarenaError, match="keeps no state"):
        mirrors_of(storage).slots(rows_of(0))
    storage.release()
    storage = overlapped(STATE, backend="cpu", mirrors=True)
    with pytest.raises(KvarenaError, match="no token sub-pool 'state'"):
        mirrors_of(storage).pages("state", rows_of(0), 1)
    storage.release()
