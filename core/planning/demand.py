"""What one request needs of each sub-pool, in whole units: the one price, wherever it is asked.

A request's life, as it is priced:  1. it starts with the rows that a cache holds for it; those are not its own.
                                    2. its prompt is forwarded in chunks, or arrives whole.
                                    3. it grows by one row a step.
Before each step rows are let go of at the present length; then the step's rows are taken. The price is the most
that is held at one moment.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from kvarena.planning.peaks import chunk_stop, chunk_stops, peak_pages, whole_pages
from kvarena.planning.plan import Plan
from kvarena.terms.errors import KvarenaError, PlanError
from kvarena.terms.lifetimes import Lifetime
from kvarena.terms.units import TOKENS_MAX

__all__ = [
    "DEMAND_RULES", "LENGTH_MAX", "Demand", "Purpose", "RequestShape", "Rule", "check_grid", "chunk_stop",
    "chunk_stops", "decode_demand", "decode_peak_pages", "peak_pages", "request_demand", "whole_pages",
]  # fmt: skip

Demand = tuple[int, ...]
"""Units per sub-pool, in chain order."""


class Purpose(enum.Enum):
    """Why a price is asked. Each has its row in ``DEMAND_RULES``."""

    __hash__ = object.__hash__  # prices are remembered by it, and that of Enum is a Python function

    CEILING = "ceiling"
    """Can it be served at all? What an arriving request is clipped or refused by."""
    ADMIT = "admit"
    """May it start now?"""
    LOAD_BACK = "load back"
    """May its rows be brought back from the host, and the step after that be taken?"""
    DECODE_PREALLOC = "decode prealloc"
    """May a decode node receive its prompt's rows? Also what a running request may still need past its prompt."""


@attrs.frozen
class Rule:
    """How a purpose prices.

    ``arrives_whole``: the prompt's rows come at once, windows with what is needed behind them; else in chunks.
    ``whole_output``: all that may be generated is charged; else the expected part. ``first_step``: the row of the step
    after the prompt is charged in any case.
    """

    arrives_whole: bool = False
    whole_output: bool = False
    first_step: bool = False

    def output(self, output_tokens: int, output_fraction: float) -> int:
        """The output tokens that are charged; at least one of an expected part."""
        return output_tokens if self.whole_output else expected(output_tokens, output_fraction)

    def rows(self, prompt_tokens: int, output_tokens: int) -> int:
        """The rows that are ever written for so many output tokens: the last one sampled needs none."""
        return prompt_tokens + max(output_tokens - 1, int(self.first_step), 0)


DEMAND_RULES: Mapping[Purpose, Rule] = MappingProxyType(
    {
        Purpose.CEILING: Rule(whole_output=True),
        Purpose.ADMIT: Rule(),
        Purpose.LOAD_BACK: Rule(arrives_whole=True, first_step=True),
        Purpose.DECODE_PREALLOC: Rule(arrives_whole=True),
    }
)


LENGTH_MAX = TOKENS_MAX
"""A request has no more tokens of any kind: sums and products of lengths stay far below what an int64 holds."""


def _whole(value: Any) -> Any:
    """A count of few bits as a Python int; what is no count stays as it is, for the check."""
    if type(value) is int:
        return value
    return value.__index__() if hasattr(value, "__index__") and not isinstance(value, (bool, np.bool_)) else value


def _count(least: int, default: Any = attrs.NOTHING) -> Any:
    """A field that is a whole number, at least ``least``."""

    def check(_: Any, attribute: Any, value: Any) -> None:
        if type(value) is not int or value < least:
            raise KvarenaError(
                f"a request's {attribute.name} is {value!r}; it must be a whole number of at least {least}"
            )
        if value > LENGTH_MAX:
            raise KvarenaError(f"a request's {attribute.name} is {value!r}; it must be at most {LENGTH_MAX:,}")

    return attrs.field(default=default, validator=check, converter=_whole)


