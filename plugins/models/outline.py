"""What a reader hands back: layers of whole-model geometry, before tensor parallelism cuts them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Lifetime


class Geometry(Protocol):
    """The size of one part for the whole model. Frozen values; ``layout`` names the layout that stores it."""

    @property
    def layout(self) -> str: ...

    def share(self, tp: int) -> Mapping[str, Any]:
        """The layout's arguments for one of ``tp`` ranks.

        Raises:
            ConfigError: the part cannot be cut that way; the message has the number that does not divide.
        """
        ...

    def flops_per_row(self) -> float:
        """FLOPs of one query token against one row of context; 0 for a state."""
        ...

    def weights(self, hidden_size: int) -> float:
        """Parameters of the projections around this part, for a model of this hidden size."""
        ...


@attrs.frozen
class Piece:
    """One part of a layer for the whole model. ``rows_max`` clips what a query reads (sparse attention)."""

    geometry: Geometry
    lifetime: Lifetime
    role: str = "kv"
    tokens_per_entry: int = 1
    rows_max: int | None = None


def _pieces(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    return tuple(pieces)


@attrs.frozen
class LayerOutline:
    """One layer: its pieces, a word for people, and the layer whose memory it reads instead, if it does."""

    kind: str
    pieces: tuple[Piece, ...] = attrs.field(default=(), converter=_pieces)
    shares: int | None = None


def _layers(layers: Iterable[LayerOutline]) -> tuple[LayerOutline, ...]:
    return tuple(layers)


def _words(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(words)


@attrs.frozen
class Outline:
    """A model's layers in order, the family of its states, and what a person should know.

    ``feed_forward`` tells per layer ``dense``, ``sparse`` or ``none``; empty where every layer has an MLP
    as the config's own fields say.
    """

    layers: tuple[LayerOutline, ...] = attrs.field(converter=_layers)
    state_family: str | None = None
    notes: tuple[str, ...] = attrs.field(default=(), converter=_words)
    feed_forward: tuple[str, ...] = attrs.field(default=(), converter=_words)


def rank_layers(
    layers: Sequence[LayerOutline],
    tp: int,
    layout: Callable[[str], Any],
    *,
    keep: Callable[[Piece], bool] = lambda _: True,
) -> tuple[Layer, ...]:
    """The layers of one of ``tp`` ranks, with layouts made by ``layout(name)(**arguments)``.

    ``keep`` chooses pieces, where not all are asked for.

    Raises:
        ConfigError: a part cannot be cut over so many ranks.
    """
    made: dict[Geometry, Any] = {}

    def part(piece: Piece) -> Part:
        if piece.geometry not in made:
            made[piece.geometry] = layout(piece.geometry.layout)(**piece.geometry.share(tp))
        return Part(made[piece.geometry], piece.lifetime, piece.role, piece.tokens_per_entry)

    return tuple(
        Layer(index, tuple(part(piece) for piece in layer.pieces if keep(piece)), layer.kind, layer.shares)
        for index, layer in enumerate(layers)
    )


def cut(count: int, tp: int, what: str) -> int:
    """An even share of ``count`` over ``tp`` ranks.

    Raises:
        ConfigError: it does not divide; the message has both numbers.
    """
    if count % tp:
        raise ConfigError(f"{count} {what} cannot be split evenly over tp = {tp} ranks; use a tp that divides {count}")
    return count // tp


def cut_or_repeat(count: int, tp: int, what: str) -> int:
    """An even share, or one of ``count`` repeated on several ranks where there are more ranks.

    Raises:
        ConfigError: neither number divides the other.
    """
    if tp % count == 0:
        return 1
    return cut(count, tp, what)
