"""Ids and pages of one sub-pool: which page an id is bound to, and which ids are out.

Host maps, one int64 array each way; a move rewrites them and nothing else (IDS-2).
"""

import numpy as np
import numpy.typing as npt

from kvarena.terms.invariants import fail, invariant
from kvarena.terms.members import all_of, any_of
from kvarena.terms.numbers import constant
from kvarena.terms.ports import IntArray

UNOWNED, SINK = -1, -2
_INT64 = np.dtype(np.int64)


class IdPool:
    """The ids ``0 .. count - 1``, each with one holder at a time.

    An id's life:  1. mint       a returned id, or the lowest that was never out, is out.
                   2. accept     it is returned.
    Always:  out + returned + fresh == count, and no id is returned twice     (checked by ``verify``)

    Ids that came back last go out first; then ids that were never out, from the lowest. Bookkeeping: 8 bytes an id.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = count
        self._top = 0
        self._returned = np.empty(count, dtype=np.int64)

    @property
    def _fresh(self) -> int:
        """The lowest id that was never out."""
        return self.count - self.free + self._top

    def mint(self, count: int) -> IntArray:
        """Ids that nobody holds."""
        if not 0 <= count <= self.free:
            fail("id_pool.mint_beyond_free", count=count, free=self.free)
        top = self._top
        if count <= top:
            ids = self._returned[top - count : top].copy()
            self._top = top - count
        else:
            fresh = self._fresh
            ids = np.arange(fresh - top, fresh + count - top)
            if top:
                ids[:top] = self._returned[:top]
            self._top = 0
        self.free -= count
        return ids

    def accept(self, ids: IntArray) -> None:
        """Take back ids that the caller knows to be out, each named once."""
        top = self._top
        self._top = top + len(ids)
        self._returned[top : self._top] = ids
        self.free += len(ids)

    def verify(self) -> None:
        """Every id is out, returned or fresh, and only one of them."""
        returned = self._returned[: self._top]
        fresh = self._fresh
        invariant("id_pool.sum", 0 <= fresh <= self.count, free=self.free, returned=self._top, count=self.count)
        invariant("id_pool.returned_was_never_out", not self._top or 0 <= returned.min() <= returned.max() < fresh)
        invariant("id_pool.returned_twice", len(np.unique(returned)) == self._top, returned=returned)


class UnitIds:
    """The maps of one sub-pool: ``pages_of`` from ids, ``owners_of`` from pages.

    An unbound id, and the id -1, read as the sink page; an unowned page as -1. The sink is never bound, so
    one gather translates. Bookkeeping: 8 bytes an id and 8 bytes a page. ``changed``: where a list is put there,
    the ids whose page changed are added to it, for a mirror of the map.
    """

    def __init__(self, id_count: int, page_count: int, sink_page: int) -> None:
        self.id_count = id_count
        self.sink_page = sink_page
        self._sink = constant(sink_page)
        self.bound = 0
        self.changed: list[IntArray] | None = None
        self._pages = np.full(id_count + 1, sink_page, dtype=np.int64)  # the last entry is what -1 reads
        self._owners = np.full(page_count, UNOWNED, dtype=np.int64)
        self._owners[sink_page] = SINK

    def pages_of(self, ids: IntArray) -> IntArray:
        """The page of each id, any shape; the sink page where unbound."""
        return self._pages[ids]

    def owners_of(self, pages: IntArray | slice) -> IntArray:
        """The id of each page; -1 where unowned. A slice gives a view: read it, do not keep it."""
        return self._owners[pages]

    def is_bound(self, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each id has a page."""
        return np.asarray(self._pages[ids] != self._sink)

    def bound_among(self, ids: IntArray) -> IntArray:
        """Those of these ids that have a page, in their order."""
        bound = self._pages[ids] != self._sink
        return ids if all_of(bound) else ids[bound]

    def check_unbound(self, ids: IntArray) -> None:
        """Each of these ids exists and has no page, and none is named twice. Nothing changes."""
        invariant("band.take_of_unknown_id", within(ids, self.id_count), ids=ids, id_count=self.id_count)
        pages = self._pages
        invariant("band.take_of_bound_id", not any_of(pages[ids] != self._sink), ids=ids)
        marks = np.arange(len(ids))
        pages[ids] = marks
        distinct = same(pages[ids], marks)
        pages[ids] = self.sink_page
        invariant("band.take_of_id_twice", distinct, ids=ids)

    def check_bound(self, ids: IntArray) -> None:
        """Each of these ids has a page, and none is named twice. Nothing changes."""
        if len(ids) == 1 and ids.dtype == _INT64 and self._owns(int(ids[0])):  # a cache gives back page by page
            return
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
        if self.changed is not None:
            self.changed.append(ids)

    def bind_run(self, ids: IntArray, start: int) -> None:
        """Give the ids the pages from ``start`` on, in order."""
        stop = start + len(ids)
        self._pages[ids] = np.arange(start, stop)
        self._owners[start:stop] = ids
        self.bound += len(ids)
        if self.changed is not None:
            self.changed.append(ids)

    def unbind(self, ids: IntArray) -> IntArray:
        """Take their pages from ids that are bound and named once; returns the pages.

        That they are bound is checked before anything changes, at any level: an unbound id would free the sink.
        """
        pages = self._pages[ids]
        if any_of(pages == self._sink):
            fail("band.free_of_bound_page", ids=ids, pages=pages)
        self._let_go(ids, pages)
        return pages

    def unbind_among(self, ids: IntArray) -> IntArray:
        """The same for those of these ids that have a page; the ids are named once."""
        pages = self._pages[ids]
        bound = (pages != self._sink).nonzero()[0]
        if len(bound) < len(ids):
            ids, pages = ids[bound], pages[bound]
        self._let_go(ids, pages)
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
        if self.changed is not None:
            self.changed.append(ids)

    def verify(self) -> None:
        """The two maps are inverse to each other and agree with the count."""
        owned = (self._owners >= 0).nonzero()[0]
        bound = (self._pages[:-1] != self.sink_page).nonzero()[0]
        invariant("unit_ids.count", len(owned) == len(bound) == self.bound, owned=len(owned), bound=self.bound)
        invariant("unit_ids.inverse", (self._owners[self._pages[bound]] == bound).all())
        sink = self._owners[self.sink_page] == SINK and self._pages[-1] == self.sink_page
        invariant("unit_ids.sink_is_bound", sink, sink=self.sink_page)

    def _owns(self, one: int) -> bool:
        """Whether this id has a page."""
        return bool(0 <= one < self.id_count and self._owners[self._pages[one]] == one)

    def _let_go(self, ids: IntArray, pages: IntArray) -> None:
        self._owners[pages] = UNOWNED
        self._pages[ids] = self.sink_page
        self.bound -= len(ids)
        if self.changed is not None:
            self.changed.append(ids)


def within(ids: IntArray, count: int) -> bool:
    """Whether all ids are in ``0 .. count - 1``; as unsigned numbers negative ids are huge."""
    if ids.dtype != _INT64:
        fail("unit_ids.ids_are_int64", dtype=ids.dtype)
    unsigned = ids.view(np.uint64)
    return not len(ids) or bool(unsigned[unsigned.argmax()] < count)


def same(left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> bool:
    """Whether two arrays of one type and length are equal; comparing bytes is the quickest way there is."""
    return left.tobytes() == right.tobytes()
