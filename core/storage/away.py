"""Rows that do not simply step: those that wait for a load or a receive, and those with drafts."""

import numpy as np

from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


class Away:
    """What keeps rows of a request table from being stepped.

    Two things do:  hold, let go     a load that is not submitted (``holds`` > 0), a receive not released (< 0).
                    reserve, settle  ``drafts`` of reservations are open: tokens up to ``reserved`` may be written,
                                     the row's length is what nothing can take back.
    Always:  count == the rows that are held + the rows with open drafts     (checked by ``verify``)
    """

    def __init__(self, row_count: int) -> None:
        self.count = 0
        self.reserved, self.drafts, self.holds = np.zeros((3, row_count), dtype=np.int64)
        self._holders = 0

    def hold(self, row: int, *, receives: bool = False) -> int:
        """The row does not step until whoever holds it lets go. Returns the holder's number."""
        self._holders += 1
        holder = -self._holders if receives else self._holders
        self.holds[row] = holder
        self.count += 1
        return holder

    def is_held_by(self, row: int, holder: int) -> bool:
        """Whether this holder keeps the row: it was not closed since."""
        return bool(self.holds[row] == holder)

    def let_go(self, row: int, holder: int) -> None:
        """The row may step, if it is still the holder's."""
        if self.holds[row] == holder:
            self.holds[row] = 0
            self.count -= 1

    def check_none(self, rows: IntArray, *, asked_by: str, drafting: bool = False) -> None:
        """None of these rows is held and, unless ``drafting`` rows will do, none has a reservation open."""
        held = rows[self.holds[rows] != 0]
        invariant("storage.row_awaits_its_copy", not len(held), rows=held, asked_by=asked_by)
        if not drafting:
            open_drafts = rows[self.drafts[rows] != 0]
            invariant("storage.row_has_drafts", not len(open_drafts), rows=open_drafts, asked_by=asked_by)

    def reserve(self, rows: IntArray, lengths: IntArray) -> None:
        """The rows have pages up to these lengths, which drafts may write."""
        self.count += len(rows) - int(np.count_nonzero(self.drafts[rows]))
        self.drafts[rows] += 1
        self.reserved[rows] = lengths

    def settle(self, rows: IntArray) -> None:
        """A reservation of each row is over."""
        self.drafts[rows] -= 1
        over = rows[self.drafts[rows] == 0]
        self.reserved[over] = 0
        self.count -= len(over)

    def close(self, rows: IntArray) -> None:
        """These rows are closed: nobody holds them, and nothing is reserved."""
        if self.count:
            self.count -= int(np.count_nonzero(self.holds[rows]) + np.count_nonzero(self.drafts[rows]))
            self.reserved[rows] = self.drafts[rows] = self.holds[rows] = 0

    def verify(self, lengths: IntArray) -> None:
        """The sum holds, and what is reserved is no less than the rows' lengths."""
        count = int(np.count_nonzero(self.holds) + np.count_nonzero(self.drafts))
        invariant("storage.away_adds_up", count == self.count, counted=count, kept=self.count)
        ahead = (self.drafts == 0) & (self.reserved == 0) | (self.drafts > 0) & (self.reserved >= lengths)
        invariant("storage.reserved_below_the_length", ahead.all(), reserved=self.reserved.tolist())
