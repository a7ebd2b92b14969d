"""What a cache and a request share: pages and slots that outlive their request, or were there before it."""

from collections.abc import Callable

import numpy as np
import pytest
from storages import (
    CHAINS,
    FULL,
    LONG,
    SHORT,
    STATE,
    Tagged,
    assert_quiet,
    free_units,
    nothing_changes,
    opened,
    rows_of,
    stepped,
    storage_of,
)
from toys import SinksAndWindow

from kvarena.assembly.config import PrefixConfig
from kvarena.storage.checks import check_idle
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.lifetimes import Chunk
from kvarena.terms.ports import IntArray

LAZY = PrefixConfig(share=True, strategy="extra_buffer_lazy", checkpoint_tokens=8)


def sharing(*kinds: object, **settings: object) -> Storage:
    """A storage whose rows have a second place for a state slot, empty at first."""
    return storage_of(kinds or (STATE, SHORT, FULL), prefix=LAZY, **{"memory": 8000, **settings})  # type: ignore[arg-type]


def published(storage: Storage, *lengths: int) -> tuple[int, IntArray]:
    """A row that ran through these lengths, and the ids of its pages, which are a cache's now; positions and all."""
    row = opened(storage)
    for length in lengths:
        stepped(storage, (row, length))
    storage.ownership.hand_over(row, lengths[-1])
    return row, storage.requests.pages[row, : storage.requests.page_counts[row]].copy()


def held(storage: Storage, row: int) -> list[int]:
    """What a row owns, in chain order."""
    return storage.ownership.held()[:, row].tolist()


def taken(storage: Storage, row: int) -> list[int]:
    """What a row has taken of its charge, in chain order."""
    return storage.ownership.charged()[:, row].tolist()


def bound(storage: Storage, name: str, ids: IntArray) -> list[bool]:
    return storage.sharing.bound(name, ids).tolist()


# -- start


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("name", sorted(CHAINS))
@pytest.mark.parametrize("page_tokens", [1, 4])
def test_a_request_reads_what_another_wrote_and_owns_none_of_it(name: str, page_tokens: int) -> None:
    """It goes on behind those pages with its own; its windows let go of none of them, and its close leaves them."""
    storage = sharing(*CHAINS[name], page_tokens=page_tokens)
    donor, path = published(storage, 8, 16)
    tables = storage.translate(rows_of(donor)).tables
    expected = {pool.name: tables[pool.name][0].tolist() for pool in storage.plan.token_pools}
    storage.close(donor)
    cached = [shot.live for shot in storage.chain.snapshot().bands]
    row = opened(storage)
    storage.sharing.start(row, path, 16)
    assert storage.requests.lengths[row] == 16
    for pool in storage.plan.token_pools:
        assert storage.translate(rows_of(row)).tables[pool.name][0].tolist() == expected[pool.name]
    assert not any(
        count for count, pool in zip(held(storage, row), storage.plan.sub_pools, strict=True) if not pool.is_slots
    )
    for length in range(17, 60):
        stepped(storage, (row, length))
        storage.verify()
    own = 60 // page_tokens - len(path) - (page_tokens == 1)
    for column, pool in enumerate(storage.plan.sub_pools):
        if pool.name == "full":
            assert held(storage, row)[column] == taken(storage, row)[column] == own
    storage.close(row)
    assert [shot.live for shot in storage.chain.snapshot().bands] == cached
    storage.ownership.free_pages(path[path >= 0])
    assert_quiet(storage)


