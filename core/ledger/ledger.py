"""The ledger of one arena: forwards, uses, the streams they are on, and the table of who waits for what."""

from kvarena.ledger.clearance import CLEARANCE, IN_FORWARD, Actor, Answer, Clearance, Hazard
from kvarena.ledger.steps import ForwardSteps
from kvarena.ledger.timeline import Timeline
from kvarena.ledger.uses import Uses
from kvarena.terms.invariants import WARN, fail
from kvarena.terms.ports import Device, IntArray, Stream


class Ledger:
    """What is under way on an arena, and what is due before a page may be used again."""

    def __init__(
        self, device: Device, in_flight: int = 0, clearance: Clearance = CLEARANCE, *, checks: int = WARN
    ) -> None:
        """``in_flight``: the most forwards that are launched and not processed; 0 is no overlap.

        ``checks``: the level of checks.
        """
        self.clearance = clearance
        self.timeline = Timeline(device, in_flight, checks)
        self.steps = ForwardSteps(in_flight)
        self.uses = Uses(clearance)
        self._answers: dict[tuple[tuple[Actor, ...], Hazard], Answer] = {}

    def settle(self, forward: int) -> None:
        """The allocator's stream waits for this forward, if it has not yet; it is retired."""
        if forward > self.steps.retired:
            self.timeline.wait(self.steps.event_of(forward))
            self.steps.settle(forward)

    def due_after_forward(self, actors: tuple[Actor, ...]) -> bool:
        """Whether these must wait for a running forward that may still read a page's old bytes."""
        return self._answer(actors, IN_FORWARD) is not Answer.NONE

    def clear(self, unit_bytes: int, pages: IntArray, actors: tuple[Actor, ...], stream: Stream | None = None) -> None:
        """These pages were chosen for these actors: wait for what is still under way on them.

        The allocator's stream waits, or ``stream`` where the pages are used on another.

        Raises:
            InvariantError: a page was chosen that must not be offered.
        """
        due = {
            hazard: answer
            for hazard in self.uses.hazards()
            if (answer := self._answer(actors, hazard)) is not Answer.NONE
        }
        if not due:
            return
        for use in self.uses.over(unit_bytes, pages, due):
            if due[use.hazard].keeps_page or use.event is None:
                cell = max((self.clearance.cell(actor, use.hazard) for actor in actors), key=lambda cell: cell.answer)
                asked_by = [actor.name for actor in actors]
                fail("ledger.page_is_not_to_be_had", use=str(use), asked_by=asked_by, why=cell.why)
            if stream is None or stream is self.timeline.memory:
                self.timeline.wait(use.event)
            else:
                self.timeline.device.wait(stream, use.event)

    def _answer(self, actors: tuple[Actor, ...], hazard: Hazard) -> Answer:
        """What the table says, remembered: it is asked again and again for the same few."""
        answer = self._answers.get((actors, hazard))
        if answer is None:
            answer = self._answers[actors, hazard] = self.clearance.answer(actors, hazard)
        return answer
