"""Requests over one arena: opens, steps and closes in batches, resizes, and what is caught."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import (
    CHAINS,
    FULL,
    SHORT,
    STATE,
    built,
    nothing_changes,
    opened,
    overlapped,
    own_ids,
    rows_of,
    stepped,
    storage_of,
)
from toys import Bytes

from kvarena.storage.routed import views_of
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError, PlanError
from kvarena.terms.layers import Part
from kvarena.terms.lifetimes import Chunk, Window


@pytest.mark.req("WIN-1")
def test_a_window_of_a_page_holds_one_or_two_as_it_slides():
    """Pages live after retiring at each length, with pages of 4 and a window of 4."""
    storage = storage_of((Window(4), FULL), page_tokens=4)
    row, live = storage.open(), []
    for length in range(1, 13):
        assert storage.step(rows_of(row), rows_of(length))
        storage.step(rows_of(row), rows_of(length))
        live.append(storage.chain.snapshot().bands[0].live)
    assert live == [1, 1, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1]


@pytest.mark.req("ALC-2")
def test_a_refused_step_retires_but_takes_nothing():
    """The batch is all or nothing: after a refusal no row has grown and the counts are as before."""
    storage = storage_of((FULL,), memory=24 * 6)
    one, two = storage.open(), storage.open()
    assert storage.step(rows_of(one, two), rows_of(8, 4))
    before = storage.chain.snapshot()
    refused = storage.step(rows_of(one, two), rows_of(16, 12))
    assert isinstance(refused, Refused)
    assert not refused
    assert refused.asked == {"full": 4}
    assert "full" in str(refused)
    assert storage.chain.snapshot() == before
    assert storage.requests.lengths[rows_of(one, two)].tolist() == [8, 4]
    assert every_free_id_can_be_minted(storage, "full")
    assert storage.step(rows_of(one), rows_of(12))


def every_free_id_can_be_minted(storage, name):
    """Nobody lost an id: all that no unit is bound to are there to be taken."""
    free = next(shot.ids_free for shot in storage.chain.snapshot().bands if shot.name == name)
    ids = storage.chain.minters[name].mint(free)
    if ids is not None:
        storage.chain.minters[name].give_back(ids)
    return ids is not None


@pytest.mark.req("ALC-2")
def test_a_refused_step_or_open_keeps_no_id():
    """With every byte under the rows of one request, nothing stays behind of what it and the next one asked."""
    storage = storage_of((STATE, FULL), memory=440)
    row, length = storage.open(), 1
    while storage.step(rows_of(row), rows_of(length)):
        length += 1
    assert every_free_id_can_be_minted(storage, "full")
    before, rows = storage.chain.snapshot(), storage.requests.free_count
    refused = storage.open()
    assert isinstance(refused, Refused)
    assert refused.asked == {"state": 1}
    assert (storage.chain.snapshot(), storage.requests.free_count) == (before, rows)
    assert every_free_id_can_be_minted(storage, "state")
    storage.close(row)
    assert not isinstance(storage.open(), Refused)


@pytest.mark.req("IDS-2")
@pytest.mark.req("IDS-3")
def test_pages_move_while_request_rows_stay():
    """Compaction changes physical pages; the virtual ids in the table do not change, and translation follows."""
    storage = storage_of((FULL,), page_tokens=1, memory=600)
    rows = [storage.open() for _ in range(3)]
    for length in range(1, 9):
        storage.step(rows_of(*rows), rows_of(length, length, length))
    storage.close(rows[0])
    virtual = storage.requests.pages[rows_of(*rows[1:])].copy()
    before = storage.translate(rows_of(*rows[1:])).tables["full"].copy()
    assert storage.flush() > 0
    after = storage.translate(rows_of(*rows[1:])).tables["full"]
    assert (storage.requests.pages[rows_of(*rows[1:])] == virtual).all()
    assert (before != after).any()
    assert len(set(after.ravel().tolist())) == 16


def test_a_step_of_a_row_that_nobody_opened_is_caught():
    """Before anything changes."""
    storage = storage_of((FULL,))
    with pytest.raises(InvariantError, match=r"storage\.step_of_free_row"):
        storage.step(rows_of(storage.open() + 1), rows_of(4))
    storage.verify()


@pytest.mark.parametrize("harm", ["held", "ids", "rows"])
def test_verify_finds_a_table_that_disagrees_with_the_bands(harm):
    """A count that is off by one, an id that was forgotten, a row that is lost: each is found by name."""
    storage = storage_of((SHORT, FULL), page_tokens=4)
    row = storage.open()
    storage.step(rows_of(row), rows_of(9))
    storage.verify()
    if harm == "held":
        storage.requests.retired[1, row] += 1
    elif harm == "ids":
        storage.requests.pages[row, 2] = -1
    else:
        storage.requests._free.pop()
    name = "requests.rows_add_up" if harm == "rows" else "storage.held_is_what_is_bound"
    with pytest.raises(InvariantError, match=name.replace(".", r"\.")):
        storage.verify()


@pytest.mark.req("PLN-2+")
@pytest.mark.parametrize(("lifetimes", "owner"), [((SHORT,), "window-6"), ((Chunk(8), SHORT), "ids")])
def test_an_owner_without_full_attention_recycles_its_ids(lifetimes, owner):
    """A sequence far beyond the id count: an id comes back when the last band has let it go, with bytes or without."""
    storage = storage_of(lifetimes, memory=400, context=4000)
    row = storage.open()
    assert (storage.plan.owner, storage.sizing.id_count < 1000 / 4) == (owner, True)
    for length in range(1, 1001):
        assert storage.step(rows_of(row), rows_of(length))
    held = storage.ownership.held()[:, row].tolist()
    assert held == [shot.live for shot in storage.chain.snapshot().bands]
    assert max(held) <= 3
    storage.close(row)
    assert storage.chain.minters[owner].mint(storage.sizing.id_count) is not None


@pytest.mark.req("SIZ-5")
def test_a_resize_solves_again_and_everything_agrees():
    """Maps, rows and arena follow the new budget; with a request open it is refused and nothing changes."""
    storage = storage_of((STATE, SHORT, FULL), memory=4000)
    row = storage.open()
    with pytest.raises(KvarenaError, match="1 requests are open"):
        storage.resize(3000)
    storage.close(row)
    with pytest.raises(PlanError):
        storage.resize(10)
    assert storage.sizing.arena_bytes == 4000
    storage.resize(2000)
    assert storage.sizing.arena_bytes == 2000 == storage.device.arena_bytes
    row = storage.open()
    assert storage.step(rows_of(row), rows_of(40))
    storage.chain.verify()
    assert storage.chain.snapshot().top <= 2000


def test_too_long_a_sequence_and_misuse_are_told_apart():
    """A row has a length limit that the user can raise; stepping back or closing twice is a bug of the caller."""
    storage = storage_of((FULL,), context=8)
    row = storage.open()
    with pytest.raises(KvarenaError, match="raise context_tokens"):
        storage.step(rows_of(row), rows_of(9))
    storage.step(rows_of(row), rows_of(4))
    with pytest.raises(InvariantError, match=r"storage\.step_backwards"):
        storage.step(rows_of(row), rows_of(3))
    with pytest.raises(InvariantError, match=r"storage\.step_repeats_a_row"):
        storage.step(rows_of(row, row), rows_of(5, 6))
    assert storage.requests.lengths[row] == 4
    storage.close(row)
    with pytest.raises(InvariantError, match=r"storage\.close_of_free_row"):
        storage.close(row)
    storage.release()
    with pytest.raises(InvariantError, match=r"storage\.used_after_release"):
        storage.open()


@pytest.mark.req("CAP-5")
@given(st.integers(900, 4000), st.lists(st.integers(1, 20), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_yes_is_a_successful_step(memory, lengths):
    """What ``feasible`` says of the pages that a step takes is what the step does."""
    storage = storage_of((SHORT, FULL), memory=memory)
    rows = rows_of(*(storage.open() for _ in lengths))
    for growth in (1, 2, 3):
        wanted = rows_of(*lengths) * growth
        pages = int((-(-wanted // 4) - storage.requests.page_counts[rows]).sum())
        storage.step(rows, storage.requests.lengths[rows])
        answer = storage.chain.feasible((pages, pages))
        assert answer == (not isinstance(storage.step(rows, wanted), Refused))
        if not answer:
            break


def test_views_of_an_unknown_sub_pool_or_without_bytes_are_refused():
    """The error names what there is."""
    storage = storage_of((FULL,))
    with pytest.raises(KvarenaError, match=r"no sub-pool 'window-9'; .*full"):
        views_of(storage, "window-9")
    with pytest.raises(KvarenaError, match="host"):
        views_of(storage, "full")


@pytest.mark.req("SIZ-5")
def test_a_refused_resize_changes_nothing():
    """A device that cannot grow without moving its base says no before any book is made anew."""
    storage = built(Part(Bytes(40), STATE, "state"), Part(Bytes(6), FULL))
    before = (storage.sizing, storage.chain, storage.requests, storage.device.arena_bytes)
    with pytest.raises(KvarenaError, match="without moving the base"):
        storage.resize(5000)
    assert (storage.sizing, storage.chain, storage.requests, storage.device.arena_bytes) == before
    storage.release()


@pytest.mark.req("SIZ-5")
@pytest.mark.req("BLD-2")
def test_a_resize_keeps_the_base_and_gives_clean_sinks():
    """Captured addresses hold, and no unbound read sees what once lay where the top, and its sinks, are now."""
    storage = built(Part(Bytes(40), STATE, "state"), Part(Bytes(6), FULL), Part(Bytes(10), SHORT))
    at = {name: next(iter(views_of(storage, name).values())).data_ptr() for name in storage.plan.names}
    next(iter(views_of(storage, "full").values()))[:] = 255
    for budget in (2000, 1500, 4000):
        storage.resize(budget)
        for name in storage.plan.names:
            view = next(iter(views_of(storage, name).values()))
            assert view.data_ptr() == at[name]
            assert not view[storage.chain.pages(name, rows_of(-1))].any()
    storage.release()


@pytest.mark.req("SIZ-3")
@pytest.mark.parametrize("name", ["state", "window-6", "full"])
def test_any_sub_pool_takes_any_free_bytes(name):
    """Boot targets bind nobody: with the others empty, each takes what the whole arena holds."""
    storage = storage_of((STATE, SHORT, FULL), state_slots=2)
    shots, chain = {shot.name: shot for shot in storage.chain.snapshot().bands}, storage.chain
    units = (chain.usable.stop - chain.usable.start) // shots[name].unit_bytes - 1  # one is lost to alignment
    assert units > storage.sizing.units[name]
    ids = chain.minters["state" if name == "state" else "full"].mint(units)
    assert ids is not None
    assert not isinstance(chain.take({name: ids}), Refused)
    chain.verify()


class Coded(Bytes):
    """A layout that names a codec, which only a runner may touch."""

    @property
    def codec(self):
        raise AssertionError("core asked for a codec")


@pytest.mark.req("DEC-4")
def test_core_never_touches_a_codec():
    """A request of a coded layout is planned, served, moved and closed without its codec."""
    storage = built(Part(Coded(6), FULL), Part(Coded(9), SHORT), page_tokens=1)
    rows = rows_of(storage.open(), storage.open())
    storage.step(rows, rows_of(9, 9))
    storage.close(rows[0])
    assert storage.flush() > 0
    assert storage.routed()[0]["kv"].pool == "full"
    storage.release()


def test_a_call_that_fails_at_release_keeps_neither_the_others_nor_the_memory():
    """A plugin that raises when a storage closes loses nothing of anybody else."""
    storage = storage_of(CHAINS["full alone"])
    told = []

    def fail():
        raise RuntimeError("boom")

    storage.at_release.append(lambda: told.append("first"))
    storage.at_release.append(fail)
    with pytest.raises(RuntimeError):
        storage.release()

    assert told == ["first"]
    assert storage.device.arena_bytes == 0


@pytest.mark.req("ALC-2")
def test_rows_are_opened_together_or_not_at_all() -> None:
    """Their slots too: one that is short keeps the others' from being taken."""
    storage, length = storage_of((STATE, FULL), memory=440), 1
    one = storage.open()
    assert one == 0
    assert isinstance(one, int)
    while storage.chain.feasible((2, 1)):
        storage.step(rows_of(one), rows_of(length))
        length += 1
    with nothing_changes(storage):
        refused = storage.open_batch(3)
    assert isinstance(refused, Refused)
    assert refused.asked == {"state": 3}
    rows = storage.open_batch(2)
    assert not isinstance(rows, Refused)
    assert rows.tolist() == [1, 2]
    storage.close(rows_of(2, one))
    again = storage.open_batch(3)
    assert not isinstance(again, Refused)
    assert sorted(again.tolist()) == [0, 2, 3]
    storage.verify()


