"""The one table: every pair has its answer, the design's ones, and a plugin's rows and columns must be whole."""

import itertools
import re
from pathlib import Path

import pytest

from kvarena.ledger.clearance import (
    CLEARANCE,
    COPY_READ,
    COPY_WRITE,
    FIXED,
    FORWARD,
    FORWARD_READ,
    HOST_LOAD,
    HOST_SAVE,
    IN_FORWARD,
    NETWORK_RECEIVE,
    NETWORK_SEND,
    RECEIVING,
    SCHEDULE_COPY,
    SCHEDULE_READ,
    SENDING,
    ZERO,
    Actor,
    Answer,
    Cell,
    Extension,
    Hazard,
)
from kvarena.terms.errors import PluginError

NONE, STREAM, RETIRE, HOST, OUT = (
    Answer.NONE,
    Answer.STREAM_WAIT,
    Answer.AFTER_RETIRE,
    Answer.HOST_WAIT,
    Answer.EXCLUDED,
)
COLUMNS = (IN_FORWARD, COPY_READ, COPY_WRITE, SENDING, RECEIVING, FIXED)
WRITERS = {
    FORWARD: (NONE, STREAM, STREAM, HOST, HOST, OUT),
    SCHEDULE_COPY: (STREAM, STREAM, STREAM, HOST, HOST, OUT),
    ZERO: (STREAM, STREAM, STREAM, HOST, HOST, OUT),
    HOST_LOAD: (NONE, STREAM, STREAM, HOST, HOST, OUT),
    NETWORK_RECEIVE: (RETIRE, STREAM, STREAM, HOST, HOST, OUT),
}
READERS = {
    FORWARD_READ: (NONE, NONE, STREAM, NONE, HOST, NONE),
    SCHEDULE_READ: (NONE, NONE, STREAM, NONE, HOST, NONE),
    HOST_SAVE: (NONE, NONE, STREAM, NONE, HOST, NONE),
    NETWORK_SEND: (RETIRE, NONE, STREAM, NONE, HOST, NONE),
}


@pytest.mark.req("LED-2")
@pytest.mark.parametrize(("actor", "answers"), WRITERS.items(), ids=lambda item: getattr(item, "name", ""))
def test_writers_answer_as_the_design_says(actor: Actor, answers: tuple[Answer, ...]) -> None:
    """Five consumers by five hazards; the network's one stands in two columns, which answer writers alike."""
    assert actor.writes
    assert tuple(CLEARANCE.cell(actor, hazard).answer for hazard in COLUMNS) == answers


@pytest.mark.req("LED-2+")
@pytest.mark.parametrize(("actor", "answers"), READERS.items(), ids=lambda item: getattr(item, "name", ""))
def test_readers_wait_for_what_writes(actor: Actor, answers: tuple[Answer, ...]) -> None:
    """A copy that writes is waited for by stream; nobody reads before a receive is released; readers share."""
    assert not actor.writes
    assert tuple(CLEARANCE.cell(actor, hazard).answer for hazard in COLUMNS) == answers


@pytest.mark.req("LED-2")
def test_there_is_nothing_else_in_the_table() -> None:
    """Every actor, every hazard, every pair once, and each says why it is enough."""
    assert CLEARANCE.actors == (*WRITERS, *READERS)
    assert CLEARANCE.hazards == COLUMNS
    pairs = {(actor.name, hazard.name) for actor, hazard in itertools.product(CLEARANCE.actors, COLUMNS)}
    assert set(CLEARANCE.cells) == pairs
    assert all(cell.why for cell in CLEARANCE.cells.values())


@pytest.mark.req("LED-2")
def test_the_page_shows_the_table() -> None:
    """docs/overlap.md has every cell as it is."""
    page = (Path(__file__).parents[3] / "docs" / "overlap.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `([A-Z_]+)` \| ((?:none|stream wait|host wait|after retire|excluded)[^\n]*) \|$", page, re.M)
    )

    assert list(rows) == [actor.name for actor in CLEARANCE.actors]
    for actor in CLEARANCE.actors:
        answers = [CLEARANCE.cell(actor, hazard).answer.name.lower().replace("_", " ") for hazard in COLUMNS]
        assert rows[actor.name].split(" | ") == answers


def test_of_several_actors_the_strictest_answers() -> None:
    """A page that is zeroed for a forward waits as zeroing does."""
    assert CLEARANCE.answer((FORWARD,), IN_FORWARD) is NONE
    assert CLEARANCE.answer((ZERO, FORWARD), IN_FORWARD) is STREAM
    assert CLEARANCE.answer((FORWARD, NETWORK_RECEIVE), IN_FORWARD) is RETIRE


def test_pages_that_some_writer_may_not_have_are_kept() -> None:
    """Transfers and reservations keep pages out of every choice; copies and forwards are waited for."""
    assert [CLEARANCE.keeps_pages(hazard) for hazard in COLUMNS] == [False, False, False, True, True, True]


SCRUB = Hazard("SCRUB")
CELLS = {(actor.name, "SCRUB"): Cell(STREAM, "the scrubber has an event") for actor in CLEARANCE.actors}


@pytest.mark.req("LED-5")
def test_a_plugin_adds_a_column_with_an_answer_for_everybody() -> None:
    """Its cells are asked like all others; the standard table does not change."""
    table = CLEARANCE.extended(Extension(hazards=(SCRUB,), cells=CELLS))
    assert table.answer((FORWARD,), SCRUB) is STREAM
    assert not table.keeps_pages(SCRUB)
    assert SCRUB not in CLEARANCE.hazards
    reader = Actor("PEEK", writes=False)
    row = {("PEEK", hazard.name): Cell(NONE, "it only looks") for hazard in (*COLUMNS, SCRUB)}
    assert table.extended(Extension(actors=(reader,), cells=row)).cell(reader, SCRUB).why == "it only looks"


@pytest.mark.req("LED-5")
def test_an_unanswered_pair_refuses_to_start() -> None:
    """It is named; so are a name that is taken, a cell of nobody, and a cell that is fixed."""
    few = {pair: cell for pair, cell in CELLS.items() if pair[0] != "ZERO"}
    with pytest.raises(PluginError, match="no answer for ZERO before SCRUB; give a Cell for each pair"):
        CLEARANCE.extended(Extension(hazards=(SCRUB,), cells=few))
    with pytest.raises(PluginError, match="the hazard 'FIXED' is there already"):
        CLEARANCE.extended(Extension(hazards=(Hazard("FIXED"),)))
    with pytest.raises(PluginError, match=r"\('ZEROS', 'FIXED'\) names no actor or no hazard"):
        CLEARANCE.extended(Extension(cells={("ZEROS", "FIXED"): Cell(NONE, "")}))
    with pytest.raises(PluginError, match=r"the answer of \('ZERO', 'FIXED'\) is fixed"):
        CLEARANCE.extended(Extension(cells={("ZERO", "FIXED"): Cell(NONE, "")}))
    scrub = Extension(hazards=(SCRUB,), cells=CELLS)
    with pytest.raises(PluginError, match=r"\('FORWARD', 'SCRUB'\) is answered twice"):
        CLEARANCE.extended(scrub, Extension(cells={("FORWARD", "SCRUB"): Cell(NONE, "")}))
