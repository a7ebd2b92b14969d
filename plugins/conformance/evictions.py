"""What an eviction policy promises: each piece goes once, none that may not, and quickly however many there are."""

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.plugins.conformance.base import TRIED, ValueConformance
from kvarena.plugins.conformance.swarm import MINE, Slice, broken_in
from kvarena.plugins.stress.swarm.lent import always
from kvarena.plugins.stress.swarm.world import Wanted
from kvarena.terms.ports import Eviction, Piece, Victims

FACTS = st.builds(
    Piece,
    bytes=st.integers(0, 5000),
    tokens=st.integers(0, 64),
    hits=st.integers(0, 3),
    priority=st.sampled_from((-1.5, 0, 0.0, 2)),
    used=st.integers(0, 30),
)
PIECES = st.lists(FACTS, max_size=8).map(lambda facts: dict(enumerate(facts)))
FEW, MANY = 200, 3200
"""So many pieces, and so many: what a pop costs may grow by a little from the one to the other."""
GROWTH_MAX = 4.0
"""A logarithm grows by half here, a look at every piece by 16."""


class VictimPromises(ValueConformance):
    """What the victims of one cache do."""

    word: ClassVar[str] = "eviction policy"

    @pytest.fixture
    def policy(self) -> Eviction:
        """The policy to test."""
        return self._missing("policy", "MyEviction()")

    @pytest.fixture
    def value(self, policy: Eviction) -> Eviction:
        """The same, for what all values promise."""
        return policy

    def test_says_plainly_what_it_looks_at(self, policy: Eviction) -> None:
        """``splits`` is True or False, and so is ``weighs`` where it has one."""
        for name in ("splits", "weighs"):
            said = getattr(policy, name, None if name == "splits" else True)
            if not isinstance(said, bool):
                self._fail(policy, f"its {name} is {said!r}; it must be True or False")

    @TRIED
    @given(pieces=PIECES)
    def test_counts_its_pieces(self, policy: Eviction, pieces: dict[int, Piece]) -> None:
        """A cache begins without pieces, and has as many as were added and have not gone."""
        victims, count = policy.open(), 0
        for key, piece in pieces.items():
            victims.add(key, piece)
            count += 1
            if len(victims) != count:
                self._fail(policy, f"{count} pieces were added, and it has {len(victims)}")
        while count and victims.pop(pieces.__getitem__) is not None:
            count -= 1
            if len(victims) != count:
                self._fail(policy, f"{count} pieces are left, and it has {len(victims)}")

    @TRIED
    @given(pieces=PIECES)
    def test_lets_each_piece_go_once(self, policy: Eviction, pieces: dict[int, Piece]) -> None:
        """``pop`` names a piece that is there, each once, until there is none; then None."""
        self._check_goes(policy, holding(policy, pieces), pieces, set(pieces))

    @TRIED
    @given(pieces=PIECES, data=st.data())
    def test_keeps_what_may_not_go(self, policy: Eviction, pieces: dict[int, Piece], data: st.DataObject) -> None:
        """A piece that was removed, as somebody reads it now, does not go; added again, it goes once."""
        kept = data.draw(some_of(pieces), label="removed")
        victims = holding(policy, pieces)
        for key in kept:
            victims.remove(key)
        back = kept[::2]
        for key in back:
            victims.add(key, pieces[key])
        self._check_goes(policy, victims, pieces, set(pieces) - set(kept) | set(back))

    @TRIED
    @given(pieces=PIECES, data=st.data())
    def test_a_piece_that_changed_is_still_one(
        self, policy: Eviction, pieces: dict[int, Piece], data: st.DataObject
    ) -> None:
        """``touch`` tells what is known now, used or not: the piece neither goes by it nor comes again."""
        touched = [(key, data.draw(FACTS), data.draw(st.booleans())) for key in data.draw(some_of(pieces))]
        victims, facts = holding(policy, pieces), dict(pieces)
        for key, piece, used in touched:
            facts[key] = piece
            victims.touch(key, piece, used=used)
            if len(victims) != len(pieces):
                self._fail(policy, f"{len(pieces)} pieces are there, and after a touch of {key} it has {len(victims)}")
        self._check_goes(policy, victims, facts, set(pieces))

    @TRIED
    @given(pieces=PIECES)
    def test_lets_pieces_go_without_a_look(self, policy: Eviction, pieces: dict[int, Piece]) -> None:
        """``pop(None)`` goes by what ``add`` and ``touch`` told."""
        victims, left = holding(policy, pieces), set(pieces)
        while left:
            key = victims.pop(None)
            if key not in left:
                self._fail(policy, f"pop(None) gave {key!r}, and the pieces there are {sorted(left)}")
            left.discard(key)

    def _check_goes(self, policy: Eviction, victims: Victims, facts: dict[int, Piece], left: set[int]) -> None:
        """These pieces go, each once, and no others."""
        while left:
            key = victims.pop(facts.__getitem__)
            if key not in left:
                why = "it is None" if key is None else f"piece {key!r} has gone, or may not go"
                self._fail(policy, f"pop gave {key!r}: {why}; the pieces there are {sorted(left)} of {facts}")
            left.discard(key)
        last = victims.pop(facts.__getitem__)
        if last is not None:
            self._fail(policy, f"every piece has gone, and pop gave {last!r}, of {facts}")


