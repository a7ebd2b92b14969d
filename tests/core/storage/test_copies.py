"""Copies to and from the host, and of state slots: in order with everything else, at any timing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import (
    CHAINS,
    FULL,
    SHORT,
    STATE,
    assert_quiet,
    free_units,
    nothing_changes,
    opened,
    overlapped,
    own_ids,
    process,
    rows_of,
    run_forward,
    simulated,
    stepped,
    storage_of,
)

from kvarena.storage.checks import check_idle
from kvarena.storage.copies import Copy
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import IntArray

TIMINGS = ("early", "late", "random")


def loaded(storage: Storage, row: int, tokens: int) -> Copy:
    """A load, which must fit."""
    copy = storage.copies.load(row, tokens)
    assert not isinstance(copy, Refused), str(copy)
    return copy


def host_of(storage: Storage, name: str, count: int, first: int = 1) -> Any:
    """Memory of the host for units of a sub-pool, the n-th full of ``first + n``."""
    host = storage.device.host_memory(storage.plan[name].unit_bytes, count)
    host[:] = np.arange(first, first + count)[:, None]
    return host


def fill(storage: Storage, name: str, pages: IntArray, first: int) -> Callable[[], None]:
    """Work that writes ``first + n`` all over the n-th page."""
    unit, device = storage.plan[name].unit_bytes, storage.device

    def work() -> None:
        for at, page in enumerate(pages.tolist()):
            device.host_bytes(unit, page)[:] = first + at

    return work


def first_bytes(storage: Storage, name: str, pages: IntArray) -> list[int]:
    """The first byte of each page, once all work has landed."""
    storage.device.drain()
    unit = storage.plan[name].unit_bytes
    return [int(storage.device.host_bytes(unit, page)[0]) for page in pages.tolist()]


@pytest.mark.req("HIC-2")
@given(name=st.sampled_from(sorted(CHAINS)), page_tokens=st.sampled_from([1, 3, 4]), data=st.data())
@settings(max_examples=80)
def test_a_loaded_row_has_what_a_row_that_stepped_there_has(name: str, page_tokens: int, data: st.DataObject) -> None:
    """The same pages in each sub-pool, windows only what they retain; steps, handing over and closing go on from it."""
    storage = storage_of(CHAINS[name], page_tokens=page_tokens, memory=20_000)
    twin, row, tokens = opened(storage), opened(storage), data.draw(st.integers(1, 40))
    for length in range(data.draw(st.integers(1, 7)), tokens, 7):
        stepped(storage, (twin, length))
    stepped(storage, (twin, tokens))
    stepped(storage, (twin, tokens))  # retires
    copy = loaded(storage, row, tokens)
    hosts = {
        pool: (storage.device.host_memory(storage.plan[pool].unit_bytes, 64), np.arange(len(ids)))
        for pool, ids in copy.ids.items()
    }
    storage.copies.submit(copy, hosts)
    storage.copies.end(copy)
    for length in (tokens, min(60, tokens + data.draw(st.integers(0, 12))), 60):
        stepped(storage, (twin, length), (row, length))
        held = storage.ownership.held()
        assert held[:, row].tolist() == held[:, twin].tolist()
        tables = storage.translate(rows_of(row, twin)).tables
        for pool in storage.plan.token_pools:
            sink = storage.chain.bands[pool.name].grid.sink_page
            mine, theirs = tables[pool.name] != sink
            assert mine.tolist() == theirs.tolist()
        storage.verify()
    for one in (row, twin):
        storage.ownership.free_pages(storage.ownership.hand_over(one, 60 // page_tokens * page_tokens))
    storage.close(rows_of(row, twin))
    assert_quiet(storage)


@pytest.mark.req("HIC-2")
@pytest.mark.parametrize("rows", [3, 4])
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_load_waits_for_the_forward_that_still_writes_its_destination(rows: int, timing: str) -> None:
    """H17: its pages are reserved from the take to the submit, written from then to the end, behind the forward."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 5, backend=simulated(timing), context=8)
    device, host = storage.device, host_of(storage, "full", 4, first=10)
    old = opened(storage)
    ids = stepped(storage, (old, 3))
    pages = ids.tables["full"][0]
    forward = storage.forwards.launch(storage.translate(rows_of(old), rows_of(2)))
    seen: list[int] = []
    storage.forwards.run(forward, lambda: seen.extend(int(device.host_bytes(6, page)[0]) for page in pages[:2]))
    storage.forwards.run(forward, fill(storage, "full", pages[2:], 99))
    storage.forwards.record(forward)
    storage.close(old)
    row = opened(storage)
    copy = loaded(storage, row, rows)
    assert free_units(storage, "full") == 4 - rows
    before = storage.translate(rows_of(row)).tables["full"].tolist()
    storage.flush()
    assert storage.translate(rows_of(row)).tables["full"].tolist() == before
    storage.copies.submit(copy, {"full": (host, np.arange(rows))})
    storage.flush()
    device.turn()
    process(storage, forward)
    assert seen == [0, 0]
    storage.copies.end(copy)
    mine = storage.translate(rows_of(row)).tables["full"][0]
    assert first_bytes(storage, "full", mine) == [10, 11, 12, 13][:rows]
    backup = storage.copies.backup({"full": copy.ids["full"]})
    saved = storage.device.host_memory(6, 4)
    storage.copies.submit(backup, {"full": (saved, np.arange(rows))})
    device.drain()
    storage.copies.end(backup)
    assert saved[:rows, 0].tolist() == [10, 11, 12, 13][:rows]
    storage.close(row)
    assert_quiet(storage)
    assert device.violations == []


