"""What one request needs of each sub-pool, in whole units: the one price, wherever it is asked."""

import functools

import attrs
import numpy as np

from kvarena.planning.plan import Plan, SubPool
from kvarena.terms import ranges
from kvarena.terms.lifetimes import Full, Lifetime, common_multiple, prefix_floor, repeats
from kvarena.terms.ports import IntArray
from kvarena.terms.units import ceil_div

BLOCK_STEPS = 1 << 16
"""So many steps of a request's life are looked at together: a long context must not cost memory."""

Demand = tuple[int, ...]
"""Units per sub-pool, in chain order."""


@attrs.frozen
class RequestShape:
    """A request as admission sees it: a prompt forwarded in chunks, then one token a step.

    ``output_tokens`` are those that it may still generate; the last one sampled needs no row.
    """

    prompt_tokens: int = attrs.field(validator=attrs.validators.ge(1))
    output_tokens: int = attrs.field(validator=attrs.validators.ge(0))

    @property
    def rows(self) -> int:
        """The most rows that the request ever writes."""
        return self.prompt_tokens + max(0, self.output_tokens - 1)


def request_demand(plan: Plan, shape: RequestShape, *, chunk_tokens: int, slots_per_request: int = 1) -> Demand:
    """The most units of each sub-pool that the request holds at one moment of its life.

    Rows that fell out of a window are freed before the next rows are taken; under overlap a page retired
    below a running forward counts as free, so the same bound holds there.
    """
    return tuple(_units(pool, shape, chunk_tokens, slots_per_request) for pool in plan.sub_pools)


def decode_demand(plan: Plan, length: int, *, slots_per_request: int = 1) -> Demand:
    """The most units of each sub-pool that a request holds while it grows token by token to ``length`` rows."""
    return request_demand(plan, RequestShape(1, length), chunk_tokens=1, slots_per_request=slots_per_request)


def _units(pool: SubPool, shape: RequestShape, chunk_tokens: int, slots_per_request: int) -> int:
    if pool.page_tokens is None:
        return slots_per_request
    return peak_pages(pool.lifetime, pool.page_tokens, shape.prompt_tokens, shape.rows, max(1, chunk_tokens))


@functools.lru_cache(maxsize=65536)
def peak_pages(lifetime: Lifetime, page_tokens: int, prompt_tokens: int, rows: int, chunk_tokens: int) -> int:
    """The most pages that a sequence holds while it grows: by chunks to the prompt's end, then by single rows.

    The step from length a to b holds every page of rows below b that are not wholly retired at a.
    """
    if isinstance(lifetime, Full):
        return ceil_div(rows, page_tokens)
    peak = 0
    prompt_tokens, rows = _without_repeats(lifetime, page_tokens, prompt_tokens, rows, chunk_tokens)
    for first in range(0, prompt_tokens, chunk_tokens * BLOCK_STEPS):
        starts = np.arange(first, min(first + chunk_tokens * BLOCK_STEPS, prompt_tokens), chunk_tokens, dtype=np.int64)
        stops = np.minimum(starts + chunk_tokens, prompt_tokens)
        peak = max(peak, int(_pages_held(lifetime, page_tokens, starts, stops).max()))
    for first in range(prompt_tokens, rows, BLOCK_STEPS):
        starts = np.arange(first, min(first + BLOCK_STEPS, rows), dtype=np.int64)
        peak = max(peak, int(_pages_held(lifetime, page_tokens, starts, starts + 1).max()))
    return peak


def _without_repeats(
    lifetime: Lifetime, page_tokens: int, prompt_tokens: int, rows: int, chunk_tokens: int
) -> tuple[int, int]:
    """The prompt and rows of a shorter sequence with the same peak: what only repeats in the middle is left out."""
    found = repeats(lifetime)
    if found is None:
        return prompt_tokens, rows
    settled, period = found[0], common_multiple((found[1], page_tokens, chunk_tokens))
    answer = min(max(0, rows - prompt_tokens), settled + period)
    spare = max(0, prompt_tokens - settled - period - 2 * chunk_tokens)
    prompt_tokens -= spare - spare % period
    return prompt_tokens, prompt_tokens + answer


def decode_peak_pages(lifetime: Lifetime, page_tokens: int, length: int) -> int:
    """The most pages of a sequence that grows row by row to ``length`` rows."""
    return peak_pages(lifetime, page_tokens, 1, length, 1)


def _pages_held(lifetime: Lifetime, page_tokens: int, starts: IntArray, stops: IntArray) -> IntArray:
    last = -(-stops // page_tokens)
    floor = prefix_floor(lifetime, starts)
    if floor is not None:
        return last - floor // page_tokens
    gone = [whole_pages(lifetime.retired(0, start), page_tokens) for start in starts.tolist()]
    return last - np.array([sum(map(len, pages)) for pages in gone], dtype=np.int64)


def whole_pages(rows: tuple[range, ...], page_tokens: int) -> tuple[range, ...]:
    """The pages of which every row lies in ``rows``."""
    return tuple(
        pages
        for piece in ranges.merge(rows)
        if (pages := range(ceil_div(piece.start, page_tokens), piece.stop // page_tokens))
    )
