"""Pages that change hands: who owns a page, and that it comes back once."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storages import CHAINS, FULL, LONG, SHORT, STATE, nothing_changes, rows_of, storage_of
from toys import SinksAndWindow

from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Chunk


def running(*lengths: int, kinds: tuple[object, ...] = (STATE, SHORT, FULL)) -> Storage:
    """A storage with a row of each length, written in one step."""
    storage = storage_of(kinds)  # type: ignore[arg-type]
    storage.step(storage.open_batch(len(lengths)), rows_of(*lengths))
    return storage


def held(storage: Storage, row: int) -> list[int]:
    """What a row owns, in chain order."""
    return storage.ownership.held()[:, row].tolist()


@pytest.mark.req("IDS-4")
def test_a_page_has_one_owner() -> None:
    """Handed over, it is no longer the row's: the row reads it, its close leaves it, and it is freed once."""
    storage = running(14)
    before = storage.translate(rows_of(0)).tables["full"].copy()
    assert held(storage, 0) == [1, 4, 4]
    ids = storage.ownership.hand_over(0, 8)
    assert len(ids) == 2
    assert held(storage, 0) == [1, 2, 2]
    assert np.array_equal(storage.translate(rows_of(0)).tables["full"], before)
    assert storage.ownership.handed_over().tolist() == sorted(ids.tolist())
    storage.verify()
    storage.close(0)
    assert [shot.live for shot in storage.chain.snapshot().bands] == [0, 2, 2]
    assert storage.chain.pages("full", ids).tolist() == before[0, :2].tolist()
    storage.ownership.free_pages(ids)
    assert all(shot.live == 0 for shot in storage.chain.snapshot().bands)
    storage.verify()


def test_handing_over_goes_on_from_where_it_stopped() -> None:
    """Only the pages that are new are told; nothing, or less than before, is no page."""
    storage = running(20, kinds=(FULL,))
    first = storage.ownership.hand_over(0, 8)
    more = storage.ownership.hand_over(0, 16)
    assert (len(first), len(more)) == (2, 2)
    assert not set(first.tolist()) & set(more.tolist())
    assert storage.ownership.hand_over(0, 16).tolist() == storage.ownership.hand_over(0, 4).tolist() == []
    assert held(storage, 0) == [1]
    storage.verify()


@pytest.mark.req("WIN-1")
def test_what_was_handed_over_does_not_retire_with_the_row() -> None:
    """Window pages behind a cached prefix are the cache's: the row's retirement leaves them."""
    storage = running(8)
    ids = storage.ownership.hand_over(0, 8)
    for length in range(9, 40):
        assert storage.step(rows_of(0), rows_of(length))
        storage.verify()
    assert storage.chain.bands["window-6"].ids.is_bound(ids).all()
    live = [shot.live for shot in storage.chain.snapshot().bands]
    storage.ownership.free_pages(ids)
    assert [shot.live for shot in storage.chain.snapshot().bands] == [live[0], live[1] - 2, live[2] - 2]
    storage.verify()


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("kinds", [(SHORT, FULL), (SHORT, LONG), (SinksAndWindow(5, 4), FULL)], ids=str)
def test_pages_that_retired_before_are_handed_over_without_them(kinds: tuple[object, ...]) -> None:
    """Where a window let a page go, the new owner has it in the other sub-pools alone."""
    storage = running(1, kinds=kinds)
    for length in range(2, 31):
        storage.step(rows_of(0), rows_of(length))
    before = [shot.live for shot in storage.chain.snapshot().bands]
    ids = storage.ownership.hand_over(0, 28)
    storage.verify()
    assert [shot.live for shot in storage.chain.snapshot().bands] == before
    storage.close(0)
    storage.verify()
    for name in storage.plan.names:
        band = storage.chain.bands[name]
        assert band.live == len(band.ids.bound_among(ids))
    storage.ownership.free_pages(ids)
    storage.verify()
    assert all(shot.live == 0 for shot in storage.chain.snapshot().bands)


