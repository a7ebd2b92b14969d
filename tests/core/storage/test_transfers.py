"""Transfers by engines outside every stream: pages stay until they are proven over, and no longer."""

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
    process,
    rows_of,
    run_forward,
    simulated,
    stepped,
    storage_of,
)

from kvarena.storage.checks import check_idle
from kvarena.storage.storage import Storage
from kvarena.storage.transfers import Published, Transfer
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import IntArray, Touch

TIMINGS = ("early", "late", "random")


def received(storage: Storage, row: int, tokens: int) -> Transfer:
    """A receive, which must fit."""
    transfer = storage.transfers.recv(row, tokens)
    assert not isinstance(transfer, Refused), str(transfer)
    return transfer


def peer(storage: Storage, told: Published, first: int = 1, part: slice = slice(None)) -> Any:
    """A peer's engine: it starts once ``told.after`` has come, and writes ``first + n`` over page n of ``full``."""
    engine = storage.device.engine("peer", told.after)
    pages, device = told.pages["full"], storage.device
    unit = storage.plan["full"].unit_bytes
    chosen = np.arange(len(pages))[part]

    def work() -> None:
        for at in chosen.tolist():
            device.host_bytes(unit, int(pages[at]))[:] = first + at

    device.run(engine, work, [], [Touch(unit, pages[chosen], "full")])
    return device.record(engine)


def first_bytes(storage: Storage, pages: IntArray) -> list[int]:
    storage.device.drain()
    unit = storage.plan["full"].unit_bytes
    return [int(storage.device.host_bytes(unit, page)[0]) for page in pages.tolist()]


def tables(storage: Storage, row: int) -> IntArray:
    return storage.translate(rows_of(row)).tables["full"][0]


@pytest.mark.req("PDD-4")
@pytest.mark.req("LIF-3")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_finished_requests_pages_are_received_into_behind_the_forward_that_writes_them(timing: str) -> None:
    """H10: all six pages are free with five of them pending, and no peer writes before the forward has."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 7, context=8, backend=simulated(timing))
    device, old = storage.device, opened(storage)
    ids = stepped(storage, (old, 4))
    first = storage.forwards.launch(ids)
    pages = ids.tables["full"][0].tolist()
    storage.forwards.run(first, lambda: [device.host_bytes(6, page).fill(9) for page in pages])
    storage.forwards.record(first)
    ids = stepped(storage, (old, 5))
    second, seen, written = storage.forwards.launch(ids), [], int(ids.write_pages("full")[0])

    def work() -> None:
        seen.extend(int(device.host_bytes(6, page)[0]) for page in pages)
        device.host_bytes(6, written)[:] = 99

    storage.forwards.run(second, work)
    storage.forwards.record(second)
    process(storage, first)
    storage.close(old)
    (shot,) = storage.chain.snapshot().bands
    assert (free_units(storage, "full"), shot.pending, shot.live) == (6, 5, 0)
    row = opened(storage)
    transfer = received(storage, row, 6)
    event = peer(storage, storage.transfers.publish(transfer), first=21)
    device.turn()
    device.synchronize(event)
    process(storage, second)
    storage.transfers.release(transfer)
    assert seen == [9] * 4
    assert first_bytes(storage, tables(storage, row)) == [21, 22, 23, 24, 25, 26]
    storage.close(row)
    assert_quiet(storage)
    assert device.violations == []


@pytest.mark.req("PDD-5+")
@pytest.mark.parametrize("timing", TIMINGS)
def test_aborting_a_receive_does_not_stop_the_writer(timing: str) -> None:
    """H18: the pages of a closed row stay reserved until the release, and nobody gets them before."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 7, context=8, backend=simulated(timing))
    a, device = opened(storage), storage.device
    transfer = received(storage, a, 4)
    told = storage.transfers.publish(transfer)
    soon = peer(storage, told, part=slice(0, 2))
    storage.close(a)
    assert free_units(storage, "full") == 2
    c = opened(storage)
    other = received(storage, c, 2)
    event = peer(storage, storage.transfers.publish(other), first=41)
    device.synchronize(event)
    storage.transfers.release(other)
    b = opened(storage)
    assert isinstance(storage.transfers.recv(b, 4), Refused)
    found = [text for text in check_idle(storage) if "leaked" in text or "transfer" in text]
    assert len(found) == 1
    assert found[0].startswith("storage.transfer_open_at_idle: transfer='recv 1' held={'full': 4}")
    late = peer(storage, told, part=slice(2, 4))
    device.synchronize(soon)
    device.synchronize(late)
    storage.transfers.release(transfer)
    again = received(storage, b, 4)
    event = peer(storage, storage.transfers.publish(again), first=61)
    device.synchronize(event)
    storage.transfers.release(again)
    with pytest.raises(InvariantError, match=r"^transfers\.unknown_transfer"):
        storage.transfers.release(transfer)
    assert first_bytes(storage, tables(storage, b)) == [61, 62, 63, 64]
    assert first_bytes(storage, tables(storage, c)) == [41, 42]
    storage.close(rows_of(b, c))
    assert_quiet(storage)
    assert device.violations == []


