"""A replay: a trace through the serving loop over the host backend, with a cost model instead of a model."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import (
    EXTRA_BUFFER,
    ArenaConfig,
    Choice,
    PoliciesConfig,
    PrefixConfig,
    StorageConfig,
    at_least,
    choice_of,
)
from kvarena.assembly.loader import make_eviction
from kvarena.assembly.places import Places
from kvarena.plugins.models import ModelSpec
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import Gpu, load_gpu
from kvarena.plugins.replay.keys import TraceKeys
from kvarena.plugins.replay.model_cost import model_cost
from kvarena.plugins.replay.report import LISTED_MAX, summarize, timings
from kvarena.plugins.replay.runner import ReplayRunner
from kvarena.plugins.replay.trace_rows import TraceRow
from kvarena.plugins.replay.traces import Trace
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Progress, Scheduler, ServingConfig
from kvarena.storage.storage import Storage

REPLAY_VERSION = 1


@attrs.frozen(kw_only=True)
class ReplaySettings:
    """How a trace is replayed.

    ``memory`` is the budget of one rank in bytes, id maps included. ``context_tokens`` None takes the longest
    request of the trace, the model's own limit at most. ``chunk_tokens`` is the prefill chunk of one request
    in a step, ``step_tokens`` what the prefills of a step share; ``output_fraction`` the share of its
    output that a request is charged at admission. ``forwards_in_flight``: how many may be launched before the result of
    the oldest is looked at; 0: one after another. With ``prefix_cache`` requests start from what is cached of their
    prompts, as far as the trace knows them; ``strategy``, ``checkpoint_tokens`` and ``eviction`` are those of
    ``[prefix]``, and ``cache_outputs`` keeps what was generated too, which no other request can match. With
    ``moves_take_time`` pages that the allocator moves are read and written on the GPU before the next forward.
    ``with_timings`` adds the wall times of this machine, which no two runs share.

    Raises:
        SettingError: a value out of range; it names the setting, and whoever read it says where it stood.
    """

    memory: int
    gpu: Gpu = attrs.field(factory=lambda: load_gpu("h100"))
    page_tokens: int | None = None
    context_tokens: int | None = None
    max_running: int = attrs.field(default=256, validator=at_least(1))
    chunk_tokens: int = 2048
    step_tokens: int = 8192
    output_fraction: float = 1.0
    forwards_in_flight: int = 2
    prefix_cache: bool = False
    strategy: str = EXTRA_BUFFER
    checkpoint_tokens: int | None = None
    eviction: Choice = attrs.field(default=Choice("lru"), converter=choice_of)
    cache_outputs: bool = False
    moves_take_time: bool = True
    policies: PoliciesConfig = attrs.field(factory=PoliciesConfig)
    with_timings: bool = False

    def __attrs_post_init__(self) -> None:
        # settings are checked where they are told, not where they are used
        _ = self.serving, _storage_config(self, self.context_tokens or 1)

    @property
    def prefix(self) -> PrefixConfig:
        """The settings of the prefix cache."""
        return PrefixConfig(
            share=self.prefix_cache,
            strategy=self.strategy,
            checkpoint_tokens=self.checkpoint_tokens,
            eviction=self.eviction,
            cache_outputs=self.cache_outputs,
        )

    @property
    def serving(self) -> ServingConfig:
        """The settings of the loop."""
        return ServingConfig(self.chunk_tokens, self.step_tokens, self.output_fraction)


def replay(
    spec: ModelSpec,
    trace: Trace,
    settings: ReplaySettings,
    *,
    catalog: Catalog | None = None,
    on_step: Callable[[Progress], None] | None = None,
    on_open: Callable[[Scheduler], None] | None = None,
    source: str | Places = "",
) -> dict[str, Any]:
    """Replay a trace and report, as a JSON-able document: the same arguments give the same document.

    ``on_open`` is called with the loop before it runs, ``on_step`` after each of its iterations; ``source`` says where
    the settings stand, for messages.

    Raises:
        PlanError: the budget cannot hold one request of the context length.
        ConfigError: the model has nothing to keep, or cannot be planned.
    """
    requests = tuple(requests_of(trace.rows))
    context = settings.context_tokens or _context(requests, spec.context_max)
    catalog = catalog or Catalog.installed()
    storage = build_storage(spec.layers, _storage_config(settings, context), catalog, source=source)
    try:
        scheduler = _loop(spec, storage, settings, catalog)
        if on_open is not None:
            on_open(scheduler)
        began = time.perf_counter()
        report = scheduler.run(requests, on_step)
    finally:
        storage.release()
    document = {
        "version": REPLAY_VERSION,
        "model": {
            "model_type": spec.model_type,
            "num_layers": spec.num_layers,
            "dtype": spec.dtype,
            "tp": spec.tp,
            "kv_layout": spec.kv_layout,
        },
        "trace": _trace(trace),
        "gpu": attrs.asdict(settings.gpu),
        "arena": _arena(storage),
        "loop": {
            **attrs.asdict(settings.serving, filter=lambda field, _: field.name != "keep_forwards"),
            "forwards_in_flight": settings.forwards_in_flight,
        },
        "prefix": _prefix(settings.prefix, storage),
        **summarize(report),
    }
    if settings.with_timings:
        document["timings"] = timings(report, time.perf_counter() - began)
    return document


def requests_of(rows: tuple[TraceRow, ...]) -> Iterator[Request]:
    """The rows as requests, numbered in order; ids of prefixes that are local to a session are made global."""
    known: dict[tuple[str, int], int] = {}
    for number, row in enumerate(rows):
        ids = row.prefix_ids
        if ids is not None and row.session is not None:
            ids = tuple(known.setdefault((row.session, block), len(known)) for block in ids)
        yield Request(
            number, row.arrival, row.prompt_tokens, row.output_tokens, prefix_ids=ids, block_tokens=row.block_tokens
        )


def _loop(spec: ModelSpec, storage: Storage, settings: ReplaySettings, catalog: Catalog) -> Scheduler:
    """The loop over a storage, its cost model behind it and, where prefixes are shared, a cache."""
    counters = storage.chain.counters
    runner = ReplayRunner(
        CostModel(model_cost(spec)),
        settings.gpu,
        (lambda: counters.moved_bytes) if settings.moves_take_time else None,
        TraceKeys(kept=len(storage.requests) + 1),
    )
    cache = PrefixTree(storage, make_eviction(catalog, settings.prefix)) if settings.prefix_cache else None
    return Scheduler(storage, runner, settings.serving, cache=cache)


def _context(requests: tuple[Request, ...], context_max: int | None) -> int:
    longest = max(request.rows for request in requests)
    return min(longest, context_max) if context_max else longest


def _storage_config(settings: ReplaySettings, context_tokens: int) -> StorageConfig:
    return StorageConfig(
        arena=ArenaConfig(
            memory=settings.memory,
            page_tokens=settings.page_tokens,
            context_tokens=context_tokens,
            max_running=settings.max_running,
            forwards_in_flight=settings.forwards_in_flight,
        ),
        prefix=settings.prefix,
        backend="host",
        policies=settings.policies,
    )


def _trace(trace: Trace) -> dict[str, Any]:
    """The trace by its file name: the document does not depend on where the file lies."""
    return {
        "file": Path(trace.source).name,
        "format": trace.format,
        "requests": len(trace.rows),
        "skipped": len(trace.skipped),
        "skipped_rows": [f"{bad.source.name}: {bad.place}: {bad.reason}" for bad in trace.skipped[:LISTED_MAX]],
    }


def _prefix(prefix: PrefixConfig, storage: Storage) -> dict[str, Any] | None:
    """How prefixes are shared; None where they are not."""
    if not prefix.share:
        return None
    return {
        "strategy": prefix.strategy,
        "grid_tokens": storage.sizing.limits.grid,
        "eviction": {"name": prefix.eviction.name, **prefix.eviction.settings},
        "cache_outputs": prefix.cache_outputs,
    }


def _arena(storage: Storage) -> dict[str, Any]:
    sizing = storage.sizing
    return {
        "budget_bytes": sizing.budget_bytes,
        "arena_bytes": sizing.arena_bytes,
        "page_tokens": storage.plan.page_tokens,
        "context_tokens": sizing.context_tokens,
        "max_running": sizing.running,
        "tokens": sizing.tokens,
        "state_slots": sizing.state_slots,
    }
