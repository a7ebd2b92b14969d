"""Admission: a request is charged all that it will hold, and admitted when that fits beside what was promised.

For the loop of an engine, in this order:

1. ``never``      at arrival: no empty arena could serve it, and why. ``clip``: how much output it may ask for.
2. ``ask``        may this request start now? Nothing changes.
3. ``make_room``  where the answer says so, the cache evicts until the charge fits.
4. ``promise``    it will start: its charge is held back from later answers. ``admit`` does 2 to 4 for a queue.
5. ``start``      its row is open: what it was charged and has not taken is held back.
6. ``free_for``   before a step that was refused is tried again, and ``room_for`` for what nobody was promised, the slot
                  of a checkpoint: the cache evicts until it fits.
7. ``recharge``   its charge changes: past its prompt it holds less of a window than in it.
8. ``forget``     the row is closed, or its request retracted. ``preempt`` says whom to stop for another.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import add, sub
from typing import Any, NamedTuple, cast

from kvarena.admission.preemption import Unlocked, Victim, check_victims, fewest, units_by_row
from kvarena.admission.prices import Lengths, Prices, whole_lengths
from kvarena.admission.promises import Holdings, Promises
from kvarena.admission.room import AFTER, NO, NOW, Room
from kvarena.chain.chain import Chain
from kvarena.chain.estimates import capacity_decision
from kvarena.planning.demand import LENGTH_MAX, Demand, Purpose
from kvarena.planning.sizing import Sizing
from kvarena.terms.answers import Admit, Never, Wait, named
from kvarena.terms.doors import share, whole
from kvarena.terms.doors import units as units_of
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import Cache

TOGETHER = 8
"""So many requests are asked about at once; if they do not fit together, one by one."""

GIVES_BACK = (
    ("admitted request", "admitted requests"),
    ("running request", "running requests"),
    ("forward in flight", "forwards in flight"),
    ("copy or transfer under way", "copies or transfers under way"),
)
"""What gives memory back by and by: one of it, several."""


class Asked(NamedTuple):
    """A request that may start: tokens to forward, those still to generate, and what of the prompt a cache holds.

    ``reading``: the entry of the cache that it would start from; it is not evicted for it.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reading: Any = None
    purpose: Purpose = Purpose.ADMIT


