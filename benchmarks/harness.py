"""How fast the simulated harness is: ``python benchmarks/harness.py [--json] [--quick]``.

The seeds of ``kvarena stress`` on one core: an operation is one played on both ranks, every check after it included.
Figures are CPU time of the process, the building of each seed's two storages included. Where the time goes is sampled:
a timer interrupts the process a thousand times a second of its CPU time and looks at the stack: at the innermost call,
and whether it is below a call into ``kvarena``'s core. Nothing is slowed down by being watched.
"""

import argparse
import collections
import gc
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rows import figure, show

import kvarena.storage.storage
from kvarena.plugins.stress.swarm.harness import run_seed
from kvarena.plugins.stress.swarm.world import draw_world

GOAL = 2000.0
SAMPLE_SECONDS = 0.001
CORE = str(Path(kvarena.storage.storage.__file__).parents[1])
ROOMS = {"plugins/stress": "the harness", "backends": "the simulated device"}


@contextmanager
def sampled() -> Iterator["collections.Counter[str]"]:
    """Who runs, by samples of the stack: core counts where a call into it is the nearest of ours to the top."""
    seen: collections.Counter[str] = collections.Counter()

    def look(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(CORE):
                seen["core"] += 1
                return
            room = next((word for folder, word in ROOMS.items() if f"/{folder}/" in name), None)
            if room is not None:
                seen[room] += 1
                return
            frame = frame.f_back
        seen["others"] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one document of rows")
    parser.add_argument("--quick", action="store_true", help="few seeds: figures mean little")
    given = parser.parse_args()
    seeds, operations = (range(3), 100) if given.quick else (range(100, 150), 400)
    worlds = [draw_world(seed) for seed in seeds]
    run_seed(draw_world(99), 50)
    gc.collect()
    began, done, broken = time.process_time(), 0, 0
    for world in worlds:
        run = run_seed(world, operations)
        done += run.operations
        broken += run.case is not None
    seconds = time.process_time() - began
    with sampled() as seen:
        for world in worlds[: max(1, len(worlds) // 3)]:
            run_seed(world, operations)
    samples = max(1, seen.total())
    rows = [
        figure("operations of the simulated harness, both ranks and all checks", done / seconds, "a second", GOAL),
        figure("one operation, on both ranks", seconds / done * 1e6, "us", 1e6 / GOAL),
        figure("of that in kvarena's core", 100 * seen["core"] / samples, "%"),
        *(figure(f"of that in {word}", 100 * seen[word] / samples, "%") for word in ROOMS.values()),
        figure("seeds that broke a promise", broken, "seeds", 0),
    ]
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
