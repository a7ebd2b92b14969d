"""The request table: one row per running request, with virtual ids only, so that pages can move."""

import numpy as np

from kvarena.bands.unit_ids import within
from kvarena.storage.away import Away
from kvarena.storage.fresh import Fresh
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray

UNBOUND = -1


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
    it started on, ``tails`` the id of the last page, ``due`` the new length at which the row must be looked at,
    ``slots_held`` its state slots. By sub-pool and row: ``retired``, pages that were freed before the end. ``ones`` is
    as long. ``away``: the rows that do not simply step; ``fresh``: those to be reset on the device.
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
        self._columns = np.zeros((8 + pools, row_count), dtype=np.int64)
        self.lengths, self.page_counts, self.tails, self.handed, self.shared = self._columns[:5]
        self.looked_at, self.due, self.slots_held = self._columns[5:8]
        self.retired = self._columns[8:]
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
            return bool(0 <= rows < len(self._open) and self._open[rows])
        return within(rows, len(self._open)) and bool(np.count_nonzero(self._open[rows]) == len(rows))

    def are_distinct(self, rows: IntArray) -> bool:
        """Whether no row stands twice in a batch: the last mark on a row that does is another's."""
        places = self._row_numbers[: len(rows)]
        self._marks[rows] = places
        return self._marks[rows].tobytes() == places.tobytes()

    def open(self, count: int) -> IntArray:
        """Take so many free rows; there must be as many."""
        invariant("requests.open_without_row", count <= len(self._free), asked=count, free=len(self._free))
        rows = np.array([self._free.pop() for _ in range(count)], dtype=np.int64)
        self._open[rows] = True
        self.stateless += count * self.live_slots
        self.fresh.add(rows)
        return rows

    def give_slots(self, rows: IntArray, ids: IntArray) -> None:
        """These rows, just opened, have these state slots, shape (rows, ``slots_per_row``)."""
        self.slots[rows, : self.slots_per_row] = ids
        self.slots_held[rows] = self.slots_per_row
        self.stateless -= len(rows) * self.live_slots
        if self.slots_changed is not None:
            self.slots_changed.append(rows)

    def put_slot(self, row: int, at: int, slot: int) -> None:
        """A row's place, which is empty, has this slot; or, with ``UNBOUND``, which is not, is empty."""
        filled = 1 if slot != UNBOUND else -1
        self.slots[row, at] = slot
        self.slots_held[row] += filled
        self.any_empty = True
        if at < self.live_slots:
            self.stateless -= filled
        if self.slots_changed is not None:
            self.slots_changed.append(np.array([row]))

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
        self.any_handed = True

    def close(self, rows: IntArray) -> None:
        """Forget rows whose units have all been freed."""
        width, flat = self.pages_per_row, self.flat
        for row, count in zip(rows.tolist(), self.page_counts[rows].tolist(), strict=True):
            flat[row * width : row * width + count] = UNBOUND
            self._free.append(row)
            if self.changed is not None:
                self.changed.append(np.arange(row * width, row * width + count))
        if self.slots_changed is not None:
            self.slots_changed.append(rows.copy())
        self.away.close(rows)
        if self.stateless:
            self.stateless -= int(np.count_nonzero(self.slots[rows, : self.live_slots] == UNBOUND))
        self._columns[:, rows] = 0
        self.slots[rows] = UNBOUND
        self._open[rows] = False
        self.fresh.done(rows)

    def shorten(self, row: int, page_count: int, length: int) -> None:
        """A row's last pages are gone; it is looked at in its next step."""
        if self.changed is not None:
            self.changed.append(row * self.pages_per_row + np.arange(page_count, self.page_counts[row]))
        self.pages[row, page_count : self.page_counts[row]] = UNBOUND
        self.page_counts[row], self.lengths[row], self.due[row] = page_count, length, 0
        self.tails[row] = self.pages[row, page_count - 1] if page_count else 0
        self.looked_at[row] = min(int(self.looked_at[row]), length)

    def own_ids(self, rows: IntArray) -> IntArray:
        """The page ids of these rows, in order, without those handed; ``UNBOUND`` where one retired everywhere."""
        width, flat = self.pages_per_row, self.flat
        spans = [
            flat[row * width + low : row * width + high]
            for row, low, high in zip(
                rows.tolist(), self.handed[rows].tolist(), self.page_counts[rows].tolist(), strict=True
            )
        ]
        return np.concatenate(spans)

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
    slots: IntArray = table.slots[rows].reshape(-1)
    return slots[slots != UNBOUND] if table.any_empty else slots
