"""How much a forward computes: what the cost model of replay, and a person with a pencil, multiply by."""

from kvarena.plugins.models.spec import ModelSpec
from kvarena.terms.lifetimes import WINDOW_RANK


def linear_flops(spec: ModelSpec) -> float:
    """FLOPs of the weights for one token, whole model: two per active parameter; 0 where those are not known."""
    return 2.0 * (spec.active_parameters or 0)


def attention_flops(spec: ModelSpec, context: int) -> float:
    """FLOPs of one query token against ``context`` rows before it, whole model.

    4 * heads * head_dim per row and layer for plain attention (a product with the key, a sum of values);
    a window reads at most its own rows, a part with one entry per k tokens a k-th of them, sparse
    attention at most its top k. States cost the same at any length and are counted with the weights.
    """
    total = 0.0
    for layer in spec.drafts:
        source = layer if layer.shares is None else spec.drafts[layer.shares]
        for piece in source.pieces:
            if piece.lifetime.own_ids:
                continue
            rows = context
            if piece.lifetime.rank[0] <= WINDOW_RANK:
                rows = min(context, piece.lifetime.entries(max(context, 1)))
            rows //= piece.tokens_per_entry
            if piece.rows_max is not None:
                rows = min(rows, piece.rows_max)
            total += piece.geometry.flops_per_row() * rows
    return total


def flops_per_token(spec: ModelSpec, context: int) -> float:
    """FLOPs of one token with ``context`` rows before it, on one of the spec's ranks."""
    return (linear_flops(spec) + attention_flops(spec, context)) / spec.tp