@pytest.mark.req("WIN-1")
@pytest.mark.parametrize(
    "kinds", [(SHORT, FULL), (SHORT, LONG), (Chunk(10), SHORT), (SinksAndWindow(5, 4), FULL)], ids=str
)
def test_a_request_starts_where_every_window_is_there(kinds: tuple[object, ...]) -> None:
    """The rows behind the start are needed, and no others; where one is gone nothing has changed, and it is named."""
    storage = storage_of(kinds, memory=8000)  # type: ignore[arg-type]
    donor = opened(storage)
    for length in range(1, 33):
        stepped(storage, (donor, length))
    storage.ownership.hand_over(donor, 32)
    path = storage.requests.pages[donor, :8].copy()
    row = opened(storage)
    names = [pool.name for pool in storage.plan.token_pools]
    short = [name for name in names if name != "full"]
    for count in (3, 5):  # the windows let go of what a query there reads
        with (
            nothing_changes(storage),
            pytest.raises(InvariantError, match=r"^storage\.start_without_its_pages") as told,
        ):
            storage.sharing.start(row, path[:count], count * 4)
        assert any(f"'{name}'" in str(told.value) for name in short)
        assert "'full'" not in str(told.value)
        assert not storage.sharing.can_start(path[:count], count * 4)
    with nothing_changes(storage):
        assert storage.sharing.can_start(path, 32)
        assert not storage.sharing.can_start(np.where(np.arange(8) == 7, -1, path), 32)
        for wrong, tokens in ((None, 4), ([1, 2], 8), (path, "32"), (path, float("nan"))):
            with pytest.raises(KvarenaError, match=r"sharing\.can_start: (ids|tokens)"):
                storage.sharing.can_start(wrong, tokens)  # type: ignore[arg-type]
    storage.sharing.start(row, path, 32)
    for length in range(33, 60):
        stepped(storage, (row, length), (donor, length))
        storage.verify()
        theirs, mine = held(storage, donor), held(storage, row)
        assert mine == theirs
    storage.close(rows_of(row, donor))
    storage.ownership.free_pages(storage.ownership.handed_over())
    assert_quiet(storage)


@pytest.mark.req("IDS-4")
def test_a_request_frees_nothing_that_it_only_reads() -> None:
    """Its last rows go down to where it started, and no further; it grows again from there."""
    storage = sharing(SHORT, FULL)
    _, path = published(storage, 16)
    row = opened(storage)
    storage.sharing.start(row, path, 16)
    stepped(storage, (row, 18))
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"^storage\.free_straddles_an_owner"):
        storage.ownership.free_rows(row, [range(15, 18)])
    storage.ownership.free_rows(row, [range(16, 18)])
    assert (held(storage, row), storage.requests.lengths[row]) == ([0, 0], 16)
    assert len(storage.ownership.hand_over(row, 16)) == 0
    stepped(storage, (row, 23))
    assert storage.ownership.hand_over(row, 20).tolist() == storage.requests.pages[row, 4:5].tolist()
    storage.close(rows_of(0, row))
    storage.ownership.free_pages(storage.ownership.handed_over())
    assert_quiet(storage)


def test_a_model_without_tokens_starts_at_any_length() -> None:
    """There is no page to read, only a state that somebody copies."""
    storage = sharing(STATE)
    row = opened(storage)
    storage.sharing.start(row, rows_of(-1, -1, -1), 11)
    assert storage.requests.lengths[row] == 11
    storage.verify()
    stepped(storage, (row, 12))
    storage.close(row)
    assert_quiet(storage)


def test_starting_on_nothing_is_beginning_anew() -> None:
    """No page, no token: the row steps as any other."""
    storage = sharing()
    row = opened(storage)
    storage.sharing.start(row, rows_of(), 0)
    stepped(storage, (row, 9))
    assert held(storage, row) == [1, 3, 3]
    storage.close(row)
    assert_quiet(storage)


