"""Running the loop's batches through a transformers model whose memory is the loop's storage.

Each chunk is one forward of one sequence, at the pages of exactly that step; the reference in ``verify``
repeats the same forwards. The runner owns the tokens: the loop sees rows and lengths only.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from kvarena.ledger.steps import Forward
from kvarena.plugins.serving.port import Batch, Chunk, Outcome, Request
from kvarena.plugins.transformers.geometry import CACHE_ARGUMENT, KV, STATE, plain_cache
from kvarena.plugins.transformers.keeping import Keeping
from kvarena.plugins.transformers.layers import arena_layers
from kvarena.plugins.transformers.memory import KeptIds, RowMemory, Views, views_of
from kvarena.plugins.transformers.tokens import Transcript, Transcripts
from kvarena.storage.storage import Storage
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.layers import Layer
from kvarena.terms.ports import Event, IntArray


class ModelRunner:
    """Greedy decoding of the loop's batches, in a storage built from ``probe_layers(model)``.

    ``keeping``: where the storage was built from its layers instead, whose keys and values a named layout keeps.
    A step takes ``step_seconds`` on the loop's clock, and ``token_seconds`` more for each token that it
    forwards, however long the model really took: a run repeats to the step on any machine.

    A batch's life:  1. launch  its ids are read, while they are valid, and its work is put on the forwards' stream.
                     2. run     in its turn, on the stream's thread: the arena's bytes and the tokens are read then.
                     3. result  its end is waited for. What the model raised is raised here, once; the batches behind
                                it are not run, and say so.

    Raises:
        KvarenaError: the storage was built for other layers, or the model keeps a state outside its cache,
            where no request could own it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        storage: Storage,
        *,
        keeping: Keeping | None = None,
        step_seconds: float = 0.02,
        token_seconds: float = 0.0,
    ) -> None:
        self.model = model
        self._kinds = plain_cache(model.config).layers
        self._keeping = Keeping.planned(storage.plan, len(self._kinds)) if keeping is None else keeping
        check_servable(model, self._kinds, self._keeping.layers)
        self._keeping.check_plan(storage.plan)
        self._storage = storage
        self._views, self._viewed = views_of(storage), storage.chain
        storage.at_release.append(self._forget_views)
        self._seconds = step_seconds, token_seconds
        self._transcripts = Transcripts()
        self._ends = end_tokens(model)
        self._flights: dict[Batch, tuple[_Flight, Event]] = {}
        self._fault = ""

    def launch(self, batch: Batch, forward: Forward) -> None:
        """Put the forwards of every chunk on the forward's stream.

        Raises:
            KvarenaError: a request has no prompt tokens; nothing is on the stream.
        """
        chunks = tuple(batch.chunks())
        transcripts = [self._transcript(chunk.request) for chunk in chunks]
        memory = RowMemory(self._views_of_now(), self._storage.plan.page_tokens)
        timeline = self._storage.chain.ledger.timeline
        flight = _Flight(chunks, np.zeros(len(chunks), dtype=np.bool_), torch.get_num_threads())
        self._storage.forwards.run(forward, partial(self._run, flight, transcripts, memory, KeptIds.of(batch.ids)))
        self._flights[batch] = flight, timeline.device.record(timeline.forward)

    def result(self, batch: Batch) -> Outcome:
        """Wait for the batch; its seconds on the loop's clock, and which rows sampled a token that ends an answer.

        Raises:
            KvarenaError: an earlier batch failed, so that this one was not run.
            Exception: what the model raised.
        """
        if batch not in self._flights:
            raise InvariantError("runner.result_of_unlaunched_batch")
        flight, event = self._flights.pop(batch)
        self._storage.device.synchronize(event)
        if flight.error is not None:
            raise flight.error
        step, per_token = self._seconds
        return Outcome(step + per_token * sum(chunk.stop - chunk.start for chunk in flight.chunks), flight.ended)

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """The tokens sampled for a request so far, up to one that ends it; they survive a retraction."""
        return self._transcripts.sampled(request_id)

    def keys(self, request: Request, count: int) -> IntArray | None:
        """The first ``count`` tokens, int64 (count,): a read-only view, not to be kept. None without a prompt."""
        return self._transcripts.keys(request, count)

    def forget(self, request_id: int) -> None:
        """The tokens of a request that is over are not needed any more: a server calls this once it has read them.

        Those of all others stay, for a report may be checked when all is over; so they grow with every request.
        """
        self._transcripts.forget(request_id)

    def _views_of_now(self) -> Views:
        """The views of the arena; made anew where it was resized since."""
        if self._viewed is not self._storage.chain:
            self._views, self._viewed = views_of(self._storage), self._storage.chain
        return self._views

    def _transcript(self, request: Request) -> Transcript:
        """The tokens of a request that is to be run."""
        transcript = self._transcripts.of(request)
        if transcript is None:
            raise KvarenaError(f"request {request.id} has no prompt tokens; a model cannot run on lengths alone")
        return transcript

    # -- on the forwards' stream

    def _run(self, flight: "_Flight", transcripts: list[Transcript], memory: RowMemory, ids: KeptIds) -> None:
        """The work of a batch. Nothing leaves it but through ``result``: a stream that fails takes no more work."""
        if self._fault:
            flight.error = KvarenaError(f"not run: the model failed in an earlier batch ({self._fault})")
            return
        try:
            if torch.get_num_threads() != flight.threads:  # another count adds in another order
                torch.set_num_threads(flight.threads)
            for at, (chunk, transcript) in enumerate(zip(flight.chunks, transcripts, strict=True)):
                memory.bind(ids, [at], chunk.stop)
                flight.ended[at] = self._forward(memory, chunk, transcript)
        except BaseException as error:
            flight.error, self._fault = error, f"{type(error).__name__}: {error}"

    def _forward(self, memory: RowMemory, chunk: Chunk, transcript: Transcript) -> bool:
        """Forward one chunk through the model, and write its greedy token; whether that one ends the answer."""
        cache = Cache(layers=arena_layers(self._kinds, self._keeping, memory, chunk.start))
        token = forward(self.model, cache, transcript.read(chunk.start, chunk.stop))
        memory.commit()
        ends = token in self._ends
        if chunk.samples:
            transcript.sample(chunk.stop, token, ends=ends)
        return chunk.samples and ends

    def _forget_views(self) -> None:
        self._views = {}
        self._flights.clear()


@attrs.define(eq=False)
class _Flight:
    """A launched batch: its chunks, which of them ended, what went wrong. Written on the stream, read behind it."""

    chunks: tuple[Chunk, ...]
    ended: npt.NDArray[np.bool_]
    threads: int
    error: BaseException | None = None


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
        KvarenaError: names the first such layer, or the numbers of layers where they differ.
    """
    if len(kinds) != len(layers):
        raise KvarenaError(
            f"this {model.config.model_type!r} model has {len(kinds)} layers that cache, and the runner was told of "
            f"{len(layers)}; learn them with probe_layers(model)"
        )
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
