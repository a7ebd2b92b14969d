"""How fast models are planned: ``python benchmarks/plan.py [--json]``.

Reads every ``config.json`` of the folder in KVARENA_MODELS, else those of the tests: milliseconds to read the
model, plan it, size it for 80 GiB and compare, the median of several rounds in one process; and the seconds of a
whole ``kvarena plan`` process for the first of them, imports included.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import figure, show

from kvarena.assembly.catalog import Catalog
from kvarena.planning.plan import plan_storage
from kvarena.planning.sizing import size_plan
from kvarena.plugins.cli.compare import compare
from kvarena.plugins.models import read_config, read_model, summarize

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 80 << 30
ROUNDS = 5
LENGTHS = (32768, 4096)
NO_MODELS = {"expected.json", "PROVENANCE.json"}


def configs() -> list[Path]:
    """The model configs to plan."""
    folder = Path(os.environ.get("KVARENA_MODELS", ROOT / "tests" / "data" / "models"))
    return [path for path in sorted(folder.glob("*.json")) if path.name not in NO_MODELS]


def plan_once(path: Path, catalog: Catalog) -> dict[str, float]:
    """Milliseconds of each part of planning one model."""
    marks = [time.perf_counter()]
    spec = read_model(read_config(path), source=path.name, catalog=catalog)
    marks.append(time.perf_counter())
    plan = plan_storage(spec.layers)
    summarize(spec, plan)
    marks.append(time.perf_counter())
    sizing = size_plan(plan, BUDGET)
    marks.append(time.perf_counter())
    compare(plan, sizing, LENGTHS)
    marks.append(time.perf_counter())
    names = ("read", "plan", "size", "compare")
    return {name: 1000 * (stop - start) for name, start, stop in zip(names, marks, marks[1:], strict=False)}


def process_seconds(path: Path) -> float:
    """Seconds of ``kvarena plan`` as a person runs it."""
    command = [sys.executable, "-c", "from kvarena.plugins.cli.start import main; main()"]
    start = time.perf_counter()
    subprocess.run([*command, "plan", str(path), "--memory", "80GiB"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure all models, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    as_json = parser.parse_args().json
    catalog, paths = Catalog.installed(), configs()
    rows: list[dict[str, Any]] = []
    for path in paths:
        rounds = [plan_once(path, catalog) for _ in range(ROUNDS)]
        parts = {part: statistics.median(one[part] for one in rounds) for part in rounds[0]}
        listed = ", ".join(f"{part} {milliseconds:.1f}" for part, milliseconds in parts.items())
        rows.append(figure(f"{path.stem} ({listed})", sum(parts.values()), "ms"))
    seconds = statistics.median(process_seconds(paths[0]) for _ in range(ROUNDS))
    rows.append(figure("kvarena plan, the whole process", seconds, "s", goal=1))
    show(rows, as_json=as_json)


if __name__ == "__main__":
    main()
