"""The request table: one row per running request, with virtual ids only, so that pages can move."""

import numpy as np

from kvarena.bands.unit_ids import within
from kvarena.storage.away import Away
from kvarena.storage.fresh import Fresh
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import all_of
from kvarena.terms.numbers import UNBOUND, spread
from kvarena.terms.ports import IntArray


class RequestTable:
    """Rows of virtual page ids, one id per page position, and each row's slots and counts.

    A row's life:  1. open    from the free rows, lowest first; length 0, no pages.
                   2. start   on pages of a stranger's, which it reads and never owns; or on none.
                   3. grow    pages are appended; positions that retired everywhere become ``UNBOUND``.
                   4. hand    its first pages over: it still reads them, and frees them no more.
                   5. close   the row is free again.
    Always:  open rows + free rows == all rows                        (checked by ``verify``)
             shared <= handed <= page_counts
             page_counts - max(handed, retired) == the units bound to the row, per sub-pool   (``Ownership.verify``)

    Arrays by row: ``lengths`` in tokens, ``page_counts`` and ``handed`` in pages, ``shared`` those of the handed that
    it started on, ``tails`` the id of the last page, ``due`` the last length that it may step to without being looked
    at, ``slots_held`` its state slots, ``firsts`` where its pages begin in ``flat``. By sub-pool and row: ``retired``,
    pages that were freed before the end. ``ones`` is as long. ``away``: the rows that do not simply step; ``fresh``:
    those to be reset on the device.
    A row has a place for each state slot, ``UNBOUND`` where it is empty. Of the ``slots_per_row`` that are filled when
    it opens, forwards write the first ``live_slots``; spares behind them begin empty.
    For a mirror: where lists are put there, ``changed`` gets the places of ``flat`` that changed, by whoever changes
    them, and ``slots_changed`` the rows whose slots did.
    """

    def __init__(
        self,
        row_count: int,
        pages_per_row: int,
        *,
        pools: int,
        slots_per_row: int,
        spare_slots: int = 0,
        live_slots: int | None = None,
    ) -> None:
        """``live_slots``: those of ``slots_per_row`` that forwards write, all of them by default."""
        self.pages_per_row = pages_per_row
        self.slots_per_row = slots_per_row
        self.live_slots = slots_per_row if live_slots is None else live_slots
        self.pages = np.full((row_count, pages_per_row), UNBOUND, dtype=np.int64)
        self.flat = self.pages.reshape(-1)
        self.slots = np.full((row_count, slots_per_row + spare_slots), UNBOUND, dtype=np.int64)
        self.slot_columns = [self.slots[:, at] for at in range(slots_per_row + spare_slots)]
        """``slots``, place by place: one column is read and written in a fifth of the time of a batch of rows."""
        self._columns = np.zeros((8 + pools, row_count), dtype=np.int64)
        self.lengths, self.page_counts, self.tails, self.handed, self.shared = self._columns[:5]
        self.looked_at, self.due, self.slots_held = self._columns[5:8]
        self.retired = self._columns[8:]
        self._by_row = list(self._columns)
        self.version = 0
        """Grows with every change of what rows have: pages, those handed over, retired, and slots."""
        self.open_count = 0
        self.any_handed = False
        self.stateless = 0
        """Live places of open rows that are empty."""
        self.any_empty = spare_slots > 0
        """Whether a row may have an empty place."""
        self.away = Away(row_count)
        self.changed: list[IntArray] | None = None
        self.slots_changed: list[IntArray] | None = None
        self.fresh = Fresh(row_count)
        self.ones = np.ones(row_count, dtype=np.int64)
        self._free = list(range(row_count - 1, -1, -1))
        self._open = np.zeros(row_count, dtype=bool)
        self._row_numbers = np.arange(row_count)
        self.firsts = self._row_numbers * pages_per_row
        self._marks = np.zeros(row_count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def free_count(self) -> int:
        """How many more requests can run."""
        return len(self._free)

    def open_rows(self) -> IntArray:
        """The rows in use, in order."""
        return np.flatnonzero(self._open)

    def is_open(self, rows: IntArray | int) -> bool:
        """Whether this row, or every one of these, is in use."""
        if not isinstance(rows, np.ndarray):
            known = isinstance(rows, int | np.integer) and 0 <= rows < len(self._open)
            return bool(known and self._open[rows])
        return within(rows, len(self._open)) and all_of(self._open[rows])

    def are_distinct(self, rows: IntArray) -> bool:
        """Whether no row stands twice in a batch: the last mark on a row that does is another's."""
        places = self._row_numbers[: len(rows)]
        self._marks[rows] = places
        return self._marks[rows].tobytes() == places.tobytes()

    def open(self, count: int) -> IntArray:
        """Take so many free rows; there must be as many."""
        kept = len(self._free) - count
        if kept < 0:
            fail("requests.open_without_row", asked=count, free=len(self._free))
        taken = self._free[kept:]
        taken.reverse()
        del self._free[kept:]
        rows = np.array(taken, dtype=np.int64)
        self._open[rows] = True
        self.open_count += count
        self.stateless += count * self.live_slots
        self.fresh.add(rows)
        return rows

    def give_slots(self, rows: IntArray, ids: IntArray) -> None:
        """These rows, just opened, have these state slots, shape (rows, ``slots_per_row``)."""
        for at in range(self.slots_per_row):
            self.slot_columns[at][rows] = ids[:, at]
        self.slots_held[rows] = self.slots_per_row
        self.version += 1
        self.stateless -= len(rows) * self.live_slots
        if self.slots_changed is not None:
            self.slots_changed.append(rows)

    def put_slots(self, rows: IntArray, at: int, slots: IntArray | int) -> None:
        """The place ``at`` of these rows, which is empty, has these slots; or, with ``UNBOUND``, which is not, none."""
        self.slot_columns[at][rows] = slots
        self.version += 1
        filled = 1 if isinstance(slots, np.ndarray) else -1
        self.slots_held[rows] += filled
        self.any_empty = True
        if at < self.live_slots:
            self.stateless -= filled * len(rows)
        if self.slots_changed is not None:
            self.slots_changed.append(rows)

    def put(self, row: int, ids: IntArray, length: int, *, shared: bool = False) -> None:
        """An empty row has these pages and this length; it is looked at in its next step. ``shared``: it reads them,
        and they are a stranger's."""
        count = len(ids)
        self.pages[row, :count] = ids
        if self.changed is not None:
            self.changed.append(row * self.pages_per_row + np.arange(count))
        self.page_counts[row], self.lengths[row], self.looked_at[row] = count, length, length
        self.tails[row] = ids[-1] if count else 0
        self.due[row] = 0
        self.version += 1
        if shared:  # what retired before is told at the first look: nobody was told yet
            self.handed[row] = self.shared[row] = count
            self.any_handed = self.any_handed or count > 0
            self.looked_at[row] = 0

    def hand(self, row: int, stop: int, ids: IntArray | None = None) -> None:
        """A row's pages up to ``stop`` are a stranger's; ``ids`` stand in the stead of those handed over just now."""
        first = int(self.handed[row])
        if ids is not None:
            self.pages[row, first:stop] = ids
            if self.changed is not None:
                self.changed.append(row * self.pages_per_row + np.arange(first, stop))
            if stop > first and stop == self.page_counts[row]:
                self.tails[row] = ids[-1]
        self.handed[row] = max(first, stop)
        self.version += 1
        self.any_handed = True

    def places(self, rows: IntArray, *, own: bool = False) -> IntArray:
        """Where in ``flat`` the pages of these rows stand, in order. ``own``: without those that they handed over.

        ``UNBOUND`` stands there where one retired everywhere.
        """
        first, counts = self.firsts[rows], self.page_counts[rows]
        if own and self.any_handed:
            handed = self.handed[rows]
            first += handed
            counts -= handed
        return spread(first, counts, counts.cumsum())

    def close(self, rows: IntArray, places: IntArray | None = None) -> None:
        """Forget rows whose units have all been freed; ``places`` are all of theirs, where they are known."""
        if places is None:
            places = self.places(rows)
        self.flat[places] = UNBOUND
        if self.changed is not None:
            self.changed.append(places)
        if self.slots_changed is not None:
            self.slots_changed.append(rows.copy())
        if self.away.count:
            self.away.close(rows)
        if self.stateless:
            self.stateless -= int(np.count_nonzero(self.slots[rows, : self.live_slots] == UNBOUND))
        for column in self._by_row:
            column[rows] = 0
        for place in self.slot_columns:
            place[rows] = UNBOUND
        self._open[rows] = False
        self.open_count -= len(rows)
        self.version += 1
        self._free += rows.tolist()
        self.fresh.done(rows)

    def shorten(self, row: int, page_count: int, length: int) -> None:
        """A row's last pages are gone; it is looked at in its next step."""
        if self.changed is not None:
            self.changed.append(row * self.pages_per_row + np.arange(page_count, self.page_counts[row]))
        self.version += 1
        self.pages[row, page_count : self.page_counts[row]] = UNBOUND
        self.page_counts[row], self.lengths[row], self.due[row] = page_count, length, 0
        self.tails[row] = self.pages[row, page_count - 1] if page_count else 0
        self.looked_at[row] = min(int(self.looked_at[row]), length)

    def verify(self) -> None:
        """A row is open or free; a free one holds nothing, an open one has ids for as many places as it holds pages."""
        invariant(
            "requests.rows_add_up",
            np.array_equal(np.sort(self._free), np.flatnonzero(~self._open)),
            free=self._free, open=self.open_rows().tolist(),
        )  # fmt: skip
        closed = ~self._open
        unused = np.arange(self.pages.shape[1]) >= self.page_counts[:, None]
        invariant("requests.free_row_holds", not self.page_counts[closed].any() and not self.retired[:, closed].any())
        invariant("requests.id_beyond_its_row", (self.pages[unused] == UNBOUND).all())
        invariant("requests.negative_count", (self.retired >= 0).all(), retired=self.retired.tolist())
        ordered = (self.shared <= self.handed).all() and (self.handed <= self.page_counts).all()
        invariant("requests.handed_more_than_it_has", ordered, handed=self.handed.tolist(), shared=self.shared.tolist())
        filled = self.slots != UNBOUND
        invariant("requests.slots_held_are_there", np.array_equal(filled.sum(axis=1), self.slots_held))
        empty = int(np.count_nonzero(~filled[self._open, : self.live_slots]))
        invariant("requests.empty_live_places", empty == self.stateless, counted=empty, kept=self.stateless)
        self.away.verify(self.lengths)


def own_slots(table: RequestTable, rows: IntArray) -> IntArray:
    """The state slots of these rows, in one line; empty places are left out."""
    slots = slots_of(table, rows).reshape(-1)
    return slots[slots != UNBOUND] if table.any_empty else slots


def slots_of(table: RequestTable, rows: IntArray) -> IntArray:
    """The state slots of these rows, shape (rows, places); ``UNBOUND`` where one is empty."""
    columns = table.slot_columns
    return columns[0][rows][:, None] if len(columns) == 1 else table.slots[rows]