@pytest.mark.req("PDD-1")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_send_starts_behind_what_wrote_its_pages_and_keeps_them(timing: str) -> None:
    """The engine reads what the forward and the load wrote; the row ends meanwhile, and nobody overwrites its pages."""
    storage = overlapped(FULL, page_tokens=1, memory=6 * 7, context=8, backend=simulated(timing))
    device, row = storage.device, opened(storage)
    host = device.host_memory(6, 2)
    host[:] = np.array([[5], [6]])
    load = storage.copies.load(row, 2)
    assert not isinstance(load, Refused)
    storage.copies.submit(load, {"full": (host, rows_of(0, 1))})
    ids = stepped(storage, (row, 3))
    forward, page = storage.forwards.launch(ids), int(ids.write_pages("full")[0])
    storage.forwards.run(forward, lambda: device.host_bytes(6, page).fill(7))
    storage.forwards.record(forward)
    own = storage.requests.pages[row, :3].copy()
    transfer = storage.transfers.send({"full": own})
    engine, sent = device.engine("engine", transfer.after), []
    pages = transfer.pages["full"].tolist()
    assert pages == ids.tables["full"][0].tolist()
    read = Touch(6, transfer.pages["full"], "full")
    device.run(engine, lambda: sent.extend(int(device.host_bytes(6, one)[0]) for one in pages), [read], [])
    event = device.record(engine)
    storage.close(row)
    assert free_units(storage, "full") == 3
    again = opened(storage)
    ids = stepped(storage, (again, 3))
    second = storage.forwards.launch(ids)
    mine = ids.tables["full"][0]
    storage.forwards.run(second, lambda: [device.host_bytes(6, one).fill(50) for one in mine.tolist()])
    storage.forwards.record(second)
    process(storage, forward, second)
    device.synchronize(event)
    storage.transfers.release(transfer)
    assert sent == [5, 6, 7]
    assert not set(mine.tolist()) & set(pages)
    storage.copies.end(load)
    storage.close(again)
    assert_quiet(storage)
    assert device.violations == []


@pytest.mark.req("PDD-3")
@given(name=st.sampled_from(sorted(CHAINS)), page_tokens=st.sampled_from([1, 3, 4]), tokens=st.integers(1, 40))
@settings(max_examples=40)
def test_a_received_row_goes_on_like_any_other(name: str, page_tokens: int, tokens: int) -> None:
    """It holds what a query at that length needs; published or not, released or closed first, all of it comes back."""
    storage = storage_of(CHAINS[name], page_tokens=page_tokens, memory=20_000, forwards_in_flight=1)
    rows = [opened(storage) for _ in range(4)]
    transfers = [received(storage, row, tokens) for row in rows]
    with pytest.raises(InvariantError, match=r"^storage\.row_awaits_its_copy"):
        storage.step(rows_of(rows[0]), rows_of(tokens + 1))
    before = storage.chain.snapshot()
    assert storage.flush() == 0
    assert storage.chain.snapshot() == before
    for transfer in transfers[::2]:
        told = storage.transfers.publish(transfer)
        assert {name: len(pages) for name, pages in told.pages.items()} == {
            name: len(ids) for name, ids in transfer.ids.items()
        }
    storage.close(rows_of(*rows[2:]))
    for transfer in transfers:
        storage.transfers.release(transfer)
    stepped(storage, *((row, tokens + 9) for row in rows[:2]))
    storage.verify()
    storage.close(rows_of(*rows[:2]))
    assert_quiet(storage)


