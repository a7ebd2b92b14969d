"""The vocabulary: every verb that a stage plays is in the table, and what is not in it is refused with its place."""

import inspect
from typing import Any

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.plugins.stress.scenario.planning import Drawing
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, PoolSpec, open_stage
from kvarena.plugins.stress.stage.kinds import REQUIRED
from kvarena.plugins.stress.stage.operations import VERBS, Op, read_operation
from kvarena.terms.errors import ConfigError

CATALOG = Catalog.installed()
SPEC = ChainSpec(arena=8, sub_pools={"F": PoolSpec(lifetime="full")})
BY_THE_RUNNER = {"repeat"}


def handlers() -> dict[str, Any]:
    """What plays each verb: the stage's rooms, or the planning of scenario files."""
    stage = open_stage(SPEC, Choice("host"), CATALOG, "")
    rooms = (stage.requests, stage.forwards, stage.copies, stage.transfers, stage.sharing, stage.questions)
    drawing = Drawing(SPEC, CATALOG, "")
    found = {verb: play for room in rooms for verb, play in room.verbs().items()}
    return {**found, "land": stage.land, "turn": stage.turn, "plan": drawing.plan, "size": drawing.size}


@pytest.mark.req("HAR-1")
def test_a_verb_has_the_arguments_and_defaults_of_what_plays_it() -> None:
    """The table and the code say the same, so that a file that passes the table can be played."""
    for verb, play in handlers().items():
        parameters = inspect.signature(play).parameters
        assert [argument.name for argument in VERBS[verb].arguments] == list(parameters), verb
        for argument in VERBS[verb].arguments:
            default = parameters[argument.name].default
            assert argument.default == (REQUIRED if default is inspect.Parameter.empty else default), (verb, argument)


def test_what_nobody_plays_awaits_something() -> None:
    """A verb is played, or is the runner's, or says which capability it awaits."""
    silent = set(VERBS) - set(handlers()) - BY_THE_RUNNER - {"capture", "fill"}
    assert silent == {verb.name for verb in VERBS.values() if verb.awaits}
    assert silent == {"stages"}


def test_an_operation_is_read_as_it_is_written() -> None:
    """Arguments that may be left out are left out."""
    op = read_operation("take", {"request": "R", "rows": 3}, "a.toml:7", 7)
    assert op == Op("take", {"request": "R", "rows": 3}, 7)
    assert str(op) == "take request='R' rows=3"


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("takes", {}, "a.toml:3: there is no operation 'takes'; did you mean 'take'?"),
        ("take", {"request": "R", "row": 1}, "a.toml:3: take has no argument 'row'; did you mean 'rows'?"),
        ("take", {"rows": 1}, "a.toml:3: take needs request: the request"),
        ("take", {"request": "R", "rows": "1"}, "a.toml:3: take: rows must be a whole number from 0 on, not '1'"),
        ("take", {"request": "R", "rows": True}, "a.toml:3: take: rows must be a whole number from 0 on, not 'True'"),
        ("take", {"request": "R", "units": {"F": "1"}}, "units must be a table of whole numbers by sub-pool"),
        ("launch", {"forward": "f", "requests": "R"}, "requests must be a list of names"),
        ("free", {"request": "R", "pieces": [1, 2]}, r"pieces must be a list of \[first, end\] pairs"),
        ("flush", {"limit": 3}, "flush has no argument 'limit'; it has none"),
    ],
)
def test_what_is_not_in_the_table_is_refused_with_its_place(verb: str, arguments: dict[str, Any], words: str) -> None:
    """A verb, an argument or a value of another kind: the message names the place and the nearest choice."""
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        read_operation(verb, arguments, "a.toml:3")
