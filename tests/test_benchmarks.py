"""Each benchmark runs as its page says and prints rows of one shape."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ROW = {"case", "ours", "unit", "peer", "theirs", "goal"}
QUICK = {"replay": ["--limit", "5"], "plan": [], "quickstart": ["--model", "llama"]}


def test_every_benchmark_is_tried() -> None:
    """A new script joins the table."""
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*QUICK, "rows"}


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
