"""The JSON schema (draft 2020-12) of config files, made from the classes that read them and from the installed plugins.

A field's type and validator say what it may be. What a validator says in code alone, a field may say beside it:
``attrs.field(metadata={"schema": {"minimum": 0, "maximum": 2}})``.
"""

import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import CONFIG_VERSION, ArenaConfig, AtLeast, Choice, OneOf
from kvarena.assembly.loader import LayerTable, fitting
from kvarena.assembly.settings import Setting, settings_of
from kvarena.plugins.cli.config_kinds import CHOICES, CLASSES, GPUS, RUN, RUN_KEYS, STORAGE
from kvarena.terms.errors import KvarenaError
from kvarena.terms.fields import DTYPE_PATTERN, dtype_name
from kvarena.terms.units import BYTES_PATTERN, Bytes

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
_BOUNDS = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}


def schema_of(catalog: Catalog) -> tuple[Schema, tuple[str, ...]]:
    """The schema, and why plugins are left out of it: a sentence for each."""
    made = _Made(catalog)
    document = {
        "$schema": DRAFT,
        "title": "kvarena config",
        "if": {"anyOf": [{"required": [key]} for key in RUN_KEYS]},
        "then": {"$ref": f"#/$defs/{RUN}"},
        "else": {
            "if": {"anyOf": [{"required": [key]} for key in ("arena", "layers")]},
            "then": {"$ref": f"#/$defs/{STORAGE}"},
            "else": {"anyOf": [{"$ref": f"#/$defs/{GPUS}"}, {"$ref": f"#/$defs/{STORAGE}"}]},
        },
        "$defs": made.definitions(),
    }
    return document, tuple(made.refusals)


