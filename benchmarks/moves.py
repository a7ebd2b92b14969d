"""How fast pages move in memory: ``python benchmarks/moves.py [--json] [--quick]``.

Pages of each size are copied and zeroed by the cpu backend and by a plain C loop of ``memcpy`` or ``memset`` over
the same lists in the same arena, on one thread, in turns: a row is the median over the rounds of our speed divided
by the loop's in the same round (above 1: we are faster), in CPU time of the thread. The loop is compiled here
(``cc`` or ``gcc``); without a compiler rows are our own bytes a second. Beside them one ``memmove`` of as many bytes
in one piece. Last, an urgent compaction of a band with one hole in ten, through a chain, against the copying alone.
"""

import argparse
import ctypes
import gc
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from rows import figure, show

from kvarena.backends.cpu import CpuDevice
from kvarena.chain.chain import Chain
from kvarena.layouts.mha import Mha
from kvarena.planning.plan import plan_storage
from kvarena.policies.compaction import Eager
from kvarena.policies.hole_order import Nearest
from kvarena.policies.placement import Middle
from kvarena.terms.answers import Refused
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full
from kvarena.terms.ports import FieldView, IntArray, Policies, Stream

KIB, MIB = 1 << 10, 1 << 20
SIZES = tuple(KIB << power for power in (0, 1, 2, 3, 4, 6, 10))
GOALS = ((MIB, 1.0), (16 * KIB, 0.85), (0, 0.7))
"""The share of the C loop's speed that copies are to reach, from each page size on."""
RUN_PAGES = 32
COMPACT_UNIT = 2 * KIB
COMPACT_GOAL = 2.0
"""How many times the copy itself the whole compaction may take."""
LOOPS = """
#include <stdint.h>
#include <string.h>
void copy_loop(char *arena, const int64_t *sources, const int64_t *targets, int64_t count, int64_t unit) {
    for (int64_t i = 0; i < count; i++) memcpy(arena + targets[i] * unit, arena + sources[i] * unit, unit);
}
void zero_loop(char *arena, const int64_t *pages, int64_t count, int64_t unit) {
    for (int64_t i = 0; i < count; i++) memset(arena + pages[i] * unit, 0, unit);
}
"""


@attrs.frozen
class Scale:
    """How much is measured: the arena, the bytes of one list, the pages of the compacted band, the rounds."""

    arena_bytes: int
    list_bytes: int
    band_pages: int
    rounds: int


FULL = Scale(2 << 30, 64 * MIB, 256 * KIB, 16)
QUICK = Scale(64 * MIB, 4 * MIB, 4 * KIB, 2)


