"""Any requests over one arena, on real bytes, beside the model of ``storage_machine``; and with a cache beside them."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from storage_machine import HARD, Row, StorageMachine
from storages import CHAINS, nothing_changes, rows_of, storage_of

from kvarena.assembly.config import STRATEGIES, PrefixConfig
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError, PlanError


class SharingMachine(StorageMachine):
    """Requests that start on each other's pages, give them away, and put theirs in their stead."""

    @initialize(
        name=st.sampled_from(sorted(CHAINS)) | st.sampled_from(HARD),
        page_tokens=st.sampled_from([1, 3, 4]),
        memory=st.integers(1500, 5000),
        strategy=st.sampled_from(STRATEGIES),
        grid=st.sampled_from([12, 24]),
    )
    def build(self, name: str, page_tokens: int, memory: int, strategy: str, grid: int) -> None:
        prefix = PrefixConfig(share=True, strategy=strategy, checkpoint_tokens=grid)
        self.paths: list[list[int]] = []
        more = {"page_tokens": page_tokens, "backend": "cpu", "prefix": prefix}
        with suppress(PlanError):
            self.begin(storage_of(CHAINS[name], memory=memory, **more))
        if not hasattr(self, "storage"):
            self.begin(storage_of(CHAINS[name], memory=9000, **more))

    # -- whole stories, so that what follows has something to work on

    def opened(self) -> int | None:
        """A new row, if there is one."""
        before = set(self.rows)
        self.open(None)
        return next(iter(self.rows.keys() - before), None)

    @rule(data=st.data(), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def run_and_publish(self, data: st.DataObject, lengths: list[int]) -> None:
        """A request runs for some steps and gives its first pages away, and ends or runs on."""
        number = self.opened()
        if number is None:
            return
        for more in lengths:
            self.advance([number], [more], tables_first=False)
        if self.tokens and self.rows[number].length >= self.size:
            self.hand_over_of(number, data.draw(st.integers(1, self.rows[number].length // self.size)))
        if data.draw(st.booleans()):
            self.close_all([number])

    @precondition(lambda self: self.tokens and self.handed)
    @rule(data=st.data(), more=st.integers(0, 20), adopts=st.booleans())
    def read_or_repeat(self, data: st.DataObject, more: int, adopts: bool) -> None:
        """Another starts on such pages and runs on; or writes as much itself, and then takes them."""
        number = self.opened()
        if number is None:
            return
        if adopts:
            self.advance([number], [more + 4], tables_first=False)
            self.adopt_by(number, data)
        else:
            self.start_of(number, data)
            self.advance([number], [more], tables_first=False)

    # -- pages

    @precondition(lambda self: self.tokens and self.handed and any(not row.length for row in self.rows.values()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """On pages that others handed over: every sub-pool has what the next query reads, or nothing has changed."""
        self.start_of(data.draw(st.sampled_from([number for number, row in self.rows.items() if not row.length])), data)

    def start_of(self, number: int, data: st.DataObject) -> None:
        ids = self.a_path(data)
        length, pools = len(ids) * self.size, {pool.name: pool for pool in self.tokens}
        lacking = [
            name
            for name, pool in pools.items()
            for page in set(range(len(ids))) - self.unneeded(pool.lifetime, length)
            if name not in self.handed.get(ids[page], {})
        ]
        gone = any(id_ >= 0 and id_ not in self.handed for id_ in ids)
        if lacking or gone or len(ids) > self.storage.requests.pages_per_row:
            why = r"read_of_page_not_handed_over|start_without_its_pages|longer than"
            with nothing_changes(self.storage), pytest.raises((InvariantError, KvarenaError), match=why):
                self.storage.sharing.start(number, rows_of(*ids), length)
            return
        self.storage.sharing.start(number, rows_of(*ids), length)
        row = self.rows[number]
        row.length, row.lent_pages = length, len(ids)
        row.lent = {page: id_ for page, id_ in enumerate(ids) if id_ >= 0}

    def a_path(self, data: st.DataObject) -> list[int]:
        """The pages that some request handed over, from its first on, all there still or not; or any at all."""
        if not self.paths or not data.draw(st.integers(0, 3)):
            return data.draw(st.lists(st.sampled_from(sorted(self.handed)), unique=True, max_size=5))
        path = data.draw(st.sampled_from(self.paths))
        return path[: data.draw(st.integers(len(path) // 2, len(path)))]

    def hand_over_of(self, number: int, stop: int) -> None:
        super().hand_over_of(number, stop)
        row = self.rows[number]
        self.paths.append([row.lent.get(page, -1) for page in range(row.lent_pages)])

    @precondition(lambda self: self.tokens and self.handed and self.rows)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        """A window page that only the row has is the cache's from here on; the rest of its own come back."""
        self.adopt_by(data.draw(st.sampled_from(sorted(self.rows))), data)

    def adopt_by(self, number: int, data: st.DataObject) -> None:
        row = self.rows[number]
        first, stop = row.lent_pages, row.length // self.size
        unread = sorted(self.handed.keys() - set(row.lent.values()))
        count = data.draw(st.integers(0, max(0, min(stop - first, len(unread)))))
        ids = data.draw(st.permutations(unread))[:count]
        ids = [id_ if self.has(row, first + at) or data.draw(st.booleans()) else -1 for at, id_ in enumerate(ids)]
        self.storage.sharing.adopt(number, rows_of(*ids))
        for page, id_ in enumerate(ids, start=first):
            if self.has(row, page):
                row.lent[page] = id_
            for name, own in row.own.items():
                if page in own and name not in self.handed[id_]:
                    self.handed[id_][name] = self.tags_of(row, name, page)
                own.discard(page)
        row.lent_pages = max(row.lent_pages, first + count)

    def has(self, row: Row, page: int) -> bool:
        """Whether any sub-pool has a page of the row's own there."""
        return any(page in own for own in row.own.values())

    @precondition(lambda self: self.windows())
    @rule(data=st.data(), wrong=st.booleans())
    def free_in(self, data: st.DataObject, wrong: bool) -> None:
        """One sub-pool lets go of pages that it has, and of no others."""
        name = data.draw(st.sampled_from(self.windows()))
        there = [id_ for id_, tags in self.handed.items() if name in tags]
        ids = data.draw(st.lists(st.sampled_from(there), unique=True)) if there else []
        others = sorted(self.handed.keys() - set(there))
        if wrong and others:
            ids = [*ids, data.draw(st.sampled_from(others))]
            with self.caught(r"chain\.window_segment_bound"):
                self.storage.sharing.free_in(name, rows_of(*ids))
            return
        self.storage.sharing.free_in(name, rows_of(*ids))
        for id_ in ids:
            del self.handed[id_][name]

    @precondition(lambda self: self.windows() and len(self.handed) > 1)
    @rule(data=st.data())
    def rebind(self, data: st.DataObject) -> None:
        """Pages go from id to id, without a move, to ids that have none there."""
        name = data.draw(st.sampled_from(self.windows()))
        there = [id_ for id_, tags in self.handed.items() if name in tags]
        others = [id_ for id_ in self.handed if id_ not in there]
        count = data.draw(st.integers(0, min(len(there), len(others))))
        sources, targets = (data.draw(st.permutations(ids))[:count] for ids in (there, others))
        pages = self.storage.chain.pages(name, rows_of(*sources))
        self.storage.chain.rebind(name, rows_of(*sources), rows_of(*targets))
        assert np.array_equal(self.storage.chain.pages(name, rows_of(*targets)), pages)
        for source, target in zip(sources, targets, strict=True):
            self.handed[target][name] = self.handed[source].pop(name)

    def windows(self) -> list[str]:
        return [pool.name for pool in self.tokens if pool.name != self.storage.plan.owner] if self.handed else []

    # -- slots

    @precondition(lambda self: self.storage.plan.slots and self.rows)
    @rule(data=st.data())
    def move_a_slot(self, data: st.DataObject) -> None:
        """Out of a place that has one, or into a place that has none."""
        number = data.draw(st.sampled_from(sorted(self.rows)))
        row = self.rows[number]
        at = data.draw(st.integers(0, len(row.slots) - 1))
        tag, sharing, name = row.slots[at], self.storage.sharing, self.storage.plan.slots.name
        if tag is not None:
            with self.caught(r"storage\.take_into_full_place"):
                sharing.take_slot(number, at)
            self.handed_slots[sharing.hand_over_slot(number, at)] = tag
            row.slots[at] = None
            return
        with self.caught(r"storage\.hand_over_of_empty_place"):
            sharing.hand_over_slot(number, at)
        free = self.storage.chain.feasible(tuple(int(pool == name) for pool in self.storage.plan.names))
        slot = sharing.take_slot(number, at)
        assert free == (not isinstance(slot, Refused))
        if not isinstance(slot, Refused):
            row.slots[at] = self.write(name, int(self.storage.chain.pages(name, rows_of(slot))[0]), 0)

    @precondition(lambda self: self.handed_slots)
    @rule(data=st.data(), twice=st.booleans())
    def free_slots(self, data: st.DataObject, twice: bool) -> None:
        """Once each."""
        ids = data.draw(st.lists(st.sampled_from(sorted(self.handed_slots)), unique=True, min_size=1))
        if twice:
            with self.caught(r"storage\.free_of_page_twice"):
                self.storage.sharing.free_slots(rows_of(*ids, ids[0]))
        self.storage.sharing.free_slots(rows_of(*ids))
        with self.caught(r"storage\.free_of_page_not_handed_over"):
            self.storage.sharing.free_slots(rows_of(*ids))
        for id_ in ids:
            del self.handed_slots[id_]

    # -- mistakes

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), act=st.sampled_from(("start", "adopt", "hand over a slot", "take a slot")))
    def share_with_a_row_that_is_none(self, data: st.DataObject, act: str) -> None:
        """Negative, free, beyond or absurd."""
        free = sorted(set(range(len(self.storage.requests))) - self.rows.keys())
        row, sharing = data.draw(st.sampled_from((-1, len(self.storage.requests), 10**6, *free))), self.storage.sharing
        if "slot" in act and not self.storage.plan.slots:
            return
        acts = {
            "start": lambda: sharing.start(row, rows_of(), 0),
            "adopt": lambda: sharing.adopt(row, rows_of()),
            "hand over a slot": lambda: sharing.hand_over_slot(row, 0),
            "take a slot": lambda: sharing.take_slot(row, 0),
        }
        with (
            nothing_changes(self.storage),
            pytest.raises(InvariantError, match=r"^storage\.(start|hand_over)_of_free_row"),
        ):
            acts[act]()


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestStorageMachine.pytestmark = [
    pytest.mark.req(row) for row in ("DEC-3", "IDS-1", "IDS-2", "IDS-3", "IDS-4", "WIN-1", "LIF-7", "ALC-2", "ALC-5")
]
TestSharingMachine = SharingMachine.TestCase
TestSharingMachine.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestSharingMachine.pytestmark = [pytest.mark.req(row) for row in ("TRE-1", "TRE-2", "CKP-1", "IDS-4", "WIN-1")]
