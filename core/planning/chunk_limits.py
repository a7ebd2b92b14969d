"""The largest chunk limit with which a request fits: exact, though its need is not monotone in the limit.

1. For every limit at once, a few of the request's steps give a bound that its need is never below.
2. What does not fit with the bound does not fit at all; few bounds differ, and each is asked about once.
3. Of the limits that are left, the largest is priced whole, then the next, until one fits.
"""

import functools
from collections.abc import Callable

import numpy as np

from kvarena.planning.demand import Demand, RequestShape
from kvarena.planning.peaks import Held, chunk_stops
from kvarena.planning.plan import Plan, SubPool
from kvarena.terms.lifetimes import on_grid, prefix_floor
from kvarena.terms.ports import IntArray

STEPS = 16
"""So many steps of every limit are looked at for its bound."""

Price = Callable[[int], Demand]
"""What the request costs at a chunk limit."""


def largest_chunk(
    plan: Plan, shape: RequestShape, limits: range, price: Price, fits: Callable[[Demand], bool], *, grid: int | None
) -> tuple[int, Demand] | None:
    """The largest of these chunk limits with which the request fits, and its price then; None if there is none.

    Args:
        limits: from 1 on.
        price: of a limit; what the last tokens of the request need is in it.
        fits: whether a demand does; a larger demand never fits where a smaller one does not.
    """
    least = price(1)  # no step of it takes more than any other limit's step that takes the same page
    if not len(limits) or not fits(least):
        return None
    chunks, bounds = _bounds(plan, shape, limits.stop - 1, grid)
    bounds = np.maximum(bounds, np.array(least))
    different, which = np.unique(bounds, axis=0, return_inverse=True)
    may = np.array([fits(tuple(bound)) for bound in different.tolist()])
    for chunk in chunks[may[which.reshape(-1)]].tolist():
        demand = price(chunk)
        if fits(demand):
            return chunk, demand
    return None


@functools.lru_cache(maxsize=64)
def _bounds(plan: Plan, shape: RequestShape, limit: int, grid: int | None) -> tuple[IntArray, IntArray]:
    """The limits worth asking about, falling, and per limit and sub-pool what the request holds at least, at most."""
    chunks = _different(shape, limit, grid)
    bounds = np.zeros((len(chunks), len(plan.sub_pools)), dtype=np.int64)
    for column, pool in enumerate(plan.sub_pools):
        if pool.page_tokens is not None:
            bounds[:, column] = _pages(pool, shape, chunks, grid)
    return chunks, bounds


def _different(shape: RequestShape, limit: int, grid: int | None) -> IntArray:
    """Limits up to ``limit``, falling; of those that make the same chunks, the largest."""
    chunks = np.arange(limit, 0, -1)
    if not grid or shape.cached_tokens % grid:
        return chunks
    different: IntArray = chunks[(chunks % grid == grid - 1) | (chunks < grid) | (chunks == limit)]
    return different


def _pages(pool: SubPool, shape: RequestShape, chunks: IntArray, grid: int | None) -> IntArray:
    """The most pages that some chunks of the prompt hold, per limit."""
    size, prompt, first = pool.page_tokens or 1, shape.prompt_tokens, shape.cached_tokens
    held = Held(on_grid(pool.lifetime, grid), size, first)
    regular, stride, step = np.full_like(chunks, first), chunks, chunks
    last = (prompt - 1 - regular) // stride
    if grid:
        stride = np.maximum(grid, chunks // grid * grid)
        step = np.minimum(chunks, stride)
        if first % grid:
            regular = chunk_stops(regular, prompt, np.maximum(chunks, grid), grid)
        last = np.where(chunks < grid, prompt - 1 - regular, np.maximum(0, stride + prompt - 1 - chunks - regular))
        last //= stride
    low = np.clip((held.quiet - regular) // stride, 0, np.maximum(last, 0))
    each = -(-stride // step)
    most = np.zeros_like(chunks)
    for number in range(STEPS):
        at = low + number // each
        starts = regular + at * stride + number % each * step
        pages = _step_pages(held, starts, chunk_stops(starts, prompt, chunks, grid))
        np.maximum(most, np.where((at <= last) & (starts < prompt), pages, 0), out=most)
    return most


def _step_pages(held: Held, starts: IntArray, stops: IntArray) -> IntArray:
    """What steps hold; at least the pages of their new rows, where a lifetime retires in no order."""
    if prefix_floor(held.lifetime, starts[:1]) is None:
        return -(-stops // held.page_tokens) - starts // held.page_tokens
    return held.pages(starts, stops)