WRONG_HAND_OVERS: dict[str, Callable[[Storage], object]] = {
    "storage.hand_over_of_free_row": lambda storage: storage.ownership.hand_over(2, 0),
    "storage.hand_over_of_free_row: row=-1": lambda storage: storage.ownership.hand_over(-1, 0),
    "storage.hand_over_of_free_row: row=4": lambda storage: storage.ownership.hand_over(4, 0),
    "storage.hand_over_of_free_row: row=1000000": lambda storage: storage.ownership.hand_over(10**6, 0),
    "storage.hand_over_splits_a_page": lambda storage: storage.ownership.hand_over(0, 6),
    "storage.hand_over_beyond_the_row": lambda storage: storage.ownership.hand_over(0, 16),
    "storage.hand_over_beyond_the_row: tokens=-8": lambda storage: storage.ownership.hand_over(0, -8),
    "storage.hand_over_beyond_the_row: tokens=10": lambda storage: storage.ownership.hand_over(0, 10**18 // 4 * 4),
}
WRONG_FREES_OF_PAGES: dict[str, list[int]] = {
    "storage.free_of_unknown_page": [0, -1],
    "storage.free_of_unknown_page:": [0, 10**9],
    "storage.free_of_page_not_handed_over": [0, 2],
    "storage.free_of_page_not_handed_over:": [9],
    "storage.free_of_page_twice": [0, 1, 0],
}
WRONG_FREES_OF_ROWS: dict[str, tuple[int, list[range]]] = {
    "storage.free_of_free_row": (3, [range(1)]),
    "storage.free_of_free_row: row=-1": (-1, [range(1)]),
    "storage.free_of_free_row: row=1000000": (10**6, []),
    "storage.free_leaves_rows_behind": (0, [range(9, 13)]),
    "storage.free_leaves_rows_behind:": (0, [range(9, 10), range(11, 14)]),
    "storage.free_leaves_rows_behind: row=0": (0, [range(9, 15)]),
    "storage.free_leaves_rows_behind: row=1": (1, [range(3)]),
    "storage.free_straddles_an_owner": (0, [range(7, 14)]),
    "storage.free_straddles_an_owner:": (0, [range(14)]),
}


@pytest.mark.parametrize("name", WRONG_HAND_OVERS)
def test_a_wrong_hand_over_changes_nothing(name: str) -> None:
    """A row that nobody opened, half a page, a page that the row has not filled."""
    storage = running(14, 5)
    with nothing_changes(storage), pytest.raises(InvariantError, match=name.replace(".", r"\.")):
        WRONG_HAND_OVERS[name](storage)


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("name", WRONG_FREES_OF_PAGES)
def test_a_wrong_free_of_pages_changes_nothing(name: str) -> None:
    """Unknown ids, ids of a row, ids that nobody has, one named twice: also beside good ones."""
    storage = running(14, 5)
    ids = storage.ownership.hand_over(0, 8)
    assert sorted(ids.tolist()) == [0, 1]
    with nothing_changes(storage), pytest.raises(InvariantError, match=name.split(":")[0].replace(".", r"\.")):
        storage.ownership.free_pages(rows_of(*WRONG_FREES_OF_PAGES[name]))
    storage.ownership.free_pages(ids[:1])
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_of_page_not_handed_over"):
        storage.ownership.free_pages(ids)


@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("name", WRONG_FREES_OF_ROWS)
def test_a_wrong_free_of_rows_changes_nothing(name: str) -> None:
    """Rows left behind, a gap, rows beyond the end, and pieces that reach into another owner's page."""
    storage = running(14, 5)
    storage.ownership.hand_over(0, 8)
    row, pieces = WRONG_FREES_OF_ROWS[name]
    with nothing_changes(storage), pytest.raises(InvariantError, match=name.replace(".", r"\.")):
        storage.ownership.free_rows(row, pieces)


@pytest.mark.req("IDS-4")
def test_a_page_that_was_handed_over_and_fixed_is_not_freed() -> None:
    """It stays its owner's, with all that was to be freed beside it; nor does a row lose a page that is fixed."""
    storage = running(14, 5)
    chain, ids = storage.chain, storage.ownership.hand_over(0, 8)
    rows = storage.requests.pages[0, 3:4]
    chain.usage.fix("window-6", ids[1:])
    chain.usage.fix("full", rows)
    wrong = (
        lambda: storage.ownership.free_pages(ids),
        lambda: storage.ownership.free_rows(0, [range(8, 14)]),
        lambda: storage.close(rows_of(1, 0)),
    )
    for act in wrong:
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
            act()
    chain.usage.unfix("window-6", ids[1:])
    chain.usage.unfix("full", rows)
    storage.ownership.free_rows(0, [range(8, 14)])
    assert held(storage, 0) == [1, 0, 0]
    storage.ownership.free_pages(ids)
    storage.close(1)
    storage.verify()


def test_nothing_freed_is_nothing_changed() -> None:
    """No pieces, empty pieces, no pages."""
    storage = running(14)
    with nothing_changes(storage):
        storage.ownership.free_rows(0, [])
        storage.ownership.free_rows(0, [range(14, 14), range(3, 3)])
        storage.ownership.free_pages(rows_of())
        assert storage.ownership.hand_over(0, 0).tolist() == []


@pytest.mark.req("IDS-4")
@given(st.integers(0, 40), st.integers(0, 40), st.randoms(use_true_random=False), st.sampled_from(sorted(CHAINS)))
def test_rows_are_freed_in_any_pieces(length: int, start: int, rng: object, name: str) -> None:
    """In any order and overlapping: a page comes back once, when none of its rows is left; the row grows again."""
    storage = running(length, 3, kinds=CHAINS[name])
    start = min(start, length)
    before = held(storage, 0)
    pieces = [range(at, at + 1) for at in range(start, length)] + [range((start + length) // 2, length)]
    rng.shuffle(pieces)  # type: ignore[attr-defined]
    storage.ownership.free_rows(0, pieces)
    storage.verify()
    gone = -(-length // 4) - -(-start // 4)
    tokens = [0 if pool.is_slots else gone for pool in storage.plan.sub_pools]
    assert held(storage, 0) == [count - freed for count, freed in zip(before, tokens, strict=True)]
    assert storage.requests.lengths[0] == start
    assert not isinstance(storage.step(rows_of(0), rows_of(length)), Refused)
    storage.verify()
    storage.close(rows_of(0, 1))
    assert all(shot.live == 0 for shot in storage.chain.snapshot().bands)


def written(storage: Storage, row: int, lengths: range) -> None:
    """A row steps from length to length."""
    for length in lengths:
        assert not isinstance(storage.step(rows_of(row), rows_of(length)), Refused)
        storage.verify()


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("checks", [0, 1, 2])
@pytest.mark.parametrize(
    ("kinds", "lost"),
    [
        ((SHORT, FULL), range(1, 19)),
        ((SHORT,), range(1, 19)),
        ((SinksAndWindow(5, 4), FULL), range(6, 19)),
        ((STATE, SinksAndWindow(5, 4)), range(6, 19)),
        ((Chunk(10), FULL), range(1, 10)),
        ((Chunk(10), SHORT), range(1, 19)),
        ((SHORT, LONG), range(1, 19)),
        ((FULL,), range(0)),
    ],
    ids=str,
)
def test_no_row_is_freed_below_what_its_windows_let_go(kinds: tuple[object, ...], lost: range, checks: int) -> None:
    """The next query would read rows that retired: caught at any level, with nothing changed, and the row goes on."""
    storage = storage_of(kinds, page_tokens=1)  # type: ignore[arg-type]
    storage.chain.checks = checks
    row = storage.open()
    written(storage, row, range(1, 21))
    for start in lost:
        expected = rf"storage\.free_below_what_retired: row=0 length={start} "
        with nothing_changes(storage), pytest.raises(InvariantError, match=expected):
            storage.ownership.free_rows(row, [range(start, 20)])
    for start in sorted(set(range(1, 21)) - set(lost), reverse=True):
        storage.ownership.free_rows(row, [range(start, int(storage.requests.lengths[row]))])
        storage.verify()
    assert storage.requests.lengths[row] == start
    written(storage, row, range(start + 1, 41))
    storage.ownership.free_rows(row, [range(40)])
    assert not any(shot.live for shot in storage.chain.snapshot().bands[-2:] if shot.name != "state")
    written(storage, row, range(1, 30))


def test_the_windows_that_would_miss_rows_are_named() -> None:
    """Those that keep enough are not; with page tokens of four, a whole page must have gone first."""
    storage = storage_of((SHORT, LONG, Chunk(10), FULL))
    row = storage.open()
    written(storage, row, range(1, 31))
    lost = {28: {"window-6"}, 23: {"window-6", "window-17"}, 15: {"window-6", "window-17", "chunk-10"}}
    for start, named in lost.items():
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"free_below_what_retired") as told:
            storage.ownership.free_rows(row, [range(start, 30)])
        assert all((f"'{pool.name}'" in str(told.value)) == (pool.name in named) for pool in storage.plan.token_pools)
    storage.ownership.free_rows(row, [range(29, 30)])
    written(storage, row, range(30, 50))


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize("kinds", [(SHORT, FULL), (SinksAndWindow(5, 4), FULL)], ids=str)
def test_a_row_of_which_nothing_of_its_own_is_left_may_begin_anew(kinds: tuple[object, ...]) -> None:
    """Freed down to what it handed over, it reads the new owner's pages, whatever would have retired of them."""
    storage = storage_of(kinds)  # type: ignore[arg-type]
    row = storage.open()
    written(storage, row, range(1, 9))
    ids = storage.ownership.hand_over(row, 8)
    written(storage, row, range(9, 31))
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_below_what_retired"):
        storage.ownership.free_rows(row, [range(16, 30)])
    storage.ownership.free_rows(row, [range(8, 30)])
    assert (storage.requests.lengths[row], set(held(storage, row)) - {1}) == (8, {0})
    written(storage, row, range(9, 41))
    storage.close(row)
    storage.ownership.free_pages(ids)
    assert all(shot.live == 0 for shot in storage.chain.snapshot().bands)


@pytest.mark.req("TRE-1")
@pytest.mark.req("IDS-4")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kinds", [(SHORT,), (STATE, SHORT), (Chunk(10), SHORT), (SHORT, LONG)], ids=str)
def test_a_row_names_no_page_that_came_back_from_who_it_gave_it_to(kinds: tuple[object, ...], when: str) -> None:
    """Where ids retire they are minted again, for anybody: a row that needs them no more does not read them either.

    Whether the row or the new owner lets go of them first.
    """
    storage = storage_of(kinds)  # type: ignore[arg-type]
    row = storage.open()
    written(storage, row, range(1, 21))
    ids = storage.ownership.hand_over(row, 20)
    there = storage.requests.pages[row, :5].copy()
    needless = there[there >= 0][:1] if when == "before" else ids
    if when == "after":
        written(storage, row, range(21, 41))
        assert not set(storage.requests.pages[row].tolist()) & set(ids.tolist())
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_below_what_retired"):
            storage.ownership.free_rows(row, [range(20, 40)])
    storage.ownership.free_pages(needless)
    assert not set(storage.requests.pages[row].tolist()) & set(needless.tolist())
    other = storage.open()
    written(storage, other, range(1, 21))
    sink = {name: storage.chain.bands[name].grid.sink_page for name in storage.plan.names}
    tables = storage.translate(rows_of(row, other)).tables
    for name in tables:
        mine, theirs = (set(tables[name][at].tolist()) - {sink[name]} for at in (0, 1))
        assert not mine & theirs
    storage.verify()
    storage.close(rows_of(row, other))
    storage.ownership.free_pages(storage.ownership.handed_over())
    assert all(shot.live == 0 for shot in storage.chain.snapshot().bands)


@pytest.mark.req("WIN-1")
def test_what_was_handed_over_keeps_no_row_from_being_freed() -> None:
    """The window reached beyond the cache's pages, which are there still: all that the next query reads is."""
    storage = storage_of((SHORT, FULL), page_tokens=1)
    row = storage.open()
    written(storage, row, range(1, 3))
    ids = storage.ownership.hand_over(row, 2)
    written(storage, row, range(3, 8))
    storage.ownership.free_rows(row, [range(3, 7)])
    assert storage.chain.bands["window-6"].ids.is_bound(ids).all()
    written(storage, row, range(4, 20))


def test_a_row_that_lost_its_last_page_writes_into_the_page_before() -> None:
    """The next step writes where the shortened row ends."""
    storage = running(11, kinds=(SHORT, FULL))
    storage.ownership.free_rows(0, [range(6, 11)])
    table = storage.translate(rows_of(0)).tables["full"].copy()
    ids = storage.step(rows_of(0), rows_of(7))
    assert ids.write_ids("full").tolist() == [int(table[0, 1]) * 4 + 2]
    assert np.array_equal(ids.tables["full"], table)


def test_verify_finds_a_page_with_two_owners() -> None:
    """And one that nobody owns."""
    storage = running(14, kinds=(FULL,))
    ids = storage.ownership.hand_over(0, 8)
    storage.requests.handed[0] = 0
    with pytest.raises(InvariantError, match=r"storage\.page_has_two_owners"):
        storage.verify()
    storage.requests.handed[0] = 2
    storage.verify()
    taken = storage.chain.take_new("full", 1)
    assert taken
    with pytest.raises(InvariantError, match=r"storage\.all_that_lives_is_owned"):
        storage.verify()
    storage.chain.free_all({"full": taken.ids})
    storage.ownership.free_pages(ids)
    storage.verify()


def test_a_model_without_tokens_has_no_pages_to_hand_over() -> None:
    """Its rows have lengths all the same."""
    storage = running(14, kinds=(STATE,))
    assert storage.ownership.hand_over(0, 8).tolist() == []
    storage.verify()
    storage.ownership.free_rows(0, [range(6, 14)])
    assert storage.requests.lengths[0] == 6
    storage.ownership.free_pages(rows_of())
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_of_unknown_page"):
        storage.ownership.free_pages(rows_of(0))


def test_the_units_of_handed_pages_are_what_freeing_them_brings() -> None:
    """Per sub-pool in chain order: a window counts only what it still has of them."""
    storage = running(22, kinds=(SHORT, FULL))
    storage.step(rows_of(0), rows_of(23))
    ids = storage.ownership.hand_over(0, 20)
    units = storage.ownership.units(ids)
    before = [shot.live for shot in storage.chain.snapshot().bands]
    storage.ownership.free_pages(ids)
    after = [shot.live for shot in storage.chain.snapshot().bands]
    assert units == tuple(was - now for was, now in zip(before, after, strict=True))
    assert 0 <= units[0] < units[1] == 5