def test_more_rows_than_there_are_are_refused_with_the_count() -> None:
    """None, one too many, absurdly many; a negative number is the caller's mistake."""
    storage = storage_of((STATE, FULL), running=4)
    assert np.array_equal(storage.open_batch(0), [])
    storage.open_batch(3)
    with nothing_changes(storage):
        for count in (2, 10**18):
            refused = storage.open_batch(count)
            assert isinstance(refused, Refused)
            assert f"{count} request rows asked for, 1 of 4 free" in str(refused)
        with pytest.raises(InvariantError, match=r"storage\.negative_open"):
            storage.open_batch(-1)
    storage.open()
    assert "1 request rows asked for, none of 4 free" in str(storage.open())
    storage.verify()


def test_a_wrong_close_changes_nothing() -> None:
    """A row named twice, or one that nobody opened, beside good ones."""
    storage = storage_of((STATE, SHORT, FULL))
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(9, 5))
    with nothing_changes(storage):
        for wrong, name in ((rows_of(0, 1, 0), "repeats_a_row"), (rows_of(0, 2), "of_free_row")):
            with pytest.raises(InvariantError, match=rf"storage\.close_{name}"):
                storage.close(wrong)
    storage.close(rows)
    storage.close(rows_of())
    with nothing_changes(storage):
        for wrong in (0, rows_of(1)):
            with pytest.raises(InvariantError, match=r"storage\.close_of_free_row"):
                storage.close(wrong)


