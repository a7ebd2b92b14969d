"""How long the main job takes: ``python benchmarks/quickstart.py [--json] [--model NAME ...]``.

Runs ``kvarena run examples/quickstart.toml --json`` in a process of its own, for each tiny model named, and
reports the wall time of serving, of the check, of the whole process, and the share spent in kvarena.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import figure, show

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "quickstart.toml"
PROCESS_SECONDS_MAX = 120


def measure(model: str) -> list[dict[str, Any]]:
    """The rows of one model."""
    command = [sys.executable, "-m", "kvarena.plugins.cli.start", "run", str(CONFIG), "--model", model, "--json"]
    began = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if finished.returncode:
        sys.exit(f"{model}: exit code {finished.returncode}: {finished.stderr.strip()}")
    found = json.loads(finished.stdout)
    if not found["tokens_equal"]:
        sys.exit(f"{model}: the tokens are not equal")
    return [
        figure(f"{model}: whole process", seconds, "s", PROCESS_SECONDS_MAX),
        figure(f"{model}: serving {found['done']} requests", found["wall_seconds"], "s"),
        figure(f"{model}: checking {found['tokens_compared']} tokens", found["verify_seconds"], "s"),
        figure(f"{model}: share of serving spent in kvarena's own decisions", 100 * found["kvarena_share"], "%"),
        figure(f"{model}: requests that waited", found["waits"], "requests"),
        figure(f"{model}: retractions", found["retractions"], "retractions", 1),
    ]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--model", action="append", help="a tiny model's name; may be given again")
    arguments = parser.parse_args()
    rows = [found for model in arguments.model or ["lfm3"] for found in measure(model)]
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