@attrs.frozen
class Ours:
    """The device, on the caller's own stream."""

    device: CpuDevice

    def copy_pages(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Its copies."""
        self.device.copy_pages(self.device.current(), unit_bytes, sources, targets)

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None:
        """Its zeros."""
        self.device.zero_pages(self.device.current(), unit_bytes, pages)


@attrs.frozen
class Loops:
    """The compiled loops over one arena."""

    library: ctypes.CDLL
    base: int

    def copy_pages(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """A memcpy a pair."""
        addresses = [ctypes.c_void_p(places) for places in (self.base, sources.ctypes.data, targets.ctypes.data)]
        self.library.copy_loop(*addresses, ctypes.c_int64(len(sources)), ctypes.c_int64(unit_bytes))

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None:
        """A memset a page."""
        addresses = ctypes.c_void_p(self.base), ctypes.c_void_p(pages.ctypes.data)
        self.library.zero_loop(*addresses, ctypes.c_int64(len(pages)), ctypes.c_int64(unit_bytes))


def compiled() -> ctypes.CDLL | None:
    """The C loops, or None where nothing compiles them."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("no cc or gcc here: the C loop's column stays empty", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "loops.c", Path(folder) / "loops.so"
        source.write_text(LOOPS)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def seconds(work: Callable[[], object]) -> float:
    """How long one run keeps the thread busy."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def size_name(size: int) -> str:
    """1 KiB, 1 MiB."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def draw(rng: np.random.Generator, pages: int, count: int, run: int) -> tuple[IntArray, IntArray]:
    """Sources and targets: ``count`` pages each, in runs of neighbours, all different."""
    starts = rng.permutation(pages // run)[: 2 * (count // run)] * run
    both = (starts[:, None] + np.arange(run)).reshape(2, -1)
    return np.ascontiguousarray(both[0]), np.ascontiguousarray(both[1])


def taken_in_turns(works: Mapping[str, Callable[[], object]], spent: dict[str, list[float]], turn: int) -> None:
    """One run of each, each first as often as the others."""
    names = list(works)
    for name in names[turn % len(names) :] + names[: turn % len(names)]:
        spent.setdefault(name, []).append(seconds(works[name]))


def speed_row(case: str, spent: dict[str, list[float]], moved: int, loop: str, goal: float | None) -> dict[str, Any]:
    """Our share of the loop's speed, or our own speed where there is no loop."""
    speeds = {who: moved / statistics.median(times) / 1e9 for who, times in spent.items()}
    if "loop" not in spent:
        return figure(case, speeds["ours"], "GB/s")
    share = statistics.median(theirs / ours for ours, theirs in zip(spent["ours"], spent["loop"], strict=True))
    peer = f"C loop of {loop} at {speeds['loop']:.2f} GB/s"
    return figure(case, share, "of the loop's speed", goal) | {"peer": peer, "theirs": 1.0}


def list_rows(actors: dict[str, Any], scale: Scale, unit: int, run: int) -> list[dict[str, Any]]:
    """The rows of one page size and one kind of lists; each round has a list of its own."""
    copied: dict[str, list[float]] = {}
    zeroed: dict[str, list[float]] = {}
    rng, count = np.random.default_rng(unit), scale.list_bytes // unit
    for turn in range(scale.rounds):
        sources, targets = draw(rng, scale.arena_bytes // unit, count, run)
        copies = {who: partial(actor.copy_pages, unit, sources, targets) for who, actor in actors.items()}
        taken_in_turns(copies, copied, turn)
        zeros = {who: partial(actor.zero_pages, unit, targets) for who, actor in actors.items()}
        taken_in_turns(zeros, zeroed, turn)
    case = f"{size_name(unit)}, {f'runs of {run}' if run > 1 else 'random single pages'}"
    goal = next(share for size, share in GOALS if unit >= size)
    return [
        speed_row(f"copy {case}", copied, count * unit, "memcpy", goal),
        speed_row(f"zero {case}", zeroed, count * unit, "memset", None),
    ]


def page_rows(device: CpuDevice, scale: Scale) -> list[dict[str, Any]]:
    """The rows of every page size."""
    everything = device.view(FieldView("uint8", (), 1, 0, 1, device.arena_bytes)).fill_(1)
    base, library = everything.data_ptr(), compiled()
    actors: dict[str, Any] = {"ours": Ours(device)} | ({"loop": Loops(library, base)} if library is not None else {})
    shapes = [(unit, run) for unit in SIZES for run in (1, RUN_PAGES) if unit * run * 2 <= scale.list_bytes]
    rows = [row for unit, run in shapes for row in list_rows(actors, scale, unit, run)]
    half, size = device.arena_bytes // 2, scale.list_bytes
    plain = statistics.median(seconds(lambda: ctypes.memmove(base + half, base, size)) for _ in range(scale.rounds))
    return [*rows, figure(f"plain memcpy of {size_name(size)}, as much as each list", size / plain / 1e9, "GB/s")]


@attrs.define
class Watched(CpuDevice):
    """A cpu device that keeps the lists it was asked to copy."""

    lists: list[tuple[int, IntArray, IntArray]] = attrs.field(factory=list, init=False)

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy, and remember what."""
        self.lists.append((unit_bytes, sources.copy(), targets.copy()))
        CpuDevice.copy_pages(self, stream, unit_bytes, sources, targets)

    def copy_again(self) -> None:
        """The copies alone."""
        for unit_bytes, sources, targets in self.lists:
            CpuDevice.copy_pages(self, self.current(), unit_bytes, sources, targets)


def compaction_row(scale: Scale) -> dict[str, Any]:
    """The whole flush of a band with one hole in ten, and the copying of the same pages alone."""
    layer = Layer(0, (Part(Mha(8, COMPACT_UNIT // 32), Full()),))
    plan, arena_bytes = plan_storage([layer], page_tokens=1), (scale.band_pages + 16) * COMPACT_UNIT
    device = Watched()
    device.reserve(arena_bytes)
    chain = Chain(plan, arena_bytes, device=device, policies=Policies(Nearest(), Eager(), Middle()))
    (name,) = chain.bands
    rng, held, flushed, copied, moves = np.random.default_rng(1), np.empty(0, dtype=np.int64), [], [], 0
    for _ in range(scale.rounds):
        new = chain.take_new(name, scale.band_pages - len(held))
        if isinstance(new, Refused):
            raise SystemExit("the band does not fit its arena")
        ids = np.concatenate((held, new.ids))
        gone = rng.permutation(scale.band_pages) < scale.band_pages // 10
        chain.free_all({name: ids[gone]})
        held = ids[~gone]
        device.lists.clear()
        before = chain.counters.moves
        flushed.append(seconds(chain.flush))
        moves = chain.counters.moves - before
        copied.append(seconds(device.copy_again))
    whole, copy = (1000 * statistics.median(times) for times in (flushed, copied))
    case = f"urgent compaction, {scale.band_pages:,} pages of {size_name(COMPACT_UNIT)}, {moves:,} moves"
    beside_it = {"peer": "the copy itself", "theirs": round(copy, 3), "goal": round(COMPACT_GOAL * copy, 3)}
    return figure(case, whole, "ms") | beside_it


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="a small arena and two rounds: that it runs, not how fast")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    gc.disable()
    device = CpuDevice()
    device.reserve(scale.arena_bytes)
    rows = page_rows(device, scale)
    device.close()
    show([*rows, compaction_row(scale)], as_json=arguments.json)


if __name__ == "__main__":
    main()
