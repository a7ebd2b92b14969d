"""How the keys and values of attention are kept: as the model writes them, or by a layout that a user named.

A layout with side data (codes and scales, say) brings a *codec* that turns rows of keys and values into its
fields, and back. Both happen row by row: what is written once is encoded once, and decoded at every read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from kvarena.planning.plan import Plan
from kvarena.plugins.models.kv_layout import KvLayout, told_of
from kvarena.plugins.transformers.geometry import KV, Written, layers_of
from kvarena.terms.errors import ConfigError, KvarenaError, PluginError
from kvarena.terms.fields import Field, Layout
from kvarena.terms.layers import Layer, Part
from kvarena.terms.owners import described
from kvarena.terms.ports import Codec

TRIAL_TOKENS = 2


@attrs.frozen(eq=False)
class KvRows:
    """One layer's keys and values on their way into the fields of its layout, and back.

    Rows are (batch, tokens, heads, dim), as ``written`` says of the model's; a field's are (batch, tokens, *shape).
    """

    layer: int
    written: tuple[Field, Field]
    layout: Layout
    codec: Codec | None = None
    fields: tuple[Field, ...] = attrs.field(init=False)

    @fields.default
    def _fields(self) -> tuple[Field, ...]:
        return tuple(self.layout.fields())

    def encode(self, keys: torch.Tensor, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """The fields of these rows, in the layout's order.

        Raises:
            KvarenaError: the rows are not what the layer wrote at first.
            PluginError: the codec fails, or gives other tensors than its layout declares.
        """
        for field, rows in zip(self.written, (keys, values), strict=True):
            if not _is(field, rows):
                raise KvarenaError(
                    f"layer {self.layer}'s {field.name!r} was written as {field.shape} of {field.dtype} at first and "
                    f"now comes as {tuple(rows.shape[2:])} of {_dtype(rows)}; use a new ArenaCache after changing a "
                    "model"
                )
        if self.codec is None:
            return _cast(self.fields, (keys, values))
        encoded = self._asked("encode", lambda codec: tuple(codec.encode(keys, values)))
        if len(encoded) != len(self.fields):
            raise self._wrong(f"encode gave {len(encoded)} tensors for its {len(self.fields)} fields")
        for field, rows in zip(self.fields, encoded, strict=True):
            if not _is(field, rows) or rows.shape[:2] != keys.shape[:2]:
                raise self._wrong(
                    f"encode gave {_spelled(rows)} for {keys.shape[0]} x {keys.shape[1]} rows of its field "
                    f"{field.name!r}, which is {field.shape} of {field.dtype}"
                )
        return encoded

    def decode(self, fields: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that the fields of some rows stand for, in the model's types.

        Raises:
            PluginError: the codec fails, or gives other rows than the model wrote.
        """
        decoded = tuple(fields)
        if self.codec is not None:
            decoded = self._asked("decode", lambda codec: tuple(codec.decode(fields)))
            wanted = [(*fields[0].shape[:2], *field.shape) for field in self.written]
            found = [tuple(rows.shape) if isinstance(rows, torch.Tensor) else _spelled(rows) for rows in decoded]
            if found != wanted:
                raise self._wrong(f"decode gave {found}, and the model writes {wanted}")
        k, v = _cast(self.written, decoded)
        return k, v

    def round_trip(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a reader gets of these rows once they are kept; here of (batch, heads, tokens, dim), as in a forward."""
        kept = self.decode(self.encode(keys.transpose(1, 2), values.transpose(1, 2)))
        return kept[0].transpose(1, 2).contiguous(), kept[1].transpose(1, 2).contiguous()

    def try_out(self) -> None:
        """Send rows of zeros and of ones through the codec, so that what does not fit is told before a model runs.

        Raises:
            PluginError: as ``encode`` and ``decode``.
        """
        keys, values = (
            torch.arange(TRIAL_TOKENS).view(1, -1, 1, 1).expand(1, -1, *field.shape).to(getattr(torch, field.dtype))
            for field in self.written
        )
        self.decode(self.encode(keys, values))

    def _asked(self, what: str, ask: Callable[[Codec], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        assert self.codec is not None
        try:
            return ask(self.codec)
        except Exception as error:
            raise self._wrong(f"{what} failed: {type(error).__name__}: {error}") from error

    def _wrong(self, finding: str) -> PluginError:
        return PluginError(f"{described('layout', self.layout)}: its codec's {finding} (layer {self.layer})")


@attrs.frozen(eq=False)
class Keeping:
    """The layers that a storage is built from, and how each one's keys and values are kept in it."""

    layers: tuple[Layer, ...]
    rows: Mapping[int, KvRows]
    codec: str = ""
    """The name of the layout whose codec keys and values go through; empty where they go through none."""

    @classmethod
    def of(cls, learned: Sequence[Layer], named: KvLayout | None = None) -> "Keeping":
        """How learned layers are kept: as the model writes them, or their keys and values by the named layout.

        Raises:
            ConfigError: there are no keys and values, or the layout cannot keep these.
            PluginError: no usable layout has the name, or its codec does not do what it says.
        """
        rows = {layer.index: _as_written(layer.index, part) for layer in learned if (part := layer.part(KV))}
        if named is None:
            return cls(tuple(learned), rows)
        if not rows:
            raise ConfigError(f"{named.place}: no layer of this model caches keys and values; leave it out")
        chosen = _chosen(rows, named)
        layers = tuple(_with_layout(layer, chosen) for layer in learned)
        return cls(layers, chosen, named.name if any(row.codec for row in chosen.values()) else "")

    @classmethod
    def planned(cls, plan: Plan, count: int) -> "Keeping":
        """How the first ``count`` layers of a plan are kept that was made from layers as they were learned.

        Raises:
            KvarenaError: it keeps keys and values in a way that the plan alone does not explain.
        """
        layers = layers_of(plan, count)
        for layer in layers:
            names = [field.name for field in part.layout.fields()] if (part := layer.part(KV)) else ["k", "v"]
            if names != ["k", "v"]:
                raise KvarenaError(
                    f"layer {layer.index} of the storage keeps keys and values as {', '.join(names)}; give the runner "
                    "the Keeping whose layers the storage was built from"
                )
        return cls.of(layers)

    def check_plan(self, plan: Plan) -> None:
        """Refuse a storage that was built from other layers.

        Raises:
            KvarenaError: names the first layer that is kept in another way.
        """
        for layer in layers_of(plan, len(self.layers)):
            part, rows = layer.part(KV), self.rows.get(layer.index)
            kept = tuple(part.layout.fields()) if part else ()
            if kept != (rows.fields if rows else ()):
                raise KvarenaError(
                    f"layer {layer.index} of the storage keeps keys and values as {_names(kept)}, and the runner was "
                    f"told {_names(rows.fields if rows else ())}; build the storage from the layers of its Keeping"
                )


def rows_of(layer: int, keys: torch.Tensor, values: torch.Tensor, named: KvLayout) -> KvRows:
    """How a layer's first keys and values, (batch, heads, tokens, dim), are kept by a named layout.

    Raises:
        ConfigError: the layout cannot keep these.
        PluginError: no usable layout has the name, or its codec does not do what it says.
    """
    k, v = (Field(name, _dtype(rows), (rows.shape[1], rows.shape[3])) for name, rows in (("k", keys), ("v", values)))
    return _chosen({layer: KvRows(layer, (k, v), Written((k, v)))}, named)[layer]


def _as_written(index: int, part: Part) -> KvRows:
    k, v = part.layout.fields()
    return KvRows(index, (k, v), part.layout)


def _chosen(rows: Mapping[int, KvRows], named: KvLayout) -> dict[int, KvRows]:
    """The same rows, kept by the named layout; layers that are alike have one value of it."""
    made: dict[tuple[Field, Field], tuple[Layout, Codec | None]] = {}
    chosen = {}
    for index, row in rows.items():
        if row.written not in made:
            made[row.written] = _made(row.written, named)
        chosen[index] = KvRows(index, row.written, *made[row.written])
        chosen[index].try_out()
    return chosen


def _made(written: tuple[Field, Field], named: KvLayout) -> tuple[Layout, Codec | None]:
    told = told_of(*written)
    layout = named(**told)
    try:
        codec: Codec | None = getattr(layout, "codec", None)
    except Exception as error:
        raise PluginError(f"{described('layout', layout)}: its codec: {type(error).__name__}: {error}") from error
    if codec is None:
        named.check_plain(layout, told)
    return layout, codec


def _with_layout(layer: Layer, rows: Mapping[int, KvRows]) -> Layer:
    parts = tuple(
        attrs.evolve(part, layout=rows[layer.index].layout) if part.role == KV else part for part in layer.parts
    )
    return attrs.evolve(layer, parts=parts)


def _cast(fields: Sequence[Field], each: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The rows of each field in its type; those that have it already are not copied."""
    return [rows.to(getattr(torch, field.dtype)) for field, rows in zip(fields, each, strict=True)]


def _is(field: Field, rows: Any) -> bool:
    """Whether these are rows (batch, tokens, ...) of the field."""
    return isinstance(rows, torch.Tensor) and tuple(rows.shape[2:]) == field.shape and _dtype(rows) == field.dtype


def _dtype(rows: torch.Tensor) -> str:
    return str(rows.dtype).removeprefix("torch.")


def _spelled(rows: Any) -> str:
    return f"{tuple(rows.shape)} of {_dtype(rows)}" if isinstance(rows, torch.Tensor) else f"a {type(rows).__name__}"


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name} of {field.dtype}" for field in fields) or "nothing"
