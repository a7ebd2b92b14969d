"""The request table by itself: rows that come and go, and what is left of them."""

import numpy as np
import pytest
from storages import FULL, SHORT, STATE, nothing_changes, rows_of, storage_of

from kvarena.storage.requests import RequestTable
from kvarena.terms.errors import InvariantError
from kvarena.terms.numbers import UNBOUND


def table_of() -> RequestTable:
    """Four rows of six pages and two slots, in three sub-pools."""
    return RequestTable(4, 6, pools=3, slots_per_row=2)


def test_the_lowest_free_row_opens_first() -> None:
    """Then the one that was closed last."""
    table = table_of()
    assert table.open(3).tolist() == [0, 1, 2]
    table.close(rows_of(0, 2))
    assert table.open(3).tolist() == [2, 0, 3]
    with pytest.raises(InvariantError, match=r"requests\.open_without_row"):
        table.open(1)
    table.verify()


def test_a_closed_row_leaves_nothing_behind() -> None:
    """No id, no slot, no count: whoever opens it next finds it as new."""
    table, new = table_of(), table_of()
    rows = table.open(2)
    table.pages[rows, :5] = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    table.give_slots(rows, rows_of(1, 2, 3, 4).reshape(2, 2))
    columns = (
        table.lengths, table.tails, table.handed, table.shared, table.looked_at, table.due, *table.retired
    )  # fmt: skip
    for column in columns:
        column[rows] = 2
    table.page_counts[rows] = 5
    table.close(rows[::-1])
    assert np.array_equal(table.pages, new.pages)
    assert np.array_equal(table.slots, new.slots)
    assert not any(column.any() for column in (*columns, table.page_counts, table.slots_held))
    assert not len(table.open_rows())
    table.verify()


def test_a_shortened_row_ends_in_the_page_before() -> None:
    """Ids beyond it are forgotten, the last page is the one that is left, and it is due at once."""
    table = table_of()
    (row,) = table.open(1).tolist()
    table.pages[row, :4] = [5, 6, 7, 8]
    table.page_counts[row], table.lengths[row], table.due[row], table.tails[row] = 4, 16, 17, 8
    table.shorten(row, 2, 7)
    assert table.pages[row].tolist() == [5, 6, UNBOUND, UNBOUND, UNBOUND, UNBOUND]
    assert (table.page_counts[row], table.lengths[row], table.due[row], table.tails[row]) == (2, 7, 0, 6)
    table.verify()
    table.shorten(row, 0, 0)
    assert (table.pages[row] == UNBOUND).all()
    table.verify()


def test_a_row_that_handed_more_than_it_has_is_found() -> None:
    """Or holds an id beyond its pages, or a count below nothing, or is held by nobody."""
    table = table_of()
    row = table.open(1)
    for harmed, name in (
        (table.handed, "handed_more_than_it_has"),
        (table.pages[:, 3], "id_beyond_its_row"),
        (table.retired[1], "negative_count"),
        (table.page_counts[1:], "free_row_holds"),
    ):
        kept = harmed.copy()
        harmed[row] = -2 if name == "negative_count" else 3
        with pytest.raises(InvariantError, match=rf"requests\.{name}"):
            table.verify()
        harmed[:] = kept
        table.verify()


def test_every_slot_of_a_row_is_its_own() -> None:
    """A row holds as many as a request has, from its opening to its close."""
    storage = storage_of((STATE, FULL), slots_per_request=2, state_slots=8)
    rows = storage.open_batch(2)
    assert storage.ownership.held().tolist() == [[2, 2, 0, 0], [0, 0, 0, 0]]
    storage.verify()
    storage.close(rows[:1])
    assert storage.ownership.held().tolist() == [[0, 2, 0, 0], [0, 0, 0, 0]]
    storage.verify()


def test_a_page_of_two_rows_is_found() -> None:
    """Each of them counts it, and it lives once."""
    storage = storage_of((SHORT, FULL))
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(3, 3))
    pages = storage.requests.pages
    storage.chain.free_all({"full": pages[1, :1].copy()})
    pages[1, 0] = pages[0, 0]
    with pytest.raises(InvariantError, match=r"storage\.all_that_lives_is_owned"):
        storage.verify()


def test_a_row_that_there_is_not_is_not_open() -> None:
    """Below the first or beyond the last, though every row is open: none of them is meant."""
    table = table_of()
    rows = table.open(4)
    assert table.is_open(rows)
    assert table.is_open(rows[:0])
    for wrong in (rows_of(-1), rows_of(4), rows_of(0, -4), rows_of(3, 10**9)):
        assert not table.is_open(wrong)
    table.close(rows[1:2])
    assert not table.is_open(rows)


@pytest.mark.req("ALC-2")
@pytest.mark.parametrize("checks", [1, 2])
@pytest.mark.parametrize("wrong", [-1, 3, 4, 10**6, -(10**18), 10**18], ids=str)
def test_a_row_that_is_none_is_caught_with_nothing_changed(wrong: int, checks: int) -> None:
    """Negative, free, one beyond, absurd: alone or beside a good one, in every call that names rows."""
    storage = storage_of((STATE, SHORT, FULL), running=4)
    storage.chain.checks = checks
    rows = storage.open_batch(3)
    storage.step(rows, rows_of(9, 5, 0))
    assert not storage.requests.is_open(rows_of(wrong))
    for batch in (rows_of(wrong), rows_of(0, wrong), rows_of(wrong, 1)):
        for name, act in (
            ("step_of_free_row", lambda batch=batch: storage.step(batch, np.full(len(batch), 20))),
            ("close_of_free_row", lambda batch=batch: storage.close(batch)),
            ("translate_of_free_row", lambda batch=batch: storage.translate(batch)),
        ):
            with nothing_changes(storage), pytest.raises(InvariantError, match=rf"^storage\.{name}: rows="):
                act()
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^storage\.close_of_free_row"):
        storage.close(wrong)
    assert storage.step(rows, rows_of(10, 6, 1))
