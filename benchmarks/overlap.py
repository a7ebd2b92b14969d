"""What overlap costs the allocator: ``python benchmarks/overlap.py [--json] [--quick] [--page-size N ...]``.

The serving step of ``takes.py`` (256 running, 2 % replaced a step, three kinds) with forwards processed before the next
one is launched, and the same work under an overlapped loop: launch, record and process a step, frees under a forward in
flight, write sets, pending batches; then with device mirrors as well, whose packed update is made at each launch; and with
a flush each step. The ``host`` backend counts bytes and moves none, and its streams have
nothing to wait for. Microseconds of the thread's CPU time, medians, the sides in turn, garbage collection off; the ratio
is the row with the goal. No peer counts this apart.
"""

import argparse
from typing import Any

from peers import kvarena_work as our
from peers.kvarena_side import storage_like
from peers.schedule import Schedule
from peers.shape import PAGE_SIZES, Shape
from peers.timing import Work, in_turn
from rows import figure, show

Row = dict[str, Any]
RATIO_GOAL = 1.3
REPEATS, WARM = 200, 40
QUICK_REPEATS, QUICK_WARM = 6, 2


def page_rows(page_tokens: int, repeats: int, warm: int) -> list[Row]:
    """All loops at one page size, measured in turn."""
    shape = Shape(page_tokens)
    works: dict[str, Work] = {
        "overlap off": our.ServingStep(storage_like(shape), Schedule()),
        "overlap on": our.OverlappedStep(storage_like(shape, in_flight=2), Schedule()),
        "overlap on, mirrors": our.OverlappedStep(storage_like(shape, in_flight=2, mirrors=True), Schedule()),
        "overlap off, flush": our.ServingStep(storage_like(shape), Schedule(), flush=True),
        "overlap on, flush": our.OverlappedStep(storage_like(shape, in_flight=2), Schedule(), flush=True),
    }
    found = in_turn(list(works.values()), repeats, warm=warm)
    medians = {name: series["step"].median_us for name, series in zip(works, found, strict=True)}
    rows = [figure(f"step, {name}, page {page_tokens}", median, "us") for name, median in medians.items()]
    for name, base in (
        ("overlap on", "overlap off"),
        ("overlap on, mirrors", "overlap off"),
        ("overlap on, flush", "overlap off, flush"),
    ):
        goal = RATIO_GOAL if name == "overlap on" else None
        rows.append(figure(f"{name} / {base}, page {page_tokens}", medians[name] / medians[base], "times", goal))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a few repeats, to see that it runs")
    parser.add_argument("--page-size", type=int, action="append", choices=PAGE_SIZES)
    options = parser.parse_args()
    repeats, warm = (QUICK_REPEATS, QUICK_WARM) if options.quick else (REPEATS, WARM)
    rows = [row for page in options.page_size or PAGE_SIZES for row in page_rows(page, repeats, warm)]
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