class EvictionConformance(VictimPromises):
    """An eviction policy: give the fixture ``policy``."""

    @TRIED
    @given(pieces=PIECES)
    def test_answers_alike_on_every_rank(self, policy: Eviction, pieces: dict[int, Piece]) -> None:
        """Two caches that are told the same let the same pieces go in the same order: ranks must agree."""
        one, other = (gone(holding(policy, pieces), pieces) for _ in range(2))
        if one != other:
            self._fail(policy, f"one cache lets go of {one}, another that was told the same of {other}")

    @TRIED
    @given(pieces=PIECES)
    def test_keeps_caches_apart(self, policy: Eviction, pieces: dict[int, Piece]) -> None:
        """What is added to one cache is no piece of another."""
        one, other = holding(policy, pieces), policy.open()
        found = other.pop(pieces.__getitem__)
        if len(other) or found is not None:
            self._fail(policy, f"pieces added to one cache are another's: it has {len(other)}, and lets {found} go")
        del one

    def test_is_quick_however_many_there_are(self, policy: Eviction) -> None:
        """An add, a touch and a pop cost O(log n) or less, counted in calls and comparisons: 16 times the pieces
        may cost at most 4 times as much.
        """
        few, many = (work_of(policy, count) for count in (FEW, MANY))
        if many > GROWTH_MAX * few:
            self._fail(policy, f"an add, a touch and a pop cost {few:.0f} of {FEW} pieces, and {many:.0f} of {MANY}")

    def test_holds_in_the_stress_harness(self, policy: Eviction) -> None:
        """Random requests that share prefixes, over a cache that it empties, keep every promise of the harness."""
        wanted = tuple(Wanted(prefix={"eviction": MINE, **more}) for more in ({}, {"strategy": "extra_buffer"}))
        found = broken_in(Slice(makers={("policies", MINE): always(policy)}, wanted=wanted))
        if found:
            self._fail(policy, found)


def some_of(pieces: dict[int, Piece]) -> st.SearchStrategy[list[int]]:
    """Some of their keys, each once."""
    return st.lists(st.sampled_from(sorted(pieces)), unique=True, min_size=1) if pieces else st.just([])


def holding(policy: Eviction, pieces: dict[int, Piece]) -> Victims:
    """The victims of a new cache, with these pieces."""
    victims = policy.open()
    for key, piece in pieces.items():
        victims.add(key, piece)
    return victims


def gone(victims: Victims, facts: dict[int, Piece]) -> list[int | None]:
    """What goes, in its order; as many as there were."""
    return [victims.pop(facts.__getitem__) for _ in range(len(facts))]


class Counted(int):
    """A whole number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: Any) -> bool:
        Counted.compared += 1
        return bool(int(self) < other)

    def __gt__(self, other: Any) -> bool:
        Counted.compared += 1
        return bool(int(self) > other)

    def __le__(self, other: Any) -> bool:
        Counted.compared += 1
        return bool(int(self) <= other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return bool(int(self) == other)

    __hash__ = int.__hash__


def work_of(policy: Eviction, count: int) -> float:
    """What an add, a touch and a pop cost among so many pieces, on average: calls made, and facts compared."""
    number = Counted
    facts = {
        key: Piece(*map(number, (100 + key % 7, 16, key % 3, key % 5, key * 7919 % (4 * count))))
        for key in range(count + 40)
    }
    victims = holding(policy, {key: facts[key] for key in range(count)})

    def work() -> None:
        for more in range(40):
            victims.add(count + more, facts[count + more])
            victims.touch(count + more, Piece(*facts[count + more][:4], number(5 * count + more)), used=True)
            victims.pop(facts.__getitem__)

    return counted(work) / 40


def counted(work: Callable[[], None]) -> int:
    """How many functions the work calls, and how many facts it compares."""
    calls = 0

    def saw(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before, Counted.compared = sys.getprofile(), 0
    sys.setprofile(saw)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls + Counted.compared
