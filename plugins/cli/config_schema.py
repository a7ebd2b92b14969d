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

from kvarena.assembly.catalog import KINDS, Catalog
from kvarena.assembly.config import ArenaConfig, AtLeast, Choice, OneOf
from kvarena.assembly.loader import LayerTable, fitting
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
        tables = {"type": "object", "properties": {"version": {"const": 1}}, "additionalProperties": gpu}
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
        hints = _hints(maker)
        if not attrs.has(maker):
            return self._parameters(maker, hints)
        properties, required = {}, []
        for field in attrs.fields(maker):
            if not field.init:
                continue
            key = f"{at}.{field.name}" if at else field.name
            properties[field.name] = self._field(field, hints.get(field.name, Any), key)
            if field.default is attrs.NOTHING:
                required.append(field.name)
        return properties, required

    def _field(self, field: "attrs.Attribute[Any]", kind: Any, key: str) -> Schema:
        if key == "layers":
            return {"type": "array", "items": {"$ref": "#/$defs/layer"}}
        made = self._choice(key) if key in CHOICES else {**self._type(kind, key), **_validated(field.validator)}
        if _converted(field.converter, "bf16") == dtype_name("bf16"):  # a dtype, told by what it is turned into
            made = {"type": "string", "pattern": DTYPE_PATTERN}
        made |= field.metadata.get("schema", {})
        default = field.default.name if isinstance(field.default, Choice) else field.default
        tells = isinstance(default, str | int | float | bool) and default == default  # no number that is none
        return {**made, "default": default} if tells else made

    def _parameters(self, maker: Any, hints: Mapping[str, Any]) -> tuple[Schema, list[str]]:
        """Of a plugin that is a function or a plain class: its keywords."""
        properties, required = {}, []
        for each in inspect.signature(maker).parameters.values():
            if each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                continue
            properties[each.name] = self._type(hints.get(each.name, Any), "")
            if each.default is inspect.Parameter.empty:
                required.append(each.name)
            elif isinstance(each.default, str | int | float | bool):
                properties[each.name] |= {"default": each.default}
        return properties, required

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
                properties, required = self._fields(maker, "")
            except (KvarenaError, TypeError, ValueError) as error:
                refusal = str(error) if isinstance(error, KvarenaError) else f"{KINDS[kind]} {name!r}: {error}"
                if refusal not in self.refusals:
                    self.refusals.append(refusal)
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
