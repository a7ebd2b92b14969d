"""Attention sinks: the first rows of a sequence and a window stay, the rows between retire."""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import validators

from kvarena import Field
from kvarena.plugins import models


@attrs.frozen
class Sinks:
    """The first ``sinks`` rows, and the current row with the ``window - 1`` before it."""

    sinks: int = attrs.field(validator=validators.ge(1))
    window: int = attrs.field(validator=validators.ge(1))
    own_ids = False

    @property
    def name(self) -> str:
        return f"sinks-{self.sinks}-{self.window}"

    @property
    def rank(self) -> tuple[int, int]:
        return (1, -self.sinks - self.window)

    def entries(self, length: int) -> int:
        return min(length, self.sinks + self.window)

    def retained(self, length: int) -> int:
        return min(length, self.sinks + self.window - 1)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        gone, going = (max(self.sinks, length - self.window + 1) for length in (start, stop))
        return (range(gone, going),) if going > gone else ()

    def repeats(self) -> tuple[int, int]:
        return self.sinks + self.window, 1


@attrs.frozen
class SinkRows:
    """A token's key as it was before its rotary embedding, its value, and its position in the text."""

    name = "sink-rows"
    kv_heads: int = attrs.field(validator=validators.ge(1))
    head_dim: int = attrs.field(validator=validators.ge(1))
    dtype: str = "bfloat16"

    def fields(self) -> tuple[Field, ...]:
        heads = (self.kv_heads, self.head_dim)
        return Field("k", self.dtype, heads), Field("v", self.dtype, heads), Field("position", "int32", ())


@attrs.frozen
class SinkHeads(models.Heads):
    """The heads of a whole model's layer, stored as ``SinkRows``."""

    layout = "sink-rows"

    def share(self, tp: int) -> Mapping[str, Any]:
        share = super().share(tp)
        return {name: share[name] for name in ("kv_heads", "head_dim", "dtype")}


def read_streaming_llama(config: models.Fields) -> models.Outline:
    """Llama with sinks and a window in every layer that ``layer_types`` does not call full."""
    words, notes = models.listed_words(config)
    words = words or ["window"] * models.layer_count(config)
    layers = [_layer(config.at_layer(index), word) for index, word in enumerate(words)]
    return models.Outline(layers, notes=notes)


def _layer(config: models.Fields, word: str) -> models.LayerOutline:
    if word != "window":
        return models.attention_layer(config, word)
    heads = SinkHeads(**attrs.asdict(models.heads_of(config, config.cache_dtype)))
    lifetime = Sinks(config.whole("attention_sinks"), config.whole("sliding_window"))
    return models.LayerOutline("sinks", (models.Piece(heads, lifetime),))
