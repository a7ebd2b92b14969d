"""How much traffic a memory manager carries: ``python benchmarks/goodput.py [--json] [--quick] [--model NAME]``.

A mix that shifts from many short chats to few long documents to agents (``mix.py``) is replayed on four memories of
60 GiB that share all else: the loop, its admission, the prefix cache and its eviction, and the cost model of a step.

    kvarena       one arena; pages that it moves are read and written on the machine before the next forward
    static split  the same bytes cut once into a pool per kind, nothing moves between them; the best cut that was found
    one page      all kinds padded to one page size, as vLLM plans hybrid models; nothing ever needs to move
    clairvoyant   pages of one token, no sinks, and moves that take no time

Goodput is the highest scale of arrivals at which 90 % of all requests keep their time to the first token within 5
times, and their time per token within 3 times, those of the same request alone. docs/goodput.md has the rules.
The traces are those of the folder in KVARENA_TRACES, else the small slices in benchmarks/data.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from alone import Alone
from memories import ARENA_BYTES, CATALOG, KVARENA, PREFIX, RUNNING_MAX, Memory, clairvoyant, one_page, split
from mix import CONTEXT_TOKENS, SECONDS, Mix, Traces
from rows import figure, show

from kvarena.assembly.loader import make_eviction
from kvarena.planning.plan import plan_storage
from kvarena.plugins.models import read_model
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import load_gpu
from kvarena.plugins.replay.keys import TraceKeys
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.plugins.replay.runner import ReplayRunner
from kvarena.plugins.serving.report import DONE, Report, Served
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("gpt-oss-120b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b")
SERVING = ServingConfig(chunk_tokens=2048, step_tokens=8192)
FIRST_MAX, PER_TOKEN_MAX, KEPT_MIN = 5.0, 3.0, 0.9
FINENESS, LEAST = 1.01, 0.05
"""Scales are ``LEAST * FINENESS ** n``: so finely they are searched."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The cuts of a static split that are tried first."""
QUICK = 30.0
"""So many times shorter are the phases of a quick run, whose figures mean little."""

Good = Callable[["Played"], bool]


@attrs.frozen
class Played:
    """One replay. ``kept`` has, by phase and for ``all``, the share of requests in time; ``bands`` each band's peak.

    ``waited``: the share of requests that had to wait, ``waiting`` the share of all requests' time that they did;
    ``moving`` the share of the machine's time in which pages were moved.
    """

    kept: Mapping[str, float]
    waited: float
    waiting: float
    running_max: int
    bands: Mapping[str, float]
    hits: float
    moving: float


