"""The prefix tree: where matches land, what inserts keep and give back, what locks hold, and what may go."""

from typing import Any

import attrs
import numpy as np
import pytest
from storages import (
    CHAINS,
    FULL,
    SHORT,
    STATE,
    Tagged,
    assert_quiet,
    nothing_changes,
    opened,
    overlapped,
    process,
    run_forward,
    simulated,
    stepped,
    storage_of,
)
from trees import Reader, cached, holds, keys_of, spelled, tree_of

from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.policies.eviction import Lru, RankedVictims
from kvarena.storage.storage import Storage
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.lifetimes import Chunk, Window
from kvarena.terms.ports import Piece

HALF = keys_of(1, 2, 3, 4, 5, 6)
OTHER = keys_of(1, 2, 3, 9, 9, 9)


def live(storage: Storage, name: str) -> int:
    return storage.chain.bands[name].ids.bound


# -- where matches land


@pytest.mark.req("TRE-1")
def test_a_match_lands_where_the_keys_stop_agreeing() -> None:
    """With full attention alone any page is a landing; one token at least is left to compute."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    cached(storage, tree, HALF)

    assert spelled(tree, HALF) == (20, 24, "end")
    assert spelled(tree, np.append(HALF, 5)) == (24, 24, "end")
    assert spelled(tree, keys_of(1, 2, 3, 4, 5, 6, 7, 8)) == (24, 24, "differs")
    assert spelled(tree, OTHER) == (12, 12, "differs")
    assert spelled(tree, keys_of(2, 2)) == (0, 0, "differs")
    assert spelled(tree, HALF[:3]) == (0, 0, "end")
    assert spelled(tree, HALF[:0]) == (0, 0, "end")
    assert tree.match(HALF[:21]).ids.tolist() == tree.match(HALF).ids.tolist()


@pytest.mark.req("TRE-1")
@pytest.mark.req("CKP-1")
def test_a_match_lands_on_a_state_checkpoint() -> None:
    """With states it lands where one was kept, and says that none was further on."""
    storage = storage_of((STATE, FULL))
    tree = tree_of(storage)
    reader = Reader(storage, tree, HALF)
    assert reader.grow(24)
    first = reader.insert(8)
    reader.insert(20, state=False)

    assert first.state_kept
    assert spelled(tree, HALF) == (8, 20, "no state checkpoint")
    assert tree.match(HALF).state in storage.ownership.slots.ids()
    assert reader.insert(20).state_kept
    assert spelled(tree, HALF) == (20, 20, "end")
    assert not reader.insert(20).state_kept  # there is one: it came back
    assert len(storage.ownership.slots.ids()) == 2
    assert spelled(tree, OTHER) == (8, 12, "no state checkpoint")
    tree.verify()
    storage.verify()


@pytest.mark.req("TRE-1")
def test_a_match_lands_where_the_window_is_whole() -> None:
    """A window's rows are kept behind the end of an insert alone: a match that parts before it lands nowhere."""
    storage = storage_of((SHORT, FULL))
    tree = tree_of(storage)
    cached(storage, tree, HALF)

    assert live(storage, "full") == 6
    assert live(storage, "window-6") == 2  # rows 19 to 23
    assert spelled(tree, keys_of(1, 2, 3, 4, 5, 6, 7, 8)) == (24, 24, "differs")
    assert spelled(tree, OTHER) == (0, 12, "window rows gone")
    cached(storage, tree, OTHER[:12])  # who computes it again brings the rows
    assert spelled(tree, OTHER) == (12, 12, "differs")
    assert spelled(tree, keys_of(1, 2, 3, 4, 5, 6, 7, 8)) == (24, 24, "differs")
    assert live(storage, "window-6") == 4


def test_a_chunk_needs_nothing_where_it_begins() -> None:
    """Where rows go chunk by chunk, a match lands at a chunk's start though all its rows are gone."""
    storage = storage_of((Chunk(8), FULL))
    tree = tree_of(storage)
    cached(storage, tree, HALF[:20])
    assert spelled(tree, OTHER) == (8, 12, "window rows gone")
    assert spelled(tree, HALF) == (20, 20, "end")