@pytest.mark.req("HIC-1")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_backup_reads_what_forwards_wrote_whoever_has_the_pages_next(timing: str) -> None:
    """Its row is closed while it is under way; the next owner's zeros and forward wait for it, moves do not."""
    storage = overlapped(STATE, SHORT, FULL, page_tokens=2, memory=1500, backend=simulated(timing))
    row = opened(storage)
    ids = stepped(storage, (row, 6))
    forward = storage.forwards.launch(ids)
    for at, name in enumerate(("window-6", "full")):
        storage.forwards.run(forward, fill(storage, name, ids.tables[name][0], 10 * at + 1), None)
    assert ids.slots is not None
    storage.forwards.run(forward, fill(storage, "state", ids.slots[0], 77), None)
    storage.forwards.record(forward)
    own = storage.requests.pages[row, :3].copy()
    copy = storage.copies.backup({"window-6": own, "full": own, "state": storage.requests.slots[row]})
    hosts = {name: (storage.device.host_memory(storage.plan[name].unit_bytes, 4), np.arange(3)) for name in copy.ids}
    hosts["state"] = (hosts["state"][0], rows_of(3))
    storage.copies.submit(copy, hosts)
    storage.close(row)
    again = opened(storage)
    ids = stepped(storage, (again, 20))
    second = storage.forwards.launch(ids)
    storage.forwards.run(second, fill(storage, "full", ids.tables["full"][0], 200), None)
    storage.forwards.record(second)
    process(storage, forward, second)
    storage.device.drain()
    storage.copies.end(copy)
    assert hosts["window-6"][0][:3, 0].tolist() == [1, 2, 3]
    assert hosts["full"][0][:3, 0].tolist() == [11, 12, 13]
    assert hosts["state"][0][3, 0] == 77
    storage.close(again)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("HIC-2")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_row_closed_under_a_submitted_load_leaves_its_pages_in_order(timing: str) -> None:
    """They are free at once, and whoever writes them next does so after the load has."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 5, context=8, backend=simulated(timing))
    row = opened(storage)
    copy = loaded(storage, row, 4)
    storage.copies.submit(copy, {"full": (host_of(storage, "full", 4), np.arange(4))})
    storage.close(row)
    assert free_units(storage, "full") == 4
    again = opened(storage)
    ids = stepped(storage, (again, 4))
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, fill(storage, "full", ids.tables["full"][0], 50))
    storage.forwards.record(forward)
    storage.copies.end(copy)
    process(storage, forward)
    assert first_bytes(storage, "full", ids.tables["full"][0]) == [50, 51, 52, 53]
    storage.close(again)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("HIC-2")
def test_pages_named_by_owner_ids_may_move_before_the_submit() -> None:
    """One sub-pool's reservation ends, its pages move, and the copy goes where they are; the others stay fixed."""
    storage = overlapped(SHORT, FULL, page_tokens=1, memory=900, backend=simulated("late"))
    filler, row = opened(storage), opened(storage)
    stepped(storage, (filler, 9))
    copy = loaded(storage, row, 5)
    before = {name: storage.translate(rows_of(row)).tables[name].tolist() for name in copy.ids}
    storage.copies.name(copy, "full")
    storage.close(filler)
    assert storage.flush()
    after = {name: storage.translate(rows_of(row)).tables[name].tolist() for name in copy.ids}
    assert after["window-6"] == before["window-6"]
    assert after["full"] != before["full"]
    with pytest.raises(InvariantError, match=r"^copies\.name_of_unreserved_sub_pool"):
        storage.copies.name(copy, "full")
    hosts = {name: (host_of(storage, name, 5, first=20), np.arange(5)) for name in copy.ids}
    storage.copies.submit(copy, hosts)
    storage.device.drain()
    storage.copies.end(copy)
    assert first_bytes(storage, "full", storage.translate(rows_of(row)).tables["full"][0]) == [20, 21, 22, 23, 24]
    storage.close(row)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("HIC-2")
