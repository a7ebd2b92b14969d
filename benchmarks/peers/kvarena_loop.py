"""The serving loop itself: ``Scheduler.step`` with a runner that runs nothing."""

from collections import deque

import numpy as np

from kvarena.assembly.loader import make_eviction
from kvarena.ledger.steps import Forward
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.storage.storage import Storage
from kvarena.terms.ports import IntArray
from peers.kvarena_side import CATALOG
from peers.kvarena_work import CHUNK, Readings
from peers.schedule import PROMPT
from peers.timing import Reading, Watch

OUTPUT_MAX = 100
"""Outputs of 1 to 100 tokens: 2 % of the requests end in a step."""

KEPT = 1024
WAITING = 8
"""So many requests wait, in the queue or for their time."""

VOCABULARY = 100_000


class NullRunner:
    """Batches that take a second; the keys of a prompt are drawn by its id, those of its output follow."""

    def __init__(self) -> None:
        self._flying: deque[Batch] = deque()
        self._random = np.random.default_rng(7)
        self._keys: dict[int, IntArray] = {}

    def launch(self, batch: Batch, forward: Forward) -> None:
        """Nothing runs."""
        self._flying.append(batch)

    def result(self, batch: Batch) -> Outcome:
        """A second has passed."""
        self._flying.popleft()
        return Outcome(1.0)

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """None are made."""
        return ()

    def draw(self, request: Request) -> None:
        """A request's tokens, before its step is timed."""
        self._keys[request.id] = self._random.integers(0, VOCABULARY, request.prompt_tokens + request.output_tokens)
        self._keys.pop(request.id - KEPT, None)

    def keys(self, request: Request, count: int) -> IntArray | None:
        """As drawn."""
        return self._keys[request.id][:count]


class LoopStep:
    """One iteration of a loop in which ``running`` requests run and some wait."""

    def __init__(self, storage: Storage, running: int) -> None:
        self.runner = NullRunner()
        cache = PrefixTree(storage, make_eviction(CATALOG, storage.prefix)) if storage.prefix.share else None
        self.loop = Scheduler(storage, self.runner, ServingConfig(CHUNK, CHUNK), cache=cache)
        self.running = running
        self._random = np.random.default_rng(3)
        self._next = 0
        for _ in range(1000 if cache else 100):
            self()

    def __call__(self) -> Readings:
        """One iteration."""
        while self._next - self.loop.counts.done < self.running + WAITING:
            request = Request(self._next, self.loop.now, PROMPT, int(self._random.integers(1, OUTPUT_MAX)))
            self.runner.draw(request)
            self.loop.submit(request)
            self._next += 1
        with Watch() as watch:
            self.loop.step()
        return {"step": Reading(watch.total)}
