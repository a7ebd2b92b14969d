"""Each benchmark runs as its page says and prints rows of one shape."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HELPERS = {"rows", "mix", "alone", "memories"}
ROW = {"case", "ours", "unit", "peer", "theirs", "goal"}
QUICK = {
    "moves": ["--quick"],
    "harness": ["--quick"],
    "replay": ["--limit", "5"],
    "plan": [],
    "quickstart": ["--model", "llama"],
    "takes": ["--quick"],
    "question": ["--quick"],
    "fill": ["--quick"],
    "scale": ["--quick"],
    "overlap": ["--quick", "--page-size", "16"],
    "step": ["--quick"],
    "admission": ["--quick"],
    "prefix": ["--quick"],
    "goodput": ["--quick"],
    "startup": ["--quick"],
}


def test_every_benchmark_is_tried() -> None:
    """A new script joins the table."""
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*QUICK, *HELPERS}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_benchmark_prints_rows(name: str) -> None:
    """``--json`` prints one document; its rows have a case, our figure and unit, and the peer's where there is one."""
    surroundings = {key: value for key, value in os.environ.items() if key != "KVARENA_TRACES"}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--json", *QUICK[name]]
    finished = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)

    assert finished.returncode == 0, finished.stderr
    rows = json.loads(finished.stdout)["rows"]
    assert rows
    for row in rows:
        assert set(row) == ROW
        assert row["case"]
        assert isinstance(row["ours"], (int, float))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The table of goals, found as a benchmark finds it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers.table")


def test_a_goal_follows_the_machine(table: Any) -> None:
    """A goal is scaled by the same row of SGLang, else by its serving step; without SGLang it stays as it is."""
    alone, beside = table.Goals(16), table.Goals(16, step_us=3 * table.SGLANG[table.STEP][16])

    assert alone.of(table.TAKE) == table.GOALS[table.TAKE][16]
    assert beside.of(table.TAKE, 2 * table.SGLANG[table.TAKE][16]) == 2 * table.GOALS[table.TAKE][16]
    assert beside.of(table.TAKE) == pytest.approx(3 * table.GOALS[table.TAKE][16])
    assert beside.of(table.TABLES, 12.0) == pytest.approx(3 * table.GOALS[table.TABLES][16])


def test_an_absent_peer_is_said_in_a_line() -> None:
    """Without the peer its columns are empty, and stderr says how to get it."""
    command = [sys.executable, str(BENCHMARKS / "question.py"), "--json", "--quick"]
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    finished = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=True)

    assert {row["theirs"] for row in json.loads(finished.stdout)["rows"]} == {None}
    assert "pip download --no-deps sglang==" in finished.stderr
