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
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from alone import Alone
from mix import CONTEXT_TOKENS, SECONDS, Mix, Traces
from rows import figure, show

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import EXTRA_BUFFER_LAZY, ArenaConfig, PrefixConfig, StorageConfig
from kvarena.assembly.loader import make_eviction
from kvarena.planning.plan import Plan, plan_storage
from kvarena.plugins.models import read_model
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import load_gpu
from kvarena.plugins.replay.keys import TraceKeys
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.plugins.replay.runner import ReplayRunner
from kvarena.plugins.serving.report import DONE, Report, Served
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig
from kvarena.storage.storage import Storage
from kvarena.terms.units import ceil_div, parse_bytes

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("gpt-oss-120b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b")
ARENA = parse_bytes("60GiB")
FIRST_MAX, PER_TOKEN_MAX, KEPT_MIN = 5.0, 3.0, 0.9
CHUNK_TOKENS, STEP_TOKENS, RUNNING_MAX = 2048, 8192, 2048
FINENESS = 1.02
"""Scales are searched to this ratio."""
CATALOG = Catalog.installed()


@attrs.frozen
class Memory:
    """One way to hold the bytes. ``extra_bytes``: what its sinks take, given on top."""

    name: str
    page_tokens: int | None = None
    unit_align: int = 1
    caps: Mapping[str, int] = attrs.field(factory=dict)
    extra_bytes: int = 0
    moves_take_time: bool = False

    def open(self, spec: ModelSpec) -> Storage:
        """A storage on the host backend: it counts bytes and holds none."""
        arena = ArenaConfig(
            memory=ARENA + self.extra_bytes, page_tokens=self.page_tokens, unit_align=self.unit_align,
            context_tokens=CONTEXT_TOKENS, max_running=RUNNING_MAX, mirrors=False, forwards_in_flight=2, caps=self.caps,
        )  # fmt: skip
        prefix = PrefixConfig(share=True, strategy=EXTRA_BUFFER_LAZY, cache_outputs=False)
        return build_storage(spec.layers, StorageConfig(arena=arena, prefix=prefix, backend="host"), CATALOG)


KVARENA = Memory("kvarena", moves_take_time=True)


def clairvoyant(spec: ModelSpec) -> Memory:
    """Pages of one token; the sinks on top."""
    plan = plan_storage(spec.layers, page_tokens=1)
    return Memory("clairvoyant", page_tokens=1, extra_bytes=2 * sum(pool.unit_bytes for pool in plan.sub_pools))


def one_page(plan: Plan) -> Memory:
    """Every unit a multiple of one page: that of the smallest group of layers, which holds a layer's state too.

    vLLM's rule, for models whose token layers are alike: layers form groups of the fewest layers of any kind, a page
    is as many tokens of a group as it takes to hold the states of as many layers.
    """
    group = min(len(pool.layers) for pool in plan.sub_pools)
    widths = {pool.entry_bytes / len(pool.layers) for pool in plan.token_pools}
    if len(widths) > 1 or any(len(pool.layers) % group for pool in plan.token_pools):
        raise SystemExit("the token layers differ: no plan of one page is made here")
    width = int(widths.pop())
    tokens = plan.page_tokens
    if plan.slots is not None:
        tokens *= ceil_div(ceil_div(plan.slots.unit_bytes, len(plan.slots.layers)), width * tokens)
    return Memory("one page", page_tokens=tokens, unit_align=tokens * width * group)


def split(plan: Plan, share: float) -> Memory:
    """Two pools of fixed sizes: this share of the bytes for the first kind, the rest for the other."""
    first, second = plan.sub_pools
    usable = ARENA - first.unit_bytes - second.unit_bytes
    units = max(1, round(share * usable / first.unit_bytes))
    rest = (usable - units * first.unit_bytes) // second.unit_bytes
    return Memory(f"static split, {first.name} {100 * share:.1f} %", caps={first.name: units, second.name: rest})


