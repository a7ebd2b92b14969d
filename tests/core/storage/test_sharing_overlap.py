"""Sharing while forwards are in flight, on a device that judges every access: whoever comes next comes behind."""

from collections.abc import Callable

import numpy as np
import pytest
from storages import (
    FULL,
    SHORT,
    STATE,
    assert_quiet,
    opened,
    overlapped,
    process,
    rows_of,
    run_forward,
    simulated,
    stepped,
)

from kvarena.assembly.config import PrefixConfig
from kvarena.ledger.steps import Forward
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import IntArray

TIMINGS = ("early", "late", "random")


def sharing(*kinds: object, timing: str, strategy: str = "extra_buffer", **settings: object) -> Storage:
    """A storage with prefixes shared, checkpoints every 8 tokens."""
    prefix = PrefixConfig(share=True, strategy=strategy, checkpoint_tokens=8)
    return overlapped(*kinds, backend=simulated(timing), prefix=prefix, **settings)  # type: ignore[arg-type]


def put(storage: Storage, name: str, pages: IntArray, tag: int) -> Callable[[], None]:
    """Work that writes a tag all over these pages."""
    unit, device = storage.plan[name].unit_bytes, storage.device

    def work() -> None:
        for page in pages.tolist():
            device.host_bytes(unit, page)[:] = tag

    return work


def get(storage: Storage, name: str, pages: IntArray, seen: list[int]) -> Callable[[], None]:
    """Work that notes the first byte of each of these pages."""
    unit, device = storage.plan[name].unit_bytes, storage.device
    return lambda: seen.extend(int(device.host_bytes(unit, page)[0]) for page in pages.tolist())


def write(storage: Storage, ids: IterationIds, tag: int) -> Forward:
    """A forward that writes a tag into every page and live slot that it may write, recorded."""
    forward = storage.forwards.launch(ids)
    for pool in storage.plan.token_pools:
        storage.forwards.run(forward, put(storage, pool.name, np.unique(ids.write_pages(pool.name)), tag))
    if ids.live_slots is not None:
        storage.forwards.run(forward, put(storage, "state", ids.live_slots.reshape(-1), tag))
    storage.forwards.record(forward)
    return forward


def slot(storage: Storage, row: int, at: int) -> int:
    """The id in a row's place."""
    return int(storage.requests.slots[row, at])


@pytest.mark.req("CKP-3")
@pytest.mark.req("CKP-1")
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_a_checkpoint_is_the_state_of_its_point_whatever_runs_behind(timing: str, strategy: str) -> None:
    """Copied behind the kernels, handed over, read for another request; the next forwards change only the live slot."""
    storage = sharing(STATE, FULL, timing=timing, strategy=strategy)
    row = opened(storage)
    lazy = strategy == "extra_buffer_lazy"
    assert [slot(storage, row, at) >= 0 for at in (0, 1)] == [True, not lazy]
    if lazy:
        assert not isinstance(storage.sharing.take_slot(row, 1), Refused)
    ids = stepped(storage, (row, 8))
    live, spare = slot(storage, row, 0), slot(storage, row, 1)
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, put(storage, "state", ids.live_slots.reshape(-1), 8))
    storage.copies.copy_state(rows_of(live), rows_of(spare), forward)
    with pytest.raises(InvariantError, match=r"^forwards\.change_before_record"):
        storage.sharing.hand_over_slot(row, 1)
    storage.forwards.record(forward)
    pages = storage.chain.pages("state", rows_of(live, spare))
    assert storage.chain.ledger.steps.writes.pages("state").tolist() == pages.tolist()
    assert storage.sharing.hand_over_slot(row, 1) == spare
    second = write(storage, stepped(storage, (row, 9)), 9)  # launched before the first one's result is there
    assert pages[1] not in [one.pages["state"] for one in storage.chain.ledger.steps.writes][1]
    process(storage, forward)
    reader, seen = opened(storage), []
    path = storage.ownership.hand_over(row, 8)
    storage.sharing.start(reader, path, 8)
    storage.copies.copy_state(rows_of(spare), rows_of(slot(storage, reader, 0)))
    ids = stepped(storage, (reader, 9))
    third = storage.forwards.launch(ids)
    storage.forwards.run(third, get(storage, "state", ids.live_slots.reshape(-1), seen))
    storage.forwards.record(third)
    storage.sharing.free_slots(rows_of(spare))  # evicted at once: whoever has it next comes behind the copy
    taken = storage.sharing.take_slot(row, 1)
    assert not isinstance(taken, Refused)
    process(storage, second, third)
    assert seen == [8]
    storage.close(rows_of(row, reader))
    storage.ownership.free_pages(path)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("LIF-6")