WRONG_STARTS: dict[str, Callable[[Storage, int, IntArray], object]] = {
    "storage.start_of_free_row": lambda storage, row, path: storage.sharing.start(row + 1, path, 16),
    "storage.start_of_free_row: row=-1": lambda storage, row, path: storage.sharing.start(-1, path, 16),
    "storage.start_of_used_row": lambda storage, row, path: storage.sharing.start(0, path, 16),
    "storage.start_splits_a_page": lambda storage, row, path: storage.sharing.start(row, path, 15),
    "storage.start_splits_a_page: tokens=20": lambda storage, row, path: storage.sharing.start(row, path, 20),
    "storage.start_splits_a_page: tokens=-16": lambda storage, row, path: storage.sharing.start(row, path, -16),
    "storage.read_of_page_twice": lambda storage, row, path: storage.sharing.start(row, path[[0, 1, 2, 2]], 16),
    "storage.read_of_page_not_handed_over": lambda storage, row, path: storage.sharing.start(
        row, rows_of(*path, 9), 20
    ),
    "storage.read_of_page_not_handed_over: ids=": lambda storage, row, path: storage.sharing.start(
        row, rows_of(*path, -2), 20
    ),
    "storage.read_of_page_not_handed_over: ": lambda storage, row, path: storage.sharing.start(
        row, rows_of(*path, 10**9), 20
    ),
    "storage.start_without_its_pages": lambda storage, row, path: storage.sharing.start(
        row, rows_of(-1, *path[1:]), 16
    ),
}


@pytest.mark.parametrize("name", WRONG_STARTS)
def test_a_wrong_start_changes_nothing(name: str) -> None:
    """A row that nobody opened or that has rows, half a page, a page of nobody's or of a row's, one named twice."""
    storage = sharing()
    _, path = published(storage, 16)
    other, row = opened(storage), opened(storage)
    stepped(storage, (other, 9))
    with nothing_changes(storage), pytest.raises(InvariantError, match="^" + name.replace(".", r"\.")):
        WRONG_STARTS[name](storage, row, path)


def test_no_request_starts_longer_than_a_row() -> None:
    """The cache may be of longer ones that ran in parts; the message says what a row holds."""
    storage = sharing(FULL, context=16)
    paths = [published(storage, 16)[1] for _ in range(2)]
    row = opened(storage)
    with nothing_changes(storage), pytest.raises(KvarenaError, match="a sequence of 32 tokens is longer than the 16 "):
        storage.sharing.start(row, np.concatenate(paths), 32)
    with nothing_changes(storage), pytest.raises(KvarenaError, match=r"sharing\.start: ids must be an int64 array"):
        storage.sharing.start(row, [1, 2], 8)  # type: ignore[arg-type]


def test_a_row_that_waits_for_a_copy_neither_starts_nor_gives() -> None:
    """Its pages are being filled: they are nobody's to share yet."""
    storage = sharing(STATE, FULL)
    _, path = published(storage, 16)
    row = opened(storage)
    copy = storage.copies.load(row, 9)
    assert not isinstance(copy, Refused)
    acts: tuple[Callable[[], object], ...] = (
        lambda: storage.sharing.start(row, path, 16),
        lambda: storage.sharing.adopt(row, path[:1]),
        lambda: storage.sharing.hand_over_slot(row, 0),
        lambda: storage.sharing.take_slot(row, 1),
    )
    for act in acts:
        with nothing_changes(storage), pytest.raises(InvariantError, match=r"^storage\.row_awaits_its_copy"):
            act()


# -- adopt


@pytest.mark.req("TRE-2")
def test_two_that_computed_the_same_read_one_copy() -> None:
    """The second one's own pages come back, and it goes on where it was."""
    storage = sharing()
    _, path = published(storage, 16)
    row = opened(storage)
    stepped(storage, (row, 18))
    before = [shot.live for shot in storage.chain.snapshot().bands]
    assert held(storage, row) == taken(storage, row) == [1, 5, 5]
    storage.sharing.adopt(row, path)
    assert (held(storage, row), taken(storage, row)) == ([1, 1, 1], [1, 1, 5])
    assert [shot.live for shot in storage.chain.snapshot().bands] == [before[0], before[1] - 4, before[2] - 4]
    assert storage.requests.pages[row, :4].tolist() == path.tolist()
    storage.verify()
    for length in range(19, 60):
        stepped(storage, (row, length))
        storage.verify()
    storage.close(rows_of(0, row))
    storage.ownership.free_pages(path)
    assert_quiet(storage)