def test_everything_comes_back_at_once() -> None:
    """All open rows in one call, whatever they hold."""
    storage = storage_of((STATE, SHORT, FULL))
    storage.step(storage.open_batch(3), rows_of(9, 5, 0))
    storage.close(storage.requests.open_rows())
    assert all(shot.live == shot.holes == 0 for shot in storage.chain.snapshot().bands)
    assert storage.requests.free_count == 4
    storage.verify()


@pytest.mark.req("ALC-2")
def test_a_wrong_step_changes_nothing() -> None:
    """Beside good rows: one that goes back, stands twice, is nobody's or too long."""
    storage = storage_of((SHORT, FULL), context=40)
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(8, 4))
    wrong = [
        (rows_of(0, 1), rows_of(9, 3), InvariantError, "step_backwards"),
        (rows_of(0, 1, 0), rows_of(9, 5, 9), InvariantError, "step_repeats_a_row"),
        (rows_of(0, 3), rows_of(9, 5), InvariantError, "step_of_free_row"),
        (rows_of(1, 0), rows_of(5, 41), KvarenaError, "raise context_tokens"),
        (rows_of(1, 0), rows_of(5, 10**15), KvarenaError, "raise context_tokens"),
    ]
    for batch, lengths, kind, name in wrong:
        with nothing_changes(storage), pytest.raises(kind, match=name):
            storage.step(batch, lengths)
    assert storage.step(rows, rows_of(40, 4))


