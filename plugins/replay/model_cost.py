"""From a model's layers to the plain numbers that the cost model takes, for one tensor-parallel rank."""

import math
from collections.abc import Iterator

from kvarena.plugins.models import Piece
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.replay.cost import ModelCost, PoolCost
from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Part
from kvarena.terms.lifetimes import Lifetime

STATE_FLOPS_PER_ITEM = 4.0
"""A recurrent step decays, updates and reads each item of its state: two multiply-adds."""


def model_cost(spec: ModelSpec) -> ModelCost:
    """The numbers of one rank.

    Weights and dense FLOPs come from the parameters that the config implies, evenly cut over the ranks:
    embeddings count among the parameters and not among the active ones. Parts of one lifetime that are read
    alike are summed; a layer that shares another's rows reads them and writes none.

    Raises:
        ConfigError: the config does not say how many parameters the model has.
    """
    if not spec.parameters or not spec.active_parameters:
        raise ConfigError(
            f"the config of this {spec.model_type!r} does not say how many parameters it has, which a step's time "
            "depends on; give them with --parameters (and --active-parameters for experts)"
        )
    return ModelCost(
        weights_bytes=spec.parameters * spec.weight_bytes_per_parameter / spec.tp,
        flops_per_token=2.0 * spec.active_parameters / spec.tp,
        pools=_pools(spec),
        active_share=min(1.0, spec.active_parameters / spec.parameters),
    )


def _pools(spec: ModelSpec) -> tuple[PoolCost, ...]:
    sums: dict[tuple[Lifetime, int | None], list[float]] = {}
    for piece, part, owned in _parts(spec):
        rows_max = None if piece.rows_max is None else piece.rows_max * part.tokens_per_entry
        written, read, flops = sums.get((part.lifetime, rows_max), [0.0, 0.0, 0.0])
        entry = sum(field.bytes for field in part.layout.fields()) / part.tokens_per_entry
        sums[part.lifetime, rows_max] = [written + entry * owned, read + entry, flops + _flops(piece, part, spec.tp)]
    return tuple(
        PoolCost(lifetime, written, flops, rows_max, read)
        for (lifetime, rows_max), (written, read, flops) in sums.items()
    )


def _parts(spec: ModelSpec) -> Iterator[tuple[Piece, Part, bool]]:
    """Every part that a layer reads, with its whole-model piece, and whether the layer owns it."""
    for outline, layer in zip(spec.outlines, spec.layers, strict=True):
        owner = layer.index if outline.shares is None else outline.shares
        for piece, part in zip(spec.outlines[owner].pieces, spec.layers[owner].parts, strict=True):
            yield piece, part, outline.shares is None


def _flops(piece: Piece, part: Part, tp: int) -> float:
    """Of one rank: for a pair of a token and a row; for a state, for a token."""
    if part.lifetime.own_ids:
        return STATE_FLOPS_PER_ITEM * sum(math.prod(field.shape) for field in part.layout.fields())
    return piece.geometry.flops_per_row() / part.tokens_per_entry / tp
