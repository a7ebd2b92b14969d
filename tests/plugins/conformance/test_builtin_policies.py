"""The built-in policies join the kit as a stranger's would."""

from typing import Any

import pytest
from entry_points import own_names

from kvarena.plugins.conformance import (
    CompactionConformance,
    EvictionConformance,
    HoleOrderConformance,
    PlacementConformance,
)
from kvarena.policies.compaction import Eager, Lazy, Never
from kvarena.policies.eviction import Lfu, Lru, Priority, Worth
from kvarena.policies.hole_order import Nearest, Recent
from kvarena.policies.placement import Middle

HOLES = (Nearest(), Nearest(recent_max=0), Nearest(recent_max=3), Recent())
COMPACTIONS = (Lazy(3), Eager(), Never())
PLACEMENTS = (Middle(),)
EVICTIONS = (Lru(), Lru(splits=False), Lfu(), Priority(), Worth())


@pytest.mark.req("PLG-1")
@pytest.mark.req("IDS-4")
class TestHoleOrders(HoleOrderConformance):
    """Each of them, and with other settings."""

    @pytest.fixture(params=HOLES, ids=str)
    def policy(self, request: pytest.FixtureRequest) -> Any:
        """One of them."""
        return request.param


@pytest.mark.req("PLG-1")
@pytest.mark.req("CMP-8")
class TestCompactions(CompactionConformance):
    """Each of them."""

    @pytest.fixture(params=COMPACTIONS, ids=str)
    def policy(self, request: pytest.FixtureRequest) -> Any:
        """One of them."""
        return request.param


@pytest.mark.req("PLG-1")
class TestPlacements(PlacementConformance):
    """The one that there is."""

    @pytest.fixture(params=PLACEMENTS, ids=str)
    def policy(self, request: pytest.FixtureRequest) -> Any:
        """One of them."""
        return request.param


@pytest.mark.req("PLG-1")
@pytest.mark.req("TRE-1")
class TestEvictions(EvictionConformance):
    """Each of them, and one that does not split."""

    @pytest.fixture(params=EVICTIONS, ids=str)
    def policy(self, request: pytest.FixtureRequest) -> Any:
        """One of them."""
        return request.param


def test_every_policy_is_tested() -> None:
    """There is an example of each entry point."""
    assert {policy.name for policy in (*HOLES, *COMPACTIONS, *PLACEMENTS, *EVICTIONS)} == own_names("policies")