def test_namespaces_keep_prefixes_apart() -> None:
    """What was cached under one salt is found under no other; a namespace of which nothing is left is forgotten."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    cached(storage, tree, HALF, namespace="a")
    assert spelled(tree, HALF) == (0, 0, "differs")
    assert spelled(tree, HALF, namespace="b") == (0, 0, "differs")
    cached(storage, tree, HALF, namespace="b")
    assert live(storage, "full") == 12
    assert spelled(tree, HALF, namespace="a") == (20, 24, "end")
    tree.clear()
    tree.verify()
    assert_quiet(storage)


def test_the_origin_of_a_landing_comes_with_it() -> None:
    """Each landing tells what the insert that brought it said of itself."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    reader = Reader(storage, tree, HALF)
    assert reader.grow(24)
    reader.insert(8, origin="chunks to 8")
    reader.insert(24, origin="chunks to 24")
    assert tree.match(HALF[:9]).origin == "chunks to 8"
    assert tree.match(HALF).origin == "chunks to 24"


# -- what inserts keep, and give back


@pytest.mark.req("TRE-2")
def test_equal_pages_are_kept_once() -> None:
    """Two requests that computed the same at the same time end up reading one copy; the other came back."""
    storage = storage_of((SHORT, FULL))
    tree = tree_of(storage)
    one, two = Reader(storage, tree, HALF), Reader(storage, tree, HALF)
    assert one.grow(24)
    assert two.grow(24)
    assert live(storage, "full") == 12
    assert one.insert(24).new_tokens == 24
    assert two.insert(24).new_tokens == 0
    assert live(storage, "full") == 6
    assert storage.requests.pages[one.row, :6].tolist() == storage.requests.pages[two.row, :6].tolist()
    one.leave()
    two.leave()
    tree.clear()
    assert_quiet(storage)


@pytest.mark.req("TRE-2")
def test_window_rows_come_back_to_an_entry_that_lost_them() -> None:
    """A state or window rows that an entry lacks are its own from who computed them again: nothing is copied."""
    storage = storage_of((STATE, SHORT, FULL), backend="cpu")
    tree = tree_of(storage)
    first = cached(storage, tree, HALF)
    deeper = cached(storage, tree, keys_of(1, 2, 3, 4, 5, 6, 7, 8))
    tree.lock(deeper.entry)
    tree.clear()  # the entry at 24 stands on the path: its state and window rows alone go
    tree.unlock(deeper.entry)
    assert spelled(tree, keys_of(1, 2, 3, 4, 5, 6, 9)) == (0, 24, "no state checkpoint")
    assert not holds(storage, first.entry)

    tagged, row = Tagged(storage), opened(storage)
    assert tagged.step((row, 24))
    state = storage.sharing.hand_over_slot(row, 0)
    moved = storage.chain.counters.moved_bytes
    again = tree.insert(row, HALF, 24, state=state)
    assert again.state_kept
    assert again.new_tokens == 0
    assert storage.chain.counters.moved_bytes == moved
    assert spelled(tree, np.append(HALF, 1)) == (24, 24, "end")
    assert tagged.reads("window-6", row, range(19, 24))
    tree.verify()
    storage.close(row)
    storage.verify()


@pytest.mark.req("CKP-1")
def test_the_pages_of_h20() -> None:
    """Window 8, pages of 4, a checkpoint at 16 and one at 32: each keeps two pages, and only the entry does."""
    storage = storage_of((Window(8), FULL))
    tree = tree_of(storage)
    keys = np.arange(40)
    reader = Reader(storage, tree, keys)
    assert reader.grow(16)
    first = reader.insert(16)
    for length in range(17, 33):
        assert reader.grow(length)
        if reader.is_past() and not reader.relaxed:
            reader.relax()
    reader.insert(32)
    assert live(storage, "window-8") == 4
    assert reader.grow(33)
    assert live(storage, "window-8") == 5
    tree.drop(first.entry)
    assert live(storage, "window-8") == 3
    assert spelled(tree, keys[:17]) == (0, 16, "window rows gone")
    assert spelled(tree, keys) == (32, 32, "differs")
    assert live(storage, "full") == 9


