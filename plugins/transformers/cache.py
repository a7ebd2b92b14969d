"""``ArenaCache``: the drop-in for ``generate``, a transformers cache whose memory is one arena.

The first forward runs on transformers' own layers; then the arena takes over what they hold. A config
alone does not say what a model caches (its tensors may be cast, sharded, expanded or compressed), and a
dry run on the meta device fails where expert kernels have no meta form; what was written once says it
all. The first forward is bounded by the same budget, and windows keep only their rows in it.
"""

import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig, structure
from kvarena.plugins.models.kv_layout import KvLayout
from kvarena.plugins.transformers.geometry import held_bytes, held_tensors, learned_layers, plain_cache
from kvarena.plugins.transformers.keeping import Keeping, KvRows, rows_of
from kvarena.plugins.transformers.layers import ArenaAttention, ArenaIndexed, ArenaState, arena_layers
from kvarena.plugins.transformers.memory import ArenaFullError, OwnedRows
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError, KvarenaError
from kvarena.terms.layers import Layer
from kvarena.terms.lifetimes import Full
from kvarena.terms.units import format_bytes

CONTEXT_TOKENS_MAX = 1 << 20
"""The longest sequence that a request row is made for, unless a longer one is asked for."""


class _FirstForward(Cache):
    """A cache that notices when its first forward is over: a layer that holds something is asked again."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        self._before(layer_idx, lambda layer: isinstance(layer, CacheLayerMixin) and layer.get_seq_length())
        found = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return self._after(layer_idx, *found)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> Any:
        self._before(layer_idx, lambda layer: getattr(layer, "indexer_keys", None) is not None)
        return super().update_indexer(indexer_key_states, layer_idx)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        self._before(layer_idx, _has_state)
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        self._before(layer_idx, _has_state)
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        self._before(layer_idx, _has_state)
        return super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)

    @abstractmethod
    def _before(self, layer_idx: int, used: Callable[[Any], Any]) -> None:
        """A layer is about to be asked; ``used`` tells whether it holds something already."""

    @abstractmethod
    def _after(self, layer_idx: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer has stored rows; what the forward gets to see in place of these keys and values."""


