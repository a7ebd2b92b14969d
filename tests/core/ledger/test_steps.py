"""Forwards by number: their order, and every way to call the hooks wrongly."""

import numpy as np
import pytest

from kvarena.ledger.steps import Forward, ForwardSteps
from kvarena.terms.errors import InvariantError


class Mark:
    """An event that has come, or not."""

    def __init__(self, *, has_come: bool = True) -> None:
        self.has_come = has_come

    def done(self) -> bool:
        """Whether it has come."""
        return self.has_come


def fly(steps: ForwardSteps, event: Mark | None = None, **writes: list[int]) -> Forward:
    """One more forward in flight."""
    forward = steps.launch()
    steps.record(forward, event or Mark(), {name: np.array(pages) for name, pages in writes.items()})
    return forward


def end(steps: ForwardSteps, forward: Forward) -> None:
    steps.check_process(forward, checks=1)
    steps.process(forward)


@pytest.mark.req("LIF-2")
@pytest.mark.req("LIF-3")
def test_what_is_freed_waits_for_the_newest_recorded_forward_until_it_is_processed() -> None:
    """A settled forward keys frees still; what is moved has nobody left to wait for."""
    steps = ForwardSteps(3)
    assert (steps.keying, steps.reading) == (0, 0)
    first, second = fly(steps), fly(steps)
    assert (steps.keying, steps.reading) == (2, 2)
    steps.settle(2)
    assert (steps.keying, steps.reading) == (2, 0)
    third = fly(steps)
    assert (steps.keying, steps.reading) == (3, 3)
    for forward in (first, second):
        end(steps, forward)
        assert (steps.keying, steps.reading) == (3, 3)
    end(steps, third)
    assert (steps.keying, steps.reading, steps.flying) == (0, 0, 0)
    steps.verify()


@pytest.mark.req("LIF-4")
def test_forwards_are_processed_in_launch_order() -> None:
    """The oldest first, each once, and only what was recorded; nothing changes otherwise."""
    steps = ForwardSteps(4)
    first, second = fly(steps), fly(steps)
    with pytest.raises(InvariantError, match=r"forwards\.process_out_of_order: forward=2 oldest=1"):
        end(steps, second)
    end(steps, first)
    with pytest.raises(InvariantError, match=r"forwards\.process_of_unrecorded: forward=1 processed=1"):
        end(steps, first)
    launched = steps.launch()
    with pytest.raises(InvariantError, match=r"forwards\.process_of_unrecorded: forward=3"):
        end(steps, launched)
    assert (steps.processed, steps.recorded, steps.launched) == (1, 2, 3)
    steps.verify()


@pytest.mark.req("LIF-4")
def test_a_forward_is_recorded_once_with_an_event_of_its_own() -> None:
    """Twice, late, or with another's event: named, and nothing changes."""
    steps, event = ForwardSteps(4), Mark()
    first = fly(steps, event)
    with pytest.raises(InvariantError, match=r"forwards\.recorded_twice: forward=1"):
        steps.record(first, Mark(), {})
    second = steps.launch()
    with pytest.raises(InvariantError, match=r"forwards\.launch_over_unrecorded: never_recorded=2"):
        steps.launch()
    with pytest.raises(InvariantError, match=r"forwards\.event_is_not_fresh: forward=2"):
        steps.record(second, event, {})
    with pytest.raises(InvariantError, match=r"forwards\.record_out_of_order: forward=9"):
        steps.record(Forward(9), Mark(), {})
    steps.record(second, Mark(), {})
    with pytest.raises(InvariantError, match=r"forwards\.record_of_unlaunched: forward=3"):
        steps.record(Forward(3), Mark(), {})
    assert (steps.recorded, steps.launched, len(steps.writes)) == (2, 2, 2)


@pytest.mark.req("LIF-3")
def test_a_forward_is_processed_after_the_host_has_waited_for_it() -> None:
    """At level 1 and above a completion that has not come is named; at level 0 nobody looks."""
    steps, event = ForwardSteps(1), Mark(has_come=False)
    forward = fly(steps, event)
    with pytest.raises(InvariantError, match=r"forwards\.process_before_its_end: forward=1"):
        steps.check_process(forward, checks=1)
    steps.check_process(forward, checks=0)
    event.has_come = True
    end(steps, forward)


def test_no_more_forwards_fly_than_were_said() -> None:
    """The staging ring has one slot more than may be in flight."""
    steps = ForwardSteps(2)
    fly(steps), fly(steps)
    with pytest.raises(InvariantError, match=r"forwards\.too_many_in_flight: flying=2 most=2"):
        steps.launch()
    assert steps.launched == 2


@pytest.mark.req("CMP-1")
def test_the_newest_forward_that_writes_a_page_is_found() -> None:
    """By what it recorded, or as one whose writes are unknown; a settled one writes no more."""
    steps = ForwardSteps(4)
    fly(steps, full=[3, 5])
    fly(steps, full=[5], state=[1])
    unknown = steps.launch()
    steps.record(unknown, Mark(), {}, frozenset({"state"}))
    assert [steps.writes.newest("full", np.array([page])) for page in (3, 5, 4)] == [1, 2, 0]
    assert [steps.writes.newest("state", np.array([page])) for page in (1, 9)] == [3, 3]
    assert (steps.writes.are_unknown("state"), steps.writes.are_unknown("full")) == (True, False)
    assert sorted(steps.writes.pages("full").tolist()) == [3, 5, 5]
    steps.settle(1)
    assert [steps.writes.newest("full", np.array([page])) for page in (3, 5)] == [0, 2]
    assert steps.writes.pages("full").tolist() == [5]
    with pytest.raises(InvariantError, match=r"forwards\.event_of_ended: forward=9"):
        steps.event_of(9)
