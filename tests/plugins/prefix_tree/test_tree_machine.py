"""Requests that start, run, insert, relax and end in any order over one tree, beside a dict of prefixes."""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storages import CHAINS, assert_quiet, storage_of
from trees import POLICIES, Reader, holds, keys_of, tree_of

from kvarena.planning.demand import whole_pages
from kvarena.plugins.prefix_tree import Match
from kvarena.terms.errors import InvariantError
from kvarena.terms.ports import IntArray

PAGES = 14
SPACES = (None, None, None, "salt")
Prefix = tuple[Any, bytes]


@attrs.define
class Known:
    """What the model knows of one page of a prefix: its id, -1 where no sub-pool has it; and the state after it."""

    id: int
    state: int | None = None
    is_end: bool = False


class TreeMachine(RuleBasedStateMachine):
    """The model has every prefix of whole pages that is cached, each with its page and its state; the storage says
    which sub-pools have the page. Landings are found by trying."""

    @initialize(
        chain=st.sampled_from(sorted(CHAINS)),
        page=st.sampled_from((1, 3, 4)),
        name=st.sampled_from(POLICIES),
        splits=st.booleans(),
    )
    def build(self, chain: str, page: int, name: str, splits: bool) -> None:
        self.size = page
        self.storage = storage_of(CHAINS[chain], page_tokens=page, memory=9000, running=4)
        self.tree = tree_of(self.storage, name, splits=splits)
        self.readers: list[Reader] = []
        self.sound: dict[int, bool] = {}  # whether a reader could be started from its entry when it locked it
        self.was_whole: dict[int, bool] = {}  # whether it had all window rows there
        self.narrowed: dict[int, int] = {}  # the length that it has narrowed to
        self.moved: dict[int, int] = {}  # the same, whether it had all window rows or not
        self.splits = splits
        self.dropped = False
        self.ends: set[Prefix] = set()  # where inserts ended, ever
        self.known: dict[Prefix, Known] = {}
        self.entries: list[tuple[Any, Prefix]] = []
        self.asked: list[tuple[Any, Prefix]] = []
        self.names = self.storage.plan.names

    # -- rules

    @precondition(lambda self: self.storage.requests.free_count)
    @rule(data=st.data(), space=st.sampled_from(SPACES), count=st.integers(1, PAGES), runs=st.integers(0, 4))
    def begin(self, data: st.DataObject, space: Any, count: int, runs: int) -> None:
        """A request whose first pages others may have too. It starts where the model says, and may run on at once."""
        keys = self.draw_keys(data, count)
        expected = self.landing(space, keys)
        if not self.has_room(keys):
            return
        reader = Reader(self.storage, self.tree, keys, space)
        self.check_match(reader.match, space, keys, expected)
        self.readers.append(reader)
        self.locked(reader, sound=True, whole=True)
        for length in (len(keys) // 2, len(keys), len(keys))[: 3 if runs else 0]:  # windows retire at each
            if length >= reader.length:
                reader.grow(length)
        if runs > 1:
            self.cache(reader, max(1, count * runs // 4) * self.size, state=True, follow=True, priority=runs)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        """One writes on."""
        reader = data.draw(st.sampled_from(self.readers))
        reader.grow(data.draw(st.integers(reader.length, len(reader.keys))))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), ways=st.tuples(st.booleans(), st.booleans(), st.booleans()), priority=st.integers(0, 2))
    def insert(self, data: st.DataObject, ways: tuple[bool, bool, bool], priority: int) -> None:
        """One caches what it has written; where the tree has it already, it reads the tree's from here on."""
        reader = data.draw(st.sampled_from(self.readers))
        least = reader.entry.tokens // self.size if reader.entry is not None else 1
        most = reader.length // self.size
        if most < least or not self.has_room(reader.keys):
            return
        settings = dict(zip(("state", "follow", "lock"), ways, strict=True))
        self.cache(reader, data.draw(st.integers(least, most)) * self.size, priority=priority, **settings)

    def cache(self, reader: Reader, tokens: int, **settings: Any) -> None:
        """Insert, and see what came of it."""
        if tokens > reader.length or (reader.entry is not None and tokens < reader.entry.tokens):
            return
        before = [self.known.get(self.prefix(reader, page)) for page in range(tokens // self.size)]
        had_windows = self.windows_of(reader, tokens)
        inserted = reader.insert(tokens, **settings)

        assert inserted.new_tokens == sum(known is None for known in before) * self.size
        self.learn(reader, tokens, inserted.state_kept)
        end = self.prefix(reader, tokens // self.size - 1)
        found = self.tree.match(np.append(reader.keys[:tokens], 0), namespace=reader.namespace)
        if found.tokens == tokens:  # a handle of its own: that of the insert is its reader's, who may narrow it
            self.entries.append((found.entry, end))
        self.locked(reader, sound=self.was_landing(reader), whole=had_windows)
        if had_windows and (self.storage.plan.slots is None or self.known[end].state is not None):
            assert self.is_landing(reader.namespace, reader.keys, tokens // self.size)

    @precondition(lambda self: any(self.may_relax(reader) for reader in self.readers))
    @rule(data=st.data())
    def relax(self, data: st.DataObject) -> None:
        """One has moved past the windows of its entry."""
        data.draw(st.sampled_from([reader for reader in self.readers if self.may_relax(reader)])).relax()

    @precondition(lambda self: any(self.may_narrow(reader) for reader in self.readers))
    @rule(data=st.data())
    def narrow(self, data: st.DataObject) -> None:
        """One has moved on: it needs the window rows that a query at its length needs, and no state."""
        reader = data.draw(st.sampled_from([reader for reader in self.readers if self.may_narrow(reader)]))
        self.tree.narrow(reader.entry, reader.length)
        self.sound[reader.row] = False  # what it started from may go
        self.narrowed[reader.row] = reader.length if self.was_whole[reader.row] else 0
        self.moved[reader.row] = reader.length

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """One ends."""
        reader = data.draw(st.sampled_from(self.readers))
        reader.leave()
        self.readers.remove(reader)

    @rule(data=st.data(), space=st.sampled_from(SPACES), count=st.integers(0, PAGES), more=st.integers(0, 3))
    def match(self, data: st.DataObject, space: Any, count: int, more: int) -> None:
        """A match lands where the model says, and stops for a reason."""
        keys = np.append(self.draw_keys(data, count), np.full(more, 7))
        match = self.tree.match(keys, namespace=space)
        self.check_match(match, space, keys, self.landing(space, keys))
        if match.entry is not None:
            self.entries.append((match.entry, (space, keys[: match.tokens].tobytes())))

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), keep=st.booleans())
    def ask(self, data: st.DataObject, keep: bool) -> None:
        """A question locks an entry that was found before, if it still is there, for as long as it lasts."""
        entry, prefix = data.draw(st.sampled_from(self.entries))
        keys = np.frombuffer(prefix[1], dtype=np.int64)
        there = self.is_landing(prefix[0], keys, len(keys) // self.size)
        if entry.lands and not holds(self.storage, entry):
            with pytest.raises(InvariantError, match="lock_of_gone_entry"):
                self.tree.lock(entry)
            return
        if not entry.lands:
            return
        assert there
        self.tree.lock(entry)
        if keep:
            self.asked.append((entry, prefix))
        else:
            self.tree.unlock(entry)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        """A question ends."""
        asked = data.draw(st.sampled_from(self.asked))
        self.asked.remove(asked)
        self.tree.unlock(asked[0])

    @rule(pieces=st.integers(1, 4))
    def evict(self, pieces: int) -> None:
        """A few pieces go, not one more than asked for; what comes back is what was evictable and is not any more."""
        before, live, asked = self.tree.evictable(), self.live(), []
        self.tree.evict(lambda units: asked.append(units) or len(asked) == pieces)  # type: ignore[func-returns-value]
        assert len(asked) == pieces or not any(self.tree.evictable())
        back = [was - now for was, now in zip(live, self.live(), strict=True)]
        assert back == [was - now for was, now in zip(before, self.tree.evictable(), strict=True)]
        assert not asked or list(asked[-1]) == back
        self.forget()

    @rule()
    def evict_all(self) -> None:
        """All that is called evictable comes back, and no lock loses anything."""
        evictable, live = self.tree.evictable(), self.live()
        self.tree.clear()
        assert [was - now for was, now in zip(live, self.live(), strict=True)] == list(evictable)
        assert not any(self.tree.evictable())
        self.forget()
        if self.splits:
            self.check_locked_rows()

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """One entry goes, if nobody has locked it; entries elsewhere land where they did."""
        entry, prefix = data.draw(st.sampled_from(self.entries))
        if not holds(self.storage, entry):
            return
        ends = [p for p, known in self.known.items() if known.is_end and p != prefix]
        landings = {p for p in ends if self.lands(p)}
        if any(self.entry_of(reader) == prefix for reader in self.readers if reader.entry) or prefix in [
            asked for _, asked in self.asked
        ]:
            with pytest.raises(InvariantError, match="drop_of_locked_entry"):
                self.tree.drop(entry)
            return
        self.tree.drop(entry)
        self.dropped = True
        self.forget()
        if prefix in self.known:
            self.known[prefix].is_end = False
        assert {p for p in landings if p in self.known and self.lands(p)} == landings

    # -- what always holds

    @invariant()
    def all_sums_hold(self) -> None:
        """The tree's, and the storage's."""
        if hasattr(self, "tree"):
            self.tree.verify()
            self.storage.verify()

    @invariant()
    def locks_keep_what_they_lock(self) -> None:
        """A reader finds all pages of its path; until it is relaxed, it could be started again from its entry."""
        for reader in getattr(self, "readers", []):
            if reader.entry is None:
                continue
            prefix = self.entry_of(reader)
            assert self.agreed(*prefix) == len(prefix[1]) // 8 // self.size
            if not reader.relaxed and self.sound[reader.row]:
                assert self.was_landing(reader)
                assert holds(self.storage, reader.entry)

    @invariant()
    def narrowed_readers_have_what_they_need(self) -> None:
        """The window rows behind its entry that a query at its length needs are there."""
        for reader in getattr(self, "readers", []):
            length = self.narrowed.get(reader.row, 0)
            if reader.entry is None or reader.relaxed or not length:
                continue
            for pool in self.storage.plan.token_pools:
                for page in self.needed(pool.lifetime, length / self.size):
                    if (page + 1) * self.size <= reader.entry.tokens:
                        assert self.bound(pool.name, self.known[self.prefix(reader, page)].id)

    @invariant()
    def nothing_is_kept_in_vain(self) -> None:
        """A window's page is kept where an insert ended behind it, for that landing; if that is gone, it may go."""
        needed: dict[str, set[Prefix]] = {name: set() for name in getattr(self, "names", ())}
        for space, raw in getattr(self, "ends", ()):
            for pool in self.storage.plan.token_pools:
                for page in self.needed(pool.lifetime, len(raw) // 8 // self.size):
                    needed[pool.name].add((space, raw[: (page + 1) * self.size * 8]))
        for prefix, known in getattr(self, "known", {}).items():
            for pool in self.storage.plan.token_pools:
                if pool.lifetime.retired(0, 60) and self.bound(pool.name, known.id) and not self.dropped:
                    assert prefix in needed[pool.name]

    def teardown(self) -> None:
        """Once all have ended and everything is evicted, nothing is left."""
        if not hasattr(self, "tree"):
            return
        for entry, _ in self.asked:
            self.tree.unlock(entry)
        for reader in self.readers:
            reader.leave()
        self.tree.clear()
        self.tree.verify()
        assert self.tree.stats().entries == 0
        assert_quiet(self.storage)

    # -- the model

    def live(self) -> list[int]:
        """The units that live, per sub-pool."""
        return [band.ids.bound for band in self.storage.chain.bands.values()]

    def draw_keys(self, data: st.DataObject, count: int) -> IntArray:
        """Pages of ones, that part into twos and threes somewhere: prefixes are shared often, and part anywhere."""
        parts = sorted(data.draw(st.lists(st.integers(0, 2 * PAGES), min_size=2, max_size=2)))
        return keys_of(*[1 + sum(page >= part for part in parts) for page in range(count)], size=self.size)

    def has_room(self, keys: IntArray) -> bool:
        """Whether a request of these keys can run beside the others: the machine is about the tree, not about room."""
        pages = -(-len(keys) // self.size) + 1
        return self.storage.chain.feasible(tuple(2 if p.is_slots else pages for p in self.storage.plan.sub_pools))

    def prefix(self, reader: Reader, page: int) -> Prefix:
        return (reader.namespace, reader.keys[: (page + 1) * self.size].tobytes())

    def entry_of(self, reader: Reader) -> Prefix:
        return (reader.namespace, reader.keys[: reader.entry.tokens].tobytes())

    def learn(self, reader: Reader, tokens: int, state_kept: bool) -> None:
        """A row's first tokens are cached: in the pages that the row reads now."""
        handed = set(self.storage.ownership.handed_over().tolist())
        others = {known.id: prefix for prefix, known in self.known.items()}
        for page in range(tokens // self.size):
            there = int(self.storage.requests.pages[reader.row, page]) if self.storage.plan.owner else -1
            # a row still names pages that it needs no more, and that the tree has let go of: they may be others' by now
            is_its_own = there in handed and others.get(there, self.prefix(reader, page)) == self.prefix(reader, page)
            there = there if is_its_own else -1
            known = self.known.setdefault(self.prefix(reader, page), Known(there))
            if known.id == -1:
                known.id = there
            assert there in (known.id, -1)
        last = self.known[self.prefix(reader, tokens // self.size - 1)]
        last.is_end = True
        self.ends.add(self.prefix(reader, tokens // self.size - 1))
        if state_kept:
            assert last.state is None
            slots = set(self.storage.ownership.slots.ids().tolist())
            new = slots - {known.state for known in self.known.values()}
            assert len(new) == 1
            last.state = new.pop()

    def forget(self) -> None:
        """Pages and states that came back are known no more."""
        pages = set(self.storage.ownership.handed_over().tolist())
        slots = set(self.storage.ownership.slots.ids().tolist())
        keeps_all = "full" in self.names
        for prefix, known in list(self.known.items()):
            if known.state not in slots:
                known.state = None
            gone = known.id not in pages
            if gone:
                known.id = -1
            if gone if keeps_all else self.agreed(*prefix) < len(prefix[1]) // 8 // self.size:
                assert known.state is None
                del self.known[prefix]

    def agreed(self, space: Any, raw: bytes) -> int:
        """How many pages of a prefix the tree has."""
        return self.tree.match(np.frombuffer(raw, dtype=np.int64), namespace=space).agreed // self.size

    def needed(self, lifetime: Any, stop: float) -> Iterator[int]:
        """The pages that a query after so many needs."""
        length = round(stop * self.size)
        gone = {p for pages in whole_pages(lifetime.retired(0, length), self.size) for p in pages}
        return (page for page in range(-(-length // self.size)) if page not in gone)

    def bound(self, name: str, page_id: int) -> bool:
        return page_id >= 0 and bool(self.storage.sharing.bound(name, np.array([page_id]))[0])

    def is_landing(self, space: Any, keys: IntArray, stop: int) -> bool:
        """Whether every kind can resume behind the first ``stop`` pages."""
        known = [self.known.get((space, keys[: (page + 1) * self.size].tobytes())) for page in range(stop)]
        if not stop or None in known:
            return False
        if self.storage.plan.slots is not None and known[-1].state is None:  # type: ignore[union-attr]
            return False
        return all(
            self.bound(pool.name, known[page].id)  # type: ignore[union-attr]
            for pool in self.storage.plan.token_pools
            for page in self.needed(pool.lifetime, stop)
        )

    def lands(self, prefix: Prefix) -> bool:
        keys = np.frombuffer(prefix[1], dtype=np.int64)
        return self.is_landing(prefix[0], keys, len(keys) // self.size)

    def was_landing(self, reader: Reader) -> bool:
        """Whether a request could be started from a reader's entry."""
        return self.is_landing(reader.namespace, reader.keys, reader.entry.tokens // self.size)

    def locked(self, reader: Reader, *, sound: bool, whole: bool) -> None:
        """A reader has locked another entry."""
        self.sound[reader.row], self.was_whole[reader.row] = sound, whole
        self.narrowed[reader.row] = self.moved[reader.row] = 0

    def check_locked_rows(self) -> None:
        """Of the pages of windows those are left that a reader who has not been relaxed needs, and no other."""
        reads = [
            (self.entry_of(reader), max(reader.entry.tokens, self.moved[reader.row]))
            for reader in self.readers
            if reader.entry is not None and not reader.relaxed
        ]
        reads += [(prefix, len(prefix[1]) // 8) for _, prefix in self.asked]
        for pool in self.storage.plan.token_pools:
            if not pool.lifetime.retired(0, 60):
                continue
            wanted = {
                (space, raw[: (page + 1) * self.size * 8])
                for (space, raw), length in reads
                for page in self.needed(pool.lifetime, length / self.size)
            }
            left = {prefix for prefix, known in self.known.items() if self.bound(pool.name, known.id)}
            assert left <= wanted, pool.name

    def may_narrow(self, reader: Reader) -> bool:
        return reader.entry is not None and not reader.relaxed

    def may_relax(self, reader: Reader) -> bool:
        return reader.entry is not None and not reader.relaxed and reader.is_past()

    def windows_of(self, reader: Reader, tokens: int) -> bool:
        """Whether a row has, itself or read, all that a landing there needs of each window."""
        ids = self.storage.requests.pages[reader.row]
        return all(
            self.bound(pool.name, int(ids[page]))
            for pool in self.storage.plan.token_pools
            for page in self.needed(pool.lifetime, tokens // self.size)
        )

    def landing(self, space: Any, keys: IntArray) -> int:
        """How many tokens a match of these keys is to land at, one at least left."""
        most = max(0, len(keys) - 1) // self.size
        return max((n for n in range(1, most + 1) if self.is_landing(space, keys, n)), default=0) * self.size

    def check_match(self, match: Match, space: Any, keys: IntArray, expected: int) -> None:
        """It lands as expected, in the pages and with the state that the model has there, and says why."""
        assert match.tokens == expected
        last, agreed = max(0, len(keys) - 1) // self.size * self.size, match.agreed
        if match.tokens == min(agreed, last):
            assert match.stopped == ("end" if last <= agreed else "differs")
        else:
            assert match.stopped in ("no state checkpoint", "window rows gone")
        known = [self.known[space, keys[: (page + 1) * self.size].tobytes()] for page in range(agreed // self.size)]
        if not expected:
            assert match.entry is None
            return
        pages = known[: expected // self.size]
        assert match.state == (pages[-1].state if self.storage.plan.slots is not None else None)
        assert all(found in (-1, page.id) for found, page in zip(match.ids.tolist(), pages, strict=True))


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=25, stateful_step_count=40)
TestTreeMachine.pytestmark = [pytest.mark.req("TRE-1"), pytest.mark.req("TRE-2")]  # type: ignore[attr-defined]
