"""Transformers cache layers whose tensors live in an arena: attention, state, and both in one layer.

They answer every call as transformers' own dynamic layers do, mask sizes included, so that a model
cannot tell the difference; a layer counts its own tokens and asks its memory to reach them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicIndexedLayer,
    LinearAttentionCacheLayerMixin,
)

from kvarena.plugins.transformers.geometry import CONV, INDEX, KV, RECURRENT, STATE, window_of
from kvarena.plugins.transformers.keeping import Keeping
from kvarena.plugins.transformers.memory import Place, RowMemory
from kvarena.terms.errors import KvarenaError
from kvarena.terms.layers import Layer


def arena_layers(plain: Sequence[Any], keeping: Keeping, memory: RowMemory, start: int = 0) -> list[Any]:
    """The arena's layers in place of transformers' ``plain`` ones, for rows that hold ``start`` tokens."""
    return [_arena_layer(old, layer, keeping, memory, start) for old, layer in zip(plain, keeping.layers, strict=True)]


def _arena_layer(plain: Any, layer: Layer, keeping: Keeping, memory: RowMemory, start: int) -> Any:
    linear = isinstance(plain, LinearAttentionCacheLayerMixin)
    if isinstance(plain, DummyLayer):
        return plain
    if linear and isinstance(plain, CacheLayerMixin):
        return ArenaHybrid(layer, keeping, memory, plain, start)
    if linear:
        return ArenaState(layer, memory, plain, start)
    if isinstance(plain, DynamicIndexedLayer):
        return ArenaIndexed(layer, keeping, memory, plain, start)
    return ArenaAttention(layer, keeping, memory, plain, start)


class _LayerCalls:
    """What no layer does alone: the cache does it for all of them, or refuses it."""

    supports_early_init = False
    is_compileable = False
    is_croppable = False
    is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the arena is there."""

    def offload(self) -> None:
        """Nothing to do: offloading an arena is not a layer's business."""

    def prefetch(self) -> None:
        """Nothing to do, as for ``offload``."""


