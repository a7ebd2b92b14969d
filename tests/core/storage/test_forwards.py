"""Forwards over a storage: what pends under one, what each waits for, and what is caught."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from storages import (
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
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Touch

LATE = simulated("late")


def pending(storage: Storage, name: str = "full") -> int:
    """Pages of a sub-pool that wait for a forward."""
    return next(shot.pending for shot in storage.chain.snapshot().bands if shot.name == name)


@pytest.mark.req("LIF-1")
@pytest.mark.req("LIF-2")
@pytest.mark.req("LIF-3")
def test_what_is_freed_under_a_forward_pends_and_counts_as_free() -> None:
    """Its ids are back at once, a take may have its pages, and processing the forward makes the rest holes."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 11)
    ids = stepped(storage, (opened(storage), 6))
    forward = run_forward(storage, ids)
    before = free_units(storage, "full")
    storage.close(int(ids.rows[0]))
    assert (pending(storage), free_units(storage, "full")) == (6, before + 6)
    assert storage.chain.minters["full"].pool.free == storage.chain.minters["full"].pool.count
    process(storage, forward)
    assert pending(storage) == 0
    assert_quiet(storage)


@pytest.mark.req("LIF-4")
def test_nothing_is_taken_freed_or_moved_while_a_forward_is_open() -> None:
    """Between launch and record each of these stops by name, and nothing has changed; reading goes on."""
    storage = overlapped(STATE, FULL, page_tokens=1)
    row = opened(storage)
    forward = storage.forwards.launch(stepped(storage, (row, 3)))
    for touch in (
        storage.open,
        lambda: storage.step(rows_of(row), rows_of(4)),
        lambda: storage.close(row),
        storage.flush,
        lambda: storage.drafts.reserve(rows_of(row), rows_of(9)),
    ):
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"^forwards\.\w+_before_record"):
            touch()
    assert storage.translate(rows_of(row)).tables["full"].shape == (1, 3)
    storage.forwards.record(forward)
    process(storage, forward)
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("LIF-3")
@pytest.mark.req("LIF-4")
def test_forwards_out_of_order_are_named_errors() -> None:
    """Never recorded, recorded twice, processed out of order, one too many: and nothing changes."""
    storage = overlapped(FULL, page_tokens=1, in_flight=2)
    row = opened(storage)
    first = storage.forwards.launch(stepped(storage, (row, 1)))
    refusals: list[tuple[str, Callable[[], object]]] = [
        (r"forwards\.launch_over_unrecorded", storage.forwards.launch),
        (r"forwards\.process_of_unrecorded", lambda: storage.forwards.process(first)),
    ]
    for name, act in refusals:
        with nothing_changes(storage), pytest.raises(InvariantError, match=f"^{name}"):
            act()
    storage.forwards.record(first)
    second = run_forward(storage, stepped(storage, (row, 2)))
    refusals = [
        (r"forwards\.recorded_twice", lambda: storage.forwards.record(first)),
        (r"forwards\.process_out_of_order", lambda: storage.forwards.process(second)),
        (r"forwards\.too_many_in_flight", storage.forwards.launch),
        (r"forwards\.work_of_closed_forward", lambda: storage.forwards.run(second, lambda: None)),
    ]
    for name, act in refusals:
        with nothing_changes(storage), pytest.raises(InvariantError, match=f"^{name}"):
            act()
    process(storage, first, second)
    with pytest.raises(InvariantError, match=r"^forwards\.process_of_unrecorded"):
        storage.forwards.process(first)
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("LIF-3")
def test_a_forward_is_processed_after_its_end_was_waited_for() -> None:
    """Too early is a named error, from check level 1 on, and changes nothing."""
    storage = overlapped(FULL, page_tokens=1, backend=LATE)
    row = opened(storage)
    forward = storage.forwards.launch(stepped(storage, (row, 1)))
    storage.forwards.run(forward, lambda: None)
    storage.forwards.record(forward)
    before = repr(storage.chain.ledger.steps)
    with pytest.raises(InvariantError, match=r"^forwards\.process_before_its_end"):
        storage.forwards.process(forward)
    assert repr(storage.chain.ledger.steps) == before
    process(storage, forward)
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("LIF-5")
def test_a_step_without_a_forward_advances_nothing() -> None:
    """A prebuilt batch is recorded and processed, and no number moves; what is freed then is a hole."""
    storage = overlapped(FULL, page_tokens=1)
    row = opened(storage)
    stepped(storage, (row, 3))
    steps = storage.chain.ledger.steps
    forward = storage.forwards.prebuilt()
    storage.forwards.record(forward)
    storage.forwards.process(forward)
    assert (steps.launched, steps.recorded, steps.processed) == (0, 0, 0)
    storage.close(row)
    assert pending(storage) == 0