@attrs.frozen
class Played:
    """One replay. ``kept`` has, by phase and for ``all``, the share of requests in time; by band its mean and peak.

    ``waited``: the share of requests that waited, and the share of all requests' time that they did.
    """

    scale: float
    kept: Mapping[str, float]
    waited: tuple[float, float]
    running_max: int
    bands: Mapping[str, tuple[float, float]]
    hits: float
    report: Report

    @property
    def passes(self) -> bool:
        """Whether enough of all requests were in time."""
        return self.kept["all"] >= KEPT_MIN


class Model:
    """One model with its mix; replays are kept by memory and scale."""

    def __init__(self, name: str, traces: Traces, shorter: float = 1.0) -> None:
        config = json.loads((ROOT / "tests" / "data" / "models" / f"{name}.json").read_text(encoding="utf-8"))
        self.name = name
        self.spec = read_model(config, source=name)
        self.plan = plan_storage(self.spec.layers)
        self.gpu = load_gpu(str(ROOT / "benchmarks" / "machine.toml"))
        self._cost = CostModel(model_cost(self.spec))
        self.alone = Alone(self._cost, self.gpu, CHUNK_TOKENS)
        self.loads = {
            phase: self.alone.load(self.plan, [row for piece in traces.pieces(phase, 600) for row in piece.rows])
            for phase in SECONDS
        }
        self.rates = {phase: load.rate(ARENA) for phase, load in self.loads.items()}
        self.mix = Mix(traces, self.rates, shorter)
        self._played: dict[tuple[Memory, float], Played] = {}

    def play(self, memory: Memory, scale: float) -> Played:
        """The mix on this memory, arrivals so many times as often."""
        storage = memory.open(self.spec)
        counters = storage.chain.counters
        moved = (lambda: counters.moved_bytes) if memory.moves_take_time else None
        runner = ReplayRunner(self._cost, self.gpu, moved, TraceKeys(kept=RUNNING_MAX))
        cache = PrefixTree(storage, make_eviction(CATALOG, storage.prefix))
        loop = Scheduler(storage, runner, ServingConfig(CHUNK_TOKENS, STEP_TOKENS), cache=cache)
        report = loop.run(self.mix.at(scale))
        storage.release()
        return self._judged(report, scale)

    def _judged(self, report: Report, scale: float) -> Played:
        kept: dict[str, list[bool]] = {phase: [] for phase in SECONDS}
        for served, arrival in zip(report.served, self.mix.arrivals, strict=True):
            alone = self.alone.unloaded(arrival.row)
            kept[arrival.phase].append(in_time(served, alone.first, alone.per_token))
        shares = {phase: float(np.mean(found)) for phase, found in kept.items()}
        waits = [one.admitted_at - one.request.arrival for one in report.served if one.waited]
        lives = [one.finished_at - one.request.arrival for one in report.served if one.fate == DONE]
        return Played(
            scale=scale,
            kept={"all": float(np.mean(sum(kept.values(), []))), **shares},
            waited=(len(waits) / len(report.served), sum(waits) / sum(lives)),
            running_max=running_max(report),
            bands={band.name: (band.mean * band.unit_bytes / ARENA, band.peak * band.unit_bytes / ARENA)
                   for band in report.bands},
            hits=report.cache.hit_rate if report.cache else 0.0,
            report=report,
        )


def in_time(served: Served, first: float, per_token: float) -> bool:
    """Whether a request kept both its times."""
    if served.fate != DONE or served.clipped or served.time_to_first_token is None:
        return False
    later = served.time_per_token
    return served.time_to_first_token <= FIRST_MAX * first and (later is None or later <= PER_TOKEN_MAX * per_token)


def running_max(report: Report) -> int:
    """The most requests that ran at once."""
    times = [(one.admitted_at, 1) for one in report.served if one.fate == DONE]
    times += [(one.finished_at, -1) for one in report.served if one.fate == DONE]
    running = np.cumsum([step for _, step in sorted(times)])
    return int(running.max()) if len(running) else 0
