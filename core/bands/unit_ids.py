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
    Bookkeeping: 5 bytes an id.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._fresh = 0
        self._top = 0
        self._returned = np.empty(count, dtype=np.int32)
        self._out = np.zeros(count, dtype=np.bool_)

    @property
    def free(self) -> int:
        """How many ids can be minted."""
        return self.count - self._fresh + self._top

    def mint(self, count: int) -> IntArray:
        """Ids that nobody holds."""
        invariant("id_pool.mint_beyond_free", 0 <= count <= self.free, count=count, free=self.free)
        top = self._top
        reused = min(count, top)
        fresh = self._fresh
        if reused < count:
            ids = np.arange(fresh - reused, fresh + count - reused)
            if reused:
                ids[:reused] = self._returned[:top][::-1]
            self._fresh += count - reused
        else:
            ids = self._returned[top - count : top][::-1].astype(np.int64)
        self._top = top - reused
        self._out[ids] = True
        return ids

    def give_back(self, ids: IntArray) -> None:
        """Ids come back. Checked before anything changes: each is out, and none is named twice."""
        invariant("id_pool.give_back_of_unknown_id", within(ids, self.count), ids=ids)
        out = self._out
        invariant("id_pool.give_back_of_free_id", np.count_nonzero(out[ids]) == len(ids), ids=ids)
        ordered = np.sort(ids)
        invariant("id_pool.give_back_twice", not np.count_nonzero(ordered[1:] == ordered[:-1]), ids=ids)
        self.accept(ids)

    def accept(self, ids: IntArray) -> None:
        """Take back ids that the caller knows to be out, each named once."""
        self._out[ids] = False
        top = self._top
        self._top = top + len(ids)
        self._returned[top : self._top] = ids

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

    def bound_among(self, ids: IntArray) -> IntArray:
        """Those of these ids that have a page, in their order."""
        bound = self._pages[ids] != self.sink_page
        return ids if np.count_nonzero(bound) == len(ids) else ids[bound]

    def check_unbound(self, ids: IntArray) -> None:
        """Each of these ids exists and has no page, and none is named twice. Nothing changes."""
        invariant("band.take_of_unknown_id", within(ids, self.id_count), ids=ids, id_count=self.id_count)
        pages = self._pages
        invariant("band.take_of_bound_id", not np.count_nonzero(pages[ids] != self.sink_page), ids=ids)
        marks = np.arange(len(ids))
        pages[ids] = marks
        distinct = same(pages[ids], marks)
        pages[ids] = self.sink_page
        invariant("band.take_of_id_twice", distinct, ids=ids)

    def check_bound(self, ids: IntArray) -> None:
        """Each of these ids has a page, and none is named twice. Nothing changes."""
        invariant("band.free_of_unknown_id", within(ids, self.id_count), ids=ids, id_count=self.id_count)
        owners, pages = self._owners, self._pages[ids]
        invariant("band.free_of_bound_page", same(owners[pages], ids), ids=ids, pages=pages)
        marks = np.arange(len(ids))
        owners[pages] = marks
        distinct = same(owners[pages], marks)
        owners[pages] = ids
        invariant("band.free_of_bound_page", distinct, named_twice=ids)

    def bind(self, ids: IntArray, pages: IntArray) -> None:
        """Give each id its page. The ids were minted or checked; the pages are nobody's."""
        self._pages[ids] = pages
        self._owners[pages] = ids
        self.bound += len(ids)

    def bind_run(self, ids: IntArray, start: int) -> None:
        """Give the ids the pages from ``start`` on, in order."""
        stop = start + len(ids)
        self._pages[ids] = np.arange(start, stop)
        self._owners[start:stop] = ids
        self.bound += len(ids)

    def unbind(self, ids: IntArray) -> IntArray:
        """Take their pages from ids that are bound and named once; returns the pages.

        That they are bound is checked before anything changes, at any level: an unbound id would free the sink.
        """
        pages = self._pages[ids]
        owners = self._owners
        invariant("band.free_of_bound_page", same(owners[pages], ids), ids=ids, pages=pages)
        owners[pages] = UNOWNED
        self._pages[ids] = self.sink_page
        self.bound -= len(ids)
        return pages

    def rebind(self, sources: IntArray, targets: IntArray) -> None:
        """The bytes of ``sources`` are now in ``targets``: the same ids, other pages."""
        owners = self._owners
        ids = owners[sources]
        invariant("band.move_of_unowned_page", ids.min(initial=0) >= 0, pages=sources)
        invariant("band.move_of_stale_page", same(self._pages[ids], sources), pages=sources)
        invariant("band.move_onto_owned_page", owners[targets].max(initial=UNOWNED) == UNOWNED, pages=targets)
        owners[sources] = UNOWNED
        owners[targets] = ids
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