def test_what_is_wrong_with_a_transfer_is_said_by_name() -> None:
    """Unknown and second releases, publications of what is no receive, launches over it: and nothing changes."""
    storage = overlapped(STATE, SHORT, FULL, page_tokens=4)
    other = overlapped(FULL, page_tokens=4)
    foreign = received(other, opened(other), 4)
    transfers = storage.transfers
    used, row, closing = opened(storage), opened(storage), opened(storage)
    stepped(storage, (used, 9))
    own = storage.requests.pages[used, 1:3].copy()
    send = transfers.send({"full": own, "state": storage.requests.slots[used]})
    receive, lost = received(storage, row, 6), received(storage, closing, 6)
    storage.close(closing)
    invariants: list[tuple[str, Callable[[], object]]] = [
        (r"transfers\.unknown_transfer", lambda: transfers.release(foreign)),
        (r"transfers\.unknown_transfer", lambda: transfers.publish(foreign)),
        (r"transfers\.publish_of_no_receive", lambda: transfers.publish(send)),
        (r"transfers\.publish_of_closed_row", lambda: transfers.publish(lost)),
        (r"storage\.row_awaits_its_copy", lambda: transfers.recv(row, 4)),
        (r"storage\.copy_into_used_row", lambda: transfers.recv(used, 4)),
        (r"ledger\.page_is_not_to_be_had", lambda: storage.forwards.launch(storage.translate(rows_of(row)))),
        (
            r"ledger\.page_is_not_to_be_had",  # it would write a page that is being sent
            lambda: storage.forwards.launch(storage.translate(rows_of(used), rows_of(8))),
        ),
    ]
    for name, act in invariants:
        with nothing_changes(storage), pytest.raises(InvariantError, match=f"^{name}"):
            act()
    empty = opened(storage)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^storage\.copy_of_nothing"):
        transfers.recv(empty, 0)
    with nothing_changes(storage), pytest.raises(KvarenaError, match="nothing to copy"):
        transfers.send({})
    transfers.publish(receive)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^transfers\.publish_of_no_receive"):
        transfers.publish(receive)
    for transfer in (send, receive, lost):
        transfers.release(transfer)
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"^transfers\.unknown_transfer"):
            transfers.release(transfer)
    forward = storage.forwards.launch(storage.translate(rows_of(row)))
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^forwards\.copy_before_record"):
        transfers.send({"full": own})
    storage.forwards.record(forward)
    process(storage, forward)
    storage.close(rows_of(used, row, empty))
    assert_quiet(storage)


@pytest.mark.req("PDD-2")
def test_a_relief_waits_for_a_transfer_only_where_nothing_else_serves() -> None:
    """The waiter is asked, ends it in the ledger, and the release that follows still works, once."""
    storage = overlapped(STATE, FULL, page_tokens=1, memory=600, context=80)
    asked: list[str] = []

    class Waiter:
        def wait(self, uses: Any) -> None:
            asked.extend(map(str, uses))

    filler, row = opened(storage), opened(storage)
    stepped(storage, (filler, 30))
    transfer = received(storage, row, 20)
    storage.transfers.publish(transfer)
    storage.close(filler)
    chain = storage.chain
    assert isinstance(chain.take_new("state", 8), Refused)
    chain.usage.waiter = Waiter()
    taken = chain.take_new("state", 2)
    assert not isinstance(taken, Refused)
    assert not asked
    more = chain.take_new("state", 6)
    assert not isinstance(more, Refused)
    assert len(asked) == 1
    assert asked[0].startswith("NETWORK_RECEIVE")
    assert not len(chain.ledger.uses)
    storage.transfers.release(transfer)
    with pytest.raises(InvariantError, match=r"^transfers\.unknown_transfer"):
        storage.transfers.release(transfer)
    chain.verify()
    chain.free_all({"state": np.concatenate([taken.ids, more.ids])})
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("LIF-7")
def test_without_overlap_transfers_work_the_same() -> None:
    """Pages are reserved until the release, and what a receive brought is read."""
    storage = storage_of((STATE, FULL), page_tokens=2)
    row = opened(storage)
    transfer = received(storage, row, 5)
    assert storage.transfers.publish(transfer).after is None
    storage.transfers.release(transfer)
    send = storage.transfers.send({"full": transfer.ids["full"]})
    assert send.after is not None
    storage.close(row)
    free = free_units(storage, "full")
    storage.transfers.release(send)
    assert free_units(storage, "full") == free + 3
    assert_quiet(storage)


def test_an_arena_with_work_under_way_is_not_resized() -> None:
    """Each kind is named with its cure."""
    storage = overlapped(FULL, page_tokens=4)
    row = opened(storage)
    stepped(storage, (row, 4))
    send = storage.transfers.send({"full": storage.requests.pages[row, :1].copy()})
    backup = storage.copies.backup({"full": storage.requests.pages[row, :1].copy()})
    forward = run_forward(storage, storage.translate(rows_of(row)))
    for text, cure in (
        ("1 requests are open: close them", lambda: storage.close(row)),
        ("1 forwards are in flight: process them", lambda: process(storage, forward)),
        ("1 host copies are under way: end them", lambda: storage.copies.cancel(backup)),
        ("1 transfers are under way: release them", lambda: storage.transfers.release(send)),
    ):
        with nothing_changes(storage), pytest.raises(KvarenaError, match=text):
            storage.resize(3000)
        cure()
    storage.resize(3000)
    assert_quiet(storage)
