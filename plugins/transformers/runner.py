"""Running the loop's batches through a transformers model whose memory is the loop's storage.

Each chunk is one forward of one sequence, at the pages of exactly that step; the reference in ``verify``
repeats the same forwards. The runner owns the tokens: the loop sees rows and lengths only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from kvarena.plugins.serving.port import Batch, Chunk, Outcome
from kvarena.plugins.transformers.geometry import CACHE_ARGUMENT, KV, STATE, layers_of, plain_cache
from kvarena.plugins.transformers.layers import arena_layers
from kvarena.plugins.transformers.memory import RowMemory, views_of
from kvarena.storage.storage import Storage
from kvarena.terms.errors import KvarenaError
from kvarena.terms.layers import Layer


class ModelRunner:
    """Greedy decoding of the loop's batches, in a storage built from ``probe_layers(model)``.

    A step takes ``step_seconds`` on the loop's clock, and ``token_seconds`` more for each token that it
    forwards, however long the model really took: a run repeats to the step on any machine.

    Raises:
        KvarenaError: the storage was built for other layers, or the model keeps a state outside its cache,
            where no request could own it.
    """

    def __init__(
        self, model: PreTrainedModel, storage: Storage, *, step_seconds: float = 0.02, token_seconds: float = 0.0
    ) -> None:
        self.model = model
        self._kinds = plain_cache(model.config).layers
        self._layers = layers_of(storage.plan, len(self._kinds))
        check_servable(model, self._kinds, self._layers)
        self._memory = RowMemory(views_of(storage), storage.plan.page_tokens)
        storage.at_release.append(self._forget_views)
        self._seconds = step_seconds, token_seconds
        self._sampled: dict[int, list[int]] = {}
        self._ends = end_tokens(model)

    def run(self, batch: Batch) -> Outcome:
        """Forward every chunk; remember the token that each sampling chunk gives."""
        ended = np.zeros(len(batch), dtype=bool)
        for at, chunk in enumerate(batch.chunks()):
            token = self._forward(batch, at, chunk)
            if chunk.samples:
                self._sampled.setdefault(chunk.request.id, []).append(token)
                ended[at] = token in self._ends
        step, per_token = self._seconds
        return Outcome(step + per_token * int((batch.stops - batch.starts).sum()), ended)

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """The tokens sampled for a request so far; they survive a retraction."""
        return tuple(self._sampled.get(request_id, ()))

    def _forward(self, batch: Batch, at: int, chunk: Chunk) -> int:
        """Forward one chunk through the model; returns the greedy token after it."""
        self._memory.bind(batch.ids, [at], chunk.stop)
        cache = Cache(layers=arena_layers(self._kinds, self._layers, self._memory, chunk.start))
        token = forward(self.model, cache, self._tokens(chunk))
        self._memory.commit()
        return token

    def _tokens(self, chunk: Chunk) -> list[int]:
        """The token values of a chunk: of the prompt, then those sampled before."""
        if chunk.request.prompt is None:
            raise KvarenaError(f"request {chunk.request.id} has no prompt tokens; a model cannot run on lengths alone")
        known = [*chunk.request.prompt, *self._sampled.get(chunk.request.id, ())]
        return known[chunk.start : chunk.stop]

    def _forget_views(self) -> None:
        self._memory = RowMemory({}, self._memory.page_tokens)


def forward(model: PreTrainedModel, cache: Cache, tokens: Sequence[int]) -> int:
    """One forward of one sequence's next tokens; returns the greedy token after the last."""
    with torch.inference_mode():
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=model.device)
        logits = model(input_ids=ids, **{CACHE_ARGUMENT: cache}, use_cache=True).logits
    return int(logits[0, -1].argmax())


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """The tokens that end an answer, from the model's generation config; may be none."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    if ends is None:
        return frozenset()
    return frozenset(ends) if isinstance(ends, (list, tuple)) else frozenset([int(ends)])


def check_servable(model: PreTrainedModel, kinds: Sequence[Any], layers: Sequence[Layer]) -> None:
    """Refuse layers that the model's caches do not fit, and a state that never reaches the cache (recurrent_gemma).

    Raises:
        KvarenaError: names the first such layer.
    """
    for kind, layer in zip(kinds, layers, strict=True):
        if isinstance(kind, CacheLayerMixin) and not layer.part(KV):
            raise KvarenaError(
                f"layer {layer.index} of this {model.config.model_type!r} model caches keys and values, and the "
                "storage has no place for them; build it from probe_layers(model)"
            )
        if isinstance(kind, LinearAttentionCacheLayerMixin) and not layer.part(STATE):
            raise KvarenaError(
                f"layer {layer.index} of this {model.config.model_type!r} model keeps its state in the module, not in "
                "the cache: requests would mix. It runs under generate alone, one batch at a time"
            )
