"""The most pages that one sequence holds in one sub-pool while it grows: exact, and quick however long it is.

The step from length a to b holds every page of rows below b that are not wholly retired at a. Most steps repeat what
others hold, one period of the lifetime, the page and the chunk later, so only these are looked at:

1. the last steps before the first page retires: as nothing retires, each holds more than the one before it;
2. from there one period;
3. the last chunks of the prompt, which may be shorter;
4. and the same of the steps of one row each after the prompt.
"""

import functools
from collections.abc import Iterator

import numpy as np

from kvarena.terms import ranges
from kvarena.terms.lifetimes import (
    Full,
    Lifetime,
    common_multiple,
    floor_reaches,
    on_grid,
    prefix_floor,
    repeats,
)
from kvarena.terms.ports import IntArray
from kvarena.terms.units import align_down, align_up, ceil_div

BLOCK_STEPS = 1 << 16
"""So many steps of a request's life are looked at together: a long context must not cost memory."""


def chunk_stop(start: int, prompt: int, chunk: int, grid: int | None) -> int:
    """Where the chunk of a prompt that begins at ``start`` ends: at most ``chunk`` tokens on, and at a grid point if
    one lies behind the start.

    So a prompt is cut at its last grid point too, and a chunk limit below the grid lands on every grid point.
    """
    stop = min(start + chunk, prompt)
    aligned = stop // grid * grid if grid else start
    return aligned if aligned > start else stop


def chunk_stops(starts: IntArray, prompts: IntArray | int, chunks: IntArray | int, grid: int | None) -> IntArray:
    """``chunk_stop`` of each start, int64."""
    stops: IntArray = np.minimum(starts + chunks, prompts)
    if not grid:
        return stops
    aligned = stops // grid * grid
    return np.where(aligned > starts, aligned, stops)


@functools.lru_cache(maxsize=65536)
def peak_pages(
    lifetime: Lifetime,
    page_tokens: int,
    prompt_tokens: int,
    rows: int,
    chunk_tokens: int | None,
    *,
    cached_tokens: int = 0,
    grid: int | None = None,
) -> int:
    """The most pages that a sequence holds while it grows: by chunks to the prompt's end, then by single rows.

    Args:
        chunk_tokens: the most rows of a chunk; None where the prompt's rows arrive at once, those that are still
            needed then.
        cached_tokens: so many rows are there from the start and not counted; whole pages.
        grid: retire, and cut chunks, on this grid of tokens; see ``on_grid`` and ``chunk_stop``.
    """
    if isinstance(lifetime, Full):
        return ceil_div(rows, page_tokens) - cached_tokens // page_tokens
    held = Held(on_grid(lifetime, grid), page_tokens, cached_tokens)
    peak = 0
    if chunk_tokens is None:
        arrived = np.array([prompt_tokens])
        peak = held.most(arrived, arrived)
    else:
        for starts in _chunk_starts(held, prompt_tokens, chunk_tokens, grid):
            peak = max(peak, held.most(starts, chunk_stops(starts, prompt_tokens, chunk_tokens, grid)))
    for starts in _row_starts(held, prompt_tokens, rows):
        peak = max(peak, held.most(starts, starts + 1))
    return peak