# -- locks


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_lock_inside_a_node_keeps_its_half(chain: str) -> None:
    """Where a match lands inside what was inserted at once, its lock keeps the part before it, and that alone."""
    storage = storage_of(CHAINS[chain], memory=8000)
    tree = tree_of(storage)
    long = cached(storage, tree, keys_of(*range(10)))
    short = cached(storage, tree, keys_of(*range(10))[:20])
    keys = keys_of(0, 1, 2, 3, 4, 99)
    found = tree.match(keys)
    assert found.tokens == 20
    tree.lock(long.entry)
    tree.lock(found.entry)
    tree.unlock(long.entry)
    tree.clear()
    tree.verify()
    assert holds(storage, found.entry)
    assert not holds(storage, long.entry)
    with pytest.raises(InvariantError, match=r"prefix_tree\.lock_of_gone_entry"):
        tree.lock(long.entry)
    tree.unlock(found.entry)
    assert holds(storage, short.entry)
    tree.clear()
    assert_quiet(storage)


def test_a_relaxed_lock_keeps_the_path_alone() -> None:
    """Once its reader has moved past the windows and copied the state, these may go; pages of the path may not."""
    storage = storage_of((STATE, SHORT, FULL))
    tree = tree_of(storage)
    entry = cached(storage, tree, HALF).entry
    names = storage.plan.names
    tree.lock(entry)
    assert tree.evictable() == (0, 0, 0)
    tree.relax(entry)
    assert dict(zip(names, tree.evictable(), strict=True)) == {"state": 1, "window-6": 2, "full": 0}
    tree.clear()
    assert not holds(storage, entry)
    assert spelled(tree, HALF) == (0, 24, "no state checkpoint")
    tree.unlock(entry, relaxed=True)
    assert dict(zip(names, tree.evictable(), strict=True)) == {"state": 0, "window-6": 0, "full": 6}


def test_a_policy_that_does_not_split_keeps_entries_whole() -> None:
    """Then states and window rows go with all the rest, and a lock on the path keeps them too."""
    storage = storage_of((STATE, SHORT, FULL))
    tree = tree_of(storage, splits=False)
    cached(storage, tree, HALF[:12])
    deep = cached(storage, tree, HALF).entry
    tree.lock(deep)
    assert tree.evictable() == (0, 0, 0)
    tree.unlock(deep)
    pieces = []
    tree.evict(lambda _: pieces.append(tree.evictable()) or False)  # type: ignore[func-returns-value]
    assert len(pieces) == 2
    assert_quiet(storage)


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_lock_goes_on_with_what_its_reader_caches(chain: str, relaxed: bool) -> None:
    """In one call as in three: the new entry is locked, the one before it is not, and just that may go."""
    evictable = []
    for lock in (True, False):
        storage = storage_of(CHAINS[chain], memory=9000)
        tree = tree_of(storage)
        reader = Reader(storage, tree, keys_of(*range(12)))
        for length in (8, 20, 36):
            assert reader.grow(length)
            reader.insert(length, lock=lock)
            tree.verify()
            evictable.append(tree.evictable())
            if relaxed:
                reader.relax()
            evictable.append(tree.evictable())
        tree.clear()
        assert relaxed or holds(storage, reader.entry)
        tree.verify()
        reader.leave()
        tree.clear()
        assert_quiet(storage)
    assert evictable[:6] == evictable[6:]


def test_a_lock_goes_on_to_an_entry_that_is_there() -> None:
    """What another has cached in the meantime is locked in the stead of what was read before, as what is new is."""
    storage = storage_of((STATE, SHORT, FULL), memory=9000)
    tree = tree_of(storage)
    first, second = Reader(storage, tree, HALF), Reader(storage, tree, HALF)
    for reader in (first, second):
        assert reader.grow(24)
    first.insert(8)
    second.insert(8)
    first.insert(24)
    second.insert(24)
    tree.verify()
    first.leave()
    tree.clear()
    assert holds(storage, second.entry)
    second.leave()
    tree.clear()
    assert_quiet(storage)


def test_a_lock_that_is_not_there_does_not_go_on() -> None:
    """Who relaxed what it reads, unlocked it, or never locked it is told so; nothing has changed."""
    storage = storage_of((SHORT, FULL))
    tree = tree_of(storage)
    reader = Reader(storage, tree, HALF)
    assert reader.grow(24)
    entry = tree.insert(reader.row, HALF, 8).entry
    other = tree.match(HALF[:9]).entry
    tree.lock(other)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"prefix_tree\.unlock_of_unlocked_entry"):
        tree.insert(reader.row, HALF, 24, after=entry, lock=True)
    tree.verify()
    tree.unlock(other)
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"prefix_tree\.insert_after_unlocked_entry"):
        tree.insert(reader.row, HALF, 24, after=entry, lock=True)
    tree.verify()


