"""The request table: one row per running request, with virtual ids only, so that pages can move."""

import numpy as np

from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray

UNBOUND = -1


class RequestTable:
    """Rows of virtual page ids, one id per page position, and each row's slots and counts.

    A row's life:  1. open    from the free rows, lowest first; length 0, no pages.
                   2. grow    pages are appended; retired positions become ``UNBOUND``.
                   3. close   the row is free again.
    Always:  open rows + free rows == all rows                        (checked by ``verify``)
             held[row, pool] == the units of that sub-pool bound to the row   (by ``Storage.verify``)
    """

    def __init__(self, row_count: int, pages_per_row: int, *, pools: int, slots_per_row: int) -> None:
        self.pages = np.full((row_count, pages_per_row), UNBOUND, dtype=np.int64)
        self.slots = np.full((row_count, slots_per_row), UNBOUND, dtype=np.int64)
        self.lengths = np.zeros(row_count, dtype=np.int64)
        self.page_counts = np.zeros(row_count, dtype=np.int64)
        self.looked_at = np.zeros(row_count, dtype=np.int64)
        self.next_crossing = np.zeros(row_count, dtype=np.int64)
        self.held = np.zeros((row_count, pools), dtype=np.int64)
        self._free = list(range(row_count - 1, -1, -1))
        self._open = np.zeros(row_count, dtype=bool)
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
        return bool(self._open[rows].all())

    def are_distinct(self, rows: IntArray) -> bool:
        """Whether no row stands twice in a batch: the last mark on a row that does is another's."""
        places = np.arange(len(rows))
        self._marks[rows] = places
        return bool((self._marks[rows] == places).all())

    def open(self) -> int:
        """Take a free row; there must be one."""
        invariant("requests.open_without_row", self._free)
        row = self._free.pop()
        self._open[row] = True
        return row

    def close(self, row: int) -> None:
        """Forget a row whose units have all been freed."""
        invariant("requests.close_of_free_row", self._open[row], row=row)
        invariant("requests.close_of_holding_row", not self.held[row].any(), row=row, held=self.held[row].tolist())
        self.pages[row, : self.page_counts[row]] = UNBOUND
        self.slots[row] = UNBOUND
        self.lengths[row] = self.page_counts[row] = self.looked_at[row] = self.next_crossing[row] = 0
        self._open[row] = False
        self._free.append(row)

    def verify(self) -> None:
        """A row is open or free; a free one holds nothing, an open one has ids for as many places as it holds pages."""
        invariant(
            "requests.rows_add_up",
            np.array_equal(np.sort(self._free), np.flatnonzero(~self._open)),
            free=self._free, open=self.open_rows().tolist(),
        )  # fmt: skip
        closed = ~self._open
        unused = np.arange(self.pages.shape[1]) >= self.page_counts[:, None]
        invariant("requests.free_row_holds", not self.held[closed].any() and not self.page_counts[closed].any())
        invariant("requests.id_beyond_its_row", (self.pages[unused] == UNBOUND).all())
        invariant("requests.negative_count", (self.held >= 0).all(), held=self.held.tolist())
