"""The physical ids of one step: what is written, what is read, and for how long they hold."""

import pytest
from storages import FULL, SHORT, STATE, rows_of, storage_of

from kvarena.storage import iteration_ids
from kvarena.terms.errors import InvariantError


def test_write_ids_name_the_page_and_place_of_each_new_token():
    """Row-major, one entry per new token, in every sub-pool of the plan."""
    storage = storage_of((SHORT, FULL), page_tokens=4)
    one, two = storage.open(), storage.open()
    storage.step(rows_of(one, two), rows_of(3, 1))
    ids = storage.step(rows_of(one, two), rows_of(6, 2))
    assert ids.write_offsets().tolist() == [3, 0, 1, 1]
    for name in ("window-6", "full"):
        tables = ids.tables[name]
        assert ids.write_pages(name).tolist() == [tables[0, 0], tables[0, 1], tables[0, 1], tables[1, 0]]


def test_ids_of_a_step_are_not_read_after_a_later_one():
    """A table that is looked at first after another take would be of another moment: it is refused, not given."""
    storage = storage_of((SHORT, FULL), page_tokens=4)
    row = storage.open()
    ids = storage.step(rows_of(row), rows_of(4))
    known = ids.tables["full"]
    storage.step(rows_of(row), rows_of(5))
    assert ids.tables["full"] is known
    with pytest.raises(InvariantError, match=r"storage\.ids_outlived_their_step: sub_pool='window-6'"):
        ids.tables["window-6"]


@pytest.mark.req("IDS-3")
def test_each_sub_pool_is_translated_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often writes and reads ask, the maps are gathered once per sub-pool for each, for all rows together."""
    storage = storage_of((STATE, SHORT, FULL))
    rows, asked = rows_of(storage.open(), storage.open()), []
    written = [(0, at) for at in range(5)] + [(1, at) for at in range(9)]
    for name in storage.plan.names:
        maps = storage.chain.bands[name].ids
        monkeypatch.setattr(
            maps, "pages_of", lambda ids, name=name, look=maps.pages_of: asked.append(name) or look(ids)
        )  # fmt: skip
    ids = storage.step(rows, rows_of(5, 9))
    assert asked == []
    for _layer in range(3):
        for name in ids.tables:
            expected = [ids.tables[name][row, at // 4] for row, at in written]
            assert ids.write_pages(name).tolist() == expected
            assert ids.write_ids(name).tolist() == [
                page * 4 + at % 4 for page, (_, at) in zip(expected, written, strict=True)
            ]
            assert ids.read_ids(name).shape == (2, 12)
    assert sorted(asked) == ["full", "full", "window-6", "window-6"]
    assert ids.slots.tolist() == [[1], [2]]
    assert sorted(asked[4:]) == ["state"]


@pytest.mark.parametrize("bulk", [0, 10**9], ids=["page by page", "token by token"])
@pytest.mark.parametrize("page_tokens", [1, 3, 4])
def test_write_ids_are_pages_and_offsets_in_one(page_tokens: int, bulk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prefills and decodes in one batch, of decodes alone, and of nothing at all."""
    monkeypatch.setattr(iteration_ids, "BULK", bulk)
    storage = storage_of((SHORT, FULL), page_tokens=page_tokens)
    rows = storage.open_batch(3)
    for lengths in ((5, 1, 9), (6, 2, 10), (7, 2, 15), (7, 2, 15), (8, 3, 16)):
        ids = storage.step(rows, rows_of(*lengths))
        for name in ("window-6", "full"):
            pages, places = ids.write_pages(name).tolist(), ids.write_offsets().tolist()
            physical = [page * page_tokens + place for page, place in zip(pages, places, strict=True)]
            assert ids.write_ids(name).tolist() == physical
            reads = ids.read_ids(name)
            assert [reads[index, at] for index, at in zip(*ids.write_positions(), strict=True)] == physical


