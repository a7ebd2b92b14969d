"""What overlap costs the allocator: ``python benchmarks/overlap.py [--json] [--quick] [--page-size N ...]``.

The serving step of ``takes.py`` (256 running, 2 % replaced a step, three kinds) where a forward is processed before the
next one is launched, and the same work under an overlapped loop: launch, record and process, frees under a forward in
flight, write sets, pending batches; with and without a flush each step. The ratio is the row with the goal. They run
on the ``host`` backend, which counts bytes and moves none, and whose streams have nothing to wait for. The last rows
are on the ``cpu`` backend, whose streams are threads, with and without device mirrors: what a packed update costs.

Microseconds of the allocator's thread's CPU time, medians, the sides in turn, garbage collection off. No peer counts
this apart.
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
IN_FLIGHT = 2
"""One runs, one is launched behind it."""
REPEATS, WARM = 300, 60
QUICK_REPEATS, QUICK_WARM = 6, 2


def medians(works: dict[str, Work], repeats: int, warm: int) -> dict[str, float]:
    """The median step of each, measured in turn."""
    found = in_turn(list(works.values()), repeats, warm=warm)
    return {name: series["step"].median_us for name, series in zip(works, found, strict=True)}


def page_rows(page_tokens: int, repeats: int, warm: int) -> list[Row]:
    """All loops at one page size."""
    shape = Shape(page_tokens)
    rows = []
    for flush in (False, True):
        with_flush = ", flush" if flush else ""
        off, on = medians(
            {
                "off": our.ServingStep(storage_like(shape), Schedule(), flush=flush),
                "on": our.OverlappedStep(storage_like(shape, in_flight=IN_FLIGHT), Schedule(), flush=flush),
            },
            repeats,
            warm,
        ).values()
        rows += [
            figure(f"step, overlap off{with_flush}, page {page_tokens}", off, "us"),
            figure(f"step, overlap on{with_flush}, page {page_tokens}", on, "us"),
            figure(f"overlap on / off{with_flush}, page {page_tokens}", on / off, "times", RATIO_GOAL),
        ]
    storages = {
        f"step, overlap on, cpu{mirrors and ', mirrors'}, page {page_tokens}": storage_like(
            shape, in_flight=IN_FLIGHT, backend="cpu", mirrors=bool(mirrors)
        )
        for mirrors in ("", "mirrors")
    }
    works: dict[str, Work] = {name: our.OverlappedStep(storage, Schedule()) for name, storage in storages.items()}
    rows += [figure(name, median, "us") for name, median in medians(works, repeats, warm).items()]
    for storage in storages.values():
        storage.release()
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
