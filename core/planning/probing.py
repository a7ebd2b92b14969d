"""What a stranger's lifetime says, tried out at a set of lengths before anything is planned by it.

A lifetime that lets go of rows that are still read, or of ones that nobody has written, corrupts memory far from where
it is wrong. The built-in ones are proved by their own tests, and are not tried again.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import index
from typing import Any, NoReturn, cast

import attrs
import numpy as np

from kvarena.terms import ranges
from kvarena.terms.lifetimes import NEVER, Chunk, Full, Lifetime, OnGrid, State, Union, Window
from kvarena.terms.owners import MISHAPS, misbehaves, raising

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
        PluginError: a promise is broken: units below 0 or beyond what is written, rows that retire twice, unwritten or
            while they are needed, a ``floor``, ``reaches`` or ``repeats`` that says something else than ``retired``;
            with the length and what was said.
    """
    if type(lifetime) in BUILT_IN:
        return
    try:
        hash(lifetime)
    except MISHAPS as error:
        finding = f"it cannot be hashed ({type(error).__name__}: {error}); make it a frozen value"
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
            self._check_reaches(lengths)
            self._check_repeats(lengths)

    def _check_shape(self) -> None:
        lifetime = self._lifetime
        lacking = [name for name in _NEEDED if not hasattr(lifetime, name)]
        if lacking:
            self._fail("lifetime.incomplete", f"it has no {lacking[0]!r}")
        rank: Any = lifetime.rank
        if not isinstance(lifetime.name, str) or not lifetime.name:
            self._fail("lifetime.incomplete", f"its name is {lifetime.name!r}; it must be a text")
        if not lifetime.name.isprintable() or lifetime.name == Union.name:
            finding = f"its name is {lifetime.name!r}; it must be of one line, and {Union.name!r} is kvarena's own"
            self._fail("lifetime.incomplete", finding)
        if not isinstance(rank, tuple) or len(rank) != 2 or not all(isinstance(part, int) for part in rank):
            self._fail("lifetime.incomplete", f"its rank is {rank!r}; it must be a pair of whole numbers")
        if not isinstance(lifetime.own_ids, bool):
            self._fail("lifetime.incomplete", f"its own_ids is {lifetime.own_ids!r}; it must be True or False")

    def _check_units(self, length: int) -> None:
        """What it keeps at a length is a count, no more than is written, and no more is needed than lives."""
        lifetime = self._lifetime
        entries = self._count("entries", length)
        retained = self._count("retained", length)
        if lifetime.own_ids and entries != 1:
            finding = f"entries({length}) is {entries}, and its slot is 1 entry at any length"
            self._fail("lifetime.more_than_there_are", finding)
        if entries > length and not lifetime.own_ids:
            self._fail("lifetime.more_than_there_are", f"entries({length}) is {entries}, more rows than there are")
        if retained > entries:
            finding = f"retained({length}) is {retained}, more than entries({length}), which is {entries}"
            self._fail("lifetime.needs_more_than_lives", finding)

    def _check_retired(self, start: int, stop: int) -> None:
        """What retires on the way from one length to the next is written, not gone before, and not needed."""
        retained, entries = self._lifetime.retained(stop), self._lifetime.entries(stop)
        alive = stop - sum(map(len, self._gone))
        if alive > entries and start == stop - 1 and not self._lifetime.own_ids:
            finding = f"entries({stop}) is {entries}, and {alive} rows are alive until what retires there has"
            self._fail("lifetime.more_than_it_says", finding)
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
        floors = self._numbers("floor", lengths)
        if floors is None:
            return
        for length, floor in zip(lengths, floors, strict=True):
            gone = self._gone_at(length)
            if gone != ((range(floor),) if floor > 0 else ()) or floor < 0:
                finding = (
                    f"floor says {floor} at length {length}, and the rows that retired by then are {_listed(gone)}"
                )
                self._fail("lifetime.floor_differs", finding)

    def _check_reaches(self, lengths: list[int]) -> None:
        """The inverse of the closed form, where there is one, is that."""
        rows = [length for length in lengths if length]
        reached, floors = self._numbers("reaches", rows), self._numbers("floor", lengths)
        if reached is None:
            return
        if floors is None:
            self._fail("lifetime.reaches_differs", "it has reaches, and no floor that this could be the inverse of")
        seen = dict(zip(lengths, floors, strict=True))
        for name in (0, -1):  # what floor says at these lengths, and one token before
            asked = sorted({min(max(length + name, 0), NEVER) for length in reached})
            seen.update(zip(asked, self._numbers("floor", asked) or (), strict=True))
        for row, length in zip(rows, reached, strict=True):
            there = next((at for at in lengths if seen[at] >= row), None)
            if length >= NEVER:
                wrong, found = there is not None, f"at length {there} already"
            else:
                wrong = length < 1 or seen[length] < row or seen[length - 1] >= row
                found = f"{seen[max(length - 1, 0)]} at length {max(length - 1, 0)} and {seen[max(length, 0)]} one on"
            if wrong:
                finding = (
                    f"reaches says {length} for row {row}, and floor is {found}; it must be the least length at which "
                    f"floor is {row} or more, and {NEVER} where there is none"
                )
                self._fail("lifetime.reaches_differs", finding)

    def _check_repeats(self, lengths: list[int]) -> None:
        """What is kept a number of periods later is the same, so many rows on, beside rows that stay.

        ``entries`` is not looked at here: it may say more than live, and no price that ``repeats`` shortens asks it.
        """
        ask = getattr(self._lifetime, "repeats", None)
        if ask is None:
            return
        answer = self._call(ask, "repeats()")
        whole = isinstance(answer, tuple) and len(answer) == 2 and all(type(part) is int for part in answer)
        if not whole or answer[0] < 0 or answer[1] < 1:
            finding = f"repeats() is {answer!r}; it must be a pair of whole numbers"
            self._fail("lifetime.no_period", f"{finding}: a length, 0 or more, and a period in tokens, 1 or more")
        start, period = answer
        later = {start, *(length for length in lengths if length >= start)}
        later |= {length + period for length in later}
        if not self._gone and self._never_retires():
            return
        for length in sorted(length for length in later if start + period <= length <= BORDERS_MAX):
            self._check_period(start + (length - start) % period, length, period)

    def _check_period(self, base: int, length: int, period: int) -> None:
        """What is kept at a length is what was kept at ``base``, some periods before."""
        said = f"repeats() says that needs repeat every {period} tokens, and"
        before, now = (self._count("retained", at) for at in (base, length))
        if before != now:
            finding = f"{said} retained({base}) is {before}, and retained({length}) {now}"
            self._fail("lifetime.repeats_differs", finding)
        beyond = base + (base // period + 1) * period  # what moves has left the rows below ``base`` by then
        was = self._kept_at(base)
        stay = ranges.intersect(self._kept_at(beyond), was)
        moved = [range(rows.start + length - base, rows.stop + length - base) for rows in ranges.subtract(was, stay)]
        due, kept = ranges.merge((*stay, *moved)), self._kept_at(length)
        if kept != due:
            finding = f"{said} at length {base} rows {_listed(was)} are kept, at {length} {_listed(kept)}"
            self._fail("lifetime.repeats_differs", f"{finding}, where {_listed(due)} were due")

    def _never_retires(self) -> bool:
        """Whether it says itself that no row ever goes: then there is nothing to repeat."""
        reached = self._numbers("reaches", [1])
        return reached is not None and reached[0] >= NEVER

    # -- asking

    def _gone_at(self, length: int) -> ranges.Ranges:
        """The rows that have retired at a length."""
        return ranges.merge(self._ranges(0, length)) if length else ()

    def _kept_at(self, length: int) -> ranges.Ranges:
        """The rows that have not."""
        return ranges.subtract((range(length),), self._gone_at(length))

    def _numbers(self, name: str, asked: list[int]) -> list[int] | None:
        """What ``floor`` or ``reaches`` says to each of these; None where the lifetime has no such thing."""
        ask = getattr(self._lifetime, name, None)
        if ask is None:
            return None
        answer = self._call(lambda: ask(np.array(asked, dtype=np.int64)), name)
        if not isinstance(answer, np.ndarray) or answer.dtype != np.int64 or answer.shape != (len(asked),):
            finding = f"{name} of {len(asked)} numbers is {answer!r}; it must be an int64 array of as many"
            self._fail("lifetime.no_numbers", finding)
        return [int(number) for number in answer]

    def _count(self, name: str, length: int) -> int:
        answer = self._call(lambda: getattr(self._lifetime, name)(length), f"{name}({length})")
        try:
            count = index(answer)
        except TypeError:
            finding = f"{name}({length}) is {answer!r}; it must be a whole number of units"
            self._fail("lifetime.no_whole_units", finding)
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
        except MISHAPS as error:
            raise misbehaves("lifetime.fails", _KIND, self._lifetime, raising(words, error)) from error

    def _fail(self, name: str, finding: str) -> NoReturn:
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