def test_a_resize_with_pages_handed_over_is_refused() -> None:
    """They would be forgotten; once freed, the arena can be resized."""
    storage = storage_of((SHORT, FULL))
    row = storage.open()
    storage.step(rows_of(row), rows_of(9))
    ids = storage.ownership.hand_over(row, 8)
    storage.close(row)
    with nothing_changes(storage), pytest.raises(KvarenaError, match="2 pages are handed over: free them"):
        storage.resize(3000)
    storage.ownership.free_pages(ids)
    storage.resize(3000)
    storage.verify()


def test_ids_from_before_a_resize_are_not_read() -> None:
    """The maps they would be read from are gone."""
    storage = storage_of((SHORT, FULL))
    row = storage.open()
    ids = storage.step(rows_of(row), rows_of(9))
    storage.close(row)
    storage.resize(3000)
    with pytest.raises(InvariantError, match=r"storage\.ids_outlived_their_step"):
        ids.tables["full"]


def test_a_release_happens_once() -> None:
    """What follows a storage's life is told the last first; a second release does nothing."""
    storage, told = storage_of((FULL,)), []
    storage.at_release.append(lambda: told.append("first"))
    storage.at_release.append(lambda: told.append("last"))
    storage.release()
    storage.release()
    assert told == ["last", "first"]
    with pytest.raises(InvariantError, match=r"storage\.used_after_release"):
        storage.step(rows_of(0), rows_of(1))


def test_parts_of_a_storage_from_before_a_resize_say_so() -> None:
    """They speak of an arena that is no more; the storage's own serve the new one, and its waiter is the same."""
    storage = overlapped(FULL, memory=4096)
    old = (storage.forwards, storage.copies, storage.transfers, storage.drafts, storage.ownership)
    waiter = storage.chain.usage.waiter = object()  # type: ignore[assignment]
    storage.resize(3500)
    row = opened(storage)
    stepped(storage, (row, 4))
    ids = {"full": own_ids(storage, row)}
    forwards, copies, transfers, drafts, ownership = old
    for act in (
        forwards.launch,
        lambda: copies.backup(ids),
        lambda: copies.load(row, 1),
        lambda: transfers.send(ids),
        lambda: drafts.reserve(np.array([row]), np.array([5])),
        lambda: ownership.hand_over(row, 0),
    ):
        with pytest.raises(InvariantError, match=r"^storage\.part_from_before_a_resize"):
            act()
    assert storage.chain.usage.waiter is waiter


def test_resizing_opens_no_further_streams() -> None:
    """The device's streams go on: those of an arena are found by their names."""
    storage = overlapped(FULL, memory=8192, backend="cpu")
    storage.resize(8000)
    before = threading.active_count()
    for size in range(7900, 7000, -100):
        storage.resize(size)
    assert threading.active_count() == before
    storage.release()
