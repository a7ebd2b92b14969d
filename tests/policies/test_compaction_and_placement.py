"""Compaction says how many pages move, placement where an empty float starts."""

import pytest

from kvarena.policies.compaction import Eager, Lazy, Never
from kvarena.policies.placement import Middle
from kvarena.terms.ports import Compaction


@pytest.mark.req("CMP-8")
@pytest.mark.parametrize(
    ("policy", "few", "many"), [(Lazy(), 10, 64), (Lazy(max_moves=5), 5, 5), (Eager(), 10, 1000), (Never(), 0, 0)]
)
def test_how_many_pages_move(policy: Compaction, few: int, many: int) -> None:
    """Lazy: a bounded number; eager: all holes; none: none."""
    assert (policy.moves(500, 10), policy.moves(500, 1000)) == (few, many)


@pytest.mark.parametrize("wrong", [0, -3, "many"])
def test_settings_are_checked(wrong: object) -> None:
    """A bad setting is refused when the policy is made."""
    with pytest.raises((ValueError, TypeError), match="max_moves"):
        Lazy(max_moves=wrong)  # type: ignore[arg-type]


def test_the_middle_is_between() -> None:
    """Half-way, rounded down; the only place where there is only one."""
    assert Middle().start(10, 21) == 15
    assert Middle().start(7, 7) == 7
