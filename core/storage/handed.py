"""What rows have handed over: pages and state slots that are a stranger's, a prefix cache's say."""

import numpy as np

from kvarena.bands.unit_ids import within
from kvarena.chain.minters import Bands
from kvarena.storage.requests import UNBOUND
from kvarena.terms.invariants import invariant
from kvarena.terms.members import is_once
from kvarena.terms.ports import IntArray


class Handed:
    """The ids of one minter that are a stranger's.

    An id's way:  1. add   a row handed it over.
                  2. drop  its page came back.
    """

    def __init__(self, bands: Bands, minter: str | None) -> None:
        self._is_handed = np.zeros(bands[minter].grid.id_count if minter is not None else 0, dtype=np.bool_)

    def ids(self) -> IntArray:
        """All of them, rising."""
        return np.flatnonzero(self._is_handed)

    def any_of(self, ids: IntArray) -> bool:
        """Whether one of these ids, which exist, is among them."""
        return bool(self._is_handed[ids].any())

    def add(self, ids: IntArray) -> None:
        """These were handed over."""
        self._is_handed[ids] = True

    def drop(self, ids: IntArray) -> None:
        """These are nobody's any more."""
        self._is_handed[ids] = False

    def check_freed(self, ids: IntArray) -> None:
        """Each of these ids was handed over and is named once."""
        count = len(self._is_handed)
        if len(ids) == 1 and 0 <= (one := int(ids[0])) < count and self._is_handed[one]:
            return
        invariant("storage.free_of_unknown_page", within(ids, count), ids=ids, ids_in_all=count)
        invariant("storage.free_of_page_not_handed_over", self._are_handed(ids), ids=ids)
        invariant("storage.free_of_page_twice", is_once(ids), ids=ids)

    def check_read(self, ids: IntArray, *, asked_by: str) -> None:
        """Each of these ids was handed over and is named once, those aside that are ``UNBOUND``."""
        if ids.min(initial=0) < 0:
            ids = ids[ids != UNBOUND]
        handed = within(ids, len(self._is_handed)) and self._are_handed(ids)
        invariant("storage.read_of_page_not_handed_over", handed, ids=ids, asked_by=asked_by)
        invariant("storage.read_of_page_twice", is_once(ids), ids=ids, asked_by=asked_by)

    def _are_handed(self, ids: IntArray) -> bool:
        return bool(np.count_nonzero(self._is_handed[ids]) == len(ids))
