"""The serving loop in small: runners that make no model run, and loops over storages of a few pages."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from toys import Bytes

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, ChecksConfig, PrefixConfig, StorageConfig
from kvarena.assembly.loader import make_eviction
from kvarena.ledger.steps import Forward
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.storage.storage import Storage
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State, Window
from kvarena.terms.ports import IntArray

CATALOG = Catalog.installed()
THREE: tuple[Lifetime, ...] = (State(), Window(8), Full())
SIZES = {"state": 16, "full": 2}
"""Bytes of an entry; 2 of a window."""


def sampled(request: Request, position: int) -> int:
    """The token that every runner here samples at a position of a request: of its tokens alone, as greedy decoding."""
    return 1000 + (request.id * 31 + position) % 97 if request.prompt is None else 1000 + sum(request.prompt) % 97


class CountingRunner:
    """Takes one second a step, ends a request early where asked, and remembers every batch.

    ``ends_after``: by request, after how many tokens its answer ends; ``storage``: the work of a batch is put on the
    forward's stream, and touches what the batch may.
    """

    def __init__(self, ends_after: Mapping[int, int] | None = None, storage: Storage | None = None) -> None:
        self.batches: list[list[tuple[int, int, int]]] = []
        self.made: dict[int, dict[int, int]] = {}
        self.ends_after = dict(ends_after or {})
        self.storage = storage
        self.ran = 0
        self.flying: deque[Batch] = deque()

    def launch(self, batch: Batch, forward: Forward) -> None:
        """Remembered; the storage's device runs as much as nothing."""
        self.batches.append([(chunk.request.id, chunk.start, chunk.stop) for chunk in batch.chunks()])
        self.flying.append(batch)
        if self.storage is not None:
            self.storage.forwards.run(forward, self._work)

    def result(self, batch: Batch) -> Outcome:
        """In the order of the launches; a token for each sampling chunk, kept by its position."""
        assert self.flying.popleft() is batch
        ended = np.zeros(len(batch), dtype=bool)
        for at, chunk in enumerate(batch.chunks()):
            if chunk.samples:
                made = self.made.setdefault(chunk.request.id, {})
                made[chunk.stop] = sampled(chunk.request, chunk.stop)
                count = chunk.stop - chunk.request.prompt_tokens + 1
                ended[at] = count == self.ends_after.get(chunk.request.id)
        return Outcome(1.0, ended)

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """In order of position."""
        return tuple(self.made.get(request_id, {}).values())

    def keys(self, request: Request, count: int) -> IntArray | None:
        """The prompt's tokens and the sampled ones; without a prompt nothing is to be cached."""
        if request.prompt is None:
            return None
        known = [*request.prompt, *self.made.get(request.id, {}).values()]
        assert count <= len(known), "a key was asked for before its token was known"
        return np.array(known[:count], dtype=np.int64)

    def _work(self) -> None:
        self.ran += 1


def storage_of(
    memory: int,
    *,
    lifetimes: Sequence[Lifetime] = THREE,
    running: int = 4,
    context: int = 64,
    page_tokens: int = 4,
    in_flight: int = 0,
    backend: Any = "host",
    checks: int = 1,
    prefix: PrefixConfig | None = None,
) -> Storage:
    """A storage with one layer per lifetime, by default a state, a window of 8 and full attention."""
    layers = [
        Layer(index, (Part(Bytes(SIZES.get(lifetime.name, 2)), lifetime, lifetime.name),))
        for index, lifetime in enumerate(lifetimes)
    ]
    config = StorageConfig(
        arena=ArenaConfig(
            memory=memory, page_tokens=page_tokens, context_tokens=context, max_running=running, mirrors=False,
            forwards_in_flight=in_flight,
        ),
        backend=backend,
        checks=ChecksConfig(level=checks),
        prefix=prefix or PrefixConfig(),
    )  # fmt: skip
    return build_storage(layers, config, CATALOG)


def loop_over(
    storage: Storage, runner: CountingRunner | None = None, *, cache: PrefixTree | None = None, **serving: Any
) -> Scheduler:
    """A loop over this storage; a cache where its config shares prefixes."""
    settings: dict[str, Any] = {"chunk_tokens": 8, "step_tokens": 16, "keep_forwards": True, **serving}
    if cache is None and storage.prefix.share:
        cache = PrefixTree(storage, make_eviction(CATALOG, storage.prefix))
    return Scheduler(storage, runner or CountingRunner(), ServingConfig(**settings), cache=cache)


def loop_of(memory: int, *, runner: CountingRunner | None = None, **settings: Any) -> Scheduler:
    """A loop over a storage of its own; ``settings`` of ``storage_of`` and of the loop."""
    ours = {"lifetimes", "running", "context", "page_tokens", "in_flight", "backend", "checks", "prefix"}
    storage = storage_of(memory, **{name: value for name, value in settings.items() if name in ours})
    return loop_over(storage, runner, **{name: value for name, value in settings.items() if name not in ours})


def tokens_of(*lengths: int, first: int = 0) -> tuple[int, ...]:
    """Token values that differ between calls with another ``first``."""
    return tuple(first * 1000 + place for length in lengths for place in range(length))


def assert_empty(loop: Scheduler) -> None:
    """Nothing is held any more, once the cache is cleared, and every sum holds."""
    storage = loop.storage
    storage.verify()
    if loop.cache is not None:
        assert isinstance(loop.cache, PrefixTree)
        loop.cache.verify()
        loop.cache.clear()
    storage.flush()
    storage.verify()
    chain = storage.chain
    assert all(shot.live == 0 and shot.holes == 0 for shot in chain.snapshot().bands)
    assert storage.requests.free_count == len(storage.requests)
    assert sum(loop.admission.promised()) == 0
    assert chain.ledger.steps.launched == chain.ledger.steps.processed
