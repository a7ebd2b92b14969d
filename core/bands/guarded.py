"""Holes that a stranger's policy keeps, with every answer looked at before it is believed.

A hole order that gives a page twice, or one that is no hole, would hand one page to two requests. The take that asked
fails then, and keeps no page. Those that come with kvarena are proved by their own tests, and go unguarded.
"""

from collections.abc import Callable
from contextlib import suppress
from operator import index
from typing import Any

import numpy as np

from kvarena.terms.errors import PluginError
from kvarena.terms.invariants import OFF
from kvarena.terms.members import all_of, is_once
from kvarena.terms.owners import MISHAPS, misbehaves, raising
from kvarena.terms.ports import End, HoleOrder, Holes, IntArray

OWN = "kvarena.policies."
_KIND = "hole order"
_VERBS = ("__len__", "add", "take", "remove", "inside", "drop_below", "drop_above")


def open_holes(policy: HoleOrder, page_count: int, end: End, checks: int) -> Holes:
    """The holes of a new band, as the policy keeps them; from check level 1 on, guarded where it is a stranger's.

    Raises:
        PluginError: the policy fails, or opens something else.
    """
    try:
        holes = policy.open(page_count, end)
        lacking = [verb for verb in _VERBS if not hasattr(holes, verb)]
    except MISHAPS as error:
        finding = raising(f"open({page_count}, {end.name})", error)
        raise misbehaves("holes.raised", _KIND, policy, finding) from error
    if lacking:
        finding = f"open({page_count}, {end.name}) returned {holes!r}, which has no {lacking[0]!r}"
        raise misbehaves("holes.incomplete", _KIND, policy, finding)
    if checks == OFF or type(holes).__module__.startswith(OWN):
        return holes
    return GuardedHoles(policy, holes, page_count, end)


class GuardedHoles:
    """The policy's holes and, beside them, one byte a page that says which pages they are.

    Always:  the policy's holes are those of the map     (each answer is compared; where one is wrong or the policy
    raises, it is opened anew with the holes that there are, so that the band is as it was)
    """

    def __init__(self, policy: HoleOrder, holes: Holes, page_count: int, end: End) -> None:
        self._policy = policy
        self._holes = holes
        self._end = end
        self._bytes = bytearray(page_count)
        self._is_hole = np.frombuffer(self._bytes, dtype=np.bool_)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pages: IntArray) -> None:
        """Pages were freed; none is a hole already.

        Raises:
            PluginError: the policy fails; what was freed is free.
        """
        self._is_hole[pages] = True
        self._count += len(pages)
        self._answer(lambda: self._holes.add(pages), f"add() of {len(pages)} pages")

    def take(self, count: int) -> IntArray:
        """Remove and return ``count`` holes, in the order of the policy.

        Raises:
            PluginError: it returned something else, or fails.
        """
        asked = f"take({count})"
        pages = self._checked(self._answer(lambda: self._holes.take(count), asked), asked, count)
        self._is_hole[pages] = False
        self._count -= count
        return pages

    def remove(self, pages: IntArray) -> None:
        """These holes were filled by moves.

        Raises:
            PluginError: the policy fails; they are filled.
        """
        self._is_hole[pages] = False
        self._count -= len(pages)
        self._answer(lambda: self._holes.remove(pages), f"remove() of {len(pages)} pages")

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        """``count`` holes in pages ``[start, stop)``, or all there are. Nothing is removed.

        Raises:
            PluginError: it returned something else, or fails.
        """
        there = min(count, int(np.count_nonzero(self._is_hole[start:stop])))
        asked = f"inside({count}, {start}, {stop})"
        pages = self._checked(self._answer(lambda: self._holes.inside(count, start, stop), asked), asked, there)
        outside = pages[(pages < start) | (pages >= stop)]
        if len(outside):
            raise self._wrong("holes.page_outside", f"{asked} returned page {outside[0]}, which lies outside")
        return pages

    def drop_below(self, stop: int) -> int:
        """Remove the holes directly below page ``stop``, as far as there is no gap; returns how many.

        Raises:
            PluginError: it says another number, or fails.
        """
        start = self._bytes.rfind(0, 0, stop) + 1
        asked = f"drop_below({stop})"
        return self._dropped(self._answer(lambda: self._holes.drop_below(stop), asked), asked, start, stop)

    def drop_above(self, start: int) -> int:
        """Remove the holes from page ``start`` upwards, as far as there is no gap; returns how many.

        Raises:
            PluginError: it says another number, or fails.
        """
        gap = self._bytes.find(0, start)
        stop = gap if gap >= 0 else len(self._bytes)
        asked = f"drop_above({start})"
        return self._dropped(self._answer(lambda: self._holes.drop_above(start), asked), asked, start, stop)

    # -- inside

    def _answer(self, ask: Callable[[], Any], asked: str) -> Any:
        """What the policy says, or the error for one that cannot tell."""
        try:
            return ask()
        except MISHAPS as error:
            raise self._wrong("holes.raised", raising(asked, error)) from error

    def _checked(self, pages: Any, asked: str, count: int) -> IntArray:
        """The policy's answer, if it is so many holes, each once."""
        if not isinstance(pages, np.ndarray) or pages.dtype != np.int64 or pages.ndim != 1:
            found = f"{pages.dtype} of shape {pages.shape}" if isinstance(pages, np.ndarray) else repr(pages)
            raise self._wrong("holes.no_pages", f"{asked} returned {found}, no int64 array of one dimension")
        if len(pages) != count:
            raise self._wrong("holes.wrong_count", f"{asked} returned {len(pages)} pages where {count} were due")
        inside = (pages >= 0) & (pages < len(self._is_hole))
        strange = pages[~inside] if not all_of(inside) else pages[~self._is_hole[pages]]
        if len(strange):
            raise self._wrong("holes.no_hole", f"{asked} returned page {strange[0]}, which is no hole")
        if not is_once(pages):
            values, times = np.unique(pages, return_counts=True)
            twice = values[times > 1][0]
            raise self._wrong("holes.page_twice", f"{asked} returned page {twice} twice")
        return pages

    def _dropped(self, answer: Any, asked: str, start: int, stop: int) -> int:
        try:
            count = index(answer)
        except TypeError:
            count = -1
        if count != stop - start:
            finding = f"{asked} dropped {answer!r} pages of a run of {stop - start}; what was freed is free"
            raise self._wrong("holes.run_is_not_whole", finding)
        self._is_hole[start:stop] = False
        self._count -= count
        return count

    def _wrong(self, name: str, finding: str) -> PluginError:
        """The error; the policy begins anew with the holes that there are, if it can."""
        pages = np.flatnonzero(self._is_hole)
        with suppress(*MISHAPS):  # one that cannot even begin is told of what it did first, and of the rest when asked
            holes = self._policy.open(len(self._is_hole), self._end)
            if len(pages):
                holes.add(pages)
            self._holes = holes
        return misbehaves(name, _KIND, self._policy, finding)