class Admission(Promises):
    """Answers for one chain, from concrete demands alone.

    ``holdings`` tells what running requests have taken of their charges (``storage.ownership``). ``cache``
    may give pages back; without one, nothing is evicted. ``output_fraction`` is the share of its maximal output
    that a request is charged on arrival. At 1.0 an admitted request never runs dry; below it, running requests
    may have to be retracted. It answers for the arena that it was made for: after ``Storage.resize`` it is made
    anew.
    Beside what it promised: ``prices`` say what requests cost, ``room`` knows what fits now.
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
        fraction, chunk_tokens = share(output_fraction, "output_fraction"), whole(chunk_tokens, "chunk_tokens")
        if chunk_tokens < 1:
            raise KvarenaError(f"chunk_tokens is {chunk_tokens}; a chunk has at least one token")
        if chunk_tokens > LENGTH_MAX:
            raise KvarenaError(f"chunk_tokens is {chunk_tokens}; a chunk has at most {LENGTH_MAX:,} tokens")
        super().__init__(holdings, sub_pools=len(chain.plan.sub_pools), rows=sizing.running)
        self.chain = chain
        self.cache = cache
        self.prices = Prices(chain.plan, sizing, chunk_tokens=chunk_tokens, output_fraction=fraction)
        self.room = Room(chain, cache)
        self._until: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())

    @capacity_decision
    def ask(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        cached_tokens: int = 0,
        reading: Any = None,
        purpose: Purpose = Purpose.ADMIT,
    ) -> Admit | Wait | Never:
        """May a request with so many tokens to forward, and so many still to generate, start now? Nothing changes.

        Args:
            cached_tokens: the prompt's first tokens that it reads from the cache; whole pages, not all of it.
            reading: the entry that holds them: it is locked for the question, and unlocked again.

        Returns:
            ``Wait`` only where something will give memory back. Where nothing will, and chunks below the limit would
            let it start, ``Admit`` with the largest such limit; else ``Never``: unschedulable. One that reads from the
            cache may yet be served without: ask again with nothing cached.

        Raises:
            KvarenaError: there is no such request; it names the value.
        """
        lengths = whole_lengths(prompt_tokens, output_tokens, cached_tokens)
        charge = self.prices.charge(*lengths, purpose)
        if charge is None:
            return self.prices.never(lengths[0], lengths[1], purpose)
        promised = self.promised()
        found = self.room.look(tuple(map(add, charge, promised)), reading)
        if found != NO:
            return Admit(charge, found == AFTER)
        return self._refuse(lengths, charge, promised, reading, purpose)

    @capacity_decision
    def admit(self, requests: Iterable[Asked | tuple[int, int]]) -> tuple[list[Admit], Wait | Never | None]:
        """Let as many requests start, from the first on, as fit now together; and say what stopped the next.

        The answers of ``ask``, ``make_room`` and ``promise`` in turn, in fewer questions: where several fit together,
        each of them fits. The entries that they read stay locked, for the caller to unlock at each request's end.

        Args:
            requests: what is asked, in the order in which they may start; or plain (tokens to forward, tokens still
                to generate).

        Returns:
            Their answers, promised, for ``start``; and the answer to the first that may not, None where all may.

        Raises:
            KvarenaError: one of them is no request; nobody is admitted.
        """
        if not isinstance(requests, Iterable):
            raise KvarenaError(f"admission.admit: requests are {requests!r}; give an iterable of them")
        mark, locked = self.mark(), list[Any]()
        try:
            return self._admit(iter(requests), locked)
        except BaseException:  # nobody has the charges: nobody will start with them
            self.back_to(mark)
            for entry in locked:
                self._unlock(entry)
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
            made = self.room_for(answer.charge)
        finally:
            if not made:
                self._unlock(reading)
        return made

    @capacity_decision
    def room_for(self, units: Demand) -> bool:
        """Let the cache evict until so many more units fit beside what was promised; whether they do.

        For what nobody was promised. Nothing is evicted where that would not do.
        """
        wanted = units_of(units, "admission.room_for: units", self.chain.plan.names)
        return self.room.make(tuple(map(add, wanted, self.promised())))

    @capacity_decision
    def free_for(self, units: Demand) -> bool:
        """Let the cache evict until so many units fit that were promised already; whether they do."""
        return self.room.make(units_of(units, "admission.free_for: units", self.chain.plan.names))

    def never(self, prompt_tokens: int, output_tokens: int) -> Never | None:
        """Why no empty arena could serve such a request, with its sum; None where one could.

        Raises:
            KvarenaError: there is no such request; it names the value.
        """
        prompt, output, _ = whole_lengths(prompt_tokens, output_tokens)
        return None if self.prices.fits_alone(prompt, output) else self.prices.never(prompt, output)

    def demand(self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> Demand:
        """What such a request may hold at once with its whole output, per sub-pool in chain order."""
        return self.prices.demand(prompt_tokens, output_tokens, cached_tokens, Purpose.ADMIT)

    def largest_prompt(self, output_tokens: int) -> int:
        """The longest prompt that an empty arena could serve with this output; 0 where there is none."""
        return self.prices.largest_prompt(output_tokens)

    def clip(self, prompt_tokens: int, output_tokens: int) -> int:
        """The largest output, up to that asked for, with which an empty arena and a request row could serve it.

        0: none, see ``never``; or none was asked for.

        Raises:
            KvarenaError: there is no such request; it names the value.
        """
        prompt, output, _ = whole_lengths(prompt_tokens, output_tokens)
        return self.prices.clip(prompt, output)

    @capacity_decision
    def preempt(self, asked: Asked | tuple[int, int], victims: Sequence[Victim]) -> tuple[int, ...] | None:
        """Which running requests to stop so that this one may start: in the order given, none that could be spared.

        A stopped request's own pages and slots count as free at once, also those that a forward still reads, and what
        only its lock kept in the cache counts as evictable. Nothing changes: locks are put back as they were.

        Args:
            victims: who may be stopped, in the order in which they should be: the lowest priority first, then the
                latest admitted. None of them has pages under a transfer that is not released.

        Returns:
            The rows; none where the request fits without. None where stopping all of them would not do.

        Raises:
            KvarenaError: there is no such request, or a victim is no row or is named twice.
        """
        asked = _asked(asked)
        prompt, output, cached = asked[:3]
        check_victims(victims, self.row_count)
        charge = self.prices.charge(prompt, output, cached, asked.purpose)
        if charge is None:
            return None
        wanted = tuple(map(add, charge, self.promised()))
        held, owed, unlocked = self.holdings.held(), self.owed(), Unlocked(self.cache)

        def fits(stopped: Sequence[Victim]) -> bool:
            frees = units_by_row(stopped, held)
            evictable = self.room.evictable()
            if evictable is not None:
                frees = tuple(map(add, frees, evictable))
            return self.room.fits_after(tuple(map(sub, wanted, units_by_row(stopped, owed))), frees)

        self._lock(asked.reading)
        try:
            return fewest(victims, unlocked, fits)
        finally:
            unlocked.put_all_back()
            self._unlock(asked.reading)

    # -- inside

    def _admit(
        self, waiting: Iterator[Asked | tuple[int, int]], locked: list[Any]
    ) -> tuple[list[Admit], Wait | Never | None]:
        """``admit``, group by group; ``locked`` gets the entries that were locked for them."""
        answers: list[Admit] = []
        while group := [_asked(request) for request in islice(waiting, TOGETHER)]:
            charges = [self.prices.charge(prompt, output, cached, why) for prompt, output, cached, _, why in group]
            if None not in charges:
                asked = cast(list[Demand], charges)
                together = tuple(map(sum, zip(*asked, strict=True)))
                if self.room.look(tuple(map(add, together, self.promised()))) == NOW:
                    self.promise(together, len(asked))
                    answers += map(Admit, asked)
                    if self.cache is not None:
                        for request in group:
                            self._lock(request.reading, locked)
                    continue
            for request in group:
                answer = self._admit_one(request, locked)
                if not isinstance(answer, Admit):
                    return answers, answer
                answers.append(answer)
        return answers, None

    def _admit_one(self, request: Asked, locked: list[Any]) -> Admit | Wait | Never:
        """Ask, make room, promise."""
        prompt, output, cached, reading, purpose = request
        answer = self.ask(prompt, output, cached_tokens=cached, reading=reading, purpose=purpose)
        if isinstance(answer, Admit):
            if not answer.evicts:
                self._lock(reading, locked)
            elif self.make_room(answer, reading):
                locked.append(reading)
            else:
                return self._refuse((prompt, output, cached), answer.charge, self.promised(), reading, purpose)
            self.promise(answer.charge)
        return answer

    def _refuse(
        self, lengths: Lengths, charge: Demand, promised: Demand, reading: Any, purpose: Purpose
    ) -> Admit | Wait | Never:
        """What does not fit now with the configured chunk limit: it waits, or starts in smaller chunks, or never."""
        until, room = self._gives_back(), self.room
        if until:
            look = (*room.saw(), promised, lengths[1], self.prices.chunk_tokens)
            return Wait(self.chain.plan.names, charge, promised, until, lambda: self.prices.longest(*look))
        self._lock(reading)
        try:
            evictable = room.evictable()
        finally:
            self._unlock(reading)
        found = self.prices.largest_chunk(lengths, purpose, room.fitting(promised, evictable))
        if found is not None:
            evicts = room.look(tuple(map(add, found[1], promised))) == AFTER
            return Admit(found[1], evicts, found[0])
        least = self.prices.by_chunk(lengths, purpose, 1)
        why = f"asked {named(self.chain.plan.names, least)} (units per sub-pool) in the smallest chunks; that"
        why += " does not fit now, and nothing is running or under way that would give memory back"
        return Never(why, self.prices.longest(self.chain.snapshot(), evictable, promised, lengths[1], 1))

    def _gives_back(self) -> tuple[str, ...]:
        """What will give memory back, for people; nothing where nobody has a reason to wait."""
        ledger = self.chain.ledger
        counts = (self.starting_count, self.holdings.open_count, ledger.steps.flying, len(ledger.uses))
        if counts != self._until[0]:
            listed = [f"{count} {word[count > 1]}" for count, word in zip(counts, GIVES_BACK, strict=True) if count]
            self._until = (counts, tuple(listed))
        return self._until[1]

    def _lock(self, entry: Any, locked: list[Any] | None = None) -> None:
        if entry is not None and self.cache is not None:
            self.cache.lock(entry)
            if locked is not None:
                locked.append(entry)

    def _unlock(self, entry: Any) -> None:
        if entry is not None and self.cache is not None:
            self.cache.unlock(entry)


def _asked(request: Asked | tuple[int, int]) -> Asked:
    """The request, its lengths as Python ints.

    Raises:
        KvarenaError: it is none; it names the value.
    """
    try:
        asked = request if type(request) is Asked else Asked(*request)
    except TypeError:
        cure = "give (tokens to forward, tokens still to generate), or Asked"
        raise KvarenaError(f"a request is {request!r}; {cure}") from None
    lengths = whole_lengths(*asked[:3])
    return asked if lengths == asked[:3] else Asked(*lengths, *asked[3:])