def test_a_row_that_has_moved_far_past_its_landing_has_no_window_rows_for_it() -> None:
    """They retired long ago: the tree gets the pages of full attention alone, and counts no others."""
    storage = storage_of((SHORT, FULL))
    tree = tree_of(storage)
    reader = Reader(storage, tree, keys_of(*range(12)))
    for length in (16, 32, 48):
        assert reader.grow(length)
    assert not reader.insert(8).entry.lands
    tree.verify()
    storage.verify()
    reader.leave()
    assert tree.evictable()[storage.plan.names.index(SHORT.name)] == 0
    tree.clear()
    assert_quiet(storage)


def test_locks_count() -> None:
    """Two readers of one entry: it may go when both are gone."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    entry = cached(storage, tree, HALF).entry
    tree.lock(entry)
    tree.lock(entry)
    tree.unlock(entry)
    assert tree.evictable() == (0,)
    tree.unlock(entry)
    assert tree.evictable() == (6,)


# -- what goes


@pytest.mark.req("TRE-1")
def test_eviction_stops_as_soon_as_it_is_enough() -> None:
    """One piece at a time: the oldest end first, and then the path before it that nobody shares."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    cached(storage, tree, HALF)
    cached(storage, tree, OTHER)
    tree.evict(lambda _: True)
    assert spelled(tree, np.append(HALF, 1)) == (12, 12, "differs")
    assert spelled(tree, np.append(OTHER, 1)) == (24, 24, "end")
    assert tree.stats().evicted_units == (3,)
    tree.evict(lambda _: tree.evictable() == (3,))
    assert spelled(tree, OTHER) == (12, 12, "differs")
    tree.evict(lambda _: False)
    assert tree.stats().entries == 0
    assert_quiet(storage)


@pytest.mark.req("TRE-1")
def test_what_a_forward_in_flight_reads_may_go() -> None:
    """Eviction is a logical free: the pages count as free at once, and are written when the forward is over."""
    storage = overlapped(SHORT, FULL, backend=simulated("late"))
    tree = tree_of(storage)
    row = opened(storage)
    first = run_forward(storage, stepped(storage, (row, 24)))
    process(storage, first)
    tree.insert(row, HALF, 24)
    flying = run_forward(storage, stepped(storage, (row, 25)))
    storage.close(row)
    tree.clear()
    tree.verify()
    storage.verify()
    assert live(storage, "full") == live(storage, "window-6") == 0
    assert storage.chain.snapshot().bands[-1].pending
    other = opened(storage)
    second = run_forward(storage, stepped(storage, (other, 40)))
    process(storage, flying, second)
    storage.close(other)
    assert_quiet(storage)


@pytest.mark.parametrize("chain", ["window alone", "two windows", "window and chunk, byte-less owner"])
def test_pages_without_an_owner_that_stays(chain: str) -> None:
    """Where ids come back with the last window, a long request leaves what its landings need, under load too."""
    storage = overlapped(*CHAINS[chain], backend=simulated("random", 3), memory=6000)
    tree = tree_of(storage)
    reader = Reader(storage, tree, np.arange(60))
    for length in range(4, 56, 4):
        ids = stepped(storage, (reader.row, length))
        process(storage, run_forward(storage, ids))
        if length % 12 == 0:
            reader.insert(length)
        if reader.entry is not None and reader.is_past() and not reader.relaxed:
            reader.relax()
            tree.evict(lambda _: True)
        tree.verify()
        storage.verify()
    assert tree.match(np.arange(60)).tokens == 48
    reader.leave()
    tree.clear()
    assert_quiet(storage)