@pytest.mark.req("TRE-2")
@pytest.mark.parametrize("whole", [False, True])
def test_a_window_that_the_cache_lost_comes_from_who_still_has_it(whole: bool) -> None:
    """The page stays where it is, under the cache's id: nothing is taken or copied, and another may start there."""
    tagged = Tagged(storage_of((SHORT, FULL), memory=8000, backend="cpu"))
    storage = tagged.storage
    donor = opened(storage)
    assert tagged.step((donor, 16))
    path = storage.ownership.hand_over(donor, 16)
    storage.sharing.free_in("window-6", path[2:])
    row = opened(storage)
    assert tagged.step((row, 16)) if whole else tagged.step((row, 19))
    pages = storage.translate(rows_of(row)).tables["window-6"][0, :4].tolist()
    takes = storage.chain.counters.takes
    storage.sharing.adopt(row, path)
    assert storage.chain.counters.takes == takes
    assert bound(storage, "window-6", path) == [True] * 4
    assert storage.chain.pages("window-6", path[2:]).tolist() == pages[2:]
    assert storage.chain.pages("window-6", path[:2]).tolist() != pages[:2]
    assert tagged.reads("window-6", row, range(8, 16))
    assert tagged.reads("window-6", donor, range(8))
    assert held(storage, row) == ([0, 0] if whole else [1, 1])
    storage.verify()
    for length in range(20, 40):
        assert tagged.step((row, length))
        assert tagged.reads("window-6", row, range(max(16, length - 5), length))
        storage.verify()
    reader = opened(storage)
    storage.sharing.start(reader, path, 16)
    storage.close(rows_of(donor, row, reader))
    storage.ownership.free_pages(path)
    assert all(shot.live == 0 for shot in storage.chain.snapshot().bands)
    tagged.release()


@pytest.mark.req("TRE-2")
@pytest.mark.parametrize(
    "kinds", [(SHORT, LONG), (SHORT,), (SinksAndWindow(5, 4), FULL), (STATE, SinksAndWindow(5, 4))], ids=str
)
def test_what_retired_on_either_side_is_nobodys(kinds: tuple[object, ...]) -> None:
    """Positions that retired everywhere have no id; those of the cache stand in for them where it has any."""
    storage = storage_of(kinds, memory=8000)  # type: ignore[arg-type]
    rows = storage.open_batch(2)
    for length in range(1, 31):
        stepped(storage, *((row, length) for row in rows.tolist()))
    storage.ownership.hand_over(0, 28)
    path = storage.requests.pages[0, :7].copy()
    storage.sharing.adopt(1, path)
    storage.verify()
    assert storage.requests.pages[1, :7].tolist() == path.tolist()
    for length in range(31, 60):
        stepped(storage, (0, length), (1, length))
        assert held(storage, 0) == held(storage, 1)
        storage.verify()
    storage.close(rows)
    storage.ownership.free_pages(path[path >= 0])
    assert_quiet(storage)


def test_the_rest_of_a_path_is_adopted_from_where_the_row_stopped_sharing() -> None:
    """What it started on, or handed over, stays as it is; more of its own is then handed over."""
    storage = sharing(SHORT, FULL)
    _, path = published(storage, 24)
    row = opened(storage)
    storage.sharing.start(row, path[:2], 8)
    stepped(storage, (row, 34))
    storage.sharing.adopt(row, path[2:])
    assert storage.requests.pages[row, :6].tolist() == path.tolist()
    more = storage.ownership.hand_over(row, 32)
    assert more.tolist() == storage.requests.pages[row, 6:8].tolist()
    assert taken(storage, row)[1] == 9 - 2
    with nothing_changes(storage):
        storage.sharing.adopt(row, rows_of())
    storage.close(rows_of(0, row))
    storage.ownership.free_pages(storage.ownership.handed_over())
    assert_quiet(storage)


