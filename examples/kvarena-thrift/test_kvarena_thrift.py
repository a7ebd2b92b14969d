"""The promises of the kit; and what each policy's setting does."""

import pytest
from kvarena_thrift import Fading, Thrift

from kvarena.plugins.conformance import CompactionConformance, EvictionConformance
from kvarena.terms.ports import Piece


class TestThrift(CompactionConformance):
    policy = pytest.fixture(lambda self: Thrift(share=0.25))


class TestFading(EvictionConformance):
    policy = pytest.fixture(lambda self: Fading(half_life=8))


@pytest.mark.parametrize(("share", "moves"), [(0, 30), (0.1, 20), (0.3, 0), (1, 0)])
def test_holes_up_to_the_share_stay(share: float, moves: int) -> None:
    """Of 30 holes beside 100 live pages those above the share are closed."""
    assert Thrift(share).moves(live=100, holes=30) == moves


@pytest.mark.parametrize(("half_life", "first"), [(1, "often"), (10, "often"), (100, "once")])
def test_a_hit_fades_with_the_uses_of_the_cache(half_life: float, first: str) -> None:
    """What was started from three times, 40 uses ago, outlasts what was found once where hits fade slowly."""
    victims = Fading(half_life).open()
    victims.add(0, Piece(bytes=0, tokens=0, hits=3, priority=0, used=100))
    victims.add(1, Piece(bytes=0, tokens=0, hits=1, priority=0, used=140))
    assert ("often", "once")[victims.pop(None)] == first


@pytest.mark.parametrize("settings", [{"half_life": 0}, {"half_life": -1}, {"splits": 1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    """A config that says so gets one line with the setting's place."""
    with pytest.raises((TypeError, ValueError)):
        Fading(**settings)