@pytest.mark.req("LIF-7")
def test_without_overlap_nothing_is_recorded() -> None:
    """The same calls: frees go straight to the free list, and any number of forwards is launched."""
    storage = storage_of((STATE, FULL), page_tokens=1)
    row, done = opened(storage), [0]
    for length in range(1, 4):
        forward = storage.forwards.launch(stepped(storage, (row, length)))
        storage.forwards.run(forward, partial(done.append, length))
        assert done[-1] == length
        storage.forwards.record(forward)
        storage.close(opened(storage))
        assert pending(storage, "state") == 0
        storage.forwards.process(forward)
    assert storage.chain.ledger.steps.launched == 0
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("LIF-6")
@pytest.mark.req("CMP-4")
def test_a_forward_says_what_it_writes_or_that_nobody_knows() -> None:
    """By default the pages of its new tokens and its rows' slots; a superset, or unknown in every sub-pool."""
    storage = overlapped(STATE, SHORT, FULL, page_tokens=4, in_flight=4)
    row, other = opened(storage), opened(storage)
    stepped(storage, (other, 9))
    steps = storage.chain.ledger.steps
    ids = stepped(storage, (row, 10))
    forwards = [run_forward(storage, ids)]
    for name in ("window-6", "full"):
        assert sorted(set(steps.writes.pages(name).tolist())) == sorted(set(ids.write_pages(name).tolist()))
    assert ids.slots is not None
    assert steps.writes.pages("state").tolist() == ids.slots[0].tolist()
    theirs = storage.translate(rows_of(other)).tables["full"][0]
    assert steps.writes.newest("full", theirs) == 0
    superset = storage.translate(rows_of(row, other), rows_of(0, 4))
    forwards.append(run_forward(storage, storage.translate(rows_of(row)), may_write=superset))
    assert [steps.writes.newest("full", theirs[at : at + 1]) for at in range(3)] == [0, 2, 2]
    forwards.append(run_forward(storage, storage.translate(rows_of(row)), unknown=True))
    forwards.append(run_forward(storage, None))
    everywhere = frozenset(("state", "window-6", "full"))
    assert [one.unknown for one in steps.writes] == [frozenset(), frozenset(), everywhere, everywhere]
    assert steps.writes.newest("full", theirs) == 4
    process(storage, *forwards)
    storage.close(rows_of(row, other))
    assert_quiet(storage)


@pytest.mark.req("CMP-4")
@pytest.mark.parametrize("told", ["unknown", "its reservation"])
def test_steady_speculation_moves_what_it_cannot_write(told: str) -> None:
    """While a forward with unknown writes is in flight nothing of the band moves; with a superset the others do."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 13)
    rows = [opened(storage) for _ in range(3)]
    for row in rows:
        stepped(storage, (row, 3))
    storage.close(rows[0])
    ids = storage.drafts.reserve(rows_of(rows[1]), rows_of(4))
    assert not isinstance(ids, Refused)
    forward = run_forward(storage, ids, **({"unknown": True} if told == "unknown" else {"may_write": ids}))
    kept = storage.translate(rows_of(rows[1])).tables["full"].tolist()
    moved = storage.flush()
    assert (moved > 0) == (told != "unknown")
    assert storage.translate(rows_of(rows[1])).tables["full"].tolist() == kept or told != "unknown"
    process(storage, forward)
    storage.drafts.commit(rows_of(rows[1]), rows_of(4))
    storage.close(rows_of(*rows[1:]))
    assert_quiet(storage)


@pytest.mark.req("LIF-8")
def test_an_engine_that_writes_tables_waits_for_the_forwards_reads() -> None:
    """Its stream waits the read end it is told, or the whole forward; a forward's own stream waits for nothing."""
    storage = overlapped(FULL, backend=LATE)
    device, forwards = storage.device, storage.forwards
    forward = forwards.launch(stepped(storage, (opened(storage), 3)))
    order: list[str] = []
    forwards.run(forward, lambda: order.append("reads"))
    read_end = device.record(storage.chain.ledger.timeline.forward)
    forwards.run(forward, lambda: order.append("rest"))
    forwards.record(forward)
    engine = device.stream("engine")
    forwards.barrier(engine, read_end)
    device.run(engine, lambda: order.append("after the reads"), [], [])
    device.synchronize(device.record(engine))
    assert order == ["reads", "after the reads"]
    forwards.barrier(engine)
    device.run(engine, lambda: order.append("after all"), [], [])
    device.synchronize(device.record(engine))
    assert order == ["reads", "after the reads", "rest", "after all"]
    forwards.barrier(storage.chain.ledger.timeline.forward)
    process(storage, forward)


