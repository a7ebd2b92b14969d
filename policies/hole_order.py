"""Which hole is handed out first.

Both orders keep one byte a page (1: a hole), so that runs at a frontier and the next hole are found by the
C library's byte search, and a stack of pages freed lately.
"""

import attrs
import numpy as np

from kvarena.terms.invariants import invariant
from kvarena.terms.ports import HIGH, End, Holes, IntArray

WINDOW_PAGES = 256
NOTHING = np.empty(0, dtype=np.int64)


@attrs.frozen
class Nearest:
    """The hole nearest the anchored end first: bands stay short without moving anything.

    ``recent_max``: up to so many freed pages (and at most a 32nd of the grid) that lie before every other hole
    are handed out newest first, which spares the search; 0 keeps the order strict. More would leave the
    frontier out.
    """

    recent_max: int = attrs.field(default=16384, validator=[attrs.validators.instance_of(int), attrs.validators.ge(0)])
    name = "nearest"

    def open(self, page_count: int, end: End) -> Holes:
        return NearestHoles(page_count, end, min(self.recent_max, page_count // 32))


@attrs.frozen
class Recent:
    """The page freed last first: its bytes may still be in a cache, and nothing is ever searched."""

    name = "recent"

    def open(self, page_count: int, end: End) -> Holes:
        return RecentHoles(page_count, end)


class HoleMap:
    """One byte a page, kept from the anchored end, so that nearest is first for either end.

    ``_is_hole`` is indexed by page for both: for the high end it is a reversed view of the bytes. A *place* is
    an index of the bytes.
    """

    def __init__(self, page_count: int, end: End) -> None:
        self.page_count = page_count
        self.count = 0
        self._last = page_count - 1 if end is HIGH else 0
        self._bytes = bytearray(page_count)
        self._by_place = np.frombuffer(self._bytes, dtype=np.bool_)
        self._is_hole = self._by_place[::-1] if end is HIGH else self._by_place

    def __len__(self) -> int:
        return self.count

    def drop_below(self, stop: int) -> int:
        """Remove the holes directly below page ``stop``, as far as there is no gap; returns how many."""
        if not self._last:
            return self._drop_down(stop)
        return self._drop_up(self._last - stop + 1)

    def drop_above(self, start: int) -> int:
        """Remove the holes from page ``start`` upwards, as far as there is no gap; returns how many."""
        if not self._last:
            return self._drop_up(start)
        return self._drop_down(self._last - start + 1)

    def _drop_down(self, stop: int) -> int:
        if not stop or not self._bytes[stop - 1]:
            return 0
        return self._drop(self._bytes.rfind(0, 0, stop) + 1, stop)

    def _drop_up(self, start: int) -> int:
        if start >= self.page_count or not self._bytes[start]:
            return 0
        stop = self._bytes.find(0, start)
        return self._drop(start, stop if stop >= 0 else self.page_count)

    def _drop(self, start: int, stop: int) -> int:
        self._by_place[start:stop] = False
        self.count -= stop - start
        self._dropped()
        return stop - start

    def _dropped(self) -> None:
        """Holes at a frontier went; they come back only after every hole was taken."""

    def _flip(self, pages: IntArray) -> IntArray:
        """Pages to places and back."""
        return self._last - pages if self._last else pages

    def _mark(self, pages: IntArray) -> None:
        self._is_hole[pages] = True
        self.count += len(pages)

    def _clear(self, pages: IntArray) -> None:
        self._is_hole[pages] = False
        self.count -= len(pages)

    def _all_inside(self, start: int, stop: int) -> IntArray:
        """Every hole in ``[start, stop)``, rising."""
        return self._is_hole[start:stop].nonzero()[0] + start

    def _scan(self, count: int, start: int, stop: int) -> IntArray:
        """Up to ``count`` holes from place ``start`` on and before ``stop``, as places, in order.

        Windows double, so few calls find many.
        """
        found: list[IntArray] = []
        width = max(WINDOW_PAGES, 2 * count)
        while count > 0:
            start = self._bytes.find(1, start, stop)
            if start < 0:
                break
            hits = self._by_place[start : min(start + width, stop)].nonzero()[0][:count]
            hits += start
            found.append(hits)
            count -= len(hits)
            start += width
            width *= 2
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else NOTHING


class NearestHoles(HoleMap):
    """The map, a hint, and a stack of recent frees.

    Always: a hole nearer than place ``_hint`` is in the stack once, and no other hole is. A stack entry whose
    page is no hole was absorbed since (``_stale``): it goes when it surfaces, or when no hole is left.
    """

    def __init__(self, page_count: int, end: End, recent_max: int) -> None:
        super().__init__(page_count, end)
        self._hint = page_count
        self._recent = np.empty(recent_max, dtype=np.int64)
        self._top = 0
        self._stale = False

    def add(self, pages: IntArray) -> None:
        """Pages were freed; none is a hole already."""
        self._is_hole[pages] = True
        self.count += len(pages)
        nearer, hint = pages, self._hint
        if hint < self.page_count and len(pages):  # most often all are nearer, and the farthest says so
            if self._last:
                edge = self._last - hint
                nearer = pages if pages[pages.argmin()] > edge else pages[pages > edge]
            elif pages[pages.argmax()] >= hint:
                nearer = pages[pages < hint]
        top = self._top
        self._top = top + len(nearer)
        if self._top <= len(self._recent):
            self._recent[top : self._top] = nearer
        else:  # the map finds them again
            self._hint = min(int(self._flip(nearer).min()), self._nearest_recent(top))
            self._top, self._stale = 0, False

    def take(self, count: int) -> IntArray:
        """Remove and return ``count`` holes: recent frees before the hint, then from the hint on."""
        if self._stale:
            self._drop_stale()
        top = self._top
        recent = min(count, top)
        pages = self._recent[top - recent : top][::-1].copy()
        self._top = top - recent
        if recent < count:
            found = self._scan(count - recent, self._hint, self.page_count)
            invariant("holes.fewer_than_counted", len(found) == count - recent, missing=count - recent - len(found))
            self._hint = int(found[-1]) + 1
            found = self._flip(found)
            pages = np.concatenate((pages, found)) if recent else found
        self._is_hole[pages] = False
        self.count -= count
        return pages

    def remove(self, pages: IntArray) -> None:
        """These holes were filled by moves."""
        self._clear(pages)
        if not self.count:
            self._hint, self._top, self._stale = self.page_count, 0, False
        elif self._top and len(pages):
            self._drop_stale()

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        """Up to ``count`` holes in ``[start, stop)``: recent ones first, then the nearest."""
        if count < self.count:
            if self._stale:
                self._drop_stale()
            recent = self._recent[max(0, self._top - count) : self._top]
            pages = recent[(recent >= start) & (recent < stop)]
            if len(pages) < count:
                low, high = (self._last - stop + 1, self._last - start + 1) if self._last else (start, stop)
                found = self._scan(count - len(pages), max(self._hint, low), high)
                pages = np.concatenate((pages, self._flip(found)))
            if len(pages) == count:
                return pages
        return self._all_inside(start, stop)[:count]

    def _dropped(self) -> None:
        if not self.count:
            self._hint, self._top, self._stale = self.page_count, 0, False
        else:
            self._stale = self._top > 0

    def _drop_stale(self) -> None:
        recent = self._recent[: self._top]
        kept = recent[self._is_hole[recent]]
        self._top = len(kept)
        self._recent[: self._top] = kept
        self._stale = False

    def _nearest_recent(self, top: int) -> int:
        return min(self._hint, int(self._flip(self._recent[:top]).min())) if top else self._hint


class RecentHoles(HoleMap):
    """The map and a stack. Removed pages stay in the stack until they surface: the map says which are holes."""

    def __init__(self, page_count: int, end: End) -> None:
        super().__init__(page_count, end)
        self._stack = np.empty(page_count + page_count // 4 + 16, dtype=np.int32)
        self._top = 0

    def add(self, pages: IntArray) -> None:
        """Pages were freed; none is a hole already."""
        self._mark(pages)
        if self._top + len(pages) > len(self._stack):
            kept = self._newest_first(self._stack[: self._top].astype(np.int64), excluded=pages)[::-1]
            self._stack[: len(kept)] = kept
            self._top = len(kept)
        self._stack[self._top : self._top + len(pages)] = pages
        self._top += len(pages)

    def take(self, count: int) -> IntArray:
        """Remove and return ``count`` holes, the newest first."""
        found: list[IntArray] = []
        while count > 0:
            invariant("holes.fewer_than_counted", self._top > 0, missing=count)
            size = min(count, self._top)
            chunk = self._stack[self._top - size : self._top].astype(np.int64)
            stale = self._top - self.count
            pages = self._newest_first(chunk) if stale else chunk[::-1]
            self._top -= size
            self._clear(pages)
            found.append(pages)
            count -= len(pages)
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else NOTHING

    def remove(self, pages: IntArray) -> None:
        """These holes were filled by moves."""
        self._clear(pages)
        self._dropped()

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        """Up to ``count`` holes in ``[start, stop)``, the nearest first."""
        if count >= self.count:
            return self._all_inside(start, stop)[:count]
        low, high = (self._last - stop + 1, self._last - start + 1) if self._last else (start, stop)
        return self._flip(self._scan(count, low, high))

    def _dropped(self) -> None:
        if not self.count:
            self._top = 0

    def _newest_first(self, chunk: IntArray, excluded: IntArray | None = None) -> IntArray:
        """The holes among these stack entries, each once, from the newest entry."""
        newest = chunk[::-1]
        holes = newest[self._is_hole[newest]]
        if excluded is not None:
            holes = holes[~np.isin(holes, excluded)]
        _, first = np.unique(holes, return_index=True)
        return holes[np.sort(first)]
