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
                   2. grow    pages are appended; positions that retired everywhere become ``UNBOUND``.
                   3. hand    its first pages over: it still reads them, and frees them no more.
                   4. close   the row is free again.
    Always:  open rows + free rows == all rows                        (checked by ``verify``)
             page_counts - max(handed, retired) == the units bound to the row, per sub-pool   (``Ownership.verify``)

    Arrays by row: ``lengths`` in tokens, ``page_counts`` and ``handed`` in pages, ``tails`` the id of the last page,
    ``due`` the new length at which the row must be looked at, ``slots_held`` its state slots. By sub-pool and row:
    ``retired``, pages that were freed before the end. ``ones`` is as long. ``away``: the rows that do not simply
    step; ``fresh``: those to be reset on the device.
    For a mirror: where lists are put there, ``changed`` gets the places of ``flat`` that changed, by whoever changes
    them, and ``slots_changed`` the rows whose slots did.
    """

    def __init__(self, row_count: int, pages_per_row: int, *, pools: int, slots_per_row: int) -> None:
        self.pages_per_row = pages_per_row
        self.pages = np.full((row_count, pages_per_row), UNBOUND, dtype=np.int64)
        self.flat = self.pages.reshape(-1)
        self.slots = np.full((row_count, slots_per_row), UNBOUND, dtype=np.int64)
        self._one_slot = self.slots.reshape(-1)
        self._columns = np.zeros((7 + pools, row_count), dtype=np.int64)
        self.lengths, self.page_counts, self.tails, self.handed = self._columns[:4]
        self.looked_at, self.due, self.slots_held = self._columns[4:7]
        self.retired = self._columns[7:]
        self.any_handed = False
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

    def is_open(self, rows: IntArray) -> bool:
        """Whether every one of these rows is in use."""
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
        self.fresh.add(rows)
        return rows

    def give_slots(self, rows: IntArray, ids: IntArray) -> None:
        """These rows, just opened, have these state slots, shape (rows, slots of one)."""
        self.slots[rows] = ids
        self.slots_held[rows] = self.slots.shape[1]
        if self.slots_changed is not None:
            self.slots_changed.append(rows)

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

    def slots_of(self, rows: IntArray) -> IntArray:
        """The state slots of these rows, in one line."""
        return self.slots[rows].reshape(-1) if self.slots.shape[1] > 1 else self._one_slot[rows]

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
        invariant(
            "requests.handed_more_than_it_has", (self.handed <= self.page_counts).all(), handed=self.handed.tolist()
        )
        self.away.verify(self.lengths)
