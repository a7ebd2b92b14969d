"""Where the next token of each row is written, kept per sub-pool, so that most decode steps translate by one sum."""

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.storage.requests import RequestTable
from kvarena.terms.ports import IntArray


class Tails:
    """For each token sub-pool, by row: ``bases[name][row] + position`` is the physical token of a row's last page.

    A physical token is page * page tokens + place in the page. Kept when pages are taken; made anew after a move.
    """

    def __init__(self, chain: Chain, table: RequestTable) -> None:
        self._chain = chain
        self._table = table
        self._tokens = chain.plan.page_tokens
        self._moves_epoch = chain.moves_epoch
        names = [pool.name for pool in chain.plan.token_pools]
        self.bases = {name: np.zeros(len(table), dtype=np.int64) for name in names}

    def extend(self, rows: IntArray, positions: IntArray, pages: dict[str, IntArray], last: IntArray | None) -> None:
        """These rows got pages up to ``positions``; ``last`` picks each row's last one, None where each got one."""
        for name, base in self.bases.items():
            tail = pages[name] if last is None else pages[name][last]
            base[rows] = (tail - positions) * self._tokens

    def read(self, name: str, rows: IntArray, positions: IntArray) -> IntArray:
        """The physical tokens of these positions, each in the last page of its row."""
        if self._moves_epoch != self._chain.moves_epoch:
            self.look_up(self._table.open_rows())
            self._moves_epoch = self._chain.moves_epoch
        return self.bases[name][rows] + positions

    def look_up(self, rows: IntArray) -> None:
        """Read the last pages of these rows from the maps: some were taken away, or moved."""
        table = self._table
        rows = rows[table.page_counts[rows] > 0]
        last = table.page_counts[rows] - 1
        ids = table.pages[rows, last]
        for name, base in self.bases.items():
            base[rows] = (self._chain.pages(name, ids) - last) * self._tokens