class ArenaAttention(_LayerCalls, CacheLayerMixin):
    """Keys and values of shape (batch, heads, tokens, dim), full or the last ``window - 1`` and the new ones.

    They are kept as their layout's fields: encoded when they are written, decoded whenever they are read.
    """

    def __init__(self, layer: Layer, keeping: Keeping, memory: RowMemory, plain: Any, start: int = 0) -> None:
        self.window = window_of(plain)
        self.is_sliding = self.window is not None
        self.length = start
        self.memory = memory
        part = layer.part(KV)
        pool = part.lifetime.name if part else ""
        self._kv = keeping.rows[layer.index]
        self._places = [Place(pool, layer.index, KV, field.name) for field in self._kv.fields]

    @property
    def keys(self) -> torch.Tensor | None:
        """A copy of the keys that the next forward will see; None before the first."""
        return self._rows(self.length)[0] if self.length else None

    @property
    def values(self) -> torch.Tensor | None:
        """A copy of the values that the next forward will see; None before the first."""
        return self._rows(self.length)[1] if self.length else None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new rows and return those that they may attend to.

        Raises:
            ArenaFullError: no page is left; the message has the sum.
        """
        start, stop = self.length, self.length + key_states.shape[-2]
        self.memory.reach(stop, key_states.shape[0])
        self.fill(start, key_states, value_states)
        found = self._rows(start, stop)
        self.length = stop
        return found

    def fill(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write rows from position ``start`` on, which the memory has reached already."""
        fields = self._kv.encode(keys.transpose(1, 2), values.transpose(1, 2))
        for place, rows in zip(self._places, fields, strict=True):
            self.memory.write(place, start, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys ``update`` will return for so many new tokens, and the position of the first."""
        first = self._first(self.length)
        return self.length - first + query_length, first

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

    def reset(self) -> None:
        """Forget the length; the cache gives the pages back."""
        self.length = 0

    def _first(self, length: int) -> int:
        """The first position that a query at ``length`` may see."""
        return 0 if self.window is None else max(0, length - self.window + 1)

    def _rows(self, start: int, stop: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values from the first that position ``start`` sees, as transformers lays them out, contiguous."""
        first, end = self._first(start), start if stop is None else stop
        keys, values = self._kv.decode([self.memory.read(place, first, end) for place in self._places])
        return keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()


class ArenaIndexed(ArenaAttention):
    """Full attention with the keys of a sparse-attention indexer beside it, of shape (batch, tokens, dim)."""

    def __init__(self, layer: Layer, keeping: Keeping, memory: RowMemory, plain: Any, start: int = 0) -> None:
        super().__init__(layer, keeping, memory, plain, start)
        self.index_length = start
        part = layer.part(INDEX)
        self._i = Place(part.lifetime.name if part else "", layer.index, INDEX, "k")

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Store the new indexer keys and return all."""
        start, stop = self.index_length, self.index_length + indexer_key_states.shape[1]
        self.memory.reach(stop, indexer_key_states.shape[0])
        self.fill_index(start, indexer_key_states)
        self.index_length = stop
        return self.memory.read(self._i, 0, stop).contiguous()

    def fill_index(self, start: int, keys: torch.Tensor) -> None:
        """Write indexer keys from position ``start`` on, which the memory has reached already."""
        self.memory.write(self._i, start, keys)

    def reset(self) -> None:
        super().reset()
        self.index_length = 0


class _States:
    """Looks like transformers' dict of states; each look gives the tensor at the present ids."""

    def __init__(self, layer: Layer, kind: str, memory: RowMemory) -> None:
        part = layer.part(STATE)
        fields = [field for field in part.layout.fields() if field.name.startswith(kind)] if part else []
        pool = part.lifetime.name if part else ""
        self._places = {
            int(field.name.removeprefix(kind)): Place(pool, layer.index, STATE, field.name) for field in fields
        }
        self._shapes = {int(field.name.removeprefix(kind)): field.shape for field in fields}
        self._memory = memory
        self.written: set[int] = set()

    def __contains__(self, state_idx: int) -> bool:
        return state_idx in self._places

    def __getitem__(self, state_idx: int) -> torch.Tensor | None:
        return self._memory.state(self._places[state_idx]) if state_idx in self.written else None

    def write(self, state_idx: int, states: torch.Tensor) -> torch.Tensor:
        self.written.add(state_idx)
        return self._memory.set_state(self._places[state_idx], states)

    def width(self, state_idx: int) -> int:
        return self._shapes[state_idx][-1]

    def places(self) -> tuple[int, ...]:
        return tuple(self._places)


class ArenaState(_LayerCalls, LinearAttentionCacheLayerMixin):
    """Convolution and recurrent states in the request's slot, changed in place by the model."""

    def __init__(self, layer: Layer, memory: RowMemory, plain: Any, start: int = 0) -> None:
        self._init_states(layer, memory, plain, start)

    def _init_states(self, layer: Layer, memory: RowMemory, plain: Any, start: int) -> None:
        self.index = layer.index
        self.memory = memory
        self.number_of_states = plain.number_of_states
        self.conv_states = _States(layer, CONV, memory)
        self.recurrent_states = _States(layer, RECURRENT, memory)
        for states in (self.conv_states, self.recurrent_states):
            states.written.update(states.places() if start else ())
        self.has_previous_state = {
            place: bool(start) and place in self.conv_states for place in range(self.number_of_states)
        }

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Keep the last columns of (batch, channels, tokens), after those kept before; returns all of them.

        ``conv_kernel_size`` is what the first forward settled: the slot's own width.
        """
        self._check(self.conv_states, state_idx, "convolution")
        self.memory.reach_batch(conv_states.shape[0])
        width = self.conv_states.width(state_idx)
        full = conv_states
        if self.has_previous_state[state_idx]:
            full = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        elif full.shape[-1] < width:
            full = torch.nn.functional.pad(full, (width - full.shape[-1], 0), value=0)
        self.conv_states.write(state_idx, full[..., -width:])
        self.has_previous_state[state_idx] = True
        return full

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """Replace the recurrent states (batch, ...); returns them as they are stored."""
        self._check(self.recurrent_states, state_idx, "recurrent")
        self.memory.reach_batch(recurrent_states.shape[0])
        return self.recurrent_states.write(state_idx, recurrent_states)

    def reset(self) -> None:
        """Forget what was written; the cache gives the slots back."""
        for place in range(self.number_of_states):
            self.has_previous_state[place] = False
        self.conv_states.written.clear()
        self.recurrent_states.written.clear()

    def _check(self, states: _States, state_idx: int, what: str) -> None:
        if state_idx not in states:
            raise KvarenaError(
                f"layer {self.index} writes its {what} state {state_idx}, which it did not in its first forward; "
                "the arena has no place for it"
            )


class ArenaHybrid(ArenaState, ArenaAttention):
    """Attention and state in one layer, such as Falcon-H1's."""

    is_compileable = False

    def __init__(self, layer: Layer, keeping: Keeping, memory: RowMemory, plain: Any, start: int = 0) -> None:
        ArenaAttention.__init__(self, layer, keeping, memory, plain, start)
        self._init_states(layer, memory, plain, start)

    def reset(self) -> None:
        ArenaState.reset(self)
        ArenaAttention.reset(self)
