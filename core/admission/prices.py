"""What requests cost in one arena, remembered by their lengths; and whether it could serve them at all."""

import functools
from collections.abc import Callable
from operator import add
from typing import Any

from kvarena.planning.charges import most
from kvarena.planning.chunk_limits import largest_chunk
from kvarena.planning.credit import feasible_after
from kvarena.planning.demand import DEMAND_RULES, LENGTH_MAX, Demand, Purpose, RequestShape, request_demand
from kvarena.planning.packing import packs
from kvarena.planning.plan import Plan
from kvarena.planning.sizing import Sizing
from kvarena.planning.snapshot import ChainSnapshot
from kvarena.terms.answers import Never, named
from kvarena.terms.errors import KvarenaError

REMEMBERED = 1 << 14
"""So many prices: a waiting request is asked about again and again."""

Lengths = tuple[int, int, int]
"""Tokens of the prompt, of the output, and of the prompt's cached part."""


class Prices:
    """Prices of requests, and what no empty arena serves.

    With the least chunks, of one token, no step holds more than another limit's step that takes the same page: what
    fits with some chunk limit fits with that one. So it decides what can be served at all.
    """

    def __init__(self, plan: Plan, sizing: Sizing, *, chunk_tokens: int, output_fraction: float) -> None:
        self.plan = plan
        self.sizing = sizing
        self.chunk_tokens = chunk_tokens
        self.output_fraction = output_fraction
        self.charge = functools.lru_cache(REMEMBERED)(self._charge)
        self.demand = functools.lru_cache(REMEMBERED)(self._demand)

    @functools.cached_property
    def rows_alone(self) -> int:
        """The most rows of a request row that an empty arena could hold, of a request that grows token by token.

        Nothing that grows to more rows holds less, so that this one figure answers for every length.
        """
        return most(lambda rows: self._packs(self._grown_to(rows)), self.sizing.context_tokens)

    def fits_alone(self, prompt_tokens: int, output_tokens: int, purpose: Purpose = Purpose.CEILING) -> bool:
        """Whether an empty arena, and one request row, could hold such a request to its end, with some chunk limit."""
        rule = DEMAND_RULES[purpose]
        rows = rule.rows(prompt_tokens, output_tokens)
        if not rule.arrives_whole:
            return rows <= self.rows_alone
        fits_a_row = rows <= self.sizing.context_tokens
        return fits_a_row and self._packs(self.demand(prompt_tokens, output_tokens, 0, purpose))

    def never(self, prompt_tokens: int, output_tokens: int, purpose: Purpose = Purpose.CEILING) -> Never:
        """Why no empty arena serves such a request."""
        rows = DEMAND_RULES[purpose].rows(prompt_tokens, output_tokens)
        context = self.sizing.context_tokens
        if rows > context:
            why = f"{rows:,} rows are more than the {context:,} of a request row (context_tokens)"
        else:
            asked = f"asked {named(self.plan.names, self._grown_to(rows))} (units per sub-pool)"
            why = f"{asked}; an empty arena of {self.sizing.arena_bytes:,} B cannot hold it"
        return Never(why, self.largest_prompt(output_tokens))

    def clip(self, prompt_tokens: int, output_tokens: int) -> int:
        """The largest output, up to that asked for, with which the request fits alone; 0 if none does."""
        beyond = DEMAND_RULES[Purpose.CEILING].rows(prompt_tokens, output_tokens) - self.rows_alone
        return max(0, output_tokens - max(0, beyond))

    def largest_prompt(self, output_tokens: int) -> int:
        """The longest prompt that an empty arena could serve with this output; 0 where there is none."""
        return max(0, self.rows_alone - DEMAND_RULES[Purpose.CEILING].rows(0, output_tokens))

    def by_chunk(self, lengths: Lengths, purpose: Purpose, chunk_tokens: int) -> Demand:
        """The charge of a request under another chunk limit."""
        return self._request_demand(lengths, purpose, chunk_tokens, self.output_fraction)

    def largest_chunk(
        self, lengths: Lengths, purpose: Purpose, fits: Callable[[Demand], bool]
    ) -> tuple[int, Demand] | None:
        """The largest chunk limit below the configured one with which the charge fits, and the charge."""
        prompt, _, cached = lengths
        if DEMAND_RULES[purpose].arrives_whole:
            return None
        return largest_chunk(
            self.plan,
            RequestShape(*lengths),
            range(1, min(self.chunk_tokens, prompt - cached)),
            functools.partial(self.by_chunk, lengths, purpose),
            fits,
            grid=self.sizing.limits.grid,
        )

    def longest(
        self, snapshot: ChainSnapshot, evictable: Demand | None, held_back: Demand, output_tokens: int, chunk: int
    ) -> int:
        """The longest prompt that fits a chain that looks like this, beside what is held back; 0 if none does."""

        def fits(prompt: int) -> bool:
            charge = self.by_chunk((prompt, output_tokens, 0), Purpose.ADMIT, chunk)
            return feasible_after(snapshot, tuple(map(add, charge, held_back)), evictable)

        return most(fits, self.sizing.context_tokens - max(0, output_tokens - 1))

    # -- inside

    def _charge(self, prompt_tokens: int, output_tokens: int, cached_tokens: int, purpose: Purpose) -> Demand | None:
        """What such a request is charged; None where no empty arena could serve it to its end."""
        if not isinstance(purpose, Purpose):
            raise KvarenaError(f"the purpose is {purpose!r}; give a kvarena Purpose")
        if not self.fits_alone(prompt_tokens, output_tokens, purpose):
            return None
        return self.by_chunk((prompt_tokens, output_tokens, cached_tokens), purpose, self.chunk_tokens)

    def _packs(self, demand: Demand) -> bool:
        """Whether an empty arena serves so much."""
        return packs(self.plan, self.sizing.arena_bytes, demand)

    def _demand(
        self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0, purpose: Purpose = Purpose.ADMIT
    ) -> Demand:
        """The most units that a request of these lengths holds at once, its whole output counted."""
        return self._request_demand((prompt_tokens, output_tokens, cached_tokens), purpose, self.chunk_tokens, 1.0)

    def _grown_to(self, rows: int) -> Demand:
        """The most units of a request that grows token by token to so many rows."""
        return self._request_demand((1, rows, 0), Purpose.CEILING, 1, 1.0)

    def _request_demand(self, lengths: Lengths, purpose: Purpose, chunk_tokens: int, fraction: float) -> Demand:
        limits = self.sizing.limits
        return request_demand(
            self.plan, RequestShape(*lengths), purpose, chunk_tokens=chunk_tokens, grid=limits.grid,
            slots_per_request=limits.slots_per_request, output_fraction=fraction,
        )  # fmt: skip


def whole_lengths(prompt: Any, output: Any, cached: Any = 0) -> Lengths:
    """A request's lengths as Python ints.

    Raises:
        KvarenaError: one of them is no such number; it names the value.
    """
    are_ints = type(prompt) is type(output) is type(cached) is int
    if are_ints and 0 <= cached < prompt <= LENGTH_MAX and 0 <= output <= LENGTH_MAX:
        return prompt, output, cached  # a shape would say the same, in six times the time
    shape = RequestShape(prompt, output, cached)
    return shape.prompt_tokens, shape.output_tokens, shape.cached_tokens
