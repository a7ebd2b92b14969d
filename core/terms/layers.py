"""What a model's layers keep: the input of planning, from a config reader, Python or TOML."""

from collections.abc import Iterable

import attrs

from kvarena.terms.fields import Layout
from kvarena.terms.lifetimes import Lifetime


@attrs.frozen
class Part:
    """One kind of memory of a layer: a geometry and a lifetime.

    ``role`` tells the parts of one layer apart: ``kv``, ``index``, ``state``, ``compressed`` or any other
    word. ``tokens_per_entry`` is k for a part that keeps one entry per k tokens.
    """

    layout: Layout
    lifetime: Lifetime
    role: str = "kv"
    tokens_per_entry: int = attrs.field(default=1, validator=attrs.validators.ge(1))


def _parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(parts)


@attrs.frozen
class Layer:
    """One layer: its index in the model, the parts it owns, and a word for people.

    ``shares`` names the layer whose memory this one reads instead of owning any (Gemma 3n).
    A layer with neither parts nor ``shares`` keeps nothing (an MLP or an expert layer).
    """

    index: int = attrs.field(validator=attrs.validators.ge(0))
    parts: tuple[Part, ...] = attrs.field(default=(), converter=_parts)
    kind: str = "none"
    shares: int | None = None

    def part(self, role: str) -> Part | None:
        """The part with this role, or None."""
        return next((part for part in self.parts if part.role == role), None)
