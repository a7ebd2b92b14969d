"""Rows with two lengths: what drafts may write, what is kept of it, and what always comes back."""

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
    state_of,
    stepped,
    storage_of,
)

from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError


def reserved(storage: Storage, row: int, length: int) -> IterationIds:
    """A reservation of one row, which must succeed."""
    ids = storage.drafts.reserve(rows_of(row), rows_of(length))
    assert not isinstance(ids, Refused), str(ids)
    return ids


@pytest.mark.req("SPC-1")
@pytest.mark.parametrize("ending", ["cached", "closed", "retracted", "aborted under a forward"])
def test_rows_taken_for_drafts_and_never_committed_come_back(ending: str) -> None:
    """H13: two speculative steps of which 2 and 1 tokens are accepted; whatever ends the request, all is free again."""
    storage = overlapped(FULL, page_tokens=4, memory=24 * 21)
    assert free_units(storage, "full") == 20
    row = opened(storage)
    stepped(storage, (row, 10))
    for length, kept in ((16, 12), (18, 13)):
        forward = run_forward(storage, reserved(storage, row, length), unknown=True)
        assert storage.flush() == 0
        process(storage, forward)
        taken = 20 - free_units(storage, "full")
        storage.drafts.commit(rows_of(row), rows_of(kept))
    assert (taken, 20 - free_units(storage, "full"), storage.requests.lengths[row]) == (5, 4, 13)
    if ending == "cached":
        kept_ids = storage.ownership.hand_over(row, 12)
        storage.close(row)
        assert free_units(storage, "full") == 17
        storage.ownership.free_pages(kept_ids)
    elif ending == "aborted under a forward":
        forward = run_forward(storage, reserved(storage, row, 19), unknown=True)
        storage.close(row)
        (shot,) = storage.chain.snapshot().bands
        assert (shot.pending, free_units(storage, "full")) == (5, 20)
        process(storage, forward)
    else:
        storage.close(row)
    (shot,) = storage.chain.snapshot().bands
    assert (shot.pending, free_units(storage, "full")) == (0, 20)
    assert_quiet(storage)