@pytest.mark.req("TRE-1")
@pytest.mark.req("CKP-3")
@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_checkpoints_and_starts_under_forwards_in_flight(timing: str) -> None:
    """Checkpoints that a forward made are cached, started from and evicted while others run: no race is found."""
    storage = overlapped(STATE, SHORT, FULL, backend=simulated(timing, 5), slots_per_request=2, memory=9000)
    tree, keys = tree_of(storage), np.arange(60)
    slots = storage.requests.slots

    def chunk(row: int, stop: int) -> tuple[Any, int]:
        """A step that ends on a checkpoint; its forward is in flight."""
        ids = stepped(storage, (row, stop))
        forward = storage.forwards.launch(ids)
        storage.copies.copy_state(slots[row, :1], slots[row, 1:2], forward)
        storage.forwards.record(forward)
        return forward, storage.sharing.hand_over_slot(row, 1)

    one, entry = opened(storage), None
    for stop in (12, 24, 36):
        forward, state = chunk(one, stop)
        process(storage, forward)
        after, entry = entry, tree.insert(one, keys, stop, state=state, after=entry).entry
        tree.lock(entry)
        if after is not None:
            tree.unlock(after)
        assert isinstance(storage.sharing.take_slot(one, 1), int)
    flying = run_forward(storage, stepped(storage, (one, 40)))
    match, two = tree.match(np.append(keys[:30], 99)), opened(storage)
    assert (match.tokens, match.agreed, match.stopped) == (24, 28, "no state checkpoint")
    tree.lock(match.entry)
    storage.sharing.start(two, match.ids, match.tokens)
    storage.copies.copy_state(np.array([match.state]), slots[two, :1])
    other, state = chunk(two, 32)
    storage.close(one)
    tree.unlock(entry)
    tree.clear()  # the first request's end goes while both forwards run
    process(storage, flying, other)
    tree.insert(two, np.append(keys[:28], [7, 7, 7, 7]), 32, state=state, after=match.entry)
    tree.verify()
    storage.verify()
    storage.close(two)
    tree.unlock(match.entry)
    tree.clear()
    assert_quiet(storage)