WRONG_ADOPTIONS: dict[str, Callable[[Storage, IntArray], object]] = {
    "storage.hand_over_of_free_row": lambda storage, path: storage.sharing.adopt(3, path),
    "storage.hand_over_of_free_row: row=-1": lambda storage, path: storage.sharing.adopt(-1, path),
    "storage.adopt_beyond_the_row": lambda storage, path: storage.sharing.adopt(1, path),
    "storage.adopt_without_a_page": lambda storage, path: storage.sharing.adopt(1, rows_of(path[0], -1)),
    "storage.read_of_page_twice": lambda storage, path: storage.sharing.adopt(1, path[[1, 1]]),
    "storage.read_of_page_not_handed_over": lambda storage, path: storage.sharing.adopt(
        1, storage.requests.pages[1, :2].copy()
    ),
    "storage.read_of_page_not_handed_over: ids=": lambda storage, path: storage.sharing.adopt(1, rows_of(10**9)),
    "band.free_outside_reservation": lambda storage, path: storage.sharing.adopt(2, path[:2]),
}


@pytest.mark.parametrize("name", WRONG_ADOPTIONS)
def test_a_wrong_adoption_changes_nothing(name: str) -> None:
    """No row, more than it wrote, a hole in the path, pages of nobody's or of its own, a page that is reserved."""
    storage = sharing()
    _, path = published(storage, 16)
    rows = storage.open_batch(2)
    storage.step(rows, rows_of(11, 11))
    storage.sharing.free_in("window-6", path[:2])
    fixed = storage.requests.pages[2, :1]
    storage.chain.usage.fix("window-6", fixed)
    with nothing_changes(storage), pytest.raises(InvariantError, match="^" + name.replace(".", r"\.")):
        WRONG_ADOPTIONS[name](storage, path)
    storage.chain.usage.unfix("window-6", fixed)


# -- free in one sub-pool


@pytest.mark.req("TRE-1")
def test_a_sub_pool_lets_go_alone() -> None:
    """Its units come back, the others keep theirs, and at the end each page has come back once."""
    storage = sharing(STATE, SHORT, LONG, FULL)
    _, path = published(storage, 16)
    storage.close(0)
    assert storage.ownership.units(path) == (0, 4, 4, 4)
    storage.sharing.free_in("window-6", path[1:3])
    assert bound(storage, "window-6", rows_of(*path, -1)) == [True, False, False, True, False]
    assert storage.ownership.units(path) == (0, 4, 2, 4)
    storage.verify()
    storage.sharing.free_in("window-17", path)
    storage.sharing.free_in("window-6", rows_of())
    assert storage.ownership.units(path) == (0, 0, 2, 4)
    storage.ownership.free_pages(path)
    assert_quiet(storage)


WRONG_FREES: dict[str, tuple[str, list[int]]] = {
    "storage.free_in_the_minter": ("full", [0]),
    "storage.free_in_the_minter: sub_pool='state'": ("state", [0]),
    "storage.free_of_page_not_handed_over": ("window-6", [0, 4]),
    "storage.free_of_unknown_page": ("window-6", [0, -1]),
    "storage.free_of_page_twice": ("window-6", [0, 0]),
    "chain.window_segment_bound": ("window-6", [0, 3]),
}


@pytest.mark.req("CHK-1")
@pytest.mark.parametrize("name", WRONG_FREES)
@pytest.mark.parametrize("checks", [0, 1, 2])
def test_a_wrong_free_in_a_sub_pool_changes_nothing(name: str, checks: int) -> None:
    """At any level of checks: the minter's, a page of a row's, one that is gone there already, one named twice."""
    storage = sharing()
    _, path = published(storage, 16)
    stepped(storage, (0, 18))
    storage.chain.checks = checks
    storage.sharing.free_in("window-6", path[3:])
    sub_pool, ids = WRONG_FREES[name]
    with nothing_changes(storage), pytest.raises(InvariantError, match="^" + name.replace(".", r"\.")):
        storage.sharing.free_in(sub_pool, rows_of(*ids))
    with nothing_changes(storage), pytest.raises(KvarenaError, match="no sub-pool 'window-7'; did you mean 'window-6'"):
        storage.sharing.free_in("window-7", path[:1])


