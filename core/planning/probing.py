"""What a stranger's lifetime says, tried out at a set of lengths before anything is planned by it.

A lifetime that lets go of rows that are still read, or of ones that nobody has written, corrupts memory far from where
it is wrong. The built-in ones are proved by their own tests, and are not tried again.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import index
from typing import Any, cast

import attrs
import numpy as np

from kvarena.terms import ranges
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, OnGrid, State, Union, Window, prefix_floor
from kvarena.terms.owners import misbehaves

BUILT_IN = (Full, Window, Chunk, State, Union, OnGrid)
BORDERS_MAX = 1 << 20
"""No border above this length is probed."""
PIECES_MAX = 64
"""What retired is looked at until it lies in so many pieces."""

_KIND = "lifetime"
_NEEDED = ("name", "rank", "own_ids", "entries", "retained", "retired")


def check_lifetime(lifetime: Lifetime, page_tokens: int) -> None:
    """Ask a lifetime what it says at lengths around the borders of pages, of its window and of its numbers.

    Raises:
        PluginError: a promise is broken: units below 0, rows that retire twice, unwritten or while they are needed, a
            ``floor`` that says something else than ``retired``; with the length and what was said.
    """
    if type(lifetime) in BUILT_IN:
        return
    try:
        hash(lifetime)
    except TypeError as error:
        finding = f"it cannot be hashed ({error}); make it a frozen value"
        raise misbehaves("lifetime.incomplete", _KIND, lifetime, finding) from None
    _probe(lifetime, page_tokens)


@lru_cache(maxsize=256)
def _probe(lifetime: Lifetime, page_tokens: int) -> None:
    _Probe(lifetime).run(_lengths(lifetime, page_tokens))


class _Probe:
    """One sequence that grows through the lengths, and the rows that have gone by then."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._gone: ranges.Ranges = ()

    def run(self, lengths: list[int]) -> None:
        """From 0 through all lengths."""
        self._check_shape()
        before = 0
        for length in lengths:
            self._check_units(length)
            if length > before and len(self._gone) < PIECES_MAX:
                self._check_retired(before, length)
                before = length
        if not self._lifetime.own_ids:
            self._check_floor(lengths)

    def _check_shape(self) -> None:
        lifetime = self._lifetime
        lacking = [name for name in _NEEDED if not hasattr(lifetime, name)]
        if lacking:
            self._fail("lifetime.incomplete", f"it has no {lacking[0]!r}")
        rank: Any = lifetime.rank
        if not isinstance(lifetime.name, str) or not lifetime.name:
            self._fail("lifetime.incomplete", f"its name is {lifetime.name!r}; it must be a text")
        if not isinstance(rank, tuple) or len(rank) != 2 or not all(isinstance(part, int) for part in rank):
            self._fail("lifetime.incomplete", f"its rank is {rank!r}; it must be a pair of whole numbers")

    def _check_units(self, length: int) -> None:
        """What it keeps at a length is a count, and no more is needed than lives."""
        lifetime = self._lifetime
        entries = self._count(lifetime.entries, length)
        retained = self._count(lifetime.retained, length)
        if retained > entries:
            finding = f"retained({length}) is {retained}, more than entries({length}), which is {entries}"
            self._fail("lifetime.needs_more_than_lives", finding)
        if retained > length and not lifetime.own_ids:
            self._fail("lifetime.needs_more_than_lives", f"retained({length}) is {retained}, more rows than there are")

    def _check_retired(self, start: int, stop: int) -> None:
        """What retires on the way from one length to the next is written, not gone before, and not needed."""
        retained = self._lifetime.retained(stop)
        rows = self._ranges(start, stop)
        if rows and self._lifetime.own_ids:
            self._fail("lifetime.retires_what_it_needs", f"retired({start}, {stop}) names rows, and a slot has none")
        twice = ranges.intersect(self._gone, rows)
        if twice or sum(map(len, rows)) > sum(map(len, ranges.merge(rows))):
            again = f"row {twice[0].start}, which was retired before" if twice else "a row twice"
            self._fail("lifetime.retires_twice", f"retired({start}, {stop}) names {again}")
        unwritten = [piece for piece in rows if piece.start < 0 or piece.stop > stop]
        if unwritten:
            finding = f"retired({start}, {stop}) names rows {_listed(unwritten[:1])}, and rows 0-{stop - 1} are written"
            self._fail("lifetime.retires_unwritten_rows", finding)
        self._gone = ranges.merge((*self._gone, *rows))
        left = stop - sum(map(len, self._gone))
        if left < retained and not self._lifetime.own_ids:
            finding = (
                f"at length {stop} it has retired rows {_listed(self._gone)}, which leaves {left}, and "
                f"retained({stop}) says that {retained} are needed"
            )
            self._fail("lifetime.retires_what_it_needs", finding)
        whole = ranges.merge(self._ranges(0, stop))
        if whole != self._gone:
            finding = f"retired(0, {stop}) names rows {_listed(whole)}, and step by step it was {_listed(self._gone)}"
            self._fail("lifetime.retired_depends_on_steps", finding)

    def _check_floor(self, lengths: list[int]) -> None:
        """The closed form, where there is one, says what ``retired`` does."""
        lifetime = self._lifetime
        floors = self._call(lambda: prefix_floor(lifetime, np.array(lengths, dtype=np.int64)), "floor")
        if floors is None:
            return
        for length, floor in zip(lengths, np.asarray(floors).tolist(), strict=True):
            gone = ranges.merge(lifetime.retired(0, length)) if length else ()
            if gone != ((range(floor),) if floor > 0 else ()) or floor < 0:
                finding = (
                    f"floor says {floor} at length {length}, and the rows that retired by then are {_listed(gone)}"
                )
                self._fail("lifetime.floor_differs", finding)

    # -- asking

    def _count(self, ask: Callable[[int], Any], length: int) -> int:
        name = ask.__name__
        answer = self._call(lambda: ask(length), f"{name}({length})")
        try:
            count = index(answer)
        except TypeError:
            count = -1
        if count < 0:
            finding = f"{name}({length}) is {answer!r}; it must be a whole number of units, 0 or more"
            self._fail("lifetime.negative_units", finding)
        return count

    def _ranges(self, start: int, stop: int) -> tuple[range, ...]:
        rows = self._call(lambda: self._lifetime.retired(start, stop), f"retired({start}, {stop})")
        whole = isinstance(rows, tuple) and all(isinstance(piece, range) and piece.step == 1 for piece in rows)
        if not whole:
            self._fail("lifetime.no_ranges", f"retired({start}, {stop}) is {rows!r}; it must be a tuple of ranges")
        return tuple(piece for piece in rows if piece)

    def _call(self, ask: Callable[[], Any], words: str) -> Any:
        try:
            return ask()
        except Exception as error:  # a stranger's code may raise anything
            finding = f"{words} raised {type(error).__name__}: {error}"
            raise misbehaves("lifetime.fails", _KIND, self._lifetime, finding) from error

    def _fail(self, name: str, finding: str) -> None:
        raise misbehaves(name, _KIND, self._lifetime, finding)


def _lengths(lifetime: Lifetime, page_tokens: int) -> list[int]:
    """0, 1, and one row below, at and above each border: of pages, of the powers of 2, of the value's own numbers."""
    kept = (
        attrs.asdict(cast(Any, lifetime), recurse=False)
        if attrs.has(type(lifetime))
        else getattr(lifetime, "__dict__", {})
    )
    own = {abs(value) for value in kept.values() if isinstance(value, int) and not isinstance(value, bool)}
    own |= {sum(own)}
    rank: Any = getattr(lifetime, "rank", None)
    if isinstance(rank, tuple) and len(rank) == 2 and isinstance(rank[1], int):
        own.add(abs(rank[1]))
    borders = {page_tokens * count for count in (1, 2, 3)} | {1 << power for power in range(11)}
    borders |= {base + page for base in own for page in (0, page_tokens)} | {2 * base for base in own}
    near = {border + step for border in borders if border <= BORDERS_MAX for step in (-1, 0, 1)}
    return sorted({0, 1, *(length for length in near if length >= 0)})


def _listed(rows: Iterable[range]) -> str:
    """Rows for people, such as ``0-3, 8``."""
    return ranges.spelled((row for piece in rows for row in piece), 4) or "none"
