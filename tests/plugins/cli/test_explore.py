"""``kvarena explore``: the counts, the path to a broken promise, exit codes and JSON."""

import json

import pytest

from kvarena.ledger.timeline import Timeline
from kvarena.plugins.cli.main import run
from kvarena.plugins.stress.explore.world import WORLDS

Capture = pytest.CaptureFixture[str]


def test_states_and_moves_are_counted(capsys: Capture) -> None:
    """A line for each world, with the depth, the states and the moves."""
    assert run(["explore", "--depth", "2"]) == 0
    out = capsys.readouterr().out.splitlines()

    assert [line.partition(":")[0] for line in out] == list(WORLDS)
    assert all("states" in line and "to depth 2 in" in line and "every promise held" in line for line in out)


def test_json_is_the_same_each_time(capsys: Capture) -> None:
    """One document without times."""
    told = []
    for _ in range(2):
        assert run(["explore", "--depth", "2", "--world", "float", "--json"]) == 0
        told.append(capsys.readouterr().out)
    (world,) = json.loads(told[0])["worlds"]

    assert told[0] == told[1]
    assert world["world"] == "float"
    assert world["states"] == sum(world["states_by_depth"])
    assert world["moves"] > 10
    assert world["found"] == []


def test_the_fewest_moves_that_break_a_promise_are_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the promise in words: exit code 1."""
    monkeypatch.setattr(Timeline, "hand", lambda self, stream: None)
    assert run(["explore", "--depth", "3", "--world", "two-ends"]) == 1
    out = capsys.readouterr().out

    assert "1 promises broken" in out
    assert "unordered_overlap: run of" in out
    assert "The promise: No two actors touch the same bytes" in out
    assert "1. take request='A' rows=1" in out
    assert "3. record forward='f1'" in out

    assert run(["explore", "--depth", "3", "--world", "two-ends", "--json"]) == 1
    (world,) = json.loads(capsys.readouterr().out)["worlds"]
    assert [op["do"] for op in world["found"][0]["operations"]] == ["take", "launch", "record"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--depth", "0"], "0 is not in"), (["--world", "flat"], "flat"), (["--moves", "tke"], "did you mean 'take'")],
)
def test_bad_input_is_refused(arguments: list[str], words: str, capsys: Capture) -> None:
    """Exit code 2."""
    assert run(["explore", *arguments]) == 2
    assert words in capsys.readouterr().err
