"""What rows have handed over: pages and state slots that are a stranger's, a prefix cache's say."""

import numpy as np

from kvarena.bands.unit_ids import within
from kvarena.chain.minters import Bands
from kvarena.terms.invariants import fail
from kvarena.terms.members import all_of, is_once
from kvarena.terms.numbers import UNBOUND
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
        if not within(ids, count):
            fail("storage.free_of_unknown_page", ids=ids, ids_in_all=count)
        if not self._are_handed(ids):
            fail("storage.free_of_page_not_handed_over", ids=ids)
        if not is_once(ids):
            fail("storage.free_of_page_twice", ids=ids)

    def check_read(self, ids: IntArray, *, asked_by: str) -> None:
        """Each of these ids was handed over and is named once, those aside that are ``UNBOUND``."""
        if len(ids) and ids[ids.argmin()] < 0:
            ids = ids[ids != UNBOUND]
        if not (within(ids, len(self._is_handed)) and self._are_handed(ids)):
            fail("storage.read_of_page_not_handed_over", ids=ids, asked_by=asked_by)
        if not is_once(ids):
            fail("storage.read_of_page_twice", ids=ids, asked_by=asked_by)

    def _are_handed(self, ids: IntArray) -> bool:
        return all_of(self._is_handed[ids])
