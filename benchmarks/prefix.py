"""The prefix cache: ``python benchmarks/prefix.py [--json] [--quick] [--nodes N] [--limit N]``.

*Time*: match and insert of a prompt of 8,192 tokens at page size 16, full attention: one that the cache has not, has,
or has half of, and one that it has in 20 and in 100 pieces. Eviction of pieces of one page from a tree of a million.
Over a real storage on the host backend; what the storage's own verbs take of it (handing pages over, freeing them)
stands in a row beside. Microseconds of the thread's CPU time, medians, garbage collection on.

*Hits*: the Mooncake conversation slice from the folder in KVARENA_TRACES, else the small one that the tests have; each
prompt is cached before the next arrives, outputs are not. With memory for all of it: page 16 with full attention alone,
and a grid of 64 tokens with full attention and a state (chunks of 512, a checkpoint at each chunk's end and at the
prompt's last grid point). Then at 60 GiB for gpt-oss-120b and Qwen3-Next-80B, each eviction policy beside an LRU that
ignores kinds.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from rows import figure, show

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, ChecksConfig, Choice, PrefixConfig, StorageConfig
from kvarena.assembly.loader import make_eviction
from kvarena.planning.demand import chunk_stop
from kvarena.plugins.models import read_config, read_model
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.replay.traces import Trace, TraceOptions, read_trace
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State
from kvarena.terms.ports import IntArray

ROOT = Path(__file__).resolve().parents[1]
SMALL = ROOT / "tests" / "data" / "traces" / "mooncake.jsonl"
LARGE = "mooncake_conversation.jsonl"
MODELS = ROOT / "tests" / "data" / "models"
CATALOG = Catalog.installed()
PAGE, PROMPT, BLOCK = 16, 8192, 512
CHUNK, GRID = 512, 64
BRANCH = 32
"""The tree that is evicted from is branches of so many nodes of a page each."""
MATCH_US, EDGES_US, EDGE_US, EVICT_US = 50.0, 20.0, 3.5, 8.0
EXPECTED = {"page 16, full": 35_450_192, "grid 64, full and state": 35_448_384}
"""What the slice of 8,000 prompts holds: the sum of min(512 x matched blocks, prompt - 1), rounded down."""


@attrs.frozen
class Byte:
    """A layout of one byte, so that a large arena costs this machine its bookkeeping alone."""

    name = "byte"
    zero_on_take = False

    def fields(self) -> tuple[Field, ...]:
        """One field."""
        return (Field("raw", "uint8", (1,)),)


def storage_of(lifetimes: Sequence[Lifetime], pages: int, *, context: int, slots: int | None = None) -> Storage:
    """An arena for so many pages of 16 tokens, and so many states, a byte each."""
    layers = [Layer(i, (Part(Byte(), lifetime, lifetime.name),)) for i, lifetime in enumerate(lifetimes)]
    arena = ArenaConfig(
        memory=(pages + 2) * PAGE + 40 * (slots or 0) + 200 * context + (1 << 20), page_tokens=PAGE,
        context_tokens=context, max_running=4, state_slots=slots, mirrors=False,
    )  # fmt: skip
    return build_storage(layers, StorageConfig(arena=arena, backend="host", checks=ChecksConfig(level=1)), CATALOG)


def tree_of(storage: Storage, name: str = "lru", **settings: Any) -> PrefixTree:
    """An empty tree with this policy."""
    return PrefixTree(storage, make_eviction(CATALOG, PrefixConfig(eviction=Choice(name, settings))))


# -- a request over the tree


class Requests:
    """Prompts that run one after another; each is cached at the end of every chunk, or at its own end alone."""

    def __init__(
        self, storage: Storage, tree: PrefixTree, *, chunk: int | None = None, grid: int | None = None
    ) -> None:
        self.storage, self.tree, self.chunk, self.grid = storage, tree, chunk, grid
        self.has_states = storage.plan.slots is not None
        self.cut = 0
        """Prompts whose rest could not be had: what they wrote by then was cached."""

    def serve(self, keys: IntArray) -> int:
        """Run a prompt and cache it. Returns the tokens that the cache had of it."""
        match, row = self.tree.match(keys), self._row()
        entry = match.entry
        if entry is not None:
            self.tree.lock(entry)
            self.tree.touch(entry)
            self.storage.sharing.start(row, match.ids, match.tokens)
        for stop in self._stops(match.tokens, len(keys)):
            if not self._has_room(lambda stop=stop: self.storage.step(_line(row), _line(stop))):  # type: ignore[misc]
                self.cut += 1
                break
            whole = stop // (self.grid or PAGE) * (self.grid or PAGE)
            if (whole != stop and self.has_states) or not whole:
                continue
            state = self._state(row) if self.has_states else None
            if self.has_states and state is None:  # the checkpoint is skipped
                continue
            entry = self.tree.insert(row, keys, whole, state=state, after=entry, lock=True).entry
        self.storage.close(row)
        if entry is not None:
            self.tree.unlock(entry)
        return match.tokens

    def _stops(self, start: int, prompt: int) -> Iterator[int]:
        """Where its chunks end."""
        while start < prompt:
            start = chunk_stop(start, prompt, self.chunk or prompt, self.grid)
            yield start

    def _row(self) -> int:
        rows: list[Any] = []

        def opens() -> Any:
            rows[:] = [self.storage.open()]
            return rows[0]

        assert self._has_room(opens)
        return int(rows[0])

    def _state(self, row: int) -> int | None:
        """The state as it is now, in a slot of the cache's; None where no other can be had for the row."""
        one = tuple(int(pool.is_slots) for pool in self.storage.plan.sub_pools)
        if not self.storage.chain.feasible(one):
            self.tree.evict(lambda _: self.storage.chain.feasible(one))
            if not self.storage.chain.feasible(one):
                return None
        slot = self.storage.sharing.hand_over_slot(row, 0)
        taken = self.storage.sharing.take_slot(row, 0)
        assert not isinstance(taken, Refused)
        return slot

    def _has_room(self, take: Callable[[], Any]) -> bool:
        """Take, and evict as long as that is refused and anything may go."""
        if not isinstance(take(), Refused):
            return True
        found = [True]

        def enough(_: tuple[int, ...]) -> bool:
            found[0] = isinstance(take(), Refused)
            return not found[0]

        self.tree.evict(enough)
        return not found[0]