def test_a_load_that_does_not_fit_changes_nothing() -> None:
    """Refused whole: no page, no id, and the row is free to be used otherwise."""
    storage = storage_of((STATE, SHORT, FULL), memory=500, page_tokens=1)
    row, other = opened(storage), opened(storage)
    stepped(storage, (other, 12))
    with nothing_changes(storage):
        assert isinstance(storage.copies.load(row, 40), Refused)
    with nothing_changes(storage), pytest.raises(KvarenaError, match="raise context_tokens"):
        storage.copies.load(row, 61)
    stepped(storage, (row, 1))


def test_a_load_that_is_given_up_leaves_an_empty_row() -> None:
    """Its reservation ends, its pages come back, and the row steps as one that was just opened."""
    storage = overlapped(STATE, SHORT, FULL, page_tokens=4)
    row = opened(storage)
    before = [(shot.live, shot.holes, shot.ids_free) for shot in storage.chain.snapshot().bands]
    copy = loaded(storage, row, 13)
    with pytest.raises(InvariantError, match=r"^band\.free_outside_reservation"):
        storage.close(row)
    storage.copies.cancel(copy)
    assert [(shot.live, shot.holes, shot.ids_free) for shot in storage.chain.snapshot().bands] == before
    storage.verify()
    stepped(storage, (row, 30))
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.parametrize("in_flight", [0, 2])
def test_what_is_wrong_with_a_copy_is_said_by_name(in_flight: int) -> None:
    """Rows that are not empty, copies that are over, sub-pools and places that do not fit: and nothing changes."""
    storage = storage_of((STATE, SHORT, FULL), page_tokens=4, forwards_in_flight=in_flight)
    copies, device = storage.copies, storage.device
    used, row = opened(storage), opened(storage)
    ids = stepped(storage, (used, 5))
    copy, own = loaded(storage, row, 6), storage.requests.pages[used, :2].copy()
    host = {name: device.host_memory(storage.plan[name].unit_bytes, 4) for name in storage.plan.names}
    whole = {name: (host[name], np.arange(len(some))) for name, some in copy.ids.items()}
    backup = copies.backup({"full": own})
    invariants: list[tuple[str, Callable[[], object]]] = [
        (r"storage\.copy_into_used_row", lambda: copies.load(used, 4)),
        (r"storage\.copy_into_free_row", lambda: copies.load(3, 4)),
        (r"storage\.row_awaits_its_copy", lambda: copies.load(row, 4)),
        (r"storage\.row_awaits_its_copy", lambda: storage.step(rows_of(row), rows_of(7))),
        (r"storage\.row_awaits_its_copy", lambda: storage.drafts.reserve(rows_of(row), rows_of(7))),
        (r"storage\.row_awaits_its_copy", lambda: storage.ownership.hand_over(row, 4)),
        (r"storage\.row_awaits_its_copy", lambda: storage.ownership.free_rows(row, [range(5, 6)])),
        (r"forwards\.launch_before_submit", lambda: storage.forwards.launch(storage.translate(rows_of(row)))),
        (r"copies\.unknown_copy", lambda: copies.end(copy)),
        (r"band\.free_of_", lambda: copies.backup({"full": rows_of(-1)})),
        (r"band\.free_of_bound_page", lambda: copies.backup({"full": own[[0, 0]]})),
    ]
    for name, act in invariants:
        with nothing_changes(storage), pytest.raises(InvariantError, match=f"^{name}"):
            act()
    errors: list[tuple[str, Callable[[], object]]] = [
        ("no places for sub-pool 'full'", lambda: copies.submit(copy, {"window-6": whole["window-6"]})),
        ("no sub-pool 'fall'; did you mean 'full'", lambda: copies.submit(copy, {**whole, "fall": whole["full"]})),
        ("3 places of full for 2 pages", lambda: copies.submit(copy, {**whole, "full": (host["full"], np.arange(3))})),
        ("must be an int64 array", lambda: copies.submit(copy, {**whole, "full": (host["full"], [0, 1])})),  # type: ignore[dict-item]
        ("no sub-pool 'fall'", lambda: copies.backup({"fall": own})),
        ("nothing to copy", lambda: copies.backup({"full": rows_of()})),
    ]
    for text, act in errors:
        with nothing_changes(storage), pytest.raises(KvarenaError, match=text):
            act()
    if in_flight:
        forward = storage.forwards.launch(storage.translate(rows_of(used)))
        for act in (
            lambda: copies.submit(backup, {"full": (host["full"], rows_of(0, 1))}),
            lambda: copies.copy_state(storage.requests.slots[used], storage.requests.slots[row]),
            lambda: copies.cancel(copy),
        ):
            with nothing_changes(storage), pytest.raises(InvariantError, match=r"^forwards\.copy_before_record"):
                act()
        storage.forwards.record(forward)
        process(storage, forward)
    copies.submit(copy, {name: places for name, places in whole.items() if name != "state"})
    copies.submit(backup, {"full": (host["full"], rows_of(0, 1))})
    for over in (copy, backup):
        for act in (lambda: copies.submit(over, whole), lambda: copies.cancel(over)):  # noqa: B023
            with nothing_changes(storage), pytest.raises(InvariantError, match=r"^copies\.unknown_copy"):
                act()
        copies.end(over)
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"^copies\.unknown_copy"):
            copies.end(over)
    assert ids.rows.tolist() == [used]
    storage.close(rows_of(used, row))
    assert_quiet(storage)