# -- slots


@pytest.mark.req("CKP-1")
def test_a_slot_changes_hands() -> None:
    """Out of a row's place it is a stranger's, counted as such; the place takes another; each comes back once."""
    storage = sharing(STATE, FULL, backend="cpu")
    row = opened(storage)
    assert storage.requests.slots[row].tolist() == [0, -1]
    assert held(storage, row)[0] == 1
    before = free_units(storage, "state")
    spare = storage.sharing.take_slot(row, 1)
    assert not isinstance(spare, Refused)
    assert (held(storage, row)[0], taken(storage, row)[0], free_units(storage, "state")) == (2, 2, before - 1)
    assert storage.translate(rows_of(row)).slots.tolist() == [storage.chain.pages("state", rows_of(0, spare)).tolist()]  # type: ignore[union-attr]
    version = storage.ownership.version
    assert storage.sharing.hand_over_slot(row, 1) == spare
    assert storage.ownership.version > version
    assert (held(storage, row)[0], taken(storage, row)[0], free_units(storage, "state")) == (1, 1, before - 1)
    assert storage.ownership.slots.ids().tolist() == [spare]
    assert storage.translate(rows_of(row)).slots[0, 1] == storage.chain.bands["state"].grid.sink_page  # type: ignore[index]
    storage.verify()
    storage.close(row)
    assert storage.chain.bands["state"].live == 1
    storage.verify()
    storage.sharing.free_slots(rows_of(spare))
    assert_quiet(storage)
    storage.release()


@pytest.mark.req("CKP-1")
def test_a_row_opens_with_the_slots_that_it_is_charged() -> None:
    """Two with a spare from the start, one where the spare is taken lazily, one where only ends are kept."""
    for strategy, charged, places in (("no_buffer", 1, 1), ("extra_buffer", 2, 2), ("extra_buffer_lazy", 1, 2)):
        prefix = PrefixConfig(share=True, strategy=strategy)
        storage = storage_of((STATE, FULL), prefix=prefix, memory=8000)
        row = opened(storage)
        assert (held(storage, row)[0], storage.requests.slots.shape[1]) == (charged, places)
        assert storage.ownership.open_count == 1
        storage.close(row)
        assert storage.ownership.open_count == 0
        assert_quiet(storage)


def test_a_slot_that_cannot_be_had_is_refused() -> None:
    """And nothing has changed; once another comes back it can."""
    storage = sharing(STATE, FULL)
    rows = storage.open_batch(4)
    given = [storage.sharing.hand_over_slot(int(row), 0) for row in rows]
    while not isinstance(more := storage.sharing.take_slot(0, 0), Refused):
        given.append(storage.sharing.hand_over_slot(0, 0))
    with nothing_changes(storage):
        again = storage.sharing.take_slot(1, 1)
        assert isinstance(again, Refused)
        assert str(more) == str(again)
    assert more.asked == {"state": 1}
    storage.sharing.free_slots(rows_of(given.pop()))
    assert not isinstance(storage.sharing.take_slot(0, 1), Refused)
    storage.close(rows)
    storage.sharing.free_slots(rows_of(*given))
    assert_quiet(storage)