class Model:
    """One model with its mix; replays are remembered by memory and scale."""

    def __init__(self, name: str, traces: Traces, shorter: float = 1.0) -> None:
        config = json.loads((ROOT / "tests" / "data" / "models" / f"{name}.json").read_text(encoding="utf-8"))
        self.name = name
        self.spec = read_model(config, source=name)
        self.plan = plan_storage(self.spec.layers)
        self._gpu = load_gpu(str(ROOT / "benchmarks" / "machine.toml"))
        self._cost = CostModel(model_cost(self.spec))
        self._alone = Alone(self._cost, self._gpu, SERVING.chunk_tokens)
        asked = {phase: [row for piece in traces.pieces(phase, 600) for row in piece.rows] for phase in SECONDS}
        self.loads = {phase: self._alone.load(self.plan, rows) for phase, rows in asked.items()}
        self.mix = Mix(traces, {phase: load.rate(ARENA_BYTES) for phase, load in self.loads.items()}, shorter)
        self._played: dict[tuple[Memory, int], Played] = {}

    def play(self, memory: Memory, step: int) -> Played:
        """The mix on this memory at a step of the scales."""
        if (memory, step) not in self._played:
            self._played[memory, step] = self._play(memory, scale_of(step))
        return self._played[memory, step]

    def highest(self, memory: Memory, start: int, good: Good) -> int:
        """The highest step of the scales that is good: from ``start`` on in leaps, then by halves."""
        leap, low, high = 16, start, start
        if good(self.play(memory, start)):
            while good(self.play(memory, high := high + leap)):
                low, leap = high, 2 * leap
        else:
            while low > 0 and not good(self.play(memory, low := max(0, low - leap))):
                high, leap = low, 2 * leap
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if good(self.play(memory, middle)) else (low, middle)
        return low

    def best_split(self, start: int, good: Good) -> tuple[Memory, int]:
        """The static split that carries the most, and how much: a cut that cannot beat the best is tried once."""
        best, share = 0, 0.0
        tried: set[float] = set()
        shares: Iterator[float] | tuple[float, ...] = SHARES
        for _ in range(3):
            for some in sorted(set(shares) - tried, key=lambda some: abs(some - (share or 0.4))):
                tried.add(some)
                memory = split(self.plan, some)
                if not best or good(self.play(memory, best + 1)):
                    best, share = self.highest(memory, best + 1 if best else start, good), some
            near = sorted(tried)
            at = near.index(share)
            around = near[max(0, at - 1) : at] + near[at + 1 : at + 2]
            shares = tuple((some + share) / 2 for some in around)
        return split(self.plan, share), best

    def _play(self, memory: Memory, scale: float) -> Played:
        storage = memory.open(self.spec, CONTEXT_TOKENS)
        counters = storage.chain.counters
        runner = ReplayRunner(
            self._cost,
            self._gpu,
            (lambda: counters.moved_bytes) if memory.moves_take_time else None,
            TraceKeys(kept=RUNNING_MAX),
        )
        loop = Scheduler(storage, runner, SERVING, cache=PrefixTree(storage, make_eviction(CATALOG, PREFIX)))
        report = loop.run(self.mix.at(scale))
        storage.release()
        moving = 2 * counters.moved_bytes / (self._gpu.bandwidth * self._gpu.bandwidth_efficiency)
        return self._judged(report, moving if memory.moves_take_time else 0.0)

    def _judged(self, report: Report, moving: float) -> Played:
        kept: dict[str, list[bool]] = {phase: [] for phase in SECONDS}
        for served, arrival in zip(report.served, self.mix.arrivals, strict=True):
            alone = self._alone.unloaded(arrival.row)
            kept[arrival.phase].append(in_time(served, alone.first, alone.per_token))
        waits = [one.admitted_at - one.request.arrival for one in report.served if one.waited and one.admitted_at]
        lives = [one.finished_at - one.request.arrival for one in report.served if one.finished_at]
        return Played(
            kept={"all": share([one for found in kept.values() for one in found])}
            | {phase: share(found) for phase, found in kept.items()},
            waited=len(waits) / len(report.served),
            waiting=sum(waits) / sum(lives),
            running_max=running_max(report),
            bands={band.name: band.peak * band.unit_bytes / ARENA_BYTES for band in report.bands},
            hits=report.cache.hit_rate if report.cache else 0.0,
            moving=moving / report.seconds,
        )


def scale_of(step: int) -> float:
    """The scale of arrivals at a step."""
    return LEAST * FINENESS**step


def step_of(scale: float) -> int:
    """The step nearest to a scale."""
    return max(0, round(math.log(scale / LEAST, FINENESS)))


def share(found: list[bool]) -> float:
    """How many of them are so."""
    return float(np.mean(found)) if found else 1.0


def in_time(served: Served, first: float, per_token: float) -> bool:
    """Whether a request was served whole, and kept both its times."""
    taken, later = served.time_to_first_token, served.time_per_token
    if served.fate != DONE or served.clipped or taken is None or taken > FIRST_MAX * first:
        return False
    return later is None or later <= PER_TOKEN_MAX * per_token


def running_max(report: Report) -> int:
    """The most requests that ran at once."""
    done = [one for one in report.served if one.admitted_at is not None and one.finished_at is not None]
    changes = [(one.admitted_at, 1) for one in done] + [(one.finished_at, -1) for one in done]
    return int(np.cumsum([change for _, change in sorted(changes)]).max(initial=0))


def enough(played: Played) -> bool:
    """90 % of all requests are in time."""
    return played.kept["all"] >= KEPT_MIN