@attrs.frozen
class RequestShape:
    """A request as admission sees it: a prompt, of which a cache may hold the first rows, then one token a step.

    ``output_tokens`` are those that it may still generate; the last one sampled needs no row. ``cached_tokens``: whole
    pages, fewer than the prompt has; the request owns what comes after them.

    Raises:
        KvarenaError: one of them is no such number; it names the value.
    """

    prompt_tokens: int = _count(1)
    output_tokens: int = _count(0)
    cached_tokens: int = _count(0, default=0)

    def __attrs_post_init__(self) -> None:
        if self.cached_tokens >= self.prompt_tokens:
            raise KvarenaError(
                f"a request's cached_tokens are {self.cached_tokens} of a prompt of {self.prompt_tokens}; at least one "
                "token must be left to compute"
            )

    @property
    def rows(self) -> int:
        """The most rows that the request ever writes."""
        return self.prompt_tokens + max(0, self.output_tokens - 1)


def request_demand(
    plan: Plan,
    shape: RequestShape,
    purpose: Purpose = Purpose.ADMIT,
    *,
    chunk_tokens: int,
    slots_per_request: int = 1,
    grid: int | None = None,
    output_fraction: float = 1.0,
) -> Demand:
    """The most units of each sub-pool that the request holds at one moment of its life, its own pages alone.

    Rows that fell out of a window are freed before the next rows are taken; under overlap a page retired
    below a running forward counts as free, so the same bound holds there. With a ``grid``, a window's rows stay until
    the next grid point is complete, and chunks stop at grid points: the bound holds whether a checkpoint is taken there
    or not.

    Args:
        chunk_tokens: the most prompt tokens of a step.
        grid: tokens between checkpoints, a multiple of the page size; None where none are taken.
        output_fraction: the share of its output that a request is expected to use; see the purpose's rule.

    Raises:
        KvarenaError: the cached tokens are no whole pages; the grid is no multiple of the page size.
    """
    rule = DEMAND_RULES[purpose]
    check_grid(grid, plan.page_tokens)
    if shape.cached_tokens % plan.page_tokens:
        raise KvarenaError(
            f"a request's cached_tokens are {shape.cached_tokens}; they must be whole pages of {plan.page_tokens}"
        )
    prompt = shape.prompt_tokens
    rows = rule.rows(prompt, rule.output(shape.output_tokens, output_fraction))
    chunk = None if rule.arrives_whole else max(1, chunk_tokens)
    return tuple(
        slots_per_request
        if pool.page_tokens is None
        else peak_pages(
            pool.lifetime, pool.page_tokens, prompt, rows, chunk, cached_tokens=shape.cached_tokens, grid=grid
        )
        for pool in plan.sub_pools
    )


def decode_demand(plan: Plan, length: int, *, slots_per_request: int = 1, grid: int | None = None) -> Demand:
    """The most units of each sub-pool that a request holds while it grows token by token to ``length`` rows."""
    return request_demand(plan, RequestShape(1, length), chunk_tokens=1, slots_per_request=slots_per_request, grid=grid)


def decode_peak_pages(lifetime: Lifetime, page_tokens: int, length: int, *, grid: int | None = None) -> int:
    """The most pages of a sequence that grows row by row to ``length`` rows."""
    return peak_pages(lifetime, page_tokens, 1, length, 1, grid=grid)


def expected(output_tokens: int, output_fraction: float) -> int:
    """The share of an output that a request is charged for; at least one token."""
    return max(1, round(output_tokens * output_fraction))


def check_grid(grid: int | None, page_tokens: int) -> None:
    """Checkpoints lie at the ends of pages.

    Raises:
        PlanError: they would not.
    """
    if grid is not None and (grid < 1 or grid % page_tokens):
        raise PlanError(f"grid = {grid}: checkpoints lie at the ends of pages; use a multiple of {page_tokens}")
