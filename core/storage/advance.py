"""Which pages of a batch retire as its requests advance, and when each row must be looked at again."""

from functools import partial
from typing import NamedTuple, cast

import numpy as np

from kvarena.planning.demand import LENGTH_MAX, whole_pages
from kvarena.planning.plan import Plan, SubPool
from kvarena.storage.requests import RequestTable
from kvarena.terms import ranges
from kvarena.terms.invariants import WARN, invariant
from kvarena.terms.lifetimes import NEVER, Full, Lifetime, bare, floor_reaches, on_grid, prefix_floor
from kvarena.terms.numbers import spread
from kvarena.terms.owners import misbehaves
from kvarena.terms.paging import Paging
from kvarena.terms.ports import IntArray


class Retired(NamedTuple):
    """Pages that retire: their ``places`` in ``RequestTable.flat``; the rows that they are of, and per row the first
    page that it still needs, or one row a page where what retires is in no order. ``given``: places of pages that were
    handed over and that the rows need no more, where ids retire with the sub-pool: nobody may find them there then."""

    places: IntArray
    rows: IntArray
    floor: IntArray
    given: IntArray | None = None


class Retirement:
    """How the pages of one token sub-pool retire. ``column``: its row in ``RequestTable.retired``.

    ``in_order``: what retires are always the first pages, so ``retired`` says which; else it only counts them.
    ``grid``: where checkpoints are kept on one, pages stay that a query at the latest grid point of the row needs,
    whether the checkpoint was taken there or skipped. What a query needs itself, ``needed``, is no matter of grids.
    """

    def __init__(
        self, pool: SubPool, column: int, grid: int | None, *, pages: int, mints: bool = False, checks: int = WARN
    ) -> None:
        """``pages``: those of the longest row. ``mints``: page ids come back when this sub-pool lets go of them.

        ``checks``: the level of checks; from 1 on a lifetime that is asked row by row is checked as it answers.
        """
        self.name = pool.name
        self.column = column
        self.mints = mints
        self._checks = checks
        self.lifetime = on_grid(pool.lifetime, grid)
        self.paging = Paging(pool.page_tokens or 1)
        zero = np.zeros(1, dtype=np.int64)
        self.in_order = prefix_floor(pool.lifetime, zero) is not None
        self._needs = pool.lifetime
        retires = self.in_order and not never_retires(self)
        starts = self.paging.starts(np.arange(1, pages + 1 if retires else 1))
        self._ends = self._needed_to = np.append(_lengths_of(self._needs, starts), NEVER)
        """The lengths at which one page after another retires, and ``NEVER``; ``_needed_to``: whatever a grid keeps."""
        if self.lifetime is not self._needs:
            self._ends = np.append(_lengths_of(self.lifetime, starts), NEVER)

    def newly_retired(self, table: RequestTable, rows: IntArray, lengths: IntArray) -> Retired | None:
        """The pages that no query at the rows' present lengths or later needs, and that were needed before.

        Pages that a row has handed over are not its own to free, and left out. ``note`` them once they are free.
        """
        if not self.in_order:
            return self._one_by_one(table, rows, lengths)
        floor, gone = self._ends.searchsorted(lengths, "right"), table.retired[self.column][rows]
        due = (floor != gone).nonzero()[0]
        if not len(due):
            return None
        if len(due) < len(rows):
            rows, floor, gone = rows[due], floor[due], gone[due]
        first, given = floor, None
        if table.any_handed:
            handed = table.handed[rows]
            if self.mints:
                given = places_of(table, rows, gone, np.minimum(floor, handed))
            gone, first = np.maximum(gone, handed), np.maximum(first, handed)
        counts, places = first - gone, table.firsts[rows] + gone
        if counts.tobytes() != table.ones[: len(counts)].tobytes():
            if counts[counts.argmin()] < 0:
                self._check_needs(table, rows, lengths[due])
                floor, counts = np.maximum(floor, table.retired[self.column][rows]), np.maximum(counts, 0)
            places = spread(places, counts, counts.cumsum())
        return Retired(places, rows, floor, given)

    def note(self, table: RequestTable, retired: Retired) -> None:
        """The pages that ``newly_retired`` found are free."""
        table.version += 1
        if self.in_order:
            table.retired[self.column][retired.rows] = retired.floor
        else:
            np.add.at(table.retired[self.column], retired.rows, 1)

    def kept(self, length: int, count: int) -> IntArray:
        """Of a row's first ``count`` pages, those that it still has at this length."""
        if self.in_order:
            return np.arange(min(_gone(self._ends, length), count), count)
        return self._but(whole_pages(self.lifetime.retired(0, length), self.paging.tokens), count)

    def needed(self, length: int, ids: IntArray) -> IntArray:
        """Of the ids of a sequence's pages, those that a query at this length needs, whatever a grid keeps."""
        if self.in_order:
            return ids[_gone(self._needed_to, length) :]
        return ids[self._but(whole_pages(self._needs.retired(0, length), self.paging.tokens), len(ids))]

    def due(self, table: RequestTable, rows: IntArray) -> IntArray | int:
        """The least present length at which another page of each row retires; 0 where it is not known."""
        return self._ends[table.retired[self.column][rows]] if self.in_order else 0

    def retired_too_much(self, table: RequestTable, row: int, length: int) -> bool:
        """Whether a query at this length, below the row's present one, would need pages that the row let retire.

        Of those that it handed over the new owner may have kept all; but where ids retire too it names them no more.
        """
        own, left = 0 if self.mints else int(table.handed[row]), -(-length // self.paging.tokens)
        if self.in_order:
            return max(_gone(self._needed_to, length), own) < min(int(table.retired[self.column, row]), left)
        gone = self._whole(int(table.looked_at[row])) - self._whole(length)
        return any(own <= page < left for page in gone)

    def _check_needs(self, table: RequestTable, rows: IntArray, lengths: IntArray) -> None:
        """No query at these lengths needs a page that its row let retire, though a grid point passed said it might."""
        needed = np.maximum(self._needed_to.searchsorted(lengths, "right"), table.handed[rows])
        there = (needed >= table.retired[self.column][rows]).all()
        invariant("storage.step_needs_retired_rows", there, sub_pool=self.name, rows=rows)

    def _whole(self, length: int) -> set[int]:
        """The pages wholly retired at a length."""
        blocks = whole_pages(self.lifetime.retired(0, length), self.paging.tokens)
        return {page for pages in blocks for page in pages}

    def _but(self, gone: tuple[range, ...], count: int) -> IntArray:
        """The first ``count`` pages without these."""
        kept = np.ones(count, dtype=np.bool_)
        for pages in gone:
            kept[pages.start : pages.stop] = False
        return np.flatnonzero(kept)

    def _one_by_one(self, table: RequestTable, rows: IntArray, lengths: IntArray) -> Retired:
        """For a lifetime that retires rows in any order: ask it, row by row, what went since the last look."""
        found = [
            (row, page, page < handed)
            for row, start, stop, handed in zip(
                rows.tolist(),
                table.looked_at[rows].tolist(),
                lengths.tolist(),
                table.handed[rows].tolist(),
                strict=True,
            )
            for page in self._newly_whole(start, stop)
        ]
        triples = np.array(found, dtype=np.int64).reshape(-1, 3)
        places, is_given = triples[:, 0] * table.pages_per_row + triples[:, 1], triples[:, 2] > 0
        own = triples[~is_given]
        return Retired(places[~is_given], own[:, 0], own[:, 1], places[is_given] if self.mints else None)

    def _newly_whole(self, start: int, stop: int) -> list[int]:
        """Pages wholly retired at ``stop`` and not at ``start``, each once: its rows may go in several pieces."""
        was, gone = (self.lifetime.retired(0, at) for at in (start, stop))
        if self._checks:
            self._check_left(gone, stop)
        before, whole = (whole_pages(rows, self.paging.tokens) for rows in (was, gone))
        return [page for pages in ranges.subtract(whole, before) for page in pages]

    def _check_left(self, gone: tuple[range, ...], length: int) -> None:
        """A lifetime that answers row by row leaves what it says is needed, and retires nothing that is not written."""
        lifetime = self.lifetime
        left, needed = length - sum(map(len, gone)), lifetime.retained(length)
        if left < needed or max((piece.stop for piece in gone if piece), default=0) > length:
            rows = ranges.spelled((row for piece in gone for row in piece), 4)
            finding = f"at length {length} rows {rows} have retired, and {needed} are needed; nothing was freed"
            raise misbehaves("lifetime.retires_what_it_needs", "lifetime", bare(lifetime), finding)


def retirements(plan: Plan, grid: int | None = None, *, pages: int, checks: int = WARN) -> tuple[Retirement, ...]:
    """How each token sub-pool retires, the owner last: page ids come back when nobody else is bound to them.

    ``pages``: those of the longest row.
    ``grid``: the tokens between the checkpoints of a prefix cache, which windows are kept for; None where none is kept.
    ``checks``: the level of checks.
    """
    columns = {name: index for index, name in enumerate(plan.names)}
    pools = sorted(plan.token_pools, key=lambda pool: pool.name == plan.owner)
    return tuple(
        Retirement(pool, columns[pool.name], grid, pages=pages, mints=pool.name == plan.owner, checks=checks)
        for pool in pools
    )


def _lengths_of(lifetime: Lifetime, rows: IntArray) -> IntArray:
    """The least lengths at which the first row still needed is at least each of these, rising."""
    floor = partial(_floor_of, lifetime)
    lengths = floor_reaches(lifetime, rows)
    if lengths is not None and (floor(lengths) >= rows).all() and (floor(lengths - 1) < rows).all():
        return lengths
    low, high = np.zeros_like(rows), rows.copy()
    while (short := floor(high) < rows).any() and high.max() <= LENGTH_MAX:
        high = np.where(short, 2 * high, high)
    while (low < high).any():
        middle = (low + high) // 2
        beyond = floor(middle) >= rows
        high = np.where(beyond, middle, high)
        low = np.where(beyond | (low >= high), low, middle + 1)
    return high


def _floor_of(lifetime: Lifetime, lengths: IntArray) -> IntArray:
    """The first row still needed, by length."""
    return cast(IntArray, prefix_floor(lifetime, lengths))


def _gone(ends: IntArray, length: int) -> int:
    """How many pages are gone at a length."""
    return int(ends.searchsorted(length, "right"))


def never_retires(retirement: Retirement) -> bool:
    """Whether every page stays until its request ends."""
    return isinstance(retirement.lifetime, Full)


def places_of(table: RequestTable, rows: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Where the pages of these rows from ``low`` to ``high`` stand, those aside of which there are none."""
    some = (high > low).nonzero()[0]
    counts = high[some] - low[some]
    return spread(table.firsts[rows[some]] + low[some], counts, counts.cumsum())
