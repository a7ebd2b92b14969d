"""What is held back, however it was kept: as counting every row anew says."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, nothing_changes, opened, process, rows_of, run_forward, stepped, storage_of
from toys import SinksAndWindow

from kvarena.admission.promises import Promises
from kvarena.ledger.steps import Forward
from kvarena.storage.copies import Copy
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError

Charge = tuple[int, int, int]
CHARGES = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 9))
ACTS = (
    "open", "open", "promise", "withdraw", "start", "start", "step", "step", "step", "hand", "share", "cut", "slot",
    "reserve", "reserve", "commit", "go_back", "go_back", "load", "cancel",
)  # fmt: skip
ROWS = 4
CHAINS = {"a window": (STATE, SHORT, FULL), "what retires in no order": (STATE, SinksAndWindow(5, 4), FULL)}
IN_FLIGHT = {"in order": 0, "overlapped": 2}


class Rows:
    """Rows of a storage, to which everything is done that changes what they hold. ``rows``: their known lengths."""

    def __init__(self, chain: str, in_flight: int) -> None:
        self.storage: Storage = storage_of(CHAINS[chain], memory=4000, running=ROWS, forwards_in_flight=in_flight)
        self.in_flight = in_flight
        self.flying: list[Forward] = []
        self.rows: dict[int, int] = {}
        self.handed: list[tuple[np.ndarray, int]] = []
        self.slots: list[int] = []
        self.loads: list[Copy] = []

    def present(self, *, drafting: bool = False) -> list[int]:
        """The rows that wait for nothing: no load and, unless ``drafting`` ones will do, no drafts."""
        away = self.storage.requests.away
        return [row for row in sorted(self.rows) if not away.holds[row] and (drafting or not away.drafts[row])]

    def open(self, data: st.DataObject) -> None:
        """A row, if one is left."""
        row = self.storage.open()
        if not isinstance(row, Refused):
            self.rows[row] = 0

    def step(self, data: st.DataObject) -> None:
        """Rows grow: a page of theirs may retire, and others be taken; a forward that writes them is in flight."""
        rows, most = [row for row in self.present() if data.draw(st.booleans())], data.draw(st.sampled_from([1, 9]))
        lengths = [self.rows[row] + data.draw(st.integers(0, most)) for row in rows]
        if not rows or max(lengths) > self.storage.sizing.context_tokens:
            return
        ids = self.storage.step(rows_of(*rows), rows_of(*lengths))
        if isinstance(ids, Refused):
            return
        self.rows |= dict(zip(rows, lengths, strict=True))
        if self.in_flight and (self.storage.requests.slots[rows] >= 0).all():
            if len(self.flying) == self.in_flight:
                process(self.storage, self.flying.pop(0))
            self.flying.append(run_forward(self.storage, ids))

    def hand(self, data: st.DataObject) -> None:
        """A row's first pages are a cache's."""
        for row in self.present(drafting=True)[:1]:
            tokens = data.draw(st.integers(0, self.rows[row] // 4)) * 4
            ids = self.storage.ownership.hand_over(row, tokens)
            if len(ids) and self.storage.requests.handed[row] * 4 == tokens and len(ids) * 4 == tokens:
                self.handed.append((ids, tokens))

    def share(self, data: st.DataObject) -> None:
        """An empty row starts on pages of a cache."""
        empty = [row for row in self.present() if not self.storage.requests.page_counts[row]]
        whole = [entry for entry in self.handed if self.storage.sharing.can_start(*entry)]
        if empty and whole:
            ids, tokens = data.draw(st.sampled_from(whole))
            self.storage.sharing.start(empty[0], ids, tokens)
            self.rows[empty[0]] = tokens

    def slot(self, data: st.DataObject) -> None:
        """A state changes hands, and the row has another, or none."""
        for row in self.present(drafting=True)[:1]:
            if self.storage.requests.slots[row, 0] >= 0:
                self.slots.append(self.storage.sharing.hand_over_slot(row, 0))
                if data.draw(st.booleans()):
                    self.storage.sharing.take_slot(row, 0)

    def reserve(self, data: st.DataObject) -> None:
        """Drafts may reach beyond a row's length, those of a step ahead beyond the ones before."""
        ready, reserved = self.present(drafting=True), self.storage.requests.away.reserved
        if not ready:
            return
        row = data.draw(st.sampled_from(ready))
        length = max(self.rows[row], int(reserved[row])) + data.draw(st.integers(0, 9))
        if length <= self.storage.sizing.context_tokens:
            self.storage.drafts.reserve(rows_of(row), rows_of(length))

    def commit(self, data: st.DataObject) -> None:
        """So many of a row's drafts are kept; the pages beyond come back."""
        away = self.storage.requests.away
        drafting = [row for row in sorted(self.rows) if away.drafts[row]]
        if drafting:
            row = data.draw(st.sampled_from(drafting))
            self.rows[row] = data.draw(st.integers(self.rows[row], int(away.reserved[row])))
            self.storage.drafts.commit(rows_of(row), rows_of(self.rows[row]))

    def go_back(self, data: st.DataObject) -> None:
        """A row's last tokens are none, unless its next query would need what retired."""
        if not (ready := self.present()):
            return
        row = data.draw(st.sampled_from(ready))
        length, low = self.rows[row], int(self.storage.requests.handed[row]) * 4
        start = data.draw(st.integers(min(low, length), length))
        try:
            self.storage.ownership.free_rows(row, [range(start, length)])
        except InvariantError as error:
            if "storage.free_below_what_retired" not in str(error):
                raise
            return
        self.rows[row] = start

    def load(self, data: st.DataObject) -> None:
        """An empty row has pages that a load will fill."""
        table = self.storage.requests
        for row in [row for row in self.present() if not table.page_counts[row] and table.slots[row, 0] >= 0][:1]:
            tokens = data.draw(st.integers(1, 20))
            copy = self.storage.copies.load(row, tokens)
            if not isinstance(copy, Refused):
                self.rows[row] = tokens
                self.loads.append(copy)
                for name in sorted(copy.fixed) if data.draw(st.booleans()) else ():
                    self.storage.copies.name(copy, name)

    def cancel(self, data: st.DataObject) -> None:
        """And will not; whoever was closed meanwhile has given its pages back."""
        if self.loads:
            copy = self.loads.pop()
            self.storage.copies.cancel(copy)
            if copy.row in self.rows:
                self.rows[copy.row] = int(self.storage.requests.lengths[copy.row])


