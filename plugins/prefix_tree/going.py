"""What has been chosen to go, on its way back to the storage."""

import numpy as np

from kvarena.plugins.prefix_tree.kinds import Kinds
from kvarena.plugins.prefix_tree.store import Store
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray


class Going:
    """Window rows, states and pages that leave one tree.

    Their way:  1. add        chosen; the tree has them no more, the storage counts them still.
                2. give back  together, one call for each kind: what a call costs is not paid for every piece.
    Where the storage may refuse one, since it is reserved, each comes back as it is added and before the tree lets go.
    """

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self.at_once = False
        self._store = store
        self._ids_retire = kinds.owner is not None
        self._names = [kind.name for kind in kinds.rows]
        self._rows: list[list[bytes]] = [[] for _ in kinds.rows]
        self._slots: list[int] = []
        self._pages: list[bytes] = []

    def add_rows(self, column: int, ids: bytes) -> None:
        """Pages in one sub-pool that retires rows, alone."""
        self._rows[column].append(ids)
        if self.at_once:
            self.give_back()

    def add_state(self, state: int) -> None:
        """A state."""
        self._slots.append(state)
        if self.at_once:
            self.give_back()

    def add_pages(self, ids: bytes) -> None:
        """Pages with all that sub-pools have for them."""
        self._pages.append(ids)
        if self.at_once:
            self.give_back()

    def give_back(self) -> None:
        """What was chosen is free. Window rows first: where a page goes too, there is nothing left to go alone.

        Raises:
            InvariantError: the storage refuses; what was to come back after it does not.
        """
        sharing, slots, pages = self._store.sharing, self._slots, self._pages
        self._slots, self._pages = [], []
        for column, parts in enumerate(self._rows):
            if parts:
                self._rows[column] = []
                sharing.free_in(self._names[column], _ids(parts))
        if slots:
            sharing.free_slots(np.array(slots))
        if pages:
            ids = _ids(pages)
            self._store.ownership.free_pages(ids[ids != UNBOUND] if self._ids_retire else ids)


def _ids(parts: list[bytes]) -> IntArray:
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=np.int64)
