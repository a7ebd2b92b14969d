"""Who waits for what, in one table: the next user of a page, and what is still under way on it.

Rows are *actors*. A writer is about to overwrite a page, a reader is about to read one. Columns are *hazards*: what an
open use of the page is. Every wait for another's use of a page asks this table, and nothing else says so.

What FORWARD means here: a running forward that may still read the old bytes of a page that a move vacated. A page that
its owner freed under a forward is pending, and cleared with its batch.
"""

import enum
from collections.abc import Mapping

import attrs

from kvarena.terms.errors import PluginError


class Answer(enum.IntEnum):
    """What a user of a page does about a hazard on it. Of several answers the greatest holds."""

    NONE = 0
    """Nothing: another order, which the cell names, already puts the two apart."""
    STREAM_WAIT = 1
    """Its stream waits for the event of the use."""
    AFTER_RETIRE = 2
    """The page's id leaves this process only behind the event: the engine that gets it waits for the event."""
    HOST_WAIT = 3
    """The host waits until the use is proven over: no stream knows its end. Until then the page is not offered."""
    EXCLUDED = 4
    """The page is not offered."""

    @property
    def keeps_page(self) -> bool:
        """Whether the page is kept out of everybody's choice until the use is over."""
        return self >= Answer.HOST_WAIT


@attrs.frozen(eq=False)
class Actor:
    """One row: who is about to use a page. ``writes``: it overwrites it, else it only reads."""

    name: str
    writes: bool


@attrs.frozen(eq=False)
class Hazard:
    """One column: a use of a page that is not over. There is one object of each: it is its own name in the table."""

    name: str


FORWARD = Actor("FORWARD", writes=True)
SCHEDULE_COPY = Actor("SCHEDULE_COPY", writes=True)
ZERO = Actor("ZERO", writes=True)
HOST_LOAD = Actor("HOST_LOAD", writes=True)
NETWORK_RECEIVE = Actor("NETWORK_RECEIVE", writes=True)

FORWARD_READ = Actor("FORWARD_READ", writes=False)
SCHEDULE_READ = Actor("SCHEDULE_READ", writes=False)
HOST_SAVE = Actor("HOST_SAVE", writes=False)
NETWORK_SEND = Actor("NETWORK_SEND", writes=False)

IN_FORWARD = Hazard("FORWARD")
COPY_READ = Hazard("COPY_READ")
COPY_WRITE = Hazard("COPY_WRITE")
SENDING = Hazard("NETWORK_SEND")
RECEIVING = Hazard("NETWORK_RECEIVE")
FIXED = Hazard("FIXED")


@attrs.frozen
class Cell:
    """One answer, and the order that makes it enough."""

    answer: Answer
    why: str


Rows = Mapping[tuple[str, str], Cell]

_BEHIND_FORWARDS = Cell(Answer.NONE, "the forward stream runs one forward after another")
_COPY_BEHIND_FORWARDS = Cell(Answer.NONE, "a copy's stream waits the forward stream before it starts")
_STREAM = Cell(Answer.STREAM_WAIT, "the stream waits for the event")
_RETIRE = Cell(Answer.AFTER_RETIRE, "the page's id reaches the peer only after the forward")
_HOST = Cell(Answer.HOST_WAIT, "the transfer engine runs outside every stream")
_FIXED = Cell(Answer.EXCLUDED, "a fixed page is somebody's, with or without an id")
_READS = Cell(Answer.NONE, "both only read")
_HELD = Cell(Answer.NONE, "who holds the page reads it as it is")
_SAME = Cell(
    Answer.NONE, "the allocator's stream waits the forwards that write what it reads, by their recorded writes"
)


def _writer(forward: Cell) -> dict[str, Cell]:
    return {
        IN_FORWARD.name: forward,
        COPY_READ.name: _STREAM,
        COPY_WRITE.name: _STREAM,
        SENDING.name: _HOST,
        RECEIVING.name: _HOST,
        FIXED.name: _FIXED,
    }