def test_a_spare_that_no_copy_fills_is_not_among_what_a_forward_writes() -> None:
    """So a checkpoint copied out of it for a match waits for nobody; the live slot's waits for its writer."""
    storage = sharing(STATE, FULL, timing="late")
    row, other = opened(storage), opened(storage)
    forward = write(storage, stepped(storage, (row, 3)), 1)
    steps = storage.chain.ledger.steps
    assert steps.writes.pages("state").tolist() == storage.chain.pages("state", rows_of(slot(storage, row, 0))).tolist()
    storage.copies.copy_state(rows_of(slot(storage, row, 1)), rows_of(slot(storage, other, 0)))
    assert steps.retired == 0
    storage.copies.copy_state(rows_of(slot(storage, row, 0)), rows_of(slot(storage, other, 0)))
    assert steps.retired == forward.number
    process(storage, forward)
    storage.close(rows_of(row, other))
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_request_starts_on_pages_that_a_forward_in_flight_still_writes(timing: str) -> None:
    """Its own forward comes behind, and reads what was written."""
    storage = sharing(SHORT, FULL, timing=timing)
    writer, seen = opened(storage), []
    forward = write(storage, stepped(storage, (writer, 8)), 5)
    path = storage.ownership.hand_over(writer, 8)
    storage.close(writer)  # it ended with that very forward
    reader = opened(storage)
    storage.sharing.start(reader, path, 8)
    ids = stepped(storage, (reader, 12))
    second = storage.forwards.launch(ids)
    for name in ("window-6", "full"):
        storage.forwards.run(second, get(storage, name, ids.tables[name][0, :2], seen))
    storage.forwards.record(second)
    process(storage, forward, second)
    assert seen == [5] * 4
    storage.close(reader)
    storage.ownership.free_pages(path)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("TRE-1")
@pytest.mark.req("LIF-3")
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("act", ["free_pages", "free_in"])
def test_pages_that_a_forward_in_flight_reads_may_be_evicted(timing: str, act: str) -> None:
    """They pend, and count as free; a load that gets them at once is written behind the forward."""
    storage = sharing(SHORT, FULL, timing=timing, page_tokens=1, memory=16 * 16, context=9)
    first = opened(storage)
    process(storage, write(storage, stepped(storage, (first, 5)), 3))
    path = storage.ownership.hand_over(first, 5)
    storage.close(first)
    reader, seen = opened(storage), []
    storage.sharing.start(reader, path, 5)
    ids = stepped(storage, (reader, 6))
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, get(storage, "window-6", ids.tables["window-6"][0, :5], seen))
    storage.forwards.record(forward)
    storage.close(reader)
    if act == "free_in":
        storage.sharing.free_in("window-6", path)
        assert not storage.sharing.bound("window-6", path).any()
        assert storage.sharing.bound("full", path).all()
    storage.ownership.free_pages(path)
    assert {shot.name: shot.pending for shot in storage.chain.snapshot().bands} == {"window-6": 6, "full": 6}
    row = opened(storage)
    copy = storage.copies.load(row, 9)
    assert not isinstance(copy, Refused)
    hosts = {}
    for name, some in copy.ids.items():
        host = storage.device.host_memory(storage.plan[name].unit_bytes, len(some))
        host[:] = 200
        hosts[name] = (host, np.arange(len(some)))
    storage.copies.submit(copy, hosts)
    process(storage, forward)
    assert seen == [3] * 5
    storage.copies.end(copy)
    storage.close(row)
    storage.device.drain()
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("TRE-2")
@pytest.mark.req("CMP-4")
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_window_page_changes_its_id_under_the_forward_that_writes_it(timing: str) -> None:
    """What the forward writes is known by page: the bytes land where the new id reads them, and the page stays put."""
    storage = sharing(SHORT, FULL, timing=timing, memory=4000)
    one, two, gap = opened(storage), opened(storage), opened(storage)
    process(storage, write(storage, stepped(storage, (gap, 20)), 1))  # lies nearest to the anchored ends
    process(storage, write(storage, stepped(storage, (one, 8)), 4))
    path = storage.ownership.hand_over(one, 8)
    storage.sharing.free_in("window-6", path)  # the cache has lost its window rows
    ids = stepped(storage, (two, 8))
    pages = ids.tables["window-6"][0].copy()
    old_full = ids.tables["full"][0].copy()
    forward = write(storage, ids, 7)
    storage.sharing.adopt(two, path)
    assert storage.chain.pages("window-6", path).tolist() == pages.tolist()
    steps = storage.chain.ledger.steps
    assert steps.writes.newest("window-6", storage.chain.pages("window-6", path)) == forward.number
    assert {shot.name: shot.pending for shot in storage.chain.snapshot().bands} == {"window-6": 0, "full": 2}
    storage.close(gap)
    storage.flush()  # holes nearer to the end, and yet no page moves that the forward may still write
    assert storage.chain.pages("window-6", path).tolist() == pages.tolist()
    seen: list[int] = []
    ids = stepped(storage, (two, 9))
    second = storage.forwards.launch(ids)
    assert not set(ids.tables["full"][0, :2].tolist()) & set(old_full.tolist())
    for name in ("window-6", "full"):
        storage.forwards.run(second, get(storage, name, ids.tables[name][0, :2], seen))
    storage.forwards.record(second)
    process(storage, forward, second)
    assert seen == [7, 7, 4, 4]
    assert storage.flush() > 0
    assert storage.chain.pages("window-6", path).tolist() != pages.tolist()  # nobody writes it any more
    storage.verify()
    storage.close(rows_of(one, two))
    storage.ownership.free_pages(path)
    assert_quiet(storage)
    assert storage.device.violations == []


