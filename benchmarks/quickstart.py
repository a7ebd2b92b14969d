"""How long the main job takes: ``python benchmarks/quickstart.py [--json] [--model NAME ...]``.

Runs ``kvarena run examples/quickstart.toml --json`` in a process of its own, for each tiny model named: as it
is, with forwards that overlap, and in lock step. Reports the wall time of serving, of the check, of the whole
process, the share spent in kvarena, and the tokens that the prefix cache had.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rows import figure, show

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "quickstart.toml"
PROCESS_SECONDS_MAX = 120
OVERLAPPED, LOCK_STEP = "overlapped", "lock step"
CHANGES = {"forwards_in_flight = 2": "forwards_in_flight = 0", 'file = "': f'file = "{CONFIG.parent}/'}
"""What a config for lock step, in another folder, has in the stead of the quickstart's lines."""


def configs(folder: str) -> Mapping[str, Path]:
    """The quickstart's config as it is, and one for lock step, written into this folder."""
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in CHANGES.items():
        if text.count(old) != 1:
            sys.exit(f"{CONFIG.name}: {old!r} is there {text.count(old)} times; this benchmark changes it once")
        text = text.replace(old, new)
    lock_step = Path(folder) / CONFIG.name
    lock_step.write_text(text, encoding="utf-8")
    return {OVERLAPPED: CONFIG, LOCK_STEP: lock_step}


def measure(model: str, way: str, config: Path) -> list[dict[str, Any]]:
    """The rows of one model, served in one way."""
    command = [sys.executable, "-m", "kvarena.plugins.cli.start", "run", str(config), "--model", model, "--json"]
    began = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    name = f"{model}, {way}"
    if finished.returncode:
        sys.exit(f"{name}: exit code {finished.returncode}: {finished.stderr.strip()}")
    found = json.loads(finished.stdout)
    if not found["tokens_equal"]:
        sys.exit(f"{name}: the tokens are not equal")
    cache = found["cache"]
    return [
        figure(f"{name}: whole process", seconds, "s", PROCESS_SECONDS_MAX),
        figure(f"{name}: serving {found['done']} requests", found["wall_seconds"], "s"),
        figure(f"{name}: checking {found['tokens_compared']} tokens", found["verify_seconds"], "s"),
        figure(f"{name}: share of serving spent in kvarena's own decisions", 100 * found["kvarena_share"], "%"),
        figure(f"{name}: cached of {cache['prompt_tokens']} tokens to prefill", cache["cached_tokens"], "tokens"),
        figure(f"{name}: requests that waited", found["waits"], "requests"),
        figure(f"{name}: retractions", found["retractions"], "retractions", 1),
    ]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--model", action="append", help="a tiny model's name; may be given again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ways = configs(folder)
        rows = [
            found
            for model in arguments.model or ["lfm3"]
            for way, config in ways.items()
            for found in measure(model, way, config)
        ]
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
