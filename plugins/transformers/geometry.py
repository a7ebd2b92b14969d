"""What a model caches, learned from what it wrote: from transformers' cache layers to kvarena's layers.

A config names layer kinds, but the tensors that reach the cache are the judge: a model may expand or
compress its keys, cast a state to float32, or be split over devices. So the shapes are read off
transformers' own cache after one forward.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from kvarena.planning.plan import Plan
from kvarena.terms.errors import KvarenaError
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State, Window

KV, INDEX, STATE = "kv", "index", "state"
CONV, RECURRENT = "conv", "recurrent"

KNOWN = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    DynamicIndexedLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    DummyLayer,
)
PROBE_TOKENS = 2

CACHE_ARGUMENT = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
)
"""What a forward calls its cache: newer versions of transformers say ``cache``."""


@attrs.frozen
class Written:
    """The fields of one entry exactly as a transformers model writes them."""

    entry: tuple[Field, ...]
    name = "transformers"

    def fields(self) -> tuple[Field, ...]:
        return self.entry


def plain_cache(config: Any) -> DynamicCache:
    """Transformers' own cache for this config, whose layer kinds are ours as well.

    Raises:
        KvarenaError: a layer keeps its memory in a class that is not known here; names the layer.
    """
    try:
        cache = DynamicCache(config=config)
    except KeyError as error:
        raise KvarenaError(
            f"this {config.model_type!r} model has layers of kind {error}, which transformers' own cache does not know"
        ) from None
    for index, layer in enumerate(cache.layers):
        if type(layer) not in KNOWN:
            raise KvarenaError(
                f"layer {index} of this {config.model_type!r} model caches in transformers' {type(layer).__name__}, "
                "which has no place in an arena yet; run it with transformers' own cache"
            )
    return cache


def probe_layers(model: PreTrainedModel) -> tuple[Layer, ...]:
    """The layers of a loaded model, learned from one forward of two tokens.

    Raises:
        KvarenaError: a layer's cache class is not known here, or the model caches nothing.
    """
    cache = plain_cache(model.config)
    tokens = torch.zeros((1, PROBE_TOKENS), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        model(input_ids=tokens, **{CACHE_ARGUMENT: cache}, use_cache=True)
    return learned_layers(cache.layers)


def learned_layers(layers: Sequence[Any]) -> tuple[Layer, ...]:
    """kvarena's layers for transformers cache layers that a forward has filled.

    Raises:
        KvarenaError: a layer keeps something that has no place in an arena, or nothing was cached at all.
    """
    learned = tuple(Layer(index, _parts(index, layer), type(layer).__name__) for index, layer in enumerate(layers))
    if not any(layer.parts for layer in learned):
        raise KvarenaError("the model cached nothing in its first forward; is use_cache off?")
    return learned


def layers_of(plan: Plan, count: int) -> tuple[Layer, ...]:
    """The first ``count`` layers of a plan that was made from learned layers, as they went into it."""
    parts: dict[int, list[Part]] = {index: [] for index in range(count)}
    for pool in plan.sub_pools:
        fields: dict[tuple[int, str], list[Field]] = {}
        for placed in pool.placed:
            fields.setdefault((placed.layer, placed.role), []).append(Field(placed.field, placed.dtype, placed.shape))
        for (index, role), entry in fields.items():
            if index in parts:
                parts[index].append(Part(Written(tuple(entry)), pool.lifetime, role))
    return tuple(Layer(index, tuple(owned)) for index, owned in parts.items())


def held_bytes(layers: Sequence[Any]) -> int:
    """The bytes that filled transformers cache layers hold."""
    return sum(tensor.numel() * tensor.element_size() for layer in layers for tensor in held_tensors(layer))


def window_of(layer: Any) -> int | None:
    """The window in tokens of a transformers cache layer, the token itself included; None for full attention."""
    return layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None


def _parts(index: int, layer: Any) -> tuple[Part, ...]:
    parts = []
    for tensor in held_tensors(layer):
        if tensor.device.type != "cpu":
            raise KvarenaError(
                f"layer {index} caches on {tensor.device}, and the arena is on the cpu; move the model there with "
                "model.to('cpu')"
            )
    if _holds(layer):
        kv = Written((_row_field("k", layer.keys), _row_field("v", layer.values)))
        parts.append(Part(kv, _lifetime(layer), KV))
    if isinstance(layer, DynamicIndexedLayer) and layer.indexer_keys is not None:
        if layer.indexer_position_ids is not None:
            raise KvarenaError(f"layer {index} keeps position ids in its cache, which have no place in an arena yet")
        keys = layer.indexer_keys
        parts.append(Part(Written((Field("k", str(keys.dtype), tuple(keys.shape[2:])),)), Full(), INDEX))
    states = _states(layer)
    if states:
        entry = tuple(Field(name, str(state.dtype), tuple(state.shape[1:])) for name, state in states)
        parts.append(Part(Written(entry), State(), STATE))
    return tuple(parts)


def _lifetime(layer: Any) -> Lifetime:
    window = window_of(layer)
    return Full() if window is None else Window(window)


def _row_field(name: str, rows: torch.Tensor) -> Field:
    """Keys or values of shape (batch, heads, tokens, dim) as one token's field (heads, dim)."""
    return Field(name, str(rows.dtype), (rows.shape[1], rows.shape[3]))


def _holds(layer: Any) -> bool:
    return isinstance(layer, CacheLayerMixin) and layer.keys is not None


def _states(layer: Any) -> list[tuple[str, torch.Tensor]]:
    """The states that a layer holds by name: ``conv0``, ``recurrent0``, ``conv1``, ..."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return []
    found = []
    for place in range(layer.number_of_states):
        for kind, states in ((CONV, layer.conv_states), (RECURRENT, layer.recurrent_states)):
            state = states[place]
            if state is not None:
                found.append((f"{kind}{place}", state))
    return found


def held_tensors(layer: Any) -> list[torch.Tensor]:
    """The tensors that a transformers cache layer holds, batch first."""
    rows = [layer.keys, layer.values] if _holds(layer) else []
    if isinstance(layer, DynamicIndexedLayer) and layer.indexer_keys is not None:
        rows.append(layer.indexer_keys)
    return rows + [state for _, state in _states(layer)]
