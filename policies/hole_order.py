"""Which hole is handed out first.

Both orders keep one byte a page (1: a hole), so that runs at a frontier and the next hole are found by the
C library's byte search.
"""

import attrs
import numpy as np

from kvarena.terms.invariants import invariant
from kvarena.terms.ports import HIGH, End, Holes, IntArray

WINDOW_PAGES = 256


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
    """One byte a page; indices count from the anchored end, so that nearest is lowest for either end."""

    def __init__(self, page_count: int, end: End) -> None:
        self.page_count = page_count
        self.count = 0
        self._mirrored = end is HIGH
        self._bytes = bytearray(page_count)
        self._is_hole = np.frombuffer(self._bytes, dtype=np.bool_)

    def __len__(self) -> int:
        return self.count

    def nearest(self, count: int) -> IntArray:
        """Up to ``count`` holes nearest the anchored end, from the nearest; nothing is removed."""
        return self._flip(self._scan(min(count, self.count), self._search_start()))

    def drop_below(self, stop: int) -> int:
        """Remove the holes directly below page ``stop``, as far as there is no gap; returns how many."""
        return self._drop_up(self.page_count - stop) if self._mirrored else self._drop_down(stop)

    def drop_above(self, start: int) -> int:
        """Remove the holes from page ``start`` upwards, as far as there is no gap; returns how many."""
        return self._drop_down(self.page_count - start) if self._mirrored else self._drop_up(start)

    def _search_start(self) -> int:
        """An index before which there is no hole."""
        return 0

    def _drop_down(self, stop: int) -> int:
        return self._drop(self._bytes.rfind(0, 0, stop) + 1, stop)

    def _drop_up(self, start: int) -> int:
        stop = self._bytes.find(0, start)
        return self._drop(start, stop if stop >= 0 else self.page_count)

    def _drop(self, start: int, stop: int) -> int:
        if start < stop:
            self._is_hole[start:stop] = False
            self.count -= stop - start
            self._removed(start)
        return stop - start

    def _removed(self, lowest: int) -> None:
        """Holes from index ``lowest`` on went without a take."""

    def _flip(self, pages: IntArray) -> IntArray:
        """Pages to indices and back."""
        return self.page_count - 1 - pages if self._mirrored else pages

    def _mark(self, places: IntArray) -> None:
        invariant("holes.added_twice", not np.count_nonzero(self._is_hole[places]), places=places)
        self._is_hole[places] = True
        self.count += len(places)

    def _clear(self, places: IntArray) -> None:
        held = np.count_nonzero(self._is_hole[places])
        invariant("holes.removed_is_a_hole", held == len(places), places=places)
        self._is_hole[places] = False
        self.count -= len(places)

    def _scan(self, count: int, start: int) -> IntArray:
        """The first ``count`` holes from index ``start`` on, in order. Windows double, so few calls find many."""
        found: list[IntArray] = []
        width = max(WINDOW_PAGES, 2 * count)
        while count > 0:
            start = self._bytes.find(1, start)
            invariant("holes.fewer_than_counted", start >= 0, missing=count)
            hits = self._is_hole[start : start + width].nonzero()[0][:count]
            found.append(hits + start)
            count -= len(hits)
            start += width
            width *= 2
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


class NearestHoles(HoleMap):
    """The map, a hint below which it has no hole to search for, and a stack of recent frees below the hint."""

    def __init__(self, page_count: int, end: End, recent_max: int) -> None:
        super().__init__(page_count, end)
        self._hint = page_count
        self._recent = np.empty(recent_max, dtype=np.int64)
        self._top = 0

    def add(self, pages: IntArray) -> None:
        """Pages were freed; none is a hole already."""
        places = self._flip(pages)
        self._mark(places)
        before = places if self._hint == self.page_count else places[places < self._hint]
        if self._top + len(before) <= len(self._recent):
            self._recent[self._top : self._top + len(before)] = before
            self._top += len(before)
        else:
            self._hint, self._top = min(int(before.min()), self._search_start()), 0  # the map finds them again

    def take(self, count: int) -> IntArray:
        """Remove and return ``count`` holes: recent frees before the hint, then from the hint on."""
        recent = min(count, self._top)
        places = self._recent[self._top - recent : self._top][::-1].copy()
        self._top -= recent
        if recent < count:
            found = self._scan(count - recent, self._hint)
            self._hint = int(found[-1]) + 1
            places = np.concatenate((places, found)) if recent else found
        self._clear(places)
        return self._flip(places)

    def remove(self, pages: IntArray) -> None:
        """These holes were filled by moves."""
        places = self._flip(pages)
        self._clear(places)
        if len(places):
            self._removed(int(places.min()))

    def _removed(self, lowest: int) -> None:
        if not self.count:
            self._hint, self._top = self.page_count, 0
        elif self._top and lowest < self._hint:
            recent = self._recent[: self._top]
            kept = recent[self._is_hole[recent]]
            self._top = len(kept)
            self._recent[: self._top] = kept

    def _search_start(self) -> int:
        return min(self._hint, int(self._recent[: self._top].min())) if self._top else self._hint


class RecentHoles(HoleMap):
    """The map and a stack. Removed pages stay in the stack until they surface: the map says which are holes."""

    def __init__(self, page_count: int, end: End) -> None:
        super().__init__(page_count, end)
        self._stack = np.empty(page_count + page_count // 4 + 16, dtype=np.int32)
        self._top = 0

    def add(self, pages: IntArray) -> None:
        """Pages were freed; none is a hole already."""
        places = self._flip(pages)
        self._mark(places)
        if self._top + len(places) > len(self._stack):
            kept = self._newest_first(self._stack[: self._top].astype(np.int64), excluded=places)[::-1]
            self._stack[: len(kept)] = kept
            self._top = len(kept)
        self._stack[self._top : self._top + len(places)] = places
        self._top += len(places)

    def take(self, count: int) -> IntArray:
        """Remove and return ``count`` holes, the newest first."""
        found: list[IntArray] = []
        while count > 0:
            invariant("holes.fewer_than_counted", self._top > 0, missing=count)
            size = min(count, self._top)
            chunk = self._stack[self._top - size : self._top].astype(np.int64)
            stale = self._top - self.count
            places = self._newest_first(chunk) if stale else chunk[::-1]
            self._top -= size
            self._clear(places)
            found.append(places)
            count -= len(places)
        if len(found) == 1:
            return self._flip(found[0])
        return self._flip(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    def remove(self, pages: IntArray) -> None:
        """These holes were filled by moves."""
        self._clear(self._flip(pages))
        self._removed(0)

    def _removed(self, lowest: int) -> None:
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