def test_an_entry_is_dropped_with_what_only_it_needs() -> None:
    """Dropping goes up the path as far as nobody else ends, reads or branches there."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    one, two = cached(storage, tree, HALF).entry, cached(storage, tree, OTHER).entry
    tree.lock(one)
    with pytest.raises(InvariantError, match=r"prefix_tree\.drop_of_locked_entry"):
        tree.drop(one)
    tree.unlock(one)
    tree.drop(one)
    assert live(storage, "full") == 6
    tree.drop(two)
    assert_quiet(storage)


def test_stats_tell_what_it_holds_and_did() -> None:
    """Counts of entries, tokens and units, and of lookups, hits and evictions."""
    storage = storage_of((STATE, FULL))
    tree = tree_of(storage)
    cached(storage, tree, HALF)
    tree.match(np.append(HALF, 1))
    tree.match(keys_of(9))
    found = tree.stats()
    assert (found.entries, found.tokens, found.units, found.evictable) == (1, 24, (1, 6), (1, 6))
    assert (found.lookups, found.hits, found.hit_tokens) == (3, 1, 24)
    tree.clear()
    assert (tree.stats().evictions, tree.stats().evicted_units) == (1, (1, 6))


# -- what others do wrong


def insert(tree: PrefixTree, row: int, changes: dict[str, Any]) -> Any:
    return tree.insert(**{"row": row, "keys": HALF, "tokens": 24, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"keys": HALF.astype(np.int32)}, "keys must be an int64 array of one dimension, not int32"),
        ({"keys": HALF.reshape(2, 12)}, "of one dimension, not int64 of shape"),
        ({"keys": list(range(24))}, "of one dimension, not list"),
        ({"tokens": 23}, "tokens is 23; it must be whole pages of 4 tokens"),
        ({"tokens": 0}, "at least one"),
        ({"tokens": -4}, "at least one"),
        ({"tokens": 28}, "there are 24 keys"),
        ({"tokens": 4.0}, "must be a whole number"),
        ({"priority": "high"}, "priority is 'high'; it must be a number"),
        ({"priority": float("nan")}, "it must be a number"),
        ({"namespace": []}, "must be hashable"),
    ],
)
def test_an_insert_of_nonsense_changes_nothing(changes: dict[str, Any], says: str) -> None:
    """The error names what is wrong; tree and storage are as before."""
    storage = storage_of((STATE, FULL))
    tree = tree_of(storage)
    row = opened(storage)
    stepped(storage, (row, 24))
    before = tree.stats()
    with nothing_changes(storage), pytest.raises(KvarenaError, match=says.replace("(", r"\(")):
        insert(tree, row, changes)
    assert tree.stats() == before
    tree.verify()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"row": 3}, "prefix_tree.insert_beyond_the_row"),
        ({"row": -1}, "prefix_tree.insert_beyond_the_row"),
        ({"row": 99}, "prefix_tree.insert_beyond_the_row"),
        ({"state": 1}, "storage.free_of_page_not_handed_over"),
        ({"state": 9999}, "storage.free_of_unknown_page"),
        ({"state": -1}, "storage.free_of_unknown_page"),
        ({"keys": keys_of(*range(9)), "tokens": 36}, "prefix_tree.insert_beyond_the_row"),
    ],
)
def test_a_broken_promise_is_named_and_changes_nothing(changes: dict[str, Any], name: str) -> None:
    """A row that is free or too short, a state that nobody handed over."""
    storage = storage_of((STATE, FULL))
    tree = tree_of(storage)
    row = opened(storage)
    stepped(storage, (row, 24))
    with nothing_changes(storage), pytest.raises(InvariantError, match=name):
        insert(tree, row, changes)
    tree.verify()
    assert tree.stats().entries == 0


def test_keys_of_a_match_are_checked() -> None:
    """As those of an insert are."""
    tree = tree_of(storage_of((FULL,)))
    with pytest.raises(KvarenaError, match="keys must be an int64 array"):
        tree.match(HALF.astype(np.float64))
    with pytest.raises(KvarenaError, match="must be hashable"):
        tree.match(HALF, namespace={})


def test_locks_that_are_not_there_are_named() -> None:
    """Unlocking, relaxing or following an entry that is not locked so."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    entry = cached(storage, tree, HALF).entry
    with pytest.raises(InvariantError, match=r"prefix_tree\.unlock_of_unlocked_entry"):
        tree.unlock(entry)
    with pytest.raises(InvariantError, match=r"prefix_tree\.relax_of_unlocked_entry"):
        tree.relax(entry)
    inside = tree.match(OTHER).entry
    with pytest.raises(InvariantError, match=r"prefix_tree\.unlock_of_unlocked_entry"):
        tree.unlock(inside)
    tree.lock(entry)
    with pytest.raises(InvariantError, match=r"prefix_tree\.unlock_of_unlocked_entry"):
        tree.unlock(entry, relaxed=True)
    tree.relax(entry)
    with pytest.raises(InvariantError, match=r"prefix_tree\.unlock_of_unlocked_entry"):
        tree.unlock(entry)
    tree.unlock(entry, relaxed=True)
    row = opened(storage)
    stepped(storage, (row, 24))
    with pytest.raises(InvariantError, match=r"prefix_tree\.insert_after_unlocked_entry"):
        tree.insert(row, HALF, 24, after=entry)
    tree.verify()


def test_a_row_whose_pages_are_gone_is_found() -> None:
    """Who does not lock what it handed over cannot insert what lies behind it: named, and nothing has changed."""
    storage = storage_of((FULL,))
    tree = tree_of(storage)
    row = opened(storage)
    stepped(storage, (row, 24))
    tree.insert(row, HALF, 12)
    tree.clear()
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"prefix_tree\.insert_behind_a_gap"):
        tree.insert(row, HALF, 24)


@pytest.mark.req("TRE-1")
@pytest.mark.parametrize("name", ["state", "window-6", "full"])
def test_a_piece_that_the_storage_refuses_stays(name: str) -> None:
    """Of three entries the second has a reserved page: the first comes back, the others stay, and go another time."""
    storage = storage_of((STATE, SHORT, FULL), memory=9000)
    tree = tree_of(storage)
    entries = [cached(storage, tree, HALF + 100 * number).entry for number in range(3)]
    match = tree.match(np.append(HALF + 100, 1))
    fixed = np.array([match.state]) if name == "state" else match.ids[-1:]
    storage.chain.usage.fix(name, fixed)
    before, evictable = [live(storage, other) for other in storage.plan.names], tree.evictable()
    told = []
    with pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
        tree.evict(lambda units: told.append(units) or False)  # type: ignore[func-returns-value]
    assert told == [(0, 0, 0)], "each is given back before the next is asked for"
    tree.verify()
    storage.verify()
    back = [was - now for was, now in zip(before, [live(storage, n) for n in storage.plan.names], strict=True)]
    assert back == [was - now for was, now in zip(evictable, tree.evictable(), strict=True)]
    assert list(tree.stats().evicted_units) == back
    assert not holds(storage, entries[0])
    assert holds(storage, entries[2])
    assert tree.match(np.append(HALF + 100, 1)).agreed == 24
    storage.chain.usage.unfix(name, fixed)
    tree.clear()
    tree.verify()
    assert_quiet(storage)