@pytest.mark.req("SPC-1")
@pytest.mark.parametrize("kept", [5, 6, 8, 9, 12, 14])
def test_whole_pages_beyond_what_was_kept_are_freed(kept: int) -> None:
    """From nothing accepted to all; under a forward they pend, and count as free. Later steps go on from there."""
    storage = overlapped(STATE, SHORT, FULL, page_tokens=4)
    row = opened(storage)
    stepped(storage, (row, 5))
    ids = reserved(storage, row, 14)
    assert (ids.starts.tolist(), ids.lengths.tolist()) == ([5], [14])
    assert ids.write_pages("full")[-1] == ids.tables["full"][0, 3]
    forward = run_forward(storage, ids, may_write=ids)
    storage.drafts.commit(rows_of(row), rows_of(kept))
    pages = -(-kept // 4)
    shots = {shot.name: shot for shot in storage.chain.snapshot().bands}
    assert (shots["full"].live, shots["full"].pending, storage.requests.page_counts[row]) == (pages, 4 - pages, pages)
    process(storage, forward)
    storage.verify()
    ids = stepped(storage, (row, kept + 1))
    assert ids.write_pages("full")[0] == ids.tables["full"][0, kept // 4]
    stepped(storage, (row, 30))
    storage.verify()
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("SPC-1")
def test_a_reservation_a_step_ahead_of_the_last_commit() -> None:
    """The next step is reserved before the one before it is known; pages beyond come back with the last commit."""
    storage = overlapped(FULL, page_tokens=4)
    row = opened(storage)
    stepped(storage, (row, 4))
    reserved(storage, row, 8)
    assert reserved(storage, row, 12).starts.tolist() == [4]
    storage.drafts.commit(rows_of(row), rows_of(5))
    assert (storage.requests.lengths[row], storage.requests.page_counts[row]) == (5, 3)
    with pytest.raises(InvariantError, match=r"^storage\.row_has_drafts"):
        storage.step(rows_of(row), rows_of(6))
    with pytest.raises(InvariantError, match=r"^drafts\.reserve_below_the_row"):
        storage.drafts.reserve(rows_of(row), rows_of(11))
    storage.drafts.commit(rows_of(row), rows_of(6))
    assert (storage.requests.lengths[row], storage.requests.page_counts[row]) == (6, 2)
    stepped(storage, (row, 9))
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("SPC-1")
def test_what_is_wrong_with_a_reservation_is_said_by_name() -> None:
    """A step over open drafts, a commit of nothing or outside, rows that are not there: and nothing changes."""
    storage = storage_of((FULL,), page_tokens=4, context=20)
    row, other = opened(storage), opened(storage)
    stepped(storage, (row, 5), (other, 5))
    reserved(storage, row, 9)
    drafts, both = storage.drafts, rows_of(row, other)
    for name, act in (
        (r"storage\.row_has_drafts", lambda: storage.step(rows_of(row), rows_of(6))),
        (r"storage\.row_has_drafts", lambda: storage.ownership.free_rows(row, [range(4, 5)])),
        (r"drafts\.commit_without_reservation", lambda: drafts.commit(both, rows_of(6, 6))),
        (r"drafts\.commit_outside_its_reservation", lambda: drafts.commit(rows_of(row), rows_of(10))),
        (r"drafts\.commit_outside_its_reservation", lambda: drafts.commit(rows_of(row), rows_of(4))),
        (r"drafts\.reserve_below_the_row", lambda: drafts.reserve(both, rows_of(9, 4))),
        (r"drafts\.a_length_for_each_row", lambda: drafts.reserve(both, rows_of(9))),
        (r"drafts\.repeats_a_row", lambda: drafts.reserve(rows_of(row, row), rows_of(9, 9))),
        (r"drafts\.of_free_row", lambda: drafts.commit(rows_of(3), rows_of(9))),
    ):
        with nothing_changes(storage), pytest.raises(InvariantError, match=f"^{name}"):
            act()
    with nothing_changes(storage), pytest.raises(KvarenaError, match="raise context_tokens"):
        drafts.reserve(rows_of(row), rows_of(21))
    storage.close(both)
    with pytest.raises(InvariantError, match=r"^drafts\.of_free_row"):
        drafts.commit(rows_of(row), rows_of(5))
    assert opened(storage) == other
    assert_quiet_after_close(storage, other)


def assert_quiet_after_close(storage: Storage, row: int) -> None:
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("ALC-2")
def test_a_refused_reservation_takes_nothing() -> None:
    """All rows of the batch or none; what retires retires, and the row may step."""
    storage = storage_of((FULL,), memory=24 * 6)
    one, two = opened(storage), opened(storage)
    stepped(storage, (one, 8), (two, 4))
    before = state_of(storage)
    refused = storage.drafts.reserve(rows_of(one, two), rows_of(16, 12))
    assert isinstance(refused, Refused)
    assert state_of(storage)[0][0] == before[0][0]
    assert storage.requests.away.count == 0
    stepped(storage, (one, 12))


@given(
    name=st.sampled_from(sorted(name for name in CHAINS if name != "state alone")),
    page_tokens=st.sampled_from([1, 3, 4]),
    draws=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
)
@settings(max_examples=60)
@pytest.mark.req("SPC-1")
def test_a_drafting_row_holds_what_a_stepping_one_holds(
    name: str, page_tokens: int, draws: list[tuple[int, int]]
) -> None:
    """After each commit it has the pages of a row that stepped to the same lengths, and retired as much."""
    storage = storage_of(CHAINS[name], page_tokens=page_tokens, memory=20_000)
    row, twin, length = opened(storage), opened(storage), 0
    for ahead, kept in draws:
        most = min(60, length + ahead)
        reserved(storage, row, most)
        stepped(storage, (twin, length))  # retires, as the reservation did
        length += min(kept, most - length)
        storage.drafts.commit(rows_of(row), rows_of(length))
        stepped(storage, (twin, length))
        stepped(storage, (twin, length), (row, length))
        held = storage.ownership.held()
        assert held[:, row].tolist() == held[:, twin].tolist()
        storage.verify()
    storage.close(rows_of(row, twin))
    assert_quiet(storage)
