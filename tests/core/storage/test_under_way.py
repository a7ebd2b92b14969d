"""Numbered things, known from their beginning to their end."""

import attrs

from kvarena.storage.under_way import UnderWay


@attrs.define(eq=False)
class Thing:
    """One."""

    number: int = 0


def test_each_is_known_by_itself_until_it_ends() -> None:
    """Numbers go on rising, and another of the same number is another."""
    things: UnderWay[Thing] = UnderWay()
    first, second = things.begin(Thing()), things.begin(Thing())
    assert [thing.number for thing in things.all()] == [1, 2]
    assert Thing(1) not in things
    things.end(first)
    assert (first in things, second in things, len(things)) == (False, True, 1)
    assert things.begin(Thing()).number == 3