def _reader(forward: Cell) -> dict[str, Cell]:
    return {
        IN_FORWARD.name: forward,
        COPY_READ.name: _READS,
        COPY_WRITE.name: _STREAM,
        SENDING.name: _READS,
        RECEIVING.name: _HOST,
        FIXED.name: _HELD,
    }


_STANDARD: dict[Actor, dict[str, Cell]] = {
    FORWARD: _writer(_BEHIND_FORWARDS),
    SCHEDULE_COPY: _writer(_STREAM),
    ZERO: _writer(_STREAM),
    HOST_LOAD: _writer(_COPY_BEHIND_FORWARDS),
    NETWORK_RECEIVE: _writer(_RETIRE),
    FORWARD_READ: _reader(_BEHIND_FORWARDS),
    SCHEDULE_READ: _reader(_SAME),
    HOST_SAVE: _reader(_COPY_BEHIND_FORWARDS),
    NETWORK_SEND: _reader(_RETIRE),
}


@attrs.frozen
class Extension:
    """Rows and columns that a plugin adds, with an answer, by the names of actor and hazard, for each new pair."""

    actors: tuple[Actor, ...] = ()
    hazards: tuple[Hazard, ...] = ()
    cells: Rows = attrs.field(factory=dict)


@attrs.frozen
class Clearance:
    """The whole table. Every pair of an actor and a hazard has its answer."""

    actors: tuple[Actor, ...]
    hazards: tuple[Hazard, ...]
    cells: Rows

    def cell(self, actor: Actor, hazard: Hazard) -> Cell:
        """What the actor does about the hazard, and why that is enough."""
        return self.cells[actor.name, hazard.name]

    def answer(self, actors: tuple[Actor, ...], hazard: Hazard) -> Answer:
        """What is due before all of these may use the page: the strictest of their answers."""
        return max(self.cells[actor.name, hazard.name].answer for actor in actors)

    def keeps_pages(self, hazard: Hazard) -> bool:
        """Whether pages under this hazard are kept out of every choice: some writer may not have them yet."""
        return any(self.cells[actor.name, hazard.name].answer.keeps_page for actor in self.actors if actor.writes)

    def extended(self, *more: "Extension") -> "Clearance":
        """The table with rows and columns of others.

        Raises:
            PluginError: a pair has no answer, or two; or a name is taken.
        """
        every_actor = (*self.actors, *(actor for one in more for actor in one.actors))
        every_hazard = (*self.hazards, *(hazard for one in more for hazard in one.hazards))
        for kind, every in (("actor", every_actor), ("hazard", every_hazard)):
            names = [one.name for one in every]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise PluginError(f"clearance: the {kind} {twice[0]!r} is there already; choose another name")
        cells: dict[tuple[str, str], Cell] = {}
        for one in more:
            doubled = sorted(set(cells) & set(one.cells))
            if doubled:
                raise PluginError(f"clearance: {doubled[0]} is answered twice; leave it to one of the two plugins")
            cells |= one.cells
        overruled = sorted(set(cells) & set(self.cells))
        if overruled:
            raise PluginError(f"clearance: the answer of {overruled[0]} is fixed; add rows and columns, change none")
        pairs = {(actor.name, hazard.name) for actor in every_actor for hazard in every_hazard}
        unknown = sorted(set(cells) - pairs)
        if unknown:
            raise PluginError(f"clearance: {unknown[0]} names no actor or no hazard of the table")
        merged = {**self.cells, **cells}
        missing = sorted(pairs - set(merged))
        if missing:
            named = ", ".join(f"{actor} before {hazard}" for actor, hazard in missing)
            raise PluginError(f"clearance: no answer for {named}; give a Cell for each pair")
        return Clearance(every_actor, every_hazard, merged)


CLEARANCE = Clearance((), (), {}).extended(
    Extension(
        tuple(_STANDARD),
        (IN_FORWARD, COPY_READ, COPY_WRITE, SENDING, RECEIVING, FIXED),
        {(actor.name, hazard): cell for actor, row in _STANDARD.items() for hazard, cell in row.items()},
    )
)
"""The table of every storage. NETWORK of the design has two columns: a send reads, a receive writes."""