def test_slots_of_several_rows_change_hands_at_once() -> None:
    """Each row's is where it stands in the list; of more than can be had none is taken."""
    storage = sharing(STATE, FULL)
    rows = storage.open_batch(4)[::-1].copy()
    before = storage.requests.slots[rows, 0].tolist()
    given = storage.sharing.hand_over_slots(rows, 0)
    assert given.tolist() == before == storage.ownership.slots.ids()[np.argsort(np.argsort(before))].tolist()
    assert (storage.requests.slots[:, 0] == -1).all()
    taken = storage.sharing.take_slots(rows[:2], 0)
    assert not isinstance(taken, Refused)
    assert storage.requests.slots[rows, 0].tolist() == [*taken.tolist(), -1, -1]
    storage.verify()
    while not isinstance(more := storage.sharing.take_slots(rows[2:], 0), Refused):
        given = np.concatenate((given, storage.sharing.hand_over_slots(rows[2:], 0)))
    with nothing_changes(storage):
        assert isinstance(storage.sharing.take_slots(rows[2:], 0), Refused)
    assert more.asked == {"state": 2}
    storage.close(rows)
    storage.sharing.free_slots(given)
    assert_quiet(storage)


def test_a_row_that_is_named_twice_gives_no_slot_twice() -> None:
    """Nor gets two for one place; and of several rows the wrong one is told."""
    storage = sharing(STATE, FULL)
    rows = storage.open_batch(3)
    storage.sharing.hand_over_slot(int(rows[1]), 0)
    for wrong, name in (
        (lambda: storage.sharing.hand_over_slots(rows_of(0, 2, 0), 0), "hand_over_repeats_a_row"),
        (lambda: storage.sharing.take_slots(rows_of(1, 1), 1), "hand_over_repeats_a_row"),
        (lambda: storage.sharing.hand_over_slots(rows, 0), r"hand_over_of_empty_place: row=array\(\[1\]\)"),
        (lambda: storage.sharing.take_slots(rows, 0), r"take_into_full_place: row=array\(\[0, 2\]\)"),
        (lambda: storage.sharing.take_slots(rows_of(0, 3), 1), "hand_over_of_free_row"),
    ):
        with nothing_changes(storage), pytest.raises(InvariantError, match=rf"storage\.{name}"):
            wrong()


WRONG_SLOTS: dict[str, Callable[[Storage], object]] = {
    "storage.hand_over_of_free_row": lambda storage: storage.sharing.hand_over_slot(1, 0),
    "storage.hand_over_of_free_row: row=-1": lambda storage: storage.sharing.take_slot(-1, 0),
    "storage.hand_over_of_empty_place": lambda storage: storage.sharing.hand_over_slot(0, 1),
    "storage.take_into_full_place": lambda storage: storage.sharing.take_slot(0, 0),
    "a row has no place 2 for a state slot: 2 places, 0 to 1": lambda storage: storage.sharing.take_slot(0, 2),
    "a row has no place -1 for a state slot": lambda storage: storage.sharing.hand_over_slot(0, -1),
    "storage.free_of_page_not_handed_over": lambda storage: storage.sharing.free_slots(rows_of(0)),
    "storage.free_of_unknown_page": lambda storage: storage.sharing.free_slots(rows_of(-1)),
    "storage.free_of_unknown_page:": lambda storage: storage.sharing.free_slots(rows_of(10**9)),
    "storage.free_of_page_twice": lambda storage: storage.sharing.free_slots(
        np.repeat(storage.ownership.slots.ids(), 2)
    ),
}


@pytest.mark.parametrize("name", WRONG_SLOTS)
def test_a_wrong_use_of_slots_changes_nothing(name: str) -> None:
    """No row, no place, an empty or a full one; a slot of a row's, of nobody's, or named twice."""
    storage = sharing(STATE, FULL)
    row = opened(storage)
    assert not isinstance(storage.sharing.take_slot(row, 1), Refused)
    storage.sharing.hand_over_slot(row, 1)
    match = "^" + name.replace(".", r"\.")
    with nothing_changes(storage), pytest.raises((InvariantError, KvarenaError), match=match):
        WRONG_SLOTS[name](storage)


