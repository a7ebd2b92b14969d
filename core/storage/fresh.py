"""Rows that were handed out, and whose memory on the device nobody has reset yet."""

import numpy as np

from kvarena.terms.ports import IntArray


class Fresh:
    """Which rows the next forward resets.

    A row:  1. add    is handed out: what its last request left on the device is still there.
            2. done   was reset by a forward, or written whole; or is closed.
    """

    def __init__(self, row_count: int) -> None:
        self._rows = np.zeros(row_count, dtype=bool)
        self._any = False

    def add(self, rows: IntArray) -> None:
        """These rows were handed out."""
        self._rows[rows] = self._any = True

    def rows(self) -> IntArray:
        """Those that were not reset, in order."""
        return np.flatnonzero(self._rows) if self._any else np.empty(0, dtype=np.int64)

    def done(self, rows: IntArray) -> None:
        """Nothing is to be reset in these any more."""
        if self._any:
            self._rows[rows] = False
            self._any = bool(self._rows[self._rows.argmax()])