class Held:
    """How many pages of its own a sequence holds in a step, and where that can be largest.

    ``quiet``: no page retires at any start up to here. ``period``: from the first start after ``settled`` on, a step
    holds as much as one that begins and ends so many tokens later; None where nobody knows.
    """

    def __init__(self, lifetime: Lifetime, page_tokens: int, cached_tokens: int) -> None:
        self.lifetime = lifetime
        self.page_tokens = page_tokens
        self.cached_tokens = cached_tokens
        reached = floor_reaches(lifetime, np.array([cached_tokens + page_tokens]))
        self.quiet = int(reached[0]) - 1 if reached is not None else 0
        found = repeats(lifetime)
        self.period = common_multiple((found[1], page_tokens)) if found else None
        self.settled = max(found[0], self.quiet + 1) if found else 0
        if reached is None and self.period:
            # the first rows may stay: pages repeat once the rows that retire behind them, and behind what is cached,
            # fill a whole page, which two pages later they do
            self.settled = align_up(self.settled + cached_tokens + 2 * page_tokens, self.period)

    def pages(self, starts: IntArray, stops: IntArray) -> IntArray:
        """The pages of each of these steps, int64."""
        size, own = self.page_tokens, self.cached_tokens // self.page_tokens
        last = -(-stops // size)
        floor = prefix_floor(self.lifetime, starts)
        if floor is not None:
            return last - np.maximum(floor // size, own)
        gone = [_pages_from(own, whole_pages(self.lifetime.retired(0, start), size)) for start in starts.tolist()]
        return last - own - np.array(gone, dtype=np.int64)

    def most(self, starts: IntArray, stops: IntArray) -> int:
        """The most of these steps."""
        return int(self.pages(starts, stops).max(initial=0))


def whole_pages(rows: tuple[range, ...], page_tokens: int) -> tuple[range, ...]:
    """The pages of which every row lies in ``rows``."""
    return tuple(
        pages
        for piece in ranges.merge(rows)
        if (pages := range(ceil_div(piece.start, page_tokens), piece.stop // page_tokens))
    )


def _pages_from(first: int, pages: tuple[range, ...]) -> int:
    """How many of these pages are page ``first`` or later."""
    return sum(len(range(max(piece.start, first), piece.stop)) for piece in pages)


def _chunk_starts(held: Held, prompt: int, chunk: int, grid: int | None) -> Iterator[IntArray]:
    """Where those chunks of a prompt begin of which one holds the most.

    The first chunks lead to a grid point, if they do not begin on one. From there each *stride* begins alike: a chunk,
    or the chunks of one grid interval, or the chunk cut down to whole intervals.
    """
    first = held.cached_tokens
    stride = chunk if not grid else max(grid, align_down(chunk, grid))
    step = chunk if not grid else min(chunk, stride)
    regular = first
    if grid and first % grid:
        regular = chunk_stop(first, prompt, max(chunk, grid), grid)
        yield np.arange(first, regular, step if chunk < grid else regular - first)
    if grid and chunk >= grid:  # the chunk that would reach the prompt's end is cut at its last grid point
        count = ceil_div(max(0, prompt - chunk - regular), stride) + 1 if regular < prompt else 0
        last = align_down(prompt, grid)
        if regular + (count - 1) * stride < last < prompt:
            yield np.array([last])
    else:
        count = ceil_div(max(0, prompt - regular), stride)
    offsets = np.arange(0, stride, step)
    for low, high in _strides(held, range(regular, regular + count * stride, stride), len(offsets)):
        starts = (regular + np.arange(low, high)[:, None] * stride + offsets).reshape(-1)
        yield starts[starts < prompt]


def _strides(held: Held, strides: range, steps: int) -> Iterator[tuple[int, int]]:
    """Which strides, of so many steps each and beginning there, are worth looking at: in blocks of their numbers."""
    regular, stride, count = strides.start, strides.step, len(strides)
    low = min(max(0, (held.quiet - regular) // stride), max(0, count - 1))
    high = count
    if held.period is not None:
        repeat = common_multiple((held.period, stride)) // stride
        high = min(count, max(low, ceil_div(held.settled - regular, stride)) + repeat)
    block = max(1, BLOCK_STEPS // steps)
    for begin in range(low, high, block):
        yield begin, min(high, begin + block)
    if high < count:
        yield max(high, count - 2), count


def _row_starts(held: Held, prompt: int, rows: int) -> Iterator[IntArray]:
    """Where those steps of one row begin of which one holds the most."""
    low = max(prompt, min(held.quiet, rows - 1))
    high = rows if held.period is None else min(rows, max(low, held.settled) + held.period)
    for begin in range(low, high, BLOCK_STEPS):
        yield np.arange(begin, min(high, begin + BLOCK_STEPS))
