"""Admission: a request is charged all that it will hold, and admitted when that fits beside what was promised.

1. ``ask``      may this request start now? Nothing changes.
2. ``charge``   it starts in this row: what it was charged and has not taken is held back from later answers.
3. ``forget``   the row is closed, or its request retracted.
"""

import functools

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.planning.charges import most
from kvarena.planning.demand import Demand, RequestShape, request_demand
from kvarena.planning.packing import packs
from kvarena.planning.sizing import Sizing
from kvarena.terms.answers import Admit, Never, Wait
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray


class Admission:
    """Answers for one chain, from concrete demands alone.

    ``output_fraction`` is the share of its maximal output that a request is charged on arrival. At 1.0 an
    admitted request never runs dry; below it, running requests may have to be retracted. It answers for the
    arena that it was made for: after ``Storage.resize`` it is made anew.
    """

    def __init__(
        self,
        chain: Chain,
        sizing: Sizing,
        *,
        chunk_tokens: int,
        output_fraction: float = 1.0,
    ) -> None:
        self.chain = chain
        self.plan = chain.plan
        self.arena_bytes = sizing.arena_bytes
        self.context_tokens = sizing.context_tokens
        self.chunk_tokens = chunk_tokens
        self.slots_per_request = sizing.limits.slots_per_request
        self.output_fraction = output_fraction
        # a waiting request is asked about again and again: its price is kept, and whether it fits at all
        self.demand = functools.lru_cache(maxsize=1 << 14)(self._price)
        self.fits_alone = functools.lru_cache(maxsize=1 << 14)(self._fits_alone)
        self._charges = np.zeros((sizing.running, len(self.plan.sub_pools)), dtype=np.int64)

    def _price(self, prompt_tokens: int, output_tokens: int) -> Demand:
        """The most units that a request of these lengths holds at once."""
        shape = RequestShape(prompt_tokens, output_tokens)
        return request_demand(
            self.plan, shape, chunk_tokens=self.chunk_tokens, slots_per_request=self.slots_per_request
        )

    def expected(self, output_tokens: int) -> int:
        """How many output tokens a request is charged for; at least one."""
        return max(1, round(output_tokens * self.output_fraction))

    def ask(self, prompt_tokens: int, output_tokens: int, held: IntArray) -> Admit | Wait | Never:
        """May a request with so many tokens to forward, and so many still to generate, start now?

        Args:
            held: units bound to each row, shape (rows, sub-pools): what running requests have taken.
        """
        never = self.never(prompt_tokens, output_tokens)
        if never is not None:
            return never
        charge = self.demand(prompt_tokens, self.expected(output_tokens))
        promised = self.promised(held)
        if self.chain.feasible(tuple(asked + owed for asked, owed in zip(charge, promised, strict=True))):
            return Admit(charge)
        return Wait(self._sum(charge, f"held back for running requests: {self._named(promised)}"))

    def never(self, prompt_tokens: int, output_tokens: int) -> Never | None:
        """Why no empty arena could serve such a request, with its sum; None where one could."""
        if self.fits_alone(prompt_tokens, output_tokens):
            return None
        rows = RequestShape(prompt_tokens, output_tokens).rows
        if rows > self.context_tokens:
            why = f"{rows:,} rows are more than the {self.context_tokens:,} of a request row (context_tokens)"
        else:
            whole = self.demand(prompt_tokens, output_tokens)
            why = self._sum(whole, f"an empty arena of {self.arena_bytes:,} B cannot hold it")
        return Never(why, self.largest_prompt(output_tokens))

    def charge(self, row: int, charge: Demand) -> None:
        """A request started in this row with this charge, or goes on with another one."""
        invariant("admission.negative_charge", min(charge, default=0) >= 0, row=row, charge=charge)
        self._charges[row] = charge

    def forget(self, row: int) -> None:
        """The row's request is gone: nothing is held back for it."""
        self._charges[row] = 0

    def promised(self, held: IntArray) -> Demand:
        """What running requests were charged and have not taken yet."""
        return tuple(np.maximum(self._charges - held, 0).sum(axis=0).tolist())

    def _fits_alone(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether an empty arena, and one request row, could hold such a request to its end."""
        if RequestShape(prompt_tokens, output_tokens).rows > self.context_tokens:
            return False
        return packs(self.plan, self.arena_bytes, self.demand(prompt_tokens, output_tokens))

    def largest_prompt(self, output_tokens: int) -> int:
        """The longest prompt that an empty arena could serve with this output; 0 where there is none."""
        return most(lambda prompt: self.fits_alone(prompt, output_tokens), self.context_tokens)

    def _named(self, demand: Demand) -> str:
        return ", ".join(f"{count} {name}" for name, count in zip(self.plan.names, demand, strict=True))

    def _sum(self, demand: Demand, why: str) -> str:
        return f"asked {self._named(demand)} (units per sub-pool); {why}"
