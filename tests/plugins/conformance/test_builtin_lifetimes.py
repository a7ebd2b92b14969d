"""The built-in lifetimes join the kit as a stranger's would."""

from typing import ClassVar

import pytest
from entry_points import own_names

from kvarena.plugins.conformance import LifetimeConformance
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, OnGrid, State, Union, Window

ROWS: dict[str, Lifetime] = {"full": Full(), "window": Window(6), "chunk": Chunk(5)}
SLOTS: dict[str, Lifetime] = {"state": State()}
INSIDE: dict[str, Lifetime] = {"a window on a grid": OnGrid(Window(3), 4), "a union": Union((Window(3), Chunk(5)))}
"""What core makes of others."""


@pytest.mark.req("PLG-1")
class TestRows(LifetimeConformance):
    """Rows that share the owner's ids, with closed forms."""

    @pytest.fixture(params=ROWS)
    def lifetime(self, request: pytest.FixtureRequest) -> Lifetime:
        """One of them, small."""
        return ROWS[request.param]


@pytest.mark.req("PLG-1")
class TestSlots(LifetimeConformance):
    """A slot a request: nothing retires, so there is no floor, and nothing to repeat."""

    declines: ClassVar = ("floor", "repeats")

    @pytest.fixture(params=SLOTS)
    def lifetime(self, request: pytest.FixtureRequest) -> Lifetime:
        """One of them."""
        return SLOTS[request.param]


@pytest.mark.parametrize("name", INSIDE)
def test_what_core_makes_of_others_is_a_lifetime_too(name: str) -> None:
    """It retires each row once, never one that is needed, and a request gets by with its demand."""
    rows, lifetime = LifetimeConformance(), INSIDE[name]
    rows.test_retires_rows_that_were_written(lifetime)
    rows.test_retires_a_row_once(lifetime)
    rows.test_keeps_what_is_still_needed(lifetime)
    rows.test_a_request_gets_by_with_what_it_is_charged(lifetime)


def test_every_lifetime_is_tested() -> None:
    """There is an example of each entry point."""
    assert {*ROWS, *SLOTS} == own_names("lifetimes")