@pytest.mark.req("LED-2+")
def test_what_a_load_will_fill_is_not_read_before_it_is_submitted() -> None:
    """Neither saved nor sent, its slots neither; from then on whoever reads waits for it."""
    storage = overlapped(STATE, FULL, memory=4096)
    row = opened(storage)
    copy = loaded(storage, row, 3)
    for name, some in copy.ids.items():
        for reads in (storage.copies.backup, storage.transfers.send):
            with nothing_changes(storage), pytest.raises(InvariantError, match=r"copies\.read_before_submit"):
                reads({name: some})
    units = {name: storage.plan[name].unit_bytes for name in copy.ids}
    memory = {name: storage.device.host_memory(units[name], len(ids)) for name, ids in copy.ids.items()}
    storage.copies.submit(copy, {name: (host, np.arange(len(host))) for name, host in memory.items()})
    storage.copies.end(copy)
    storage.copies.backup(copy.ids)
    storage.release()


def test_a_load_whose_row_was_closed_is_not_submitted_and_can_be_given_up() -> None:
    """All its sub-pools were named, so the row could be closed and its ids are another's by now."""
    storage = storage_of((FULL,), page_tokens=4)
    row = opened(storage)
    copy = loaded(storage, row, 8)
    storage.copies.name(copy, "full")
    storage.close(row)
    assert opened(storage) == row
    stepped(storage, (row, 8))
    places = {"full": (storage.device.host_memory(24, 2), rows_of(0, 1))}
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^copies\.row_was_closed"):
        storage.copies.submit(copy, places)
    before = storage.stats()
    storage.copies.cancel(copy)  # it is forgotten, and the row's new owner is not asked
    assert storage.stats() == before
    assert not len(storage.copies)