@pytest.mark.req("LIF-8")
def test_overlap_on_a_device_without_streams_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that holds bytes must have streams; the host backend holds none, and overlaps."""
    overlapped(FULL, backend="host").release()
    monkeypatch.setattr("kvarena.backends.cpu.CpuDevice.has_streams", False)
    with pytest.raises(KvarenaError, match=r"backend 'cpu' holds bytes but has no streams.*forwards_in_flight = 0"):
        overlapped(FULL, backend="cpu")
    storage_of((FULL,), backend="cpu").release()


@pytest.mark.req("LIF-9")
@pytest.mark.parametrize("in_flight", [0, 2])
def test_the_next_forward_resets_the_rows_that_were_handed_out(in_flight: int) -> None:
    """On its own stream and before its kernels, each row once; a restored one, or one that closed again, is left."""
    storage = storage_of((FULL,), backend=LATE, forwards_in_flight=in_flight)
    seen: list[object] = []
    storage.forwards.at_reuse(lambda rows: seen.append(rows.tolist()))
    one, two, three, four = (opened(storage) for _ in range(4))
    storage.forwards.restored(two)
    storage.close(four)
    forward = storage.forwards.launch(stepped(storage, (one, 3)))
    storage.forwards.run(forward, lambda: seen.append("kernels"))
    assert seen == ([] if in_flight else [[one, three], "kernels"])
    storage.forwards.record(forward)
    process(storage, forward)
    assert seen == [[one, three], "kernels"]
    forward = run_forward(storage, stepped(storage, (one, 4)))
    process(storage, forward)
    again = opened(storage)
    forward = run_forward(storage, stepped(storage, (again, 1)))
    process(storage, forward)
    assert seen == [[one, three], "kernels", [again]]


def test_ids_that_are_stale_at_launch_stop_it() -> None:
    """Another row took pages after the step: its ids are asked for anew, and nothing was launched."""
    storage = overlapped(FULL)
    row = opened(storage)
    ids = stepped(storage, (row, 3))
    stepped(storage, (opened(storage), 3))
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^storage\.ids_outlived_their_step"):
        storage.forwards.launch(ids)
    process(storage, run_forward(storage, storage.translate(rows_of(row), rows_of(0))))


def test_tokens_are_written_again_only_where_the_row_has_them() -> None:
    """``translate`` from a position on names the same tokens as the step that took them."""
    storage = storage_of((SHORT, FULL))
    row = opened(storage)
    ids = stepped(storage, (row, 7))
    again = storage.translate(rows_of(row), rows_of(5))
    for name in ("window-6", "full"):
        assert again.write_ids(name).tolist() == ids.write_ids(name)[5:].tolist()
        assert set(again.written_pages(name).tolist()) == set(again.write_pages(name).tolist())
    assert not len(storage.translate(rows_of(row)).written_pages("full"))
    for starts in (rows_of(8), rows_of(-1), rows_of(1, 2)):
        with pytest.raises(InvariantError, match=r"^storage\.translate_beyond_the_row"):
            storage.translate(rows_of(row), starts)


@pytest.mark.req("LED-2+")
@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_a_forward_waits_for_the_copies_of_what_it_reads_and_writes(timing: str) -> None:
    """It reads pages that a load still writes, and writes a page that a backup still reads: in order, at any timing."""
    storage = overlapped(FULL, page_tokens=2, backend=simulated(timing))
    device, unit = storage.device, storage.plan["full"].unit_bytes
    host = device.host_memory(unit, 8)
    host[:] = np.arange(1, 9)[:, None]
    row = opened(storage)
    load = storage.copies.load(row, 3)
    assert not isinstance(load, Refused)
    storage.copies.submit(load, {"full": (host, rows_of(0, 1))})
    ids = stepped(storage, (row, 4))
    pages = ids.tables["full"][0].tolist()
    backup = storage.copies.backup({"full": load.ids["full"]})
    storage.copies.submit(backup, {"full": (host, rows_of(6, 7))})
    forward, read = storage.forwards.launch(ids), []

    def work() -> None:
        read.extend(int(device.host_bytes(unit, page)[0]) for page in pages)
        device.host_bytes(unit, pages[1])[:] = 99

    storage.forwards.run(forward, work)
    storage.forwards.record(forward)
    device.turn()
    device.drain()
    process(storage, forward)
    assert read == [1, 2]
    assert host[6:8, 0].tolist() == [1, 2]
    storage.copies.end(load)
    storage.copies.end(backup)
    storage.close(row)
    assert device.violations == []
    assert_quiet(storage)


@pytest.mark.req("LED-2+")
def test_a_forward_over_no_ids_waits_for_every_copy() -> None:
    """Nobody says what it reads or writes, so it waits for all that streams do; and counts as writing anything."""
    storage = overlapped(FULL, page_tokens=2, backend=LATE)
    device, row, unit = storage.device, opened(storage), storage.plan["full"].unit_bytes
    page = int(stepped(storage, (row, 2)).write_pages("full")[0])
    host = device.host_memory(unit, 1)
    backup = storage.copies.backup({"full": storage.requests.pages[row, :1].copy()})
    storage.copies.submit(backup, {"full": (host, rows_of(0))})
    forward = storage.forwards.launch()
    touched = [Touch(unit, rows_of(page), "full")]
    stream = storage.chain.ledger.timeline.forward
    device.run(stream, lambda: device.host_bytes(unit, page).fill(9), [], touched)
    storage.forwards.record(forward)
    process(storage, forward)
    assert host[0, 0] == 0
    storage.copies.end(backup)
    assert device.violations == []


@pytest.mark.req("CHK-2")
def test_a_forward_that_nobody_processed_is_found_at_idle() -> None:
    """With its numbers."""
    storage = overlapped(FULL)
    forward = run_forward(storage, storage.translate(rows_of()))
    assert any(found.startswith("storage.forward_in_flight_at_idle") for found in check_idle(storage))
    process(storage, forward)
    assert check_idle(storage) == ()


@pytest.mark.parametrize("verb", ["wait", "run", "mirror"])
def test_a_device_that_fails_in_a_launch_leaves_it_to_be_launched_again(verb: str) -> None:
    """No forward is open, rows are reset and mirrors whole in the next one."""
    storage = overlapped(STATE, FULL, page_tokens=1, backend=simulated("early"), mirrors=True)
    row, seen = opened(storage), []
    storage.forwards.at_reuse(lambda rows: seen.append(rows.tolist()))
    first = stepped(storage, (row, 3))
    device, failed = storage.device, []
    target = type(device) if verb != "mirror" else type(device.mirror(1, 1, 1))
    name = verb if verb != "mirror" else "apply"
    original = getattr(target, name)

    def fails_once(self: object, *arguments: object) -> object:
        if not failed:
            failed.append(name)
            raise OSError("once")
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, fails_once)
        with pytest.raises(OSError, match="once"):
            storage.forwards.launch(first)
        forward = storage.forwards.launch(first)
    found = []
    storage.forwards.run(forward, lambda: found.append(storage.mirrors.pages("full", rows_of(row), 3)))  # type: ignore[union-attr]
    storage.forwards.record(forward)
    process(storage, forward)
    assert seen == [[row]]
    assert found[0].tolist() == storage.translate(rows_of(row)).tables["full"].tolist()
    storage.close(row)
    assert_quiet(storage)


def test_what_is_another_storages_is_refused() -> None:
    """Its forward, its ids and its events, by name; both storages go on."""
    one, other = (overlapped(FULL, page_tokens=1, backend=LATE) for _ in range(2))
    ids = [stepped(storage, (opened(storage), 3)) for storage in (one, other)]
    with pytest.raises(InvariantError, match=r"^storage\.ids_of_another_storage"):
        one.forwards.launch(ids[1])
    forwards = [storage.forwards.launch(some) for storage, some in zip((one, other), ids, strict=True)]
    with pytest.raises(InvariantError, match=r"^forwards\.record_out_of_order"):
        one.forwards.record(forwards[1])
    with pytest.raises(InvariantError, match=r"^storage\.ids_of_another_storage"):
        one.forwards.record(forwards[0], may_write=ids[1])
    with pytest.raises(InvariantError, match=r"^device\.event_of_another"):
        one.forwards.record(forwards[0], event=other.device.record(other.device.stream("forward")))
    for storage, forward in zip((one, other), forwards, strict=True):
        storage.forwards.record(forward)
        process(storage, forward)
        storage.close(0)
        assert_quiet(storage)


def test_a_storage_that_gave_its_arena_back_is_not_used_through_its_parts() -> None:
    """Launches, copies, transfers and reservations stop by the same name as the storage."""
    storage = overlapped(FULL, page_tokens=1)
    row = opened(storage)
    ids = {"full": own_ids(storage, row)}
    storage.release()
    for act in (
        storage.forwards.launch,
        lambda: storage.copies.load(row, 1),
        lambda: storage.copies.backup(ids),
        lambda: storage.transfers.send(ids),
        lambda: storage.drafts.reserve(rows_of(row), rows_of(1)),
    ):
        with pytest.raises(InvariantError, match=r"^storage\.used_after_release"):
            act()


@pytest.mark.parametrize("length", [2**63 - 1, 2**62])
def test_a_length_beyond_counting_is_refused_before_anything_retires(length: int) -> None:
    """Stepped to, or reserved: the same words as for any length that a row cannot hold."""
    storage = overlapped(SHORT, FULL)
    row = opened(storage)
    stepped(storage, (row, 20))
    for act in (storage.step, storage.drafts.reserve):
        with nothing_changes(storage), pytest.raises(KvarenaError, match="longer than the"):
            act(rows_of(row), rows_of(length))
