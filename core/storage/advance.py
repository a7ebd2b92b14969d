"""Which pages of a batch retire as its requests advance, and when each row must be looked at again."""

import numpy as np

from kvarena.planning.demand import whole_pages
from kvarena.planning.plan import SubPool
from kvarena.storage.requests import RequestTable
from kvarena.terms.lifetimes import Lifetime, floor_reaches, prefix_floor
from kvarena.terms.ports import IntArray


def retiring_pages(pool: SubPool, table: RequestTable, rows: IntArray, before: IntArray) -> tuple[IntArray, IntArray]:
    """The pages of one sub-pool that no query at the rows' present length or later needs.

    ``before`` is the length at which each row was last looked at. Returns parallel arrays, the row and the
    page position of each; the caller frees those that are still bound.
    """
    tokens = pool.page_tokens or 1
    lengths = table.lengths[rows]
    floor = prefix_floor(pool.lifetime, lengths)
    if floor is not None:
        past = prefix_floor(pool.lifetime, before)
        first = (past if past is not None else np.zeros_like(floor)) // tokens
        return _spans(rows, first, floor // tokens)
    spans = [
        (row, pages.start, pages.stop)
        for row, start, stop in zip(rows.tolist(), before.tolist(), lengths.tolist(), strict=True)
        for pages in _newly_whole(pool.lifetime, start, stop, tokens)
    ]
    found = np.array(spans, dtype=np.int64).reshape(-1, 3)
    return _spans(found[:, 0], found[:, 1], found[:, 2])


def _newly_whole(lifetime: Lifetime, start: int, stop: int, tokens: int) -> tuple[range, ...]:
    """Pages wholly retired at ``stop``, near rows that retired since ``start``."""
    whole = whole_pages(lifetime.retired(0, stop), tokens)
    fresh = lifetime.retired(start, stop)
    return tuple(
        pages
        for piece in fresh
        for block in whole
        if (pages := range(max(block.start, piece.start // tokens), min(block.stop, -(-piece.stop // tokens))))
    )


def _spans(rows: IntArray, first: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Every position of the spans ``[first, stop)``, beside its row."""
    counts = np.maximum(stop - first, 0)
    total = int(counts.sum())
    if not total:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty
    owners = np.repeat(rows, counts)
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return owners, np.arange(total, dtype=np.int64) + starts


def next_crossings(pools: tuple[SubPool, ...], table: RequestTable, rows: IntArray, lengths: IntArray) -> IntArray:
    """The new length at which each row must next be looked at: until there, a step only counts tokens.

    A row at ``lengths`` is looked at when it needs another page, or when, at its then present length, a page
    retires that did not at the length it was looked at last. A lifetime that does not promise prefixes is
    looked at on every step.
    """
    tokens = next((pool.page_tokens for pool in pools if pool.page_tokens), 1)
    limit = table.page_counts[rows] * tokens
    for pool in pools:
        past = prefix_floor(pool.lifetime, table.looked_at[rows])
        if past is None:
            return lengths + 1
        limit = _first_retirement(pool.lifetime, past // tokens, lengths, limit, tokens)
    return limit + 1


def _first_retirement(lifetime: Lifetime, page: IntArray, low: IntArray, high: IntArray, tokens: int) -> IntArray:
    """The least length in [low, high) whose first needed page is beyond ``page``, else ``high``.

    Asked of the lifetime where it has a closed form, else found by bisection.
    """
    low = np.minimum(low, high)
    reached = floor_reaches(lifetime, (page + 1) * tokens)
    if reached is not None:
        return np.minimum(np.maximum(reached, low), high)
    high = high.copy()
    while (low < high).any():
        middle = (low + high) // 2
        floor = prefix_floor(lifetime, middle)
        beyond = (floor // tokens > page) if floor is not None else np.ones(len(page), dtype=bool)
        high = np.where(beyond, middle, high)
        low = np.where(beyond | (low >= high), low, middle + 1)
    return high