@pytest.mark.req("LIF-7")
def test_without_overlap_copies_run_at_once() -> None:
    """A load and a backup on real bytes, on the caller's own stream; the row goes on from there."""
    storage = storage_of((STATE, FULL), page_tokens=2, backend="cpu")
    row = opened(storage)
    copy = loaded(storage, row, 3)
    storage.copies.submit(
        copy, {name: (host_of(storage, name, 2), np.arange(len(ids))) for name, ids in copy.ids.items()}
    )
    saved = storage.device.host_memory(12, 2)
    backup = storage.copies.backup({"full": copy.ids["full"]})
    storage.copies.submit(backup, {"full": (saved, rows_of(1, 0))})
    assert saved[:, 0].tolist() == [2, 1]
    assert [found.split(":")[0] for found in check_idle(storage)] == ["storage.row_open_at_idle"] + [
        "storage.copy_open_at_idle"
    ] * 2
    for one in (copy, backup):
        storage.copies.end(one)
    stepped(storage, (row, 5))
    storage.close(row)
    assert_quiet(storage)
    storage.release()


@pytest.mark.req("CKP-3")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_checkpoint_is_copied_behind_the_kernels_that_make_it(timing: str) -> None:
    """On the forward's own stream into a slot that nobody moves: it is among what the forward writes."""
    storage = overlapped(STATE, FULL, backend=simulated(timing), slots_per_request=2)
    row = opened(storage)
    ids = stepped(storage, (row, 3))
    assert ids.slots is not None
    state, spare = ids.slots[0].tolist()
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, fill(storage, "state", rows_of(state), 33))
    slots = storage.requests.slots[row]
    storage.copies.copy_state(slots[:1], slots[1:], forward)
    storage.forwards.run(forward, fill(storage, "state", rows_of(state), 44))
    storage.forwards.record(forward, may_write=storage.translate(rows_of()))
    assert storage.chain.ledger.steps.writes.pages("state").tolist() == [spare]
    with pytest.raises(InvariantError, match=r"^forwards\.work_of_closed_forward"):
        storage.copies.copy_state(slots[:1], slots[1:], forward)
    process(storage, forward)
    assert first_bytes(storage, "state", rows_of(state, spare)) == [44, 33]
    storage.close(row)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("CKP-3")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_state_copied_for_a_match_waits_for_the_forward_that_writes_it(timing: str) -> None:
    """On the allocator's stream, behind the newest forward that writes the source; the next forward reads the copy."""
    storage = overlapped(STATE, FULL, backend=simulated(timing))
    one, two = opened(storage), opened(storage)
    ids = stepped(storage, (one, 3))
    assert ids.slots is not None
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, fill(storage, "state", ids.slots[0], 55))
    storage.forwards.record(forward)
    slots = storage.requests.slots
    storage.copies.copy_state(slots[one], slots[two])
    ids = stepped(storage, (two, 3))
    assert ids.slots is not None
    target = int(ids.slots[0, 0])
    second, seen = storage.forwards.launch(ids), []
    storage.forwards.run(second, lambda: seen.append(int(storage.device.host_bytes(40, target)[0])))
    storage.forwards.record(second)
    process(storage, forward, second)
    assert seen == [55]
    for sources, targets, name in (
        (slots[one], slots[one], "copies.state_onto_a_source"),
        (slots[one], rows_of(), "copies.state_pairs"),
        (rows_of(30), slots[two], "copies.state_of_unbound_slot"),
    ):
        with pytest.raises(InvariantError, match=f"^{name}"):
            storage.copies.copy_state(sources, targets)
    storage.close(rows_of(one, two))
    assert_quiet(storage)
    assert storage.device.violations == []
    with pytest.raises(KvarenaError, match="keeps no state"):
        storage_of((FULL,)).copies.copy_state(rows_of(0), rows_of(1))