@pytest.mark.req("TRE-2")
@pytest.mark.req("LIF-8")
def test_kernels_see_every_change_of_id_and_slot() -> None:
    """Rebound and adopted pages, a started row, places filled and emptied: the mirror has them at the next launch."""
    storage = sharing(STATE, SHORT, FULL, timing="late", mirrors=True, memory=8000)
    mirrors = storage.mirrors
    assert mirrors is not None

    def launch_sees_rows() -> None:
        rows = storage.requests.open_rows()
        forward, seen = storage.forwards.launch(), {}
        storage.forwards.run(
            forward,
            lambda: seen.update(
                {name: mirrors.pages(name, rows, 15) for name in ("window-6", "full")}, state=mirrors.slots(rows)
            ),
        )
        storage.forwards.record(forward)
        process(storage, forward)
        for name in ("window-6", "full"):
            assert np.array_equal(seen[name], storage.chain.pages(name, storage.requests.pages[rows]))
        assert np.array_equal(seen["state"], storage.chain.pages("state", storage.requests.slots[rows]))

    one, two = opened(storage), opened(storage)
    stepped(storage, (one, 16), (two, 16))
    launch_sees_rows()
    path = storage.ownership.hand_over(one, 16)
    storage.sharing.free_in("window-6", path[-2:])
    launch_sees_rows()
    storage.sharing.adopt(two, path)
    launch_sees_rows()
    three = opened(storage)
    storage.sharing.start(three, path, 16)
    spare = storage.sharing.hand_over_slot(one, 1)
    launch_sees_rows()
    assert not isinstance(storage.sharing.take_slot(one, 1), Refused)
    storage.chain.rebind("window-6", path[-1:], _loose(storage, path))
    launch_sees_rows()
    storage.sharing.free_slots(rows_of(spare))
    storage.close(rows_of(one, two, three))
    launch_sees_rows()


def _loose(storage: Storage, path: IntArray) -> IntArray:
    """An id of the path without a window page, made so."""
    storage.sharing.free_in("window-6", path[:1])
    return path[:1]


def test_a_row_without_its_state_does_not_run() -> None:
    """Its live slot was given away, at its end say: it is launched again only with another."""
    storage = sharing(STATE, FULL, timing="late", strategy="no_buffer")
    row, other = opened(storage), opened(storage)
    process(storage, write(storage, stepped(storage, (row, 5)), 2))
    given = storage.sharing.hand_over_slot(row, 0)
    ids = stepped(storage, (row, 6), (other, 6))
    with pytest.raises(InvariantError, match=r"^storage\.row_lacks_its_state: rows=array\(\[0\]\)"):
        storage.forwards.launch(ids)
    process(storage, run_forward(storage, stepped(storage, (other, 7))))
    assert not isinstance(storage.sharing.take_slot(row, 0), Refused)
    process(storage, write(storage, stepped(storage, (row, 6)), 3))
    storage.sharing.hand_over_slot(row, 0)
    storage.close(rows_of(row, other))
    assert len(storage.ownership.slots.ids()) == 2
    assert given in storage.ownership.slots.ids()
    row = opened(storage)
    process(storage, write(storage, stepped(storage, (row, 6)), 3))
    storage.close(row)
    storage.sharing.free_slots(storage.ownership.slots.ids())
    assert_quiet(storage)
    assert storage.device.violations == []
