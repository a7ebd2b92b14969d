"""A model as planning and replay see it: its layers on one rank, and the few numbers around them."""

from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.plugins.models.outline import LayerOutline, Piece, rank_layers
from kvarena.terms.layers import Layer


@attrs.frozen
class ModelSpec:
    """What ``read_model`` answers.

    ``layers`` are those of one of ``tp`` ranks. ``dtype`` is that of keys and values. ``context_max`` is
    the longest context the config names, None where it names none. ``parameters`` and
    ``active_parameters`` (those that one token's forward multiplies by) are estimates from the config,
    None where it does not say enough. ``kv_layout`` is the layout that was named for keys and values in place of
    the model's own, if one was. ``outlines`` hold the whole-model geometry.
    """

    model_type: str
    num_layers: int
    layers: tuple[Layer, ...]
    layer_kinds: tuple[str, ...]
    dtype: str
    tp: int
    context_max: int | None
    parameters: int | None
    active_parameters: int | None
    state_family: str | None
    notes: tuple[str, ...]
    outlines: tuple[LayerOutline, ...] = attrs.field(repr=False)
    layouts: Mapping[str, Any] = attrs.field(repr=False, eq=False)
    weight_bytes_per_parameter: float = 2.0
    kv_layout: str | None = None

    def token_layers(self, tp: int) -> tuple[Layer, ...]:
        """The layers of one of ``tp`` ranks with only the parts that keep rows per token.

        Raises:
            ConfigError: the KV heads cannot be cut over so many ranks.
        """
        return rank_layers(self.outlines, tp, self.layouts.__getitem__, keep=_has_rows)

    def state_layers(self, tp: int) -> tuple[Layer, ...]:
        """The layers of one of ``tp`` ranks with only their states.

        Raises:
            ConfigError: the states cannot be cut over so many ranks.
        """
        return rank_layers(self.outlines, tp, self.layouts.__getitem__, keep=lambda piece: not _has_rows(piece))


def _has_rows(piece: Piece) -> bool:
    return not piece.lifetime.own_ids
