"""How a saboteur joins the kit: one tiny broken plugin, and the one promise that it breaks."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings

ALONE = "KVARENA_SABOTAGE"
"""Set where saboteurs run in a process of their own: nobody reads their inputs, so that none is made smaller."""
if ALONE in os.environ:
    settings.register_profile("sabotage", phases=[Phase.generate], deadline=None)
    settings.load_profile("sabotage")

from kvarena.plugins.conformance import Conformance  # noqa: E402 - it takes the phases of the profile

HARNESS = "test_holds_in_the_stress_harness"
WHOLE = frozenset(
    {
        HARNESS, "test_plans_in_pages_of_any_size", "test_what_is_written_is_read_back_and_nothing_else_changes",
        "test_a_request_gets_by_with_what_it_is_charged", "test_gives_layers_that_can_be_planned",
    }
)  # fmt: skip
"""Promises that put the plugin to work in kvarena, which refuses much of what other promises find: of a plugin that
breaks another promise they say nothing more.
"""


def saboteur(
    kit: type[Conformance], breaks: str, declines: tuple[str, ...] = (), **fixtures: Callable[[], Any]
) -> type[Conformance]:
    """A test class of the kit for a broken plugin. ``breaks``: the promise, by the name of its test.

    ``fixtures``: what makes the value of each fixture of the class, by its name. What puts the plugin to work is left
    out where it is not what is broken.
    """
    left_out = {HARNESS} - {breaks} if breaks in WHOLE else WHOLE
    body: dict[str, Any] = {"breaks": breaks, "declines": declines, **dict.fromkeys(left_out)}
    for name, make in fixtures.items():
        body[name] = pytest.fixture(name=name)(_giver(make))
    return type(f"Breaks_{breaks}", (kit,), body)


def _giver(make: Callable[[], Any]) -> Callable[[Any], Any]:
    def give(self: Any) -> Any:
        return make()

    return give