def test_rows_that_the_storage_refuses_stay() -> None:
    """A state and window rows in the middle of a locked path go alone: those that are reserved stay with the node."""
    storage = storage_of((STATE, SHORT, FULL), memory=9000)
    tree = tree_of(storage)
    cached(storage, tree, HALF)
    deeper = cached(storage, tree, keys_of(1, 2, 3, 4, 5, 6, 7, 8, 9)).entry
    rows = tree.match(np.append(HALF, 1)).ids[-1:]
    tree.lock(deeper)
    storage.chain.usage.fix("window-6", rows)
    with pytest.raises(InvariantError, match=r"band\.free_outside_reservation"):
        tree.clear()
    tree.verify()
    storage.verify()
    assert storage.sharing.bound("window-6", rows).all()
    storage.chain.usage.unfix("window-6", rows)
    tree.clear()
    assert not storage.sharing.bound("window-6", rows).any()
    tree.unlock(deeper)
    tree.clear()
    assert_quiet(storage)


def test_what_was_chosen_comes_back_whatever_happens() -> None:
    """Pieces come back together, in a call for each kind; also where whoever is asked fails."""
    storage = storage_of((STATE, SHORT, FULL), memory=9000)
    tree = tree_of(storage)
    for number in range(3):
        cached(storage, tree, HALF + 100 * number)
    told = []

    def fails(units: tuple[int, ...]) -> bool:
        told.append((units, live(storage, "full")))
        if len(told) == 2:
            raise ValueError("planted")
        return False

    with pytest.raises(ValueError, match="planted"):
        tree.evict(fails)
    assert told == [((1, 2, 6), 18), ((2, 4, 12), 18)]
    assert live(storage, "full") == 6
    assert tree.stats().evictions == 2
    assert tree.stats().evicted_units == (2, 4, 12)
    tree.verify()
    storage.verify()


def test_a_drop_is_no_eviction() -> None:
    """What is dropped by name did not make room: neither count has it."""
    storage = storage_of((STATE, SHORT, FULL))
    tree = tree_of(storage)
    tree.drop(cached(storage, tree, HALF).entry)
    assert (tree.stats().evictions, tree.stats().evicted_units) == (0, (0, 0, 0))
    assert_quiet(storage)


class Told(RankedVictims):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Lru())
        self.pieces: list[Piece] = []

    def add(self, key: int, piece: Piece) -> None:
        """One more piece."""
        self.pieces.append(piece)
        super().add(key, piece)


@attrs.frozen
class Says:
    """A policy of a plugin's, that says nothing of ``weighs``."""

    victims: Told
    name = "says"
    splits = True

    def open(self) -> Told:
        """The victims of one tree."""
        return self.victims


class Weightless(Says):
    """And one that does not look at bytes and tokens."""

    weighs = False


@pytest.mark.req("PLG-1")
def test_a_policy_is_told_what_it_weighs() -> None:
    """Bytes and tokens, each where it says nothing; zeros where it says that it looks at neither."""
    for policy, told in ((Says(Told()), (4, 1)), (Weightless(Told()), (0, 0))):
        storage = storage_of((FULL,))
        cached(storage, PrefixTree(storage, policy), HALF[:4])
        (piece, *_) = policy.victims.pieces
        assert (piece.tokens, min(piece.bytes, 1)) == told


@pytest.mark.parametrize("eviction", ["lru", 3, {"name": "lru"}])
def test_a_policy_by_name_is_no_policy(eviction: Any) -> None:
    """The error says what is wanted."""
    with pytest.raises(KvarenaError, match="it must be a policy, which make_eviction finds by name"):
        PrefixTree(storage_of((FULL,)), eviction)