def _line(number: int) -> IntArray:
    return np.array([number], dtype=np.int64)


def keys_of(trace: Trace) -> Iterator[IntArray]:
    """Each prompt's keys: block id b has the tokens b * 512 + offset."""
    offsets = np.arange(BLOCK)
    for row in trace.rows:
        blocks = np.array(row.prefix_ids, dtype=np.int64)
        yield (blocks[:, None] * BLOCK + offsets).reshape(-1)[: row.prompt_tokens].copy()


def expected_hits(trace: Trace, grain: int) -> int:
    """What the definition says: leading blocks that some prompt had before, one token at least left."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for row in trace.rows:
        matched, ids = 0, row.prefix_ids
        chain: tuple[int, ...] = ()
        for at, block in enumerate(ids):
            chain = (hash(chain), block)
            if chain in seen and matched == at:
                matched = at + 1
            seen.add(chain)
        total += min(BLOCK * matched, row.prompt_tokens - 1) // grain * grain
    return total


def unlimited(trace: Trace, *, states: bool) -> int:
    """The tokens of all prompts that were found, with memory for everything."""
    tokens = sum(row.prompt_tokens + PAGE for row in trace.rows)
    context = max(row.prompt_tokens for row in trace.rows) + PAGE
    if not states:
        storage = storage_of((Full(),), tokens // PAGE, context=context)
        requests = Requests(storage, tree_of(storage))
    else:
        slots = sum(row.prompt_tokens // CHUNK + 3 for row in trace.rows)
        storage = storage_of((State(), Full()), tokens // PAGE, context=context, slots=slots)
        requests = Requests(storage, tree_of(storage), chunk=CHUNK, grid=GRID)
    hits = sum(map(requests.serve, keys_of(trace)))
    assert not requests.cut
    assert not requests.tree.stats().evictions
    return hits


def trace_of(limit: int | None) -> Trace:
    """The large trace where its folder is known, else the small one."""
    folder = os.environ.get("KVARENA_TRACES")
    return read_trace(Path(folder) / LARGE if folder else SMALL, TraceOptions(limit=limit))


def hit_rows(limit: int | None) -> list[dict[str, Any]]:
    """Tokens found with memory for all of it."""
    trace = trace_of(limit)
    whole = len(trace.rows) == 8000
    return [
        figure(
            f"hits, {case}, {len(trace.rows)} prompts of {Path(trace.source).name}, unlimited memory",
            unlimited(trace, states="state" in case), "tokens",
            EXPECTED[case] if whole else expected_hits(trace, GRID if "state" in case else PAGE),
        )
        for case in EXPECTED
    ]  # fmt: skip


POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lru that ignores kinds": ("lru", {"splits": False}),
    "lru": ("lru", {}),
    "lfu": ("lfu", {}),
    "priority": ("priority", {}),
    "worth": ("worth", {}),
}
LIMITED = {"gpt-oss-120b": None, "qwen3-next-80b-a3b": GRID}


def policy_rows(limit: int | None, memory: str) -> list[dict[str, Any]]:
    """Tokens found by each policy in an arena of that size, the same prompts in the same order."""
    trace, found = trace_of(limit), []
    for model, grid in LIMITED.items():
        for words, (name, settings) in POLICIES.items():
            spec = read_model(read_config(MODELS / f"{model}.json"), source=model)
            arena = ArenaConfig(
                memory=memory, page_tokens=PAGE, context_tokens=131072, max_running=4, mirrors=False,
                state_share=0.5 if grid else None,
            )  # fmt: skip
            storage = build_storage(spec.layers, StorageConfig(arena=arena, backend="host"), CATALOG)
            requests = Requests(storage, tree_of(storage, name, **settings), chunk=CHUNK, grid=grid)
            hits = sum(map(requests.serve, keys_of(trace)))
            case = f"hits, {model} at {memory}, {words}, {len(trace.rows)} prompts"
            found.append(figure(case, hits, "tokens"))
    return found


# -- time


class Timed:
    """A storage whose verbs for pages are timed apart."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.ns = storage, 0
        for room, verb in (
            (storage.ownership, "hand_over"), (storage.ownership, "free_pages"), (storage.sharing, "adopt"),
        ):  # fmt: skip
            setattr(room, verb, self._timed(getattr(room, verb)))

    def _timed(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return verb(*arguments)
            finally:
                self.ns += time.thread_time_ns() - began

        return timed


def times(
    timed: Timed, tree: PrefixTree, prompts: Iterator[IntArray], repeats: int, *, matched: int
) -> tuple[float, float]:
    """Medians of match and insert, and of what the storage's verbs took of it, in microseconds."""
    storage, whole, apart = timed.storage, [], []
    for _, keys in zip(range(repeats), prompts, strict=False):
        row, found = storage.open(), tree.match(np.append(keys, 0))
        assert isinstance(row, int)
        assert found.tokens == matched, (found, matched)
        if found.entry is not None:
            storage.sharing.start(row, found.ids, found.tokens)
        storage.step(_line(row), _line(PROMPT))
        timed.ns, began = 0, time.thread_time_ns()
        tree.match(keys)
        tree.insert(row, keys, PROMPT)
        whole.append(time.thread_time_ns() - began)
        apart.append(timed.ns)
        storage.close(row)
    return float(np.median(whole)) / 1000, float(np.median(apart)) / 1000


def prompt(number: int) -> IntArray:
    """A prompt that no other shares a token with."""
    return np.arange(PROMPT, dtype=np.int64) + (number + 1) * 1_000_000


def half_new(repeats: int) -> Iterator[IntArray]:
    """Prompts whose second half nobody has had."""
    for number in range(repeats):
        yield np.concatenate([prompt(number)[: PROMPT // 2], prompt(10_000 + number)[PROMPT // 2 :]])


def time_rows(repeats: int) -> list[dict[str, Any]]:
    """Match and insert of 8,192 tokens."""
    storage = storage_of((Full(),), 3 * repeats * PROMPT // PAGE + 4096, context=PROMPT + PAGE)
    timed, tree = Timed(storage), tree_of(storage)
    found: dict[str, tuple[tuple[float, float], float]] = {}
    found["not there"] = times(timed, tree, map(prompt, range(repeats)), repeats, matched=0), MATCH_US
    found["there"] = times(timed, tree, map(prompt, range(repeats)), repeats, matched=PROMPT), MATCH_US
    found["half there"] = times(timed, tree, half_new(repeats), repeats, matched=PROMPT // 2), MATCH_US
    for edges in (20, 100):
        keys, row = prompt(20_000 + edges), storage.open()
        assert isinstance(row, int)
        storage.step(_line(row), _line(PROMPT))
        for edge in range(1, edges + 1):
            tree.insert(row, keys, PROMPT // PAGE * edge // edges * PAGE)
        storage.close(row)
        again = iter([keys] * repeats)
        found[f"there in {edges} pieces"] = (
            times(timed, tree, again, repeats, matched=PROMPT),
            EDGES_US + EDGE_US * edges,
        )
    return [
        made
        for case, ((whole, apart), goal) in found.items()
        for made in (
            figure(f"match and insert 8,192 tokens, page 16, {case}", whole, "us", goal),
            figure(f"match and insert 8,192 tokens, page 16, {case}: of that the storage's verbs", apart, "us"),
        )
    ]


def eviction_rows(nodes: int, rounds: int) -> list[dict[str, Any]]:
    """Eviction of ends of one page each, with so many nodes in the tree."""
    storage = storage_of((Full(),), nodes + 4096, context=BRANCH * PAGE)
    timed, tree = Timed(storage), tree_of(storage)
    for first in range(0, nodes, BRANCH):
        row, entry, keys = storage.open(), None, np.arange(BRANCH * PAGE, dtype=np.int64) + first * PAGE
        assert isinstance(row, int)
        storage.step(_line(row), _line(BRANCH * PAGE))
        for page in range(1, BRANCH + 1):
            entry = tree.insert(row, keys, page * PAGE, after=entry, lock=True).entry
        storage.close(row)
        tree.unlock(entry)
    gc.collect()
    began = time.perf_counter()
    gc.collect()
    collected = time.perf_counter() - began
    gc.freeze()
    began = time.perf_counter()
    gc.collect()
    frozen = time.perf_counter() - began
    gc.unfreeze()
    each, apart = [], []
    for _ in range(rounds):
        left = [1000]

        def enough(_: tuple[int, ...], left: list[int] = left) -> bool:
            left[0] -= 1
            return not left[0]

        timed.ns, began_ns = 0, time.thread_time_ns()
        tree.evict(enough)
        each.append((time.thread_time_ns() - began_ns) / 1e6)
        apart.append(timed.ns / 1e6)
    case = f"eviction, a tree of {nodes:,} nodes"
    return [
        figure(f"{case}, a piece", float(np.median(each)), "us", EVICT_US),
        figure(f"{case}, a piece: of that the storage's verbs", float(np.median(apart)), "us"),
        figure(f"{case}, a full garbage collection", collected * 1000, "ms"),
        figure(f"{case}, a full garbage collection after gc.freeze", frozen * 1000, "ms"),
    ]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="few repeats: does it run?")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="nodes of the tree that is evicted from")
    parser.add_argument("--limit", type=int, help="only so many prompts of the trace")
    parser.add_argument("--memory", default="60GiB", help="the arena in which policies are compared")
    parser.add_argument("--only", action="append", choices=("time", "eviction", "hits", "policies"), help="may repeat")
    arguments = parser.parse_args()
    quick = arguments.quick
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "time": lambda: time_rows(5 if quick else 200),
        "eviction": lambda: eviction_rows(4096 if quick else arguments.nodes, 2 if quick else 20),
        "hits": lambda: hit_rows(arguments.limit or (20 if quick else None)),
        "policies": lambda: policy_rows(arguments.limit or (20 if quick else None), arguments.memory),
    }
    show([row for name in arguments.only or parts for row in parts[name]()], as_json=arguments.json)


if __name__ == "__main__":
    main()
