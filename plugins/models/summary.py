"""The figures of a planned model that people and scripts compare: bytes per token, window, state and request."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from kvarena.planning.plan import Plan, SubPool
from kvarena.plugins.models.spec import ModelSpec
from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Layer
from kvarena.terms.lifetimes import WINDOW_RANK, Lifetime

RANKS = (1, 2, 4, 8, 16)
LENGTHS = (1, 1000, 4096, 32768, 131072)
"""The tensor-parallel degrees and the request lengths, in tokens, that a summary lists."""


def summarize(spec: ModelSpec, plan: Plan) -> dict[str, Any]:
    """A JSON-ready summary of one rank of a model and its plan.

    Bytes are those of the layers' fields, without alignment or page rounding. A figure that is no whole
    number (one entry per k tokens) is a float; ``one_request_bytes`` is rounded down. Figures of a
    tensor-parallel degree that the model cannot be cut to are None.
    """
    full = [pool for pool in plan.token_pools if pool.lifetime.rank[0] > WINDOW_RANK]
    windows = [pool for pool in plan.token_pools if pool.lifetime.rank[0] == WINDOW_RANK]
    return {
        "model_type": spec.model_type,
        "num_layers": spec.num_layers,
        "layer_kinds": list(spec.layer_kinds),
        "full_bytes_per_token": exact(sum((pool.entry_bytes for pool in full), Fraction(0))),
        "window_lengths": sorted({window_length(pool.lifetime) for pool in windows}),
        "window_bytes_per_token": _by_window((pool.lifetime, pool.entry_bytes) for pool in windows),
        "state": _state(spec, plan.slots),
        "one_request_bytes": {str(length): request_bytes(plan, length) for length in LENGTHS},
        "per_rank_token_bytes_by_tp": {str(tp): _or_none(_token_bytes, spec, tp) for tp in RANKS},
    }


def request_bytes(plan: Plan, length: int) -> int:
    """The bytes that one request of ``length`` tokens holds between two steps, rounded down."""
    return int(sum(pool.entry_bytes * pool.lifetime.entries(length) for pool in plan.sub_pools))


def window_length(lifetime: Lifetime) -> int:
    """The tokens of a window or a chunk: the most rows that it ever keeps."""
    return -lifetime.rank[1]


def _state(spec: ModelSpec, slots: SubPool | None) -> dict[str, Any] | None:
    if slots is None:
        return None
    return {
        "family": spec.state_family,
        "layers": len(slots.layers),
        "bytes_per_request": int(slots.entry_bytes),
        "tp": {str(tp): _or_none(_state_bytes, spec, tp) for tp in RANKS},
    }


def _token_bytes(spec: ModelSpec, tp: int) -> dict[str, Any]:
    """Bytes per token on one of ``tp`` ranks."""
    parts = list(_entry_bytes(spec.token_layers(tp)))
    full = sum((size for lifetime, size in parts if lifetime.rank[0] > WINDOW_RANK), Fraction(0))
    windows = ((lifetime, size) for lifetime, size in parts if lifetime.rank[0] == WINDOW_RANK)
    return {"full_bytes_per_token": exact(full), "window_bytes_per_token": _by_window(windows)}


def _state_bytes(spec: ModelSpec, tp: int) -> int:
    return int(sum((size for _, size in _entry_bytes(spec.state_layers(tp))), Fraction(0)))


def _entry_bytes(layers: Iterable[Layer]) -> Iterable[tuple[Lifetime, Fraction]]:
    sizes: dict[int, int] = {}
    for layer in layers:
        for part in layer.parts:
            key = id(part.layout)
            if key not in sizes:
                sizes[key] = sum(field.bytes for field in part.layout.fields())
            yield part.lifetime, Fraction(sizes[key], part.tokens_per_entry)


def _by_window(parts: Iterable[tuple[Lifetime, Fraction]]) -> dict[str, int | float]:
    sums: dict[int, Fraction] = {}
    for lifetime, size in parts:
        length = window_length(lifetime)
        sums[length] = sums.get(length, Fraction(0)) + size
    return {str(length): exact(sums[length]) for length in sorted(sums)}


def exact(amount: Fraction) -> int | float:
    """A figure as JSON has it: whole where it is whole."""
    return int(amount) if amount.denominator == 1 else float(amount)


def _or_none(figure: Callable[[ModelSpec, int], Any], spec: ModelSpec, tp: int) -> Any:
    """The figure, or None where the model cannot be cut over so many ranks."""
    try:
        return figure(spec, tp)
    except ConfigError:
        return None
