"""Driving a runner by hand with the storage's own verbs, a step at a time, as the loop does; and plain transformers."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, PrefixConfig, StorageConfig
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.transformers.geometry import plain_cache, probe_layers
from kvarena.plugins.transformers.runner import ModelRunner, forward
from kvarena.storage.storage import Storage


def make_request(number: int, prompt_tokens: int, output_tokens: int, seed: int = 0) -> Request:
    """A request whose prompt is drawn."""
    prompt = np.random.default_rng(seed + number).integers(3, 256, prompt_tokens).tolist()
    return Request(number, 0.0, prompt_tokens, output_tokens, tuple(prompt))


def sharing(grid: int | None, strategy: str = "extra_buffer") -> PrefixConfig:
    """Prefixes are shared where there is a ``grid`` of checkpoints."""
    return PrefixConfig(share=grid is not None, checkpoint_tokens=grid, strategy=strategy)


def make_storage(
    model: Any, memory: str | int = "1MiB", *, prefix: PrefixConfig | None = None, in_flight: int = 2, **settings: Any
) -> Storage:
    """A small arena for a tiny model, pages of 8 tokens."""
    arena = {"page_tokens": 8, "max_running": 6, "context_tokens": 128, "forwards_in_flight": in_flight, **settings}
    config = StorageConfig(arena=ArenaConfig(memory=memory, **arena), prefix=prefix or PrefixConfig())
    return build_storage(probe_layers(model), config)


def plain(model: Any, tokens: Sequence[int], stops: Sequence[int], count: int) -> list[int]:
    """The ``count`` greedy tokens of transformers' own cache, ``tokens`` forwarded in pieces up to each stop."""
    cache, known, start = plain_cache(model.config), list(tokens), 0
    for stop in stops:
        token = forward(model, cache, known[start:stop])
        start = stop
    for _ in range(count):
        known.append(token)
        token = forward(model, cache, known[-1:])
    return known[len(tokens) :]


class Watched:
    """A model that remembers the logits of each forward, and fails in the one of this number."""

    def __init__(self, model: Any, fails_at: int = -1) -> None:
        self.logits: list[torch.Tensor] = []
        self.device = model.device
        self._model = model
        self._fails_at = fails_at

    def __call__(self, **arguments: Any) -> Any:
        if len(self.logits) == self._fails_at:
            raise ArithmeticError("planted")
        found = self._model(**arguments)
        self.logits.append(found.logits[0, -1].clone())
        return found


class Hand:
    """A runner on a storage, and the batches that it has in flight."""

    def __init__(self, model: Any, storage: Storage) -> None:
        self.storage = storage
        self.runner = ModelRunner(model, storage)
        self.flying: deque[tuple[Batch, Any]] = deque()

    def open(self) -> int:
        """A row."""
        row = self.storage.open()
        assert isinstance(row, int), row
        return row

    def launch(self, *moves: tuple[int, Request, int, bool], before: Any = None, after: Any = None) -> None:
        """One step: (row, request, stop, samples) each. ``before`` and ``after`` are called with the open forward."""
        rows, stops = (np.array([move[at] for move in moves], dtype=np.int64) for at in (0, 2))
        ids = self.storage.step(rows, stops)
        requests = np.empty(len(moves), dtype=object)
        requests[:] = [move[1] for move in moves]
        samples = np.array([move[3] for move in moves])
        batch = Batch(rows, ids.starts, ids.lengths, samples, requests, ids)
        open_forward = self.storage.forwards.launch(ids)
        if before is not None:
            before(open_forward)
        self.runner.launch(batch, open_forward)
        if after is not None:
            after(open_forward)
        self.storage.forwards.record(open_forward)
        self.flying.append((batch, open_forward))

    def land(self) -> Outcome:
        """The oldest step is over."""
        batch, ended = self.flying.popleft()
        outcome = self.runner.result(batch)
        self.storage.device.synchronize(ended.event)
        self.storage.forwards.process(ended)
        return outcome

    def prefill(self, row: int, request: Request, stops: Sequence[int]) -> None:
        """The known tokens piece by piece; the last one samples."""
        for stop in stops:
            self.launch((row, request, stop, stop == stops[-1]))
            self.land()

    def checkpoint(self, row: int) -> Any:
        """Called with the open forward: copies the row's live state to its second place, behind the forward's work."""
        slots = self.storage.requests.slots

        def copy(open_forward: Any) -> None:
            if slots.shape[1]:
                self.storage.copies.copy_state(slots[row, :1], slots[row, 1:2], open_forward)

        return copy

    def hand_over(self, row: int, tokens: int) -> tuple[Any, int | None]:
        """The row's first tokens, and the state in its second place, as a prefix cache would have them."""
        pages = self.storage.requests.pages[row, : tokens // self.storage.plan.page_tokens].copy()
        self.storage.ownership.hand_over(row, tokens)
        has_states = self.storage.plan.slots is not None
        return pages, self.storage.sharing.hand_over_slot(row, 1) if has_states else None

    def start_on(self, pages: Any, state: int | None) -> int:
        """A row that begins behind a prefix that was handed over."""
        row = self.open()
        self.storage.sharing.start(row, pages, len(pages) * self.storage.plan.page_tokens)
        if state is not None:
            self.storage.copies.copy_state(np.array([state]), self.storage.requests.slots[row, :1])
        return row