class _Made:
    """The definitions as they are made; ``refusals``: what could not be."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.refusals: list[str] = []

    def definitions(self) -> Schema:
        """Each kind of file, the table of a layer, and each plugin that a config may name."""
        run = self._class(CLASSES[RUN], "")
        arena = self._class(ArenaConfig, "arena")
        run["properties"]["arena"] = {**arena, "required": []}
        run["oneOf"] = [
            {"required": ["memory_requests"], "properties": {"arena": {"not": {"required": ["memory"]}}}},
            {
                "required": ["arena"], "properties": {"arena": {"required": ["memory"]}},
                "not": {"required": ["memory_requests"]},
            },
        ]  # fmt: skip
        gpu = self._class(CLASSES[GPUS], "")
        gpu["properties"]["base"] = {"type": "string"}
        gpu["required"] = []
        tables = {"type": "object", "properties": {"version": {"const": CONFIG_VERSION}}, "additionalProperties": gpu}
        plugins = {f"{kind}/{name}": made for kind in ("layouts", "lifetimes") for name, made in self._plugins(kind)}
        return {STORAGE: self._class(CLASSES[STORAGE], ""), RUN: run, GPUS: tables, "layer": self._layer(), **plugins}

    # -- classes

    def _class(self, cls: type, at: str) -> Schema:
        """An object of the fields of a class, and of nothing else."""
        properties, required = self._fields(cls, at)
        made: Schema = {"type": "object", "properties": properties, "required": required}
        words = inspect.getdoc(cls)
        if words:
            made["description"] = words.partition("\n\n")[0].replace("\n", " ")
        return {**made, "additionalProperties": False}

    def _fields(self, maker: Any, at: str) -> tuple[Schema, list[str]]:
        """The schema of each setting, and those that must be given."""
        hints, known = _hints(maker), settings_of(maker).known
        properties = {
            name: self._field(setting, hints.get(name, Any), f"{at}.{name}" if at else name)
            for name, setting in known.items()
        }
        return properties, [name for name, setting in known.items() if setting.needed]

    def _field(self, setting: Setting, kind: Any, key: str) -> Schema:
        if key == "layers":
            return {"type": "array", "items": {"$ref": "#/$defs/layer"}}
        made, field = self._choice(key) if key in CHOICES else self._type(kind, key), setting.field
        if field is not None:
            made |= _validated(field.validator)
            if _converted(field.converter, "bf16") == dtype_name("bf16"):  # a dtype, told by what it is turned into
                made = {"type": "string", "pattern": DTYPE_PATTERN}
            made |= field.metadata.get("schema", {})
        default = setting.default.name if isinstance(setting.default, Choice) else setting.default
        tells = isinstance(default, str | int | float | bool) and default == default  # no number that is none
        return {**made, "default": default} if tells else made

    # -- types

    def _type(self, kind: Any, at: str) -> Schema:
        """What a value of a type may be in TOML."""
        plain: Mapping[Any, Schema] = {
            bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"},
            Path: {"type": "string"},
            Bytes: {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": BYTES_PATTERN}]},
        }  # fmt: skip
        if kind in plain:
            return dict(plain[kind])
        origin, inside = get_origin(kind) or kind, get_args(kind)
        if origin in (Union, types.UnionType):
            members = [self._type(member, at) for member in inside if member is not types.NoneType]
            return members[0] if len(members) == 1 else {"anyOf": members}
        if origin is Literal:
            return {"enum": list(inside)}
        if origin in (tuple, list):
            return self._list(origin, inside, at)
        if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
            return {"type": "object", "additionalProperties": self._type(inside[1], at) if inside else {}}
        return self._class(kind, at) if isinstance(kind, type) and attrs.has(kind) else {}

    def _list(self, origin: Any, inside: Sequence[Any], at: str) -> Schema:
        if not inside or origin is list or inside[-1] is Ellipsis:
            return {"type": "array", "items": self._type(inside[0], at) if inside else {}}
        each = [self._type(one, at) for one in inside]
        return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}

    # -- plugins

    def _choice(self, key: str) -> Schema:
        """A plugin by its name, or a table of its name and its settings."""
        kind, role = CHOICES[key]
        names = fitting(self._catalog, role) if role else None
        made = [(name, each) for name, each in self._plugins(kind) if names is None or name in names]
        tables = [
            {
                **each, "properties": {"name": {"const": name}, **each["properties"]},
                "required": ["name", *(each["required"] if kind != "layouts" else ())], "additionalProperties": False,
            }
            for name, each in made
        ]  # fmt: skip
        return {"oneOf": [{"enum": [name for name, _ in made]}, *tables]}

    def _layer(self) -> Schema:
        """One table of ``[[layers]]``: its own keys, and those of the layout and the lifetime that it names."""
        own = self._class(LayerTable, "layers[]")
        del own["additionalProperties"]
        either = [
            {"oneOf": [{"$ref": f"#/$defs/{kind}~1{name}"} for name, _ in self._plugins(kind)]}
            for kind in ("layouts", "lifetimes")
        ]
        own["if"] = {"required": ["layout"]}
        own["then"] = {"allOf": either}
        return {**own, "unevaluatedProperties": False}

    def _plugins(self, kind: str) -> Iterator[tuple[str, Schema]]:
        """Each plugin of a kind that can be used, with what its settings may be."""
        word = {"layouts": "layout", "lifetimes": "lifetime"}.get(kind)
        for name in self._catalog.names(kind):
            try:
                maker = self._catalog.load(kind, name)
                properties, required = self._fields(maker, f"{kind}/{name}")  # its keys are none of the file's
            except KvarenaError as error:
                if str(error) not in self.refusals:
                    self.refusals.append(str(error))
                continue
            if word is not None:
                properties = {word: {"const": name}, **properties}
                is_default = word == "lifetime" and name == "full"
                required = required if is_default else [word, *required]
            yield name, {"type": "object", "properties": properties, "required": required}


def _hints(maker: Any) -> Mapping[str, Any]:
    """The types of a class's fields or a function's parameters; of what names a type that is not there, none."""
    try:
        return typing.get_type_hints(maker if attrs.has(maker) or not inspect.isclass(maker) else maker.__init__)
    except (NameError, TypeError, AttributeError):
        return {}


def _validated(validator: Any) -> Schema:
    """What validators of ours and of attrs say, as far as a schema has words for it."""
    if isinstance(validator, AtLeast):
        return {"minimum": validator.least, **({} if validator.most is None else {"maximum": validator.most})}
    if isinstance(validator, OneOf):
        return {"enum": list(validator.choices)}
    if hasattr(validator, "compare_op") and validator.compare_op in _BOUNDS:
        return {_BOUNDS[validator.compare_op]: validator.bound}
    if hasattr(validator, "options"):
        return {"enum": list(validator.options)}
    if hasattr(validator, "validator"):
        return _validated(validator.validator)
    several: Sequence[Any] = getattr(validator, "_validators", ())
    return {key: value for one in several for key, value in _validated(one).items()}


def _converted(converter: Any, value: str) -> Any:
    """What a converter makes of a value; None where it refuses it, or is none."""
    try:
        return converter(value) if callable(converter) else None
    except Exception:  # a stranger's converter may raise anything
        return None