@pytest.mark.parametrize("page_tokens", [1, 3, 4])
def test_tokens_that_are_written_again_are_found_where_they_are(page_tokens: int) -> None:
    """From the middle of a row on, whichever is asked first: the pages, each once, or the tokens."""
    storage = storage_of((FULL,), page_tokens=page_tokens)
    rows, lengths, starts = storage.open_batch(4), rows_of(11, 4, 7, 9), rows_of(5, 4, 0, 8)
    storage.step(rows, lengths)
    table = storage.translate(rows).tables["full"]
    spans = list(zip(starts.tolist(), lengths.tolist(), strict=True))
    pages = [
        table[row, page] for row, (start, stop) in enumerate(spans) if stop > start
        for page in range(start // page_tokens, (stop - 1) // page_tokens + 1)
    ]  # fmt: skip
    tokens = [
        table[row, at // page_tokens] * page_tokens + at % page_tokens
        for row, span in enumerate(spans) for at in range(*span)
    ]  # fmt: skip
    assert storage.translate(rows, starts).write_ids("full").tolist() == tokens
    ids = storage.translate(rows, starts)
    assert ids.written_pages("full").tolist() == pages
    assert ids.write_ids("full").tolist() == tokens
    assert ids.write_pages("full").tolist() == [token // page_tokens for token in tokens]
    assert ids.write_offsets().tolist() == [token % page_tokens for token in tokens]


def test_read_ids_are_whole_pages_of_the_longest_row() -> None:
    """Beyond a row's end, and where its pages retired, they read the sink's."""
    storage = storage_of((SHORT, FULL))
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(14, 3))
    storage.step(rows, rows_of(14, 3))
    ids = storage.translate(rows)
    sink = storage.chain.bands["window-6"].grid.sink_page
    reads = ids.read_ids("window-6")
    assert reads.shape == (2, 16)
    assert (reads[0, :8] // 4 == sink).all()
    assert (reads[1, 4:] // 4 == sink).all()
    assert (ids.read_ids("full")[0] // 4 != storage.chain.bands["full"].grid.sink_page).all()
    assert ids.write_ids("full").tolist() == []


@pytest.mark.req("IDS-2")
def test_write_ids_follow_a_move() -> None:
    """The last pages of the rows moved since they were taken: the next decode writes where they are now."""
    storage = storage_of((FULL,), page_tokens=4, memory=600, running=6)
    rows = storage.open_batch(5)
    storage.step(rows, rows_of(5, 6, 7, 5, 6))
    before = storage.translate(rows).tables["full"].copy()
    storage.close(rows[3:])
    assert storage.flush() > 0
    rows = rows[:3]
    ids = storage.step(rows, rows_of(6, 7, 8))
    written = ids.write_ids("full")
    assert (ids.tables["full"] != before[:3]).any()
    assert written.tolist() == (ids.tables["full"][:, 1] * 4 + [1, 2, 3]).tolist()


def test_slots_are_read_when_they_are_asked_for() -> None:
    """And no later than the step they belong to; a model without state has none."""
    storage = storage_of((STATE, FULL), slots_per_request=2, state_slots=6)
    rows = storage.open_batch(2)
    ids = storage.step(rows, rows_of(4, 4))
    assert ids.slots.shape == (2, 2)
    assert len(set(ids.slots.ravel().tolist()) | {0}) == 5
    storage.close(1)
    with pytest.raises(InvariantError, match=r"storage\.ids_outlived_their_step: sub_pool='state'"):
        _ = ids.slots
    assert storage_of((FULL,)).translate(rows_of()).slots is None


@pytest.mark.parametrize("act", ["take", "close", "flush", "free rows"])
@pytest.mark.parametrize("asked", ["tables", "write_ids", "write_pages", "read_ids"])
def test_ids_outlive_nothing(act: str, asked: str) -> None:
    """Any call that takes, frees or moves ends what was not asked for before it."""
    storage = storage_of((SHORT, FULL), running=6)
    rows = storage.open_batch(3)
    storage.step(rows, rows_of(9, 9, 9))
    storage.close(0)
    ids = storage.step(rows[1:], rows_of(10, 13))
    acts = {
        "take": lambda: storage.step(rows[1:], rows_of(10, 17)),
        "close": lambda: storage.close(1),
        "flush": storage.flush,
        "free rows": lambda: storage.ownership.free_rows(2, [range(9, 13)]),
    }
    acts[act]()
    with pytest.raises(InvariantError, match=r"storage\.ids_outlived_their_step"):
        ids.tables["full"] if asked == "tables" else getattr(ids, asked)("full")


def test_steps_that_take_nothing_end_nothing() -> None:
    """Most decode steps cross no page: the ids of the step before still hold."""
    storage = storage_of((FULL,))
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(5, 5))
    ids = storage.step(rows[:1], rows_of(6))
    storage.step(rows[1:], rows_of(6))
    assert ids.write_ids("full").tolist() == (ids.tables["full"][:, 1] * 4 + 1).tolist()


def test_an_unknown_sub_pool_has_no_table() -> None:
    """A mapping like any other, of the token sub-pools alone."""
    storage = storage_of((STATE, SHORT, FULL))
    ids = storage.step(rows_of(storage.open()), rows_of(3))
    assert sorted(ids.tables) == ["full", "window-6"]
    assert len(ids.tables) == 2
    with pytest.raises(KeyError):
        ids.tables["state"]


def test_a_step_of_as_many_tokens_as_rows_is_not_one_token_each() -> None:
    """Two of one row, across a page, and none of the other."""
    storage = storage_of((SHORT, FULL))
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(3, 5))
    ids = storage.step(rows, rows_of(5, 5))
    assert [part.tolist() for part in ids.write_positions()] == [[0, 0], [3, 4]]
    for name in ("window-6", "full"):
        assert ids.write_pages(name).tolist() == ids.tables[name][0, :2].tolist()
    assert ids.write_offsets().tolist() == [3, 0]


@pytest.mark.req("SIZ-5")
def test_steps_after_a_resize_read_the_new_maps() -> None:
    """What was asked for before it is refused, also where nothing was open; what is asked for after it is right."""
    storage = storage_of((STATE, SHORT, FULL))
    storage.close(storage.open())
    old = storage.translate(rows_of())
    storage.resize(3000)
    with pytest.raises(InvariantError, match=r"storage\.ids_outlived_their_step"):
        _ = old.tables
    row = rows_of(storage.open())
    ids = storage.step(row, rows_of(11))
    chain, table = storage.chain, storage.requests
    for name in ("window-6", "full"):
        assert ids.tables[name].tolist() == chain.pages(name, table.pages[row, :3]).tolist()
        assert len(set(ids.write_pages(name).tolist()) - {chain.bands[name].grid.sink_page}) == 3
    assert ids.slots.tolist() == chain.pages("state", table.slots[row]).tolist() == [[1]]