class ArenaCache(_FirstForward):
    """A cache for ``generate`` and forwards of one sequence or a batch, in an arena on the cpu.

    ``config`` is the model's, ``memory`` the budget (``"2GiB"``), ``page_tokens`` the tokens of a page.
    ``max_running`` is the most sequences that the batch may ever hold (beams included); None takes the
    first batch's size. ``context_tokens`` is the longest sequence; None takes what the arena can hold, up
    to 2**20. ``kv_layout`` names the layout that keeps keys and values, ``"int8-heads"`` or ``{"name": ..., ...}``
    with its settings; None keeps them as the model writes them. What a codec loses, each forward misses, the
    first one too. The memory is got when the first forward is over, and given back by ``close``, at the end of
    a ``with`` block, or when the cache is garbage. A forward that meets a full arena raises
    ``ArenaFullError``; ``reset`` or ``close`` is what can follow. As with transformers' own caches, a second
    ``generate`` goes on where the first ended unless ``reset`` is called, and one cache serves one thread.

    Raises:
        ConfigError: ``config`` is none, the budget is no amount of bytes, or a setting is no count.
        PluginError: no usable layout has the name.
        KvarenaError: a layer keeps its memory in a way that has no place in an arena; names the layer.
    """

    def __init__(
        self,
        config: Any,
        memory: str | int = "2GiB",
        *,
        page_tokens: int | None = None,
        max_running: int | None = None,
        context_tokens: int | None = None,
        kv_layout: str | Mapping[str, Any] | KvLayout | None = None,
    ) -> None:
        if not hasattr(config, "get_text_config"):
            raise ConfigError(f"ArenaCache: config is a {type(config).__name__}; give the model's own, model.config")
        settings = {"page_tokens": page_tokens, "max_running": max_running, "context_tokens": context_tokens}
        given = {name: value for name, value in settings.items() if value is not None}
        self._arena = structure(ArenaConfig, {"memory": memory, "mirrors": False, **given}, "ArenaCache")
        self._config = config
        self._kv_layout = KvLayout.named(kv_layout, "ArenaCache: kv_layout")
        self._first: dict[int, KvRows] = {}
        self._rows: OwnedRows | None = None
        self._storage: Storage | None = None
        self._release: Any = None
        self._closed = False
        super().__init__(layers=plain_cache(config).layers)

    def reset(self) -> None:
        """Forget every token; the pages go back to the arena, which stays for the next batch."""
        if self._rows is None:
            self.layers, self._first = plain_cache(self._config).layers, {}
            return
        self._rows.close()
        super().reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """The batch becomes its sequences at ``beam_idx``; one that is chosen twice is copied.

        Raises:
            ArenaFullError: there is no room for the copies.
        """
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence ``repeats`` times in a row.

        Raises:
            ArenaFullError: there is no room for the copies.
        """
        batch = self._held_batch()
        self.batch_select_indices(torch.arange(batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the sequences at ``indices`` (a batch of them, in that order).

        Raises:
            ArenaFullError: a sequence is chosen twice and there is no room for its copy.
        """
        if self._take_over():
            chosen = torch.arange(self._held_batch())[indices.cpu()]
            if self._rows is not None and self._rows.rows:
                self._rows.select(chosen.tolist())

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: pages of a window and states cannot be had back.

        Raises:
            KvarenaError: always, unless nothing is to be removed.
        """
        if tokens_to_remove:
            raise KvarenaError(
                "an ArenaCache cannot be cropped: retired window rows and states are gone; use plain or sampled "
                "decoding, without an assistant model"
            )

    def activate_past_recording(self) -> None:
        """Refused, as ``crop`` is.

        Raises:
            KvarenaError: always.
        """
        raise KvarenaError(
            "an ArenaCache does not record a past to crop to; assisted decoding needs transformers' own cache"
        )

    def close(self) -> None:
        """Give the arena's memory back; the cache is empty and cannot be used again. A second call does nothing."""
        self._closed = True
        self.layers = []
        self._rows = self._storage = None
        if self._release is not None:
            self._release()

    @property
    def storage(self) -> Storage | None:
        """The storage behind the cache, to look at; None until a second forward has begun, and once closed."""
        return self._storage

    def __enter__(self) -> "ArenaCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, _: object) -> "ArenaCache":
        raise KvarenaError("an ArenaCache cannot be copied: its arena has one owner")

    # -- from the first forward to the arena

    def _before(self, layer_idx: int, used: Callable[[Any], Any]) -> None:
        if self._closed:
            raise KvarenaError("this ArenaCache is closed; make a new one")
        if self._rows is None and layer_idx < len(self.layers) and used(self.layers[layer_idx]):
            self._take_over()

    def _after(self, layer_idx: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._rows is not None:
            return keys, values
        held = held_bytes(self.layers)
        if held > self._arena.memory:
            raise ArenaFullError(
                f"the arena is full: the first forward alone caches {format_bytes(held)}, and the arena has "
                f"{format_bytes(self._arena.memory)}; give ArenaCache more memory, or prefill in chunks"
            )
        if self._kv_layout is None:
            return keys, values
        # transformers' layer holds the rows as they were written, so that the arena encodes each but once
        if layer_idx not in self._first:
            self._first[layer_idx] = rows_of(layer_idx, keys, values, self._kv_layout)
        return self._first[layer_idx].round_trip(keys, values)

    def _take_over(self) -> bool:
        """Build the arena and move in what the first forward cached; False where it is not over yet."""
        if self._rows is not None:
            return True
        if not _complete(self.layers):
            return False
        plain, batch = self.layers, self._held_batch()
        keeping = Keeping.of(learned_layers(plain), self._kv_layout)
        storage = build_arena(keeping.layers, self._arena, batch)
        rows = OwnedRows(storage)
        layers = arena_layers(plain, keeping, rows)
        try:
            move_in(rows, plain, layers, batch)
        except ArenaFullError:
            storage.release()
            raise
        self._release = weakref.finalize(self, storage.release)
        self._storage, self._rows, self.layers = storage, rows, layers
        return True

    def _held_batch(self) -> int:
        """The sequences of the batch in the cache; 0 for none."""
        if self._rows is not None:
            return len(self._rows.rows)
        return next((tensor.shape[0] for layer in self.layers for tensor in held_tensors(layer)), 0)


def build_arena(learned: Sequence[Layer], arena: ArenaConfig, batch: int) -> Storage:
    """A storage on the cpu for a batch of this size, or the larger one that the settings name.

    Raises:
        PlanError: the budget cannot hold one sequence; each term with its bytes.
    """
    whole = attrs.evolve(
        arena,
        max_running=max(batch, arena.max_running or 0),
        context_tokens=arena.context_tokens or _longest(learned, arena.memory),
    )
    return build_storage(learned, StorageConfig(arena=whole, backend="cpu"))


def _longest(learned: Sequence[Layer], memory: int) -> int:
    """The longest sequence that full attention leaves room for, in tokens, within reason."""
    full = sum(
        field.bytes
        for layer in learned
        for part in layer.parts
        if isinstance(part.lifetime, Full)
        for field in part.layout.fields()
    )
    return min(CONTEXT_TOKENS_MAX, max(1, memory // full)) if full else CONTEXT_TOKENS_MAX


def move_in(rows: OwnedRows, plain: Sequence[Any], layers: Sequence[Any], batch: int) -> None:
    """Write what transformers' layers hold into the arena's, and set these to continue from there."""
    rows.reach_batch(batch)
    length = max((layer.get_seq_length() for layer in plain if _has_rows(layer)), default=0)
    for piece in rows.pieces(length):
        rows.reach(piece.stop, batch)
        for old, new in zip(plain, layers, strict=True):
            _move_rows(old, new, piece)
    for old, new in zip(plain, layers, strict=True):
        _move_states(old, new)


def _move_rows(old: Any, new: Any, piece: range) -> None:
    if isinstance(new, ArenaAttention) and _has_rows(old):
        kept = range(old.get_seq_length() - old.keys.shape[-2], old.get_seq_length())
        start, stop = max(piece.start, kept.start), min(piece.stop, kept.stop)
        if start < stop:
            at = slice(start - kept.start, stop - kept.start)
            new.fill(start, old.keys[:, :, at], old.values[:, :, at])
        new.length = kept.stop
    if isinstance(new, ArenaIndexed) and old.indexer_keys is not None:
        new.fill_index(piece.start, old.indexer_keys[:, piece.start : piece.stop])
        new.index_length = old.indexer_keys.shape[1]


def _move_states(old: Any, new: Any) -> None:
    if not isinstance(new, ArenaState):
        return
    for place in range(old.number_of_states):
        if old.conv_states[place] is not None:
            new.conv_states.write(place, old.conv_states[place])
        if old.recurrent_states[place] is not None:
            new.recurrent_states.write(place, old.recurrent_states[place])
        new.has_previous_state[place] = old.has_previous_state[place]


def _complete(layers: Sequence[Any]) -> bool:
    """Whether a first forward went through all layers: every attention layer holds rows, or else every state is set."""
    attention = [layer for layer in layers if isinstance(layer, CacheLayerMixin)]
    if attention:
        return all(_has_rows(layer) for layer in attention)
    return all(_has_state(layer) for layer in layers if isinstance(layer, LinearAttentionCacheLayerMixin))


def _has_rows(layer: Any) -> bool:
    return isinstance(layer, CacheLayerMixin) and layer.keys is not None


def _has_state(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin) and all(layer.has_previous_state.values())
