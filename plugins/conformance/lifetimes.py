"""What a lifetime promises: rows that retire once, never one that is still needed, and as few kept as it says."""

import itertools
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest

from kvarena.planning.peaks import peak_pages
from kvarena.plugins.conformance.base import ValueConformance, needs
from kvarena.plugins.conformance.growth import CHUNKS, PAGE_SIZES, Opaque, shortage
from kvarena.plugins.conformance.swarm import MINE, Slice, broken_in
from kvarena.plugins.stress.swarm.lent import always
from kvarena.plugins.stress.swarm.world import Wanted
from kvarena.terms.lifetimes import NEVER, Lifetime

LENGTHS = range(41)
"""Every length, and every pair and triple of some of them, is tried."""
STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 40)
"""Lengths that a sequence may grow by, from one to any other."""
CONTEXT_TOKENS = 24
PRICED_TOKENS = 150
PREFIXES: tuple[dict[str, Any] | None, ...] = (None, {})
"""Worlds in which prefixes are shared as the seed likes, and in which they are in any case."""


class RowPromises(ValueConformance):
    """What a lifetime says of the rows of a sequence. Each is tried at every length up to 40 tokens."""

    word: ClassVar[str] = "lifetime"
    powers: ClassVar = {
        "floor": "what retires is always the first rows, and floor and reaches say where they end",
        "repeats": "what a query needs repeats, and repeats says from where on and after how many tokens",
    }

    @pytest.fixture
    def lifetime(self) -> Lifetime:
        """The lifetime to test: so small that rows retire within 20 tokens."""
        return self._missing("lifetime", "MyLifetime(window=6)")

    @pytest.fixture
    def value(self, lifetime: Lifetime) -> Lifetime:
        """The same, for what all values promise."""
        return lifetime

    def test_has_a_rank(self, lifetime: Lifetime) -> None:
        """``rank`` is a pair of whole numbers, the same whenever it is asked: it orders the chain."""
        rank = lifetime.rank
        whole = isinstance(rank, tuple) and len(rank) == 2 and all(type(part) is int for part in rank)
        if not whole or lifetime.rank != rank:
            self._fail(lifetime, f"its rank is {rank!r}, then {lifetime.rank!r}; it must be one pair of whole numbers")

    def test_says_plainly_whose_ids_it_has(self, lifetime: Lifetime) -> None:
        """``own_ids`` is True, for a slot a request, or False, for rows; a slot is one entry and never retires."""
        own = lifetime.own_ids
        if not isinstance(own, bool):
            self._fail(lifetime, f"its own_ids is {own!r}; it must be True or False")
        if own and any(lifetime.entries(length) != 1 or lifetime.retired(0, length) for length in LENGTHS):
            self._fail(lifetime, "it has a slot a request, which is one entry at any length, and never retires")

    def test_keeps_between_none_and_all(self, lifetime: Lifetime) -> None:
        """``entries`` and ``retained`` are whole numbers from 0 to the length, and from 0 to 1 for a slot."""
        for length in LENGTHS:
            most = 1 if lifetime.own_ids else length
            for name in ("entries", "retained"):
                rows = getattr(lifetime, name)(length)
                if type(rows) is not int or not 0 <= rows <= most:
                    self._fail(lifetime, f"{name}({length}) is {rows!r}; it must be a whole number from 0 to {most}")

    def test_retires_rows_that_were_written(self, lifetime: Lifetime) -> None:
        """``retired(start, stop)`` is a tuple of ranges inside ``[0, stop)``; nothing retires where nothing grows."""
        for start, stop in pairs():
            pieces = lifetime.retired(start, stop)
            if not isinstance(pieces, tuple) or any(not isinstance(one, range) or one.step != 1 for one in pieces):
                self._fail(lifetime, f"retired({start}, {stop}) is {pieces!r}; it must be a tuple of ranges of step 1")
            if any(one and (one.start < 0 or one.stop > stop) for one in pieces):
                self._fail(lifetime, f"retired({start}, {stop}) is {pieces!r}; only rows 0 to {stop - 1} were written")
            if start == stop and rows_of(pieces):
                self._fail(lifetime, f"retired({start}, {stop}) is {pieces!r}, and no token came")

    def test_retires_a_row_once(self, lifetime: Lifetime) -> None:
        """However a sequence grows, by single tokens or at once, the same rows retire, and each in one step."""
        for start, middle in pairs():
            for stop in (middle + more for more in STEPS if middle + more <= LENGTHS[-1]):
                first, then = rows_of(lifetime.retired(start, middle)), rows_of(lifetime.retired(middle, stop))
                at_once = rows_of(lifetime.retired(start, stop))
                if first & then:
                    twice = min(first & then)
                    self._fail(lifetime, f"row {twice} retires from {start} to {middle}, and again to {stop}")
                if first | then != at_once:
                    row = min((first | then) ^ at_once)
                    how = "at once" if row in at_once else f"by way of {middle}"
                    self._fail(lifetime, f"from {start} to {stop} row {row} retires {how} only")

    def test_keeps_what_is_still_needed(self, lifetime: Lifetime) -> None:
        """As many rows as ``retained`` says are left at every length: none that a query still reads has retired."""
        for length in LENGTHS:
            left = length - len(rows_of(lifetime.retired(0, length)))
            if not lifetime.own_ids and left < lifetime.retained(length):
                needed = lifetime.retained(length)
                self._fail(lifetime, f"at length {length} {left} rows are left, and the query there needs {needed}")

    def test_keeps_no_more_than_it_says(self, lifetime: Lifetime) -> None:
        """Between two steps no more rows are alive than ``entries`` says: those left before, and the new one."""
        for length in LENGTHS[1:]:
            alive = length - len(rows_of(lifetime.retired(0, length - 1)))
            if not lifetime.own_ids and alive > lifetime.entries(length):
                said = lifetime.entries(length)
                self._fail(lifetime, f"at length {length} {alive} rows are alive, and entries({length}) is {said}")


