"""Admission: a request is charged all that it will hold, and admitted when that fits beside what was promised.

1. ``ask``        may this request start now? Nothing changes.
2. ``make_room``  where the answer says so, the cache evicts until the charge fits.
3. ``promise``    it will start: its charge is held back from later answers. ``admit`` does 1 to 3 for a queue.
4. ``start``      its row is open: what it was charged and has not taken is held back.
5. ``forget``     the row is closed, or its request retracted.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import add, sub
from typing import Any, Protocol

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.chain.estimates import capacity_decision
from kvarena.planning.charges import most
from kvarena.planning.demand import Demand, RequestShape, request_demand
from kvarena.planning.packing import packs
from kvarena.planning.sizing import Sizing
from kvarena.terms.answers import Admit, Never, Wait, named
from kvarena.terms.doors import line, wholes
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Cache, IntArray

TOGETHER = 8
"""So many requests are asked about at once; if they do not fit together, one by one."""


class Holdings(Protocol):
    """What running requests have taken of their charges: ``storage.ownership``.

    ``version`` changes with what rows own, where the chain does not: when pages are handed over.
    """

    version: int

    def held(self) -> IntArray:
        """The units that each row owns now, int64 (sub-pools in chain order, rows)."""
        ...


class Admission:
    """Answers for one chain, from concrete demands alone.

    ``holdings`` tells what running requests have taken of their charges (``storage.ownership``). ``cache``
    may give pages back; without one, nothing is evicted. ``output_fraction`` is the share of its maximal output
    that a request is charged on arrival. At 1.0 an admitted request never runs dry; below it, running requests
    may have to be retracted. It answers for the arena that it was made for: after ``Storage.resize`` it is made
    anew.
    """

    def __init__(
        self,
        chain: Chain,
        sizing: Sizing,
        holdings: Holdings,
        *,
        chunk_tokens: int,
        output_fraction: float = 1.0,
        cache: Cache | None = None,
    ) -> None:
        if not 0 < output_fraction <= 1:
            raise KvarenaError(f"output_fraction is {output_fraction}; it must be above 0 and at most 1")
        self.chain = chain
        self.plan = chain.plan
        self.arena_bytes = sizing.arena_bytes
        self.context_tokens = sizing.context_tokens
        self.chunk_tokens = chunk_tokens
        self.slots_per_request = sizing.limits.slots_per_request
        self.output_fraction = output_fraction
        self.cache = cache
        self._holdings = holdings
        # a waiting request is asked about again and again: its price is kept, and whether it fits at all
        self.demand = functools.lru_cache(maxsize=1 << 14)(self._price)
        self._terms = functools.lru_cache(maxsize=1 << 14)(self._charge_or_never)
        self._charges = np.zeros((sizing.running, len(self.plan.sub_pools)), dtype=np.int64)
        self._starting: Demand = (0,) * len(self.plan.sub_pools)
        self._promised: Demand | None = None
        self._promised_at = (-1, -1)

    def _price(self, prompt_tokens: int, output_tokens: int) -> Demand:
        """The most units that a request of these lengths holds at once."""
        shape = RequestShape(prompt_tokens, output_tokens)
        return request_demand(
            self.plan, shape, chunk_tokens=self.chunk_tokens, slots_per_request=self.slots_per_request
        )

    def _charge_of(self, prompt_tokens: int, output_tokens: int) -> Demand | None:
        """``_charge_or_never`` of lengths as they come in, kept.

        Raises:
            KvarenaError: there is no such request.
        """
        prompt, output = wholes((prompt_tokens, output_tokens), "tokens to forward and to generate")
        if prompt < 1 or output < 0:
            raise KvarenaError(
                f"a request of {prompt} tokens to forward and {output} to generate is none; at least 1 and 0"
            )
        return self._terms(prompt, output)

    def _charge_or_never(self, prompt_tokens: int, output_tokens: int) -> Demand | None:
        """What a request is charged; None where no empty arena could serve it to its end."""
        if not self.fits_alone(prompt_tokens, output_tokens):
            return None
        return self.demand(prompt_tokens, self.expected(output_tokens))

    def expected(self, output_tokens: int) -> int:
        """How many output tokens a request is charged for; at least one."""
        return max(1, round(output_tokens * self.output_fraction))

    @capacity_decision
    def ask(self, prompt_tokens: int, output_tokens: int) -> Admit | Wait | Never:
        """May a request with so many tokens to forward, and so many still to generate, start now?"""
        charge = self._charge_of(prompt_tokens, output_tokens)
        if charge is None:
            return self._never(prompt_tokens, output_tokens)
        promised = self.promised()
        wanted = tuple(map(add, charge, promised))
        if self.chain.feasible(wanted):
            return Admit(charge)
        if self.cache is not None and self.chain.feasible_after(wanted, self.cache.evictable()):
            return Admit(charge, evicts=True)
        return Wait(self.plan.names, charge, promised)

    @capacity_decision
    def admit(self, requests: Iterable[tuple[int, int]]) -> tuple[list[Demand], Wait | Never | None]:
        """Let as many requests start, from the first on, as fit now together; and say what stopped the next.

        The answers of ``ask``, ``make_room`` and ``promise`` in turn, in fewer questions: where several fit together,
        each of them fits.

        Args:
            requests: (tokens to forward, tokens still to generate) of each, in the order in which they may start.
        Returns:
            Their charges, promised, for ``start``; and the answer to the first that may not, None where all may.
        """
        starting = self._starting
        try:
            return self._admit(iter(requests))
        except BaseException:  # nobody has the charges: nobody will start with them
            self._starting, self._promised = starting, None
            raise

    @capacity_decision
    def make_room(self, answer: Admit, reading: Any = None) -> bool:
        """Let the cache evict until the answer's charge fits; whether it does now.

        ``reading`` is the entry of the cache that the request starts from: it is locked first and stays so, for
        the caller to unlock at the request's end; where no room could be made, it is unlocked again.
        """
        if self.cache is None:
            return not answer.evicts
        if reading is not None:
            self.cache.lock(reading)
        made = False
        try:
            if not self._fits_beside(answer.charge):
                self.cache.evict(lambda: self._fits_beside(answer.charge))
            made = self._fits_beside(answer.charge)
        finally:
            if not made and reading is not None:
                self.cache.unlock(reading)
        return made

    def fits_alone(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether an empty arena, and one request row, could hold such a request to its end."""
        if RequestShape(prompt_tokens, output_tokens).rows > self.context_tokens:
            return False
        return packs(self.plan, self.arena_bytes, self.demand(prompt_tokens, output_tokens))

    def never(self, prompt_tokens: int, output_tokens: int) -> Never | None:
        """Why no empty arena could serve such a request, with its sum; None where one could."""
        return None if self.fits_alone(prompt_tokens, output_tokens) else self._never(prompt_tokens, output_tokens)

    def _never(self, prompt_tokens: int, output_tokens: int) -> Never:
        rows = RequestShape(prompt_tokens, output_tokens).rows
        if rows > self.context_tokens:
            why = f"{rows:,} rows are more than the {self.context_tokens:,} of a request row (context_tokens)"
        else:
            whole = self.demand(prompt_tokens, output_tokens)
            why = self._sum(whole, f"an empty arena of {self.arena_bytes:,} B cannot hold it")
        return Never(why, self.largest_prompt(output_tokens))

    def promise(self, charge: Demand) -> None:
        """A request will start with this charge: held back from now on, until ``start`` gives it to its row."""
        proper = len(charge) == len(self._starting) and min(charge, default=0) >= 0
        invariant("admission.negative_charge", proper, charge=charge)
        self._starting = tuple(map(add, self._starting, charge))
        self._promised = None if self._promised is None else tuple(map(add, self._promised, charge))

    def start(self, rows: IntArray, charges: Sequence[Demand]) -> None:
        """The rows of promised requests are open."""
        if not len(line(rows, "admission.start: rows")):
            return
        each = len(set(rows.tolist())) == len(charges) == len(rows)
        invariant("admission.a_charge_for_each_row", each, rows=rows, charges=charges)
        totals = [sum(column) for column in zip(*charges, strict=True)]
        left = tuple(map(sub, self._starting, totals))
        invariant("admission.started_unpromised", min(left, default=0) >= 0, rows=rows, left=left)
        self._starting = left
        self._charges[rows] = charges
        self._promised = None

    def recharge(self, row: int, charge: Demand) -> None:
        """A running request goes on with another charge."""
        proper = len(charge) == len(self._starting) and min(charge, default=0) >= 0
        invariant("admission.negative_charge", proper, row=row, charge=charge)
        self._charges[row] = charge
        self._promised = None

    def forget(self, rows: int | IntArray) -> None:
        """These rows' requests are gone: nothing is held back for them."""
        self._charges[rows] = 0
        self._promised = None

    def promised(self) -> Demand:
        """What requests were charged and have not taken yet."""
        now = (self.chain.epoch, self._holdings.version)
        if self._promised is None or self._promised_at != now:
            owed = self._charges.T - self._holdings.held()
            np.maximum(owed, 0, out=owed)
            self._promised = tuple(map(add, np.add.reduce(owed, axis=1).tolist(), self._starting))
            self._promised_at = now
        return self._promised

    def _admit(self, waiting: Iterator[tuple[int, int]]) -> tuple[list[Demand], Wait | Never | None]:
        """``admit``, group by group."""
        charges: list[Demand] = []
        while group := list(islice(waiting, TOGETHER)):
            terms = [self._charge_of(*request) for request in group]
            asked = [charge for charge in terms if charge is not None]
            together = tuple(map(sum, zip(*asked, strict=True)))
            if len(asked) == len(terms) and self._fits_beside(together):
                self.promise(together)
                charges += asked
                continue
            for request in group:
                answer = self.ask(*request)
                if not isinstance(answer, Admit):
                    return charges, answer
                if answer.evicts and not self.make_room(answer):
                    return charges, Wait(self.plan.names, answer.charge, self.promised())
                self.promise(answer.charge)
                charges.append(answer.charge)
        return charges, None

    def _fits_beside(self, charge: Demand) -> bool:
        """Whether a charge fits now beside what was promised."""
        return self.chain.feasible(tuple(map(add, charge, self.promised())))

    def largest_prompt(self, output_tokens: int) -> int:
        """The longest prompt that an empty arena could serve with this output; 0 where there is none."""
        return most(lambda prompt: self.fits_alone(prompt, output_tokens), self.context_tokens)

    def _sum(self, demand: Demand, why: str) -> str:
        return f"asked {named(self.plan.names, demand)} (units per sub-pool); {why}"
