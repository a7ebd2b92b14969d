"""Ids and pages of one sub-pool: which page an id is bound to, and which ids are out.

Host maps, one int64 array each way; a move rewrites them and nothing else (IDS-2).
"""

import numpy as np
import numpy.typing as npt

from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray

UNOWNED = -1


class IdPool:
    """The ids ``0 .. count - 1``, each with one holder at a time.

    An id's life:  1. mint       a returned id, or the lowest that was never out, is out.
                   2. give_back  it is returned.
    Always:  out + returned + fresh == count     (checked by ``verify``)

    Ids that came back go out first, the newest first; then ids that were never out, from the lowest.
    Bookkeeping: 8 bytes an id.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._fresh = 0
        self._top = 0
        self._returned = np.empty(count, dtype=np.int32)
        self._out = np.zeros(count, dtype=np.int32)  # > 0: the id is out; the value marks duplicates in one call

    @property
    def free(self) -> int:
        """How many ids can be minted."""
        return self.count - self._fresh + self._top

    def mint(self, count: int) -> IntArray:
        """Ids that nobody holds."""
        invariant("id_pool.mint_beyond_free", 0 <= count <= self.free, count=count, free=self.free)
        reused = min(count, self._top)
        ids = self._returned[self._top - reused : self._top][::-1].astype(np.int64)
        self._top -= reused
        if reused < count:
            fresh = np.arange(self._fresh, self._fresh + count - reused)
            self._fresh += count - reused
            ids = np.concatenate((ids, fresh)) if reused else fresh
        self._out[ids] = 1
        return ids

    def give_back(self, ids: IntArray) -> None:
        """Ids come back. Checked before anything changes: each is out, and none is named twice."""
        invariant("id_pool.give_back_of_unknown_id", within(ids, self.count), ids=ids)
        invariant("id_pool.give_back_of_free_id", np.count_nonzero(self._out[ids]) == len(ids), ids=ids)
        marks = np.arange(1, len(ids) + 1, dtype=np.int32)
        self._out[ids] = marks
        invariant("id_pool.give_back_twice", same(self._out[ids], marks), ids=ids)
        self._out[ids] = 0
        self._returned[self._top : self._top + len(ids)] = ids
        self._top += len(ids)

    def verify(self) -> None:
        """Every id is out, returned or fresh, and only one of them."""
        out = np.count_nonzero(self._out)
        returned = self._returned[: self._top]
        invariant("id_pool.sum", out + self.free == self.count, out=out, free=self.free, count=self.count)
        invariant("id_pool.returned_is_out", not self._out[returned].any(), returned=returned)
        invariant("id_pool.returned_twice", len(np.unique(returned)) == self._top, returned=returned)


class UnitIds:
    """The maps of one sub-pool: ``pages_of`` from ids, ``owners_of`` from pages.

    An unbound id, and the id -1, read as the sink page; an unowned page as -1. The sink is never bound, so
    one gather translates. Bookkeeping: 8 bytes an id and 8 bytes a page.
    """

    def __init__(self, id_count: int, page_count: int, sink_page: int) -> None:
        self.id_count = id_count
        self.sink_page = sink_page
        self.bound = 0
        self._pages = np.full(id_count + 1, sink_page, dtype=np.int64)  # the last entry is what -1 reads
        self._owners = np.full(page_count, UNOWNED, dtype=np.int64)

    def pages_of(self, ids: IntArray) -> IntArray:
        """The page of each id, any shape; the sink page where unbound."""
        return self._pages[ids]

    def owners_of(self, pages: IntArray | slice) -> IntArray:
        """The id of each page; -1 where unowned. A slice gives a view: read it, do not keep it."""
        return self._owners[pages]

    def is_bound(self, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each id has a page."""
        return np.asarray(self._pages[ids] != self.sink_page)

    def check_unbound(self, ids: IntArray) -> None:
        """Each of these ids exists and has no page, and none is named twice. Nothing changes."""
        pages = self._pages
        invariant("band.take_of_unknown_id", within(ids, self.id_count), ids=ids, id_count=self.id_count)
        invariant("band.take_of_bound_id", not np.count_nonzero(pages[ids] != self.sink_page), ids=ids)
        marks = np.arange(len(ids))
        pages[ids] = marks
        distinct = same(pages[ids], marks)
        pages[ids] = self.sink_page
        invariant("band.take_of_id_twice", distinct, ids=ids)

    def bind(self, ids: IntArray, pages: IntArray) -> None:
        """Give each id its page. The ids were checked; the pages are nobody's."""
        invariant("band.bind_of_owned_page", not np.count_nonzero(self._owners[pages] != UNOWNED), pages=pages)
        self._pages[ids] = pages
        self._owners[pages] = ids
        self.bound += len(ids)

    def unbind(self, ids: IntArray) -> IntArray:
        """Take their pages from these ids. Checked before anything changes: a double free is caught whole."""
        invariant("band.free_of_unknown_id", within(ids, self.id_count), ids=ids, id_count=self.id_count)
        pages = self._pages[ids]
        owners = self._owners
        invariant("band.free_of_bound_page", same(owners[pages], ids), ids=ids, pages=pages)
        marks = np.arange(len(ids))
        owners[pages] = marks
        if not same(owners[pages], marks):
            owners[pages] = ids
            invariant("band.free_of_bound_page", False, named_twice=ids)
        owners[pages] = UNOWNED
        self._pages[ids] = self.sink_page
        self.bound -= len(ids)
        return pages

    def rebind(self, sources: IntArray, targets: IntArray) -> None:
        """The bytes of ``sources`` are now in ``targets``: the same ids, other pages."""
        ids = self._owners[sources]
        invariant("band.move_of_unowned_page", (ids >= 0).all() and (self._pages[ids] == sources).all(), pages=sources)
        invariant("band.move_onto_owned_page", (self._owners[targets] == UNOWNED).all(), pages=targets)
        self._owners[sources] = UNOWNED
        self._owners[targets] = ids
        self._pages[ids] = targets

    def verify(self) -> None:
        """The two maps are inverse to each other and agree with the count."""
        owned = (self._owners != UNOWNED).nonzero()[0]
        bound = (self._pages[:-1] != self.sink_page).nonzero()[0]
        invariant("unit_ids.count", len(owned) == len(bound) == self.bound, owned=len(owned), bound=self.bound)
        invariant("unit_ids.inverse", (self._owners[self._pages[bound]] == bound).all())
        invariant("unit_ids.sink_is_bound", self._pages[-1] == self.sink_page, sink=self.sink_page)


def within(ids: IntArray, count: int) -> bool:
    """Whether all ids are in ``0 .. count - 1``; as unsigned numbers negative ids are huge."""
    invariant("unit_ids.ids_are_int64", ids.dtype.kind == "i" and ids.itemsize == 8, dtype=ids.dtype)
    unsigned = ids.view(np.uint64)
    return not len(ids) or bool(unsigned[unsigned.argmax()] < count)


def same(left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> bool:
    """Whether two arrays of one type and length are equal; comparing bytes is the quickest way there is."""
    return left.tobytes() == right.tobytes()