class LifetimeConformance(RowPromises):
    """A lifetime: give the fixture ``lifetime``, one so small that rows retire within 20 tokens."""

    @needs("floor")
    def test_its_floor_is_where_retired_rows_end(self, lifetime: Any) -> None:
        """For an array of lengths ``floor`` gives, as int64, the first row that is left at each."""
        lengths = np.array(LENGTHS, dtype=np.int64)
        floors = self._asked(lifetime, "floor", lengths)
        for length, floor in zip(LENGTHS, floors.tolist(), strict=True):
            gone = rows_of(lifetime.retired(0, length))
            if gone != set(range(floor)):
                self._fail(lifetime, f"at length {length} its floor is {floor}, and what retired is {sorted(gone)}")

    @needs("floor")
    def test_its_reaches_is_the_inverse_of_its_floor(self, lifetime: Any) -> None:
        """``reaches`` gives, for each row from 1 on, the least length at which the floor is at least that row."""
        rows = np.array(LENGTHS[1:], dtype=np.int64)
        floors = self._asked(lifetime, "floor", np.arange(8 * len(LENGTHS), dtype=np.int64))
        for row, said in zip(rows.tolist(), self._asked(lifetime, "reaches", rows).tolist(), strict=True):
            there = np.flatnonzero(floors >= row)
            if len(there) and said != there[0]:
                self._fail(lifetime, f"reaches says {said} for row {row}, and its floor is there at length {there[0]}")
            if not len(there) and said < len(floors):
                never = f"its floor is not there below length {len(floors)}; where it never is, say {NEVER}"
                self._fail(lifetime, f"reaches says {said} for row {row}, and {never}")

    @needs("repeats")
    def test_its_repeats_changes_no_price(self, lifetime: Any) -> None:
        """``repeats`` makes a price quick to find: with and without it a request is charged as many pages."""
        if getattr(lifetime, "repeats", None) is None:
            self._fail(lifetime, 'it has no repeats; give it one, or write declines = ("repeats",)')
        said = lifetime.repeats()
        whole = isinstance(said, tuple) and len(said) == 2 and all(type(part) is int for part in said)
        if not whole or said[0] < 0 or said[1] < 1:
            self._fail(lifetime, f"repeats() is {said!r}; it must be a pair: a length, and a period of 1 token or more")
        for page, chunk, prompt in itertools.product(PAGE_SIZES, (None, *CHUNKS), (1, CONTEXT_TOKENS)):
            quick, slow = (
                peak_pages(one, page, prompt, PRICED_TOKENS, chunk) for one in (lifetime, Unrepeated(lifetime))
            )
            if quick != slow:
                shape = f"{PRICED_TOKENS} tokens, {prompt} of them a prompt in chunks of {chunk or 'any size'}"
                found = f"{shape}, hold {quick} pages of {page} at most by its repeats, {said}, and {slow} in truth"
                self._fail(lifetime, found)

    def test_a_request_gets_by_with_what_it_is_charged(self, lifetime: Lifetime) -> None:
        """In an arena just large enough for one request's demand, it grows to its full length, token by token."""
        found = shortage(lifetime)
        if found:
            self._fail(lifetime, found)

    def test_holds_in_the_stress_harness(self, lifetime: Lifetime) -> None:
        """Random requests, some of them sharing prefixes, keep every promise of the stress harness."""
        name = "state" if lifetime.own_ids else MINE  # the harness knows a slot by this name
        makers = {("lifetimes", name): always(lifetime), ("layouts", MINE): always(Opaque(8))}
        mine = {"lifetime": name, "layout": MINE}
        others = [{"lifetime": kind, "layout": MINE} for kind in ("state", "full")]
        own = [other for other in others if other["lifetime"] not in (name, lifetime.name)]
        chains = ([mine], [*own, mine], [mine, *own])
        wanted = tuple(
            Wanted(layers=_numbered(chain), context_tokens=CONTEXT_TOKENS, prefix=prefix)
            for chain in chains
            for prefix in PREFIXES
        )
        found = broken_in(Slice(makers=makers, wanted=wanted, seeds=len(wanted)))
        if found:
            self._fail(lifetime, found)

    def _asked(self, lifetime: Any, name: str, numbers: Any) -> Any:
        """What ``floor`` or ``reaches`` answers."""
        method = getattr(lifetime, name, None)
        if method is None:
            self._fail(lifetime, f'it has no {name}; give it one, or write declines = ("floor",)')
        answer = method(numbers.copy())
        if not isinstance(answer, np.ndarray) or answer.dtype != np.int64 or answer.shape != numbers.shape:
            self._fail(lifetime, f"{name} of {len(numbers)} numbers gives {answer!r}; it must be as many, as int64")
        return answer


@attrs.frozen
class Unrepeated:
    """A lifetime that does not say what repeats: so each step of a request is looked at."""

    inner: Lifetime

    def __getattr__(self, name: str) -> Any:
        if name == "repeats":
            raise AttributeError(name)
        return getattr(self.inner, name)


def pairs() -> list[tuple[int, int]]:
    """From every length to some that come after it."""
    return [(start, start + more) for start in LENGTHS for more in STEPS if start + more <= LENGTHS[-1]]


def rows_of(pieces: tuple[range, ...]) -> set[int]:
    """The rows of some ranges."""
    return {row for piece in pieces for row in piece}


def _numbered(chain: list[dict[str, str]]) -> tuple[dict[str, Any], ...]:
    return tuple({"index": at, **table} for at, table in enumerate(chain))
