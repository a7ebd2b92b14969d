"""What is held back, however it was kept: as counting every row anew says."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, nothing_changes, rows_of, storage_of

from kvarena.admission.promises import Promises
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused

Charge = tuple[int, int, int]
CHARGES = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 9))
ACTS = ("open", "open", "promise", "withdraw", "start", "start", "step", "step", "step", "hand", "share", "cut", "slot")
ROWS = 4


class Owing:
    """A storage some of whose rows were charged anything at all: less than they take, or nothing."""

    def __init__(self) -> None:
        self.storage: Storage = storage_of((STATE, SHORT, FULL), memory=4000, running=ROWS)
        self.promises = Promises(self.storage.ownership, sub_pools=3, rows=self.storage.sizing.running)
        self.waiting: list[Charge] = []
        self.charges: dict[int, Charge] = {}
        self.rows: dict[int, int] = {}
        self.handed: list[tuple[np.ndarray, int]] = []
        self.slots: list[int] = []

    def counted(self) -> tuple[int, ...]:
        """By the definition: what is not started, and what each charge is above what its row has taken of it."""
        taken = self.storage.ownership.charged()
        owed = [np.maximum(np.array(charge) - taken[:, row], 0) for row, charge in self.charges.items()]
        return tuple(sum(map(np.array, [*self.waiting, *owed]), np.zeros(3, dtype=int)).tolist())

    def open(self, data: st.DataObject) -> None:
        """A row, if one is left."""
        row = self.storage.open()
        if not isinstance(row, Refused):
            self.rows[row] = 0

    def promise(self, data: st.DataObject) -> None:
        """One more that will start."""
        self.waiting.append(data.draw(CHARGES))
        self.promises.promise(self.waiting[-1])

    def withdraw(self, data: st.DataObject) -> None:
        """Or not."""
        if self.waiting:
            self.promises.withdraw(self.waiting.pop())

    def start(self, data: st.DataObject) -> None:
        """A row that was opened has a charge."""
        free = sorted(self.rows.keys() - self.charges.keys())
        if free and self.waiting:
            row = data.draw(st.sampled_from(free))
            self.charges[row] = self.waiting.pop()
            self.promises.start(rows_of(row), [self.charges[row]])

    def step(self, data: st.DataObject) -> None:
        """Rows grow: a page of theirs may retire, and others be taken."""
        rows, most = [row for row in sorted(self.rows) if data.draw(st.booleans())], data.draw(st.sampled_from([1, 9]))
        lengths = [self.rows[row] + data.draw(st.integers(0, most)) for row in rows]
        if not rows or max(lengths) > self.storage.sizing.context_tokens:
            return
        if not isinstance(self.storage.step(rows_of(*rows), rows_of(*lengths)), Refused):
            self.rows |= dict(zip(rows, lengths, strict=True))

    def hand(self, data: st.DataObject) -> None:
        """A row's first pages are a cache's."""
        for row, length in self.rows.items():
            tokens = data.draw(st.integers(0, length // 4)) * 4
            ids = self.storage.ownership.hand_over(row, tokens)
            if len(ids) and self.storage.requests.handed[row] * 4 == tokens and len(ids) * 4 == tokens:
                self.handed.append((ids, tokens))
            return

    def share(self, data: st.DataObject) -> None:
        """An empty row starts on pages of a cache."""
        empty = [row for row in self.rows if not self.storage.requests.page_counts[row]]
        whole = [entry for entry in self.handed if self.storage.sharing.bound("window-6", entry[0]).all()]
        if empty and whole:
            ids, tokens = data.draw(st.sampled_from(whole))
            self.storage.sharing.start(empty[0], ids, tokens)
            self.rows[empty[0]] = tokens

    def cut(self, data: st.DataObject) -> None:
        """A row ends, its charge with it; or goes on with another."""
        if not self.rows:
            return
        row = data.draw(st.sampled_from(sorted(self.rows)))
        if row in self.charges and data.draw(st.booleans()):
            self.charges[row] = data.draw(CHARGES)
            self.promises.recharge(row, self.charges[row])
            return
        closes_first = data.draw(st.booleans())
        if closes_first:
            self.storage.close(row)
            del self.rows[row]
            assert self.promises.promised() == self.counted()
        if self.charges.pop(row, None) is not None:
            self.promises.forget(row)
        if not closes_first:
            assert self.promises.promised() == self.counted()
            self.storage.close(row)
            del self.rows[row]

    def slot(self, data: st.DataObject) -> None:
        """A state changes hands, and the row has another, or none."""
        for row in self.rows:
            if self.storage.requests.slots[row, 0] >= 0:
                self.slots.append(self.storage.sharing.hand_over_slot(row, 0))
                if data.draw(st.booleans()):
                    self.storage.sharing.take_slot(row, 0)
            return

    def acts(self, data: st.DataObject) -> Iterator[str]:
        """Some, one after another."""
        for _ in range(data.draw(st.integers(5, 30))):
            act: str = data.draw(st.sampled_from(ACTS))
            getattr(self, act)(data)
            yield act


@pytest.mark.req("ADM-1")
@given(st.data())
@settings(max_examples=120, deadline=None)
def test_what_is_promised_is_what_counting_every_row_anew_says(data: st.DataObject) -> None:
    """Whoever changed in whatever way since it was counted last: with a charge, below it or above it, or without."""
    owing = Owing()
    holdings = owing.storage.ownership
    before, version = (holdings.charged(), holdings.held()), holdings.version
    for _ in owing.acts(data):
        now = holdings.charged(), holdings.held()
        same = all(np.array_equal(then, today) for then, today in zip(before, now, strict=True))
        assert same or holdings.version > version
        before, version = now, holdings.version
        if data.draw(st.booleans()):
            with nothing_changes(owing.storage):
                assert owing.promises.promised() == owing.counted()
    assert owing.promises.promised() == owing.counted()
    owing.storage.verify()