def test_a_model_without_a_state_has_no_slots_to_share() -> None:
    """It has no place for one; freeing none is nothing."""
    storage = storage_of((FULL,))
    row = opened(storage)
    with pytest.raises(KvarenaError, match="no place 0 for a state slot: none, the model keeps no state"):
        storage.sharing.take_slot(row, 0)
    with nothing_changes(storage):
        storage.sharing.free_slots(rows_of())
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_of_unknown_page"):
        storage.sharing.free_slots(rows_of(0))


# -- what looks at all of it


def test_what_was_handed_over_is_no_leak_and_keeps_an_arena_from_changing() -> None:
    """The idle check counts pages and slots of strangers; a resize names them."""
    storage = sharing(STATE, FULL)
    row, path = published(storage, 16)
    slot = storage.sharing.hand_over_slot(row, 0)
    storage.close(row)
    assert check_idle(storage) == ()
    with nothing_changes(storage), pytest.raises(KvarenaError, match="4 pages are handed over: free them"):
        storage.resize(9000)
    storage.ownership.free_pages(path)
    with nothing_changes(storage), pytest.raises(KvarenaError, match="1 state slots are handed over: free them"):
        storage.resize(9000)
    storage.sharing.free_slots(rows_of(slot))
    old = storage.sharing
    storage.resize(9000)
    with pytest.raises(InvariantError, match=r"storage\.part_from_before_a_resize"):
        old.start(0, rows_of(), 0)
    leaked = storage.chain.take_new("state", 1)
    assert leaked
    assert any("storage.leaked_pages" in found for found in check_idle(storage))


def test_verify_finds_a_slot_with_two_owners_and_a_place_that_is_miscounted() -> None:
    """A row's that is a stranger's too; counts that do not agree with the places."""
    storage = sharing(STATE, FULL)
    row = opened(storage)
    storage.ownership.slots.add(rows_of(0))
    with pytest.raises(InvariantError, match=r"storage\.slot_has_two_owners"):
        storage.verify()
    storage.ownership.slots.drop(rows_of(0))
    storage.requests.slots_held[row] = 2
    with pytest.raises(InvariantError, match=r"requests\.slots_held_are_there"):
        storage.verify()
    storage.requests.slots_held[row] = 1
    storage.requests.stateless = 1
    with pytest.raises(InvariantError, match=r"requests\.empty_live_places"):
        storage.verify()
    storage.requests.stateless = 0
    storage.requests.shared[row] = 1
    with pytest.raises(InvariantError, match=r"requests\.handed_more_than_it_has"):
        storage.verify()


def test_what_rows_took_of_their_charges_has_a_version() -> None:
    """It changes with every act that changes it where the chain does not."""
    storage = sharing()
    seen = [(storage.chain.epoch, storage.ownership.version)]

    def changed() -> None:
        seen.append((storage.chain.epoch, storage.ownership.version))
        assert seen[-1] != seen[-2]

    row, path = published(storage, 16)
    changed()
    other = opened(storage)
    changed()
    storage.sharing.start(other, path, 16)
    changed()
    third = opened(storage)
    stepped(storage, (third, 16))
    changed()
    storage.sharing.adopt(third, path)
    changed()
    storage.sharing.free_in("window-6", path)
    changed()
    storage.sharing.free_slots(rows_of(storage.sharing.hand_over_slot(row, 0)))
    changed()
    storage.sharing.take_slot(row, 0)
    changed()


def test_a_question_about_an_id_that_is_none_is_named() -> None:
    """``bound`` answers for every id and for -1, which has no page; one beyond them is told, and nothing changes."""
    storage = sharing()
    row = opened(storage)
    stepped(storage, (row, 8))
    assert bound(storage, "full", np.array([-1, *storage.requests.pages[row, :1]])) == [False, True]
    with (
        nothing_changes(storage),
        pytest.raises(InvariantError, match=r"^storage\.bound_of_unknown_id: sub_pool='full' .*id_count="),
    ):
        bound(storage, "full", np.array([0, 1_000_000]))
