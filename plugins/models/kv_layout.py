"""The layout that a user names for keys and values in place of ``mha``, for planning and for serving alike."""

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.assembly.loader import make
from kvarena.assembly.settings import Settings, settings_of
from kvarena.planning.declared import declared_fields
from kvarena.terms.errors import ConfigError, PluginError
from kvarena.terms.fields import DTYPE_BYTES, Field, Layout
from kvarena.terms.owners import described

REPLACED = "mha"
"""The layout of keys and values per head that a named one takes the place of."""

TOLD = ("kv_heads", "head_dim", "v_kv_heads", "v_head_dim", "dtype", "v_dtype")
"""What is known of a layer's keys and values, by the names under which a layout may take it as a setting."""

_DTYPES = ("dtype", "v_dtype")


@attrs.frozen(eq=False)
class KvLayout:
    """A layout by name with the settings beside it; called with what is known of a layer, it gives that layer's value.

    ``place`` is where the name was written, for messages (``run.toml: kv_layout``).
    """

    catalog: Catalog
    choice: Choice
    place: str

    @classmethod
    def named(
        cls, name: "str | Mapping[str, Any] | Choice | KvLayout | None", place: str, catalog: Catalog | None = None
    ) -> "KvLayout | None":
        """The layout of this name, or of a table with a ``name``, found and imported; None for None.

        ``catalog`` is where it is sought; None for all that is installed.

        Raises:
            ConfigError: it is neither a name nor such a table.
            PluginError: no usable layout has the name.
        """
        if name is None or isinstance(name, KvLayout):
            return name
        try:
            choice = Choice.of(name)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
        found = cls(Catalog.installed() if catalog is None else catalog, choice, place)
        found._maker()
        return found

    @property
    def name(self) -> str:
        """What the user calls the layout."""
        return self.choice.name

    def __call__(self, **told: Any) -> Layout:
        """The layout of a layer of this geometry; ``told`` are settings of ``TOLD``, those of the user stand first.

        Raises:
            ConfigError: the layout needs a setting that nobody gives, refuses one, or cannot keep such keys and values.
            PluginError: no usable layout has the name.
        """
        taken = settings_of(self._maker())
        self._check_shape_settings(told, taken)
        given = {key: value for key, value in told.items() if taken.takes(key)}
        if "dtype" in self.choice.settings:
            given.pop("v_dtype", None)  # values are in the keys' type, unless the user says more
        settings = {**given, **self.choice.settings}
        lacking = [key for key, setting in taken.known.items() if setting.needed and key not in settings]
        if lacking:
            raise ConfigError(
                f"{self.place}: layout {self.name!r} needs {', '.join(lacking)}, which a model does not tell; write "
                f'{{ name = "{self.name}", {", ".join(f"{key} = ..." for key in lacking)} }}'
            )
        layout: Layout = make(self.catalog, "layouts", Choice(self.name, settings), self.place)
        if not _may_have_codec(layout):
            self.check_plain(layout, told)
        return layout

    def check_plain(self, layout: Layout, told: Mapping[str, Any]) -> None:
        """Without a codec there must be ``k`` and ``v``, as the model writes them or in a wider type.

        Raises:
            ConfigError: there are other fields, or one that cannot hold what the model writes.
        """
        written, kept = written_fields(told), self._fields(layout)
        fits = len(kept) == len(written) and all(
            (mine.name, mine.shape) == (theirs.name, theirs.shape) and _holds(mine.dtype, theirs.dtype)
            for mine, theirs in zip(kept, written, strict=True)
        )
        if not fits:
            raise ConfigError(
                f"{self.place}: {described('layout', layout)} has no codec and keeps {_spelled(kept)}; the model "
                f"writes {_spelled(written)}, so name one that keeps these, or has a codec"
            )

    def _fields(self, layout: Layout) -> tuple[Field, ...]:
        try:
            return declared_fields(layout)
        except PluginError as error:
            raise PluginError(f"{self.place}: {error}") from error

    def _maker(self) -> Any:
        try:
            return self.catalog.load("layouts", self.name)
        except PluginError as error:
            raise PluginError(f"{self.place}: {error}") from error

    def _check_shape_settings(self, told: Mapping[str, Any], taken: Settings) -> None:
        """The user may choose a type, and no other shape than the layer's; values like keys where nothing is said."""
        for key, value in told.items():
            asked = self.choice.settings.get(key, value)
            if key not in _DTYPES and asked != value:
                raise ConfigError(
                    f"{self.place}: {key} is {asked!r}, and a layer of this model has {value}; leave it out"
                )
        for key, like in (("v_kv_heads", "kv_heads"), ("v_head_dim", "head_dim")):
            if not taken.takes(key) and told.get(key, told.get(like)) != told.get(like):
                raise ConfigError(
                    f"{self.place}: layout {self.name!r} takes no {key}, and a layer of this model has values of "
                    f"{told[key]} beside keys of {told[like]}; name a layout that keeps both"
                )


def written_fields(told: Mapping[str, Any]) -> tuple[Field, Field]:
    """The fields ``k`` and ``v`` of a layer of which this is known; values are like keys where nothing is said."""
    heads, dim, dtype = told["kv_heads"], told["head_dim"], told["dtype"]
    values = (told.get("v_kv_heads", heads), told.get("v_head_dim", dim))
    return Field("k", dtype, (heads, dim)), Field("v", told.get("v_dtype", dtype), values)


def told_of(k: Field, v: Field) -> dict[str, Any]:
    """What is known of a layer whose token has these fields ``k`` and ``v`` of (heads, dim)."""
    told: dict[str, Any] = {"kv_heads": k.shape[0], "head_dim": k.shape[1], "dtype": k.dtype}
    return {**told, "v_kv_heads": v.shape[0], "v_head_dim": v.shape[1], "v_dtype": v.dtype}


def _may_have_codec(layout: Layout) -> bool:
    """Whether the layout declares a codec. A property is not asked: it may import torch, and planning does without."""
    declared = inspect.getattr_static(layout, "codec", None)
    return isinstance(declared, (property, cached_property)) or getattr(layout, "codec", None) is not None


def _holds(kept: str, written: str) -> bool:
    """Whether a type has every value of another: it is the same, or a floating one of more bytes."""
    floating = kept.startswith(("float", "bfloat"))
    return kept == written or (floating and DTYPE_BYTES[kept] > DTYPE_BYTES[written])


def _spelled(fields: tuple[Field, ...]) -> str:
    return ", ".join(f"{field.name} {field.shape} of {field.dtype}" for field in fields)
