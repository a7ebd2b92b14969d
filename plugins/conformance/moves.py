"""What the policies promise that say how many pages move, and where an empty float is put."""

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.plugins.conformance.base import TRIED, ValueConformance
from kvarena.plugins.conformance.swarm import MINE, Slice, broken_in
from kvarena.plugins.stress.swarm.lent import always
from kvarena.plugins.stress.swarm.world import Wanted
from kvarena.terms.ports import Compaction, Placement

PAGES = st.integers(0, 3000) | st.sampled_from((1 << 20, (1 << 31) - 1))


class CompactionConformance(ValueConformance):
    """A compaction policy: give the fixture ``policy``."""

    word: ClassVar[str] = "compaction policy"

    @pytest.fixture
    def policy(self) -> Compaction:
        """The policy to test."""
        return self._missing("policy", "MyCompaction(max_moves=8)")

    @pytest.fixture
    def value(self, policy: Compaction) -> Compaction:
        """The same, for what all values promise."""
        return policy

    @TRIED
    @given(live=PAGES, holes=PAGES)
    def test_says_a_whole_number_of_moves(self, policy: Compaction, live: int, holes: int) -> None:
        """``moves(live, holes)`` is a whole number from 0 on, for any band."""
        said: Any = policy.moves(live, holes)
        if type(said) is not int or said < 0:
            self._fail(policy, f"moves({live}, {holes}) is {said!r}; it must be a whole number from 0 on")

    @TRIED
    @given(live=PAGES, holes=PAGES)
    def test_answers_alike_on_every_rank(self, policy: Compaction, live: int, holes: int) -> None:
        """The same band gets the same answer, whatever was asked before: ranks must agree."""
        first = policy.moves(live, holes)
        policy.moves(holes, live)
        again = policy.moves(live, holes)
        if again != first:
            self._fail(policy, f"moves({live}, {holes}) was {first!r}, and is {again!r} the next time")

    def test_holds_in_the_stress_harness(self, policy: Compaction) -> None:
        """Random requests over bands that it compacts keep every promise of the stress harness: no byte is lost."""
        makers = {("policies", MINE): always(policy)}
        wanted = tuple(Wanted(policies={"compaction": MINE, "holes": order}) for order in ("nearest", "recent"))
        found = broken_in(Slice(makers=makers, wanted=wanted))
        if found:
            self._fail(policy, found)


class PlacementConformance(ValueConformance):
    """A placement policy: give the fixture ``policy``."""

    word: ClassVar[str] = "placement policy"

    @pytest.fixture
    def policy(self) -> Placement:
        """The policy to test."""
        return self._missing("policy", "MyPlacement()")

    @pytest.fixture
    def value(self, policy: Placement) -> Placement:
        """The same, for what all values promise."""
        return policy

    @TRIED
    @given(lowest=PAGES, more=PAGES)
    def test_places_between_the_lowest_and_the_highest(self, policy: Placement, lowest: int, more: int) -> None:
        """``start(lowest, highest)`` is a whole number, none below the one and none beyond the other."""
        said: Any = policy.start(lowest, lowest + more)
        if type(said) is not int or not lowest <= said <= lowest + more:
            self._fail(policy, f"start({lowest}, {lowest + more}) is {said!r}; it must be a page between the two")

    @TRIED
    @given(lowest=PAGES, more=PAGES)
    def test_answers_alike_on_every_rank(self, policy: Placement, lowest: int, more: int) -> None:
        """The same room gets the same answer, whatever was asked before: ranks must agree."""
        first = policy.start(lowest, lowest + more)
        policy.start(0, lowest)
        again = policy.start(lowest, lowest + more)
        if again != first:
            self._fail(policy, f"start({lowest}, {lowest + more}) was {first!r}, and is {again!r} the next time")

    def test_holds_in_the_stress_harness(self, policy: Placement) -> None:
        """Random requests over floats that it places keep every promise of the stress harness."""
        rows = {"layout": "latent", "row_bytes": 8}
        chain = [{"lifetime": "window", "window": width} for width in (3, 6, 12)] + [{"lifetime": "full"}]
        layers = tuple({"index": at, **kind, **rows} for at, kind in enumerate(chain))
        wanted = (Wanted(policies={"placement": MINE}), Wanted(policies={"placement": MINE}, layers=layers))
        found = broken_in(Slice(makers={("policies", MINE): always(policy)}, wanted=wanted))
        if found:
            self._fail(policy, found)