def measure(model: Model, start: int) -> list[dict[str, Any]]:
    """The rows of one model: the four memories, their ratios, and what bound kvarena where it was still good."""
    ours = model.highest(KVARENA, start, enough)
    tell(model, KVARENA, ours)
    page = model.highest(one_page(model.plan), ours, enough)
    tell(model, one_page(model.plan), page)
    most = model.highest(clairvoyant(model.spec), ours, enough)
    tell(model, clairvoyant(model.spec), most)
    cut, fixed = model.best_split(max(0, ours - 32), enough)
    tell(model, cut, fixed)
    goodput = f"{model.name}: goodput, in times the rate of docs/goodput.md"
    rows = [
        beside(goodput, ours, cut.name, fixed, 1.3),
        beside(goodput, ours, "one page size", page, None),
        beside(goodput, ours, "clairvoyant", most, 0.97),
    ]
    for peer, step, goal in ((cut.name, fixed, 1.3), ("one page size", page, None), ("clairvoyant", most, 0.97)):
        rows.append(figure(f"{model.name}: kvarena over {peer}", scale_of(ours) / scale_of(step), "times", goal))
    return rows + explained(model, ours)


def beside(case: str, ours: int, peer: str, theirs: int, ratio: float | None) -> dict[str, Any]:
    """A row of two memories' scales."""
    goal = None if ratio is None else round(ratio * scale_of(theirs), 3)
    return figure(case, scale_of(ours), "x", goal) | {"peer": peer, "theirs": round(scale_of(theirs), 3)}


def explained(model: Model, step: int) -> list[dict[str, Any]]:
    """What binds: the figures of kvarena's replay at its goodput, and one step of the scales beyond."""
    rows = []
    for where, played in (("at", model.play(KVARENA, step)), ("beyond", model.play(KVARENA, step + 1))):
        case = f"{model.name}, {where} kvarena's goodput"
        rows += [figure(f"{case}: {phase} in time", 100 * kept, "%") for phase, kept in played.kept.items()]
        rows += [
            figure(f"{case}: requests that waited for memory", 100 * played.waited, "%"),
            figure(f"{case}: of all requests' time, waiting", 100 * played.waiting, "%"),
            figure(f"{case}: most at once, of {RUNNING_MAX:,} rows", played.running_max, "requests"),
            figure(f"{case}: prompt tokens found in the prefix cache", 100 * played.hits, "%"),
            figure(f"{case}: of the machine's time, moving pages", 100 * played.moving, "%"),
        ]
        rows += [figure(f"{case}: most bytes of {name}", 100 * peak, "%") for name, peak in played.bands.items()]
    return rows


def tell(model: Model, memory: Memory, step: int) -> None:
    """Progress, for who waits: a whole run takes hours."""
    kept = " · ".join(f"{phase} {100 * found:.1f} %" for phase, found in model.play(memory, step).kept.items())
    print(f"{model.name}: {memory.name}: {scale_of(step):.3f} x, in time: {kept}", file=sys.stderr, flush=True)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one document of rows")
    parser.add_argument("--quick", action="store_true", help="short phases, each memory once: figures mean little")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one, or these")
    parser.add_argument("--start", type=float, default=0.4, help="the scale at which the search begins")
    given = parser.parse_args()
    traces = Traces(Path(os.environ.get("KVARENA_TRACES") or ROOT / "benchmarks" / "data"))
    rows: list[dict[str, Any]] = []
    for name in given.model or (MODELS[1:2] if given.quick else MODELS):
        model = Model(name, traces, shorter=QUICK if given.quick else 1.0)
        rows += quickly(model) if given.quick else measure(model, step_of(given.start))
    show(rows, as_json=given.json)


def quickly(model: Model) -> list[dict[str, Any]]:
    """Each memory once, at one scale: that everything runs."""
    step = step_of(0.4)
    memories = (KVARENA, split(model.plan, 0.3), one_page(model.plan), clairvoyant(model.spec))
    kept = [(memory.name, model.play(memory, step).kept["all"]) for memory in memories]
    return [figure(f"{model.name}: in time on {name}", 100 * found, "%") for name, found in kept]


if __name__ == "__main__":
    main()