class Owing(Rows):
    """Some of them were charged anything at all: less than they take, or nothing."""

    def __init__(self, chain: str, in_flight: int) -> None:
        super().__init__(chain, in_flight)
        self.promises = Promises(self.storage.ownership, sub_pools=3, rows=self.storage.sizing.running)
        self.waiting: list[Charge] = []
        self.charges: dict[int, Charge] = {}

    def counted(self) -> tuple[int, ...]:
        """By the definition: what is not started, and what each charge is above what its row has taken of it."""
        taken = self.storage.ownership.charged()
        owed = [np.maximum(np.array(charge) - taken[:, row], 0) for row, charge in self.charges.items()]
        return tuple(sum(map(np.array, [*self.waiting, *owed]), np.zeros(3, dtype=int)).tolist())

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

    def cut(self, data: st.DataObject) -> None:
        """A row ends, its charge with it; or goes on with another."""
        fixed = {copy.row for copy in self.loads if copy.fixed}
        if not (free := sorted(self.rows.keys() - fixed)):
            return
        row = data.draw(st.sampled_from(free))
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

    def acts(self, data: st.DataObject) -> Iterator[str]:
        """Some, one after another."""
        for _ in range(data.draw(st.integers(5, 30))):
            act: str = data.draw(st.sampled_from(ACTS))
            getattr(self, act)(data)
            yield act


@pytest.mark.req("ADM-1")
@pytest.mark.parametrize("in_flight", IN_FLIGHT.values(), ids=IN_FLIGHT)
@pytest.mark.parametrize("chain", sorted(CHAINS))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_promised_is_what_counting_every_row_anew_says(chain: str, in_flight: int, data: st.DataObject) -> None:
    """Whoever changed in whatever way since it was counted last: with a charge, below it or above it, or without."""
    owing = Owing(chain, in_flight)
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


Verb = Callable[[Storage, int], object]
"""Done to a storage and a row of it that is ``LENGTH`` tokens long; or 0, where it is done to an empty one."""
LENGTH = 24


def drafted(storage: Storage, row: int) -> None:
    """A reservation that takes pages, and is open."""
    assert not isinstance(storage.drafts.reserve(rows_of(row), rows_of(LENGTH + 9)), Refused)


def loading(storage: Storage, row: int) -> Copy:
    """A load that took pages, and is not submitted."""
    copy = storage.copies.load(row, LENGTH)
    assert isinstance(copy, Copy)
    return copy


VERBS: dict[str, tuple[int, Verb, Verb | None]] = {
    "open": (LENGTH, lambda storage, row: opened(storage), None),
    "close": (LENGTH, lambda storage, row: storage.close(row), None),
    "a step that takes": (0, lambda storage, row: stepped(storage, (row, 4)), None),
    "a step that retires": (LENGTH, lambda storage, row: stepped(storage, (row, LENGTH)), None),
    "hand over": (LENGTH, lambda storage, row: storage.ownership.hand_over(row, LENGTH), None),
    "hand over a slot": (LENGTH, lambda storage, row: storage.sharing.hand_over_slot(row, 0), None),
    "take a slot": (
        LENGTH,
        lambda storage, row: storage.sharing.take_slot(row, 0),
        lambda storage, row: storage.sharing.hand_over_slot(row, 0),
    ),
    "free rows": (LENGTH, lambda storage, row: storage.ownership.free_rows(row, [range(LENGTH - 9, LENGTH)]), None),
    "reserve": (LENGTH, drafted, None),
    "commit": (LENGTH, lambda storage, row: storage.drafts.commit(rows_of(row), rows_of(LENGTH)), drafted),
    "load": (0, loading, None),
    "cancel": (0, lambda storage, row: storage.copies.cancel(storage.copies.under_way()[0]), loading),
}


@pytest.mark.req("ADM-1")
@pytest.mark.parametrize("chain", sorted(CHAINS))
@pytest.mark.parametrize("verb", VERBS)
def test_the_version_grows_with_what_is_counted(chain: str, verb: str) -> None:
    """Each verb changes what rows hold of their charges, and whoever has counted it before finds that out."""
    storage = storage_of(CHAINS[chain], memory=4000, running=ROWS)
    length, does, before = VERBS[verb]
    row, holdings = opened(storage), storage.ownership
    if length:
        stepped(storage, (row, length))
    if before is not None:
        before(storage, row)
    held, charged, version = holdings.held(), holdings.charged(), holdings.version
    does(storage, row)
    assert not (np.array_equal(held, holdings.held()) and np.array_equal(charged, holdings.charged()))
    assert holdings.version > version
    storage.verify()