@pytest.mark.req("LIF-6")
def test_nothing_of_a_forward_is_left_when_it_was_recorded() -> None:
    """What one forward copied is not counted among what the next one writes."""
    storage = overlapped(STATE, FULL, slots_per_request=2)
    row = opened(storage)
    ids = stepped(storage, (row, 1))
    forward = storage.forwards.launch(ids)
    slots = storage.requests.slots[row]
    storage.copies.copy_state(slots[:1], slots[1:], forward)
    storage.forwards.record(forward)
    assert sorted(set(storage.chain.ledger.steps.writes.pages("state").tolist())) == sorted(ids.slots[0].tolist())
    process(storage, forward)
    forward = run_forward(storage, None, may_write=storage.translate(rows_of()))
    assert storage.chain.ledger.steps.writes.pages("state").tolist() == []
    process(storage, forward)


@pytest.mark.parametrize("kind", ["load", "backup"])
def test_memory_that_is_not_the_copys_is_refused_before_anything_is_on_a_stream(kind: str) -> None:
    """Too few places, units of another size, or no memory at all, of any of its sub-pools: no byte has moved."""
    storage = overlapped(SHORT, FULL, memory=4096, backend=simulated("late"))
    row = opened(storage)
    if kind == "load":
        copy = loaded(storage, row, 3)
    else:
        stepped(storage, (row, 3))
        ids = own_ids(storage, row)
        copy = storage.copies.backup(
            {name: storage.chain.bands[name].ids.bound_among(ids) for name in ("full", "window-6")}
        )
    good = {name: (host_of(storage, name, len(ids)), np.arange(len(ids))) for name, ids in copy.ids.items()}
    last = list(copy.ids)[-1]
    unit, places = storage.plan[last].unit_bytes, good[last][1]
    for host in (storage.device.host_memory(unit, 1), storage.device.host_memory(unit + 8, 99), None):
        at = places + 1 if host is not None and len(host) == 1 else places
        before = (storage.stats(), storage.chain.epoch, len(storage.device.ready()))
        with pytest.raises(KvarenaError, match=f"the places of {last} do not lie.* in uint8 memory of"):
            storage.copies.submit(copy, {**good, last: (host, at)})
        assert (storage.stats(), storage.chain.epoch, len(storage.device.ready())) == before
    storage.copies.submit(copy, good)
    storage.copies.end(copy)
    storage.device.drain()
    assert not storage.device.violations


def test_a_device_that_fails_half_way_leaves_its_half_in_order() -> None:
    """What is on the stream already comes before whoever has the pages next."""
    storage = overlapped(SHORT, FULL, memory=4096, backend=simulated("late"))
    device, row = storage.device, opened(storage)
    copy, loads = loaded(storage, row, 3), []
    load = type(device).load

    def fails(self: Any, *arguments: Any) -> None:
        loads.append(arguments)
        if len(loads) == 2:
            raise OSError("the device is gone")
        load(self, *arguments)

    hosts = {name: (host_of(storage, name, len(ids)), np.arange(len(ids))) for name, ids in copy.ids.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(device), "load", fails)
        with pytest.raises(OSError, match="the device is gone"):
            storage.copies.submit(copy, hosts)
    storage.copies.cancel(copy)
    stepped(storage, (row, 3))
    device.drain()
    assert not device.violations
    storage.close(row)
    assert_quiet(storage)
