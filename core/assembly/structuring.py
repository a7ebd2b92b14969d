"""From a mapping to an attrs class, strictly: no coercion of types, no unknown keys, one clear error.

The first mistake found is told as ``source: key.path: finding; cure``.
"""

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
import cattrs
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn

from kvarena.assembly.places import Places
from kvarena.terms.errors import ConfigError, KvarenaError, nearest
from kvarena.terms.units import Bytes, parse_bytes

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


class SettingError(ValueError):
    """A validator's finding about one setting: raised in a config class, told with the key's path."""

    def __init__(self, setting: str, finding: str) -> None:
        super().__init__(f"{setting}: {finding}")
        self.setting, self.finding = setting, finding


def structure(cls: type[T], data: Any, source: str | Places, *, at: str = "") -> T:
    """Read ``data`` (tables as TOML or JSON give them) as the attrs class ``cls``.

    Nested attrs classes, tuples, lists, mappings, unions, ``Literal``, paths and ``Bytes`` (``"2GiB"``) are
    read; numbers, strings and booleans must be what they say. ``source`` names the file in messages, or
    its places, ``at`` the key path of ``data`` in it.

    Raises:
        ConfigError: an unknown or missing key, a wrong type, a value that a validator refuses.
    """
    try:
        return _CONVERTER.structure(data, cls)
    except KvarenaError:
        raise
    except Exception as error:
        path, finding = _first_finding(error)
        place = Places.of(source).place(_joined([at, *path]))
        raise ConfigError(": ".join(part for part in (place, finding) if part)) from None


def _joined(steps: Iterable[str | int]) -> str:
    """``["layers", 2, "window"]`` is ``layers[2].window``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text and step else step
    return text


def _first_finding(error: Exception) -> tuple[list[str | int], str]:
    """The path and the words of the first mistake in what cattrs raised; unknown keys come first.

    A misspelt key is often also a missing one, and the spelling is what helps.
    """
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        leaves = sorted(error.exceptions, key=lambda leaf: not isinstance(leaf, ForbiddenExtraKeysError))
        path, finding = _first_finding(leaves[0])
        return [*_noted(leaves[0]), *path], finding
    if isinstance(error, ForbiddenExtraKeysError):
        key = min(error.extra_fields, key=str)
        known = [attribute.name for attribute in attrs.fields(error.cl) if attribute.init]
        return [str(key)], f"unknown key; {nearest(str(key), known)}"
    if isinstance(error, SettingError):
        return [error.setting], error.finding
    if isinstance(error, KeyError):
        return [], "is missing, and has no default"
    words = str(error.args[0]) if error.args else type(error).__name__
    # attrs' own validators, and fields of ours, start with the quoted name of what they refuse
    named = re.match(r"'(\w+)' (must .*)", words)
    return ([named[1]], named[2]) if named else ([], words)


def _noted(error: BaseException) -> Iterator[str | int]:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            yield note.name
        elif isinstance(note, IterableValidationNote):
            yield note.index


def _exactly(kind: type, word: str) -> Hook:
    """A hook that lets values of this type pass, and no others: True is no number here."""

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"must be {word}, not {value!r}")
        return value

    return read


def _number(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise TypeError(f"must be a number, not {value!r}")
    return float(value)


def _amount(value: Any, _: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f'must be an amount of bytes, such as "2GiB", not {value!r}')
    return parse_bytes(value)


def _path(value: Any, _: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise TypeError(f"must be the path of a file, not {value!r}")
    return Path(value)


def _class_hook(cls: type, converter: cattrs.Converter) -> Hook:
    """Read an attrs class from a table; a class with an ``of`` reads itself, from whatever it likes."""
    of = getattr(cls, "of", None)
    read: Any = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)

    def read_table(value: Any, _: Any) -> Any:
        if isinstance(value, cls):
            return value
        if of is not None:
            return of(value)
        if not isinstance(value, Mapping):
            raise TypeError(f"must be a table of settings, not {value!r}")
        try:
            return read(value, cls)
        except ClassValidationError as error:
            raise _converter_finding(cls, value, error) from None

    return read_table


def _converter_finding(cls: type, table: Mapping[str, Any], error: ClassValidationError) -> Exception:
    """What an attrs converter refused does not say which field it was: ask each again."""
    if any(isinstance(leaf, ForbiddenExtraKeysError) or [*_noted(leaf)] for leaf in error.exceptions):
        return error
    for attribute in attrs.fields(cls):
        if callable(attribute.converter) and attribute.name in table:
            try:
                attribute.converter(table[attribute.name])
            except (TypeError, ValueError) as finding:
                return SettingError(attribute.name, str(finding))
    return error


def _each(items: Iterable[tuple[str | int, Any, Any]], converter: cattrs.Converter, kind: Any) -> list[Any]:
    """Read (place, value, type) items; the first that fails is raised with its place."""
    values = []
    for place, value, wanted in items:
        try:
            values.append(value if wanted is Any else converter.structure(value, wanted))
        except Exception as error:
            error.add_note(IterableValidationNote(f"item {place}", place, wanted))
            raise IterableValidationError(f"in {kind}", [error], kind) from None
    return values


def _list_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    """Read ``tuple[T, ...]``, ``tuple[A, B]`` or ``list[T]`` from a list, and from nothing else."""
    arguments, make = get_args(kind), get_origin(kind) or kind
    many = make is list or arguments[-1:] == (Ellipsis,)

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"must be a list, not {value!r}")
        if arguments and not many and len(value) != len(arguments):
            raise TypeError(f"must be a list of {len(arguments)}, not {value!r}")
        wanted = list(arguments) if arguments and not many else [arguments[0] if arguments else Any] * len(value)
        return make(_each(zip(range(len(value)), value, wanted, strict=True), converter, kind))

    return read


def _mapping_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    """Read ``Mapping[str, T]`` from a table."""
    wanted = get_args(kind)[1] if get_args(kind) else Any

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"must be a table, not {value!r}")
        items = [(str(key), item, wanted) for key, item in value.items()]
        return dict(zip(value, _each(items, converter, kind), strict=True))

    return read


def _union_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    """Read the first member that fits; where none does, the first member says why."""
    members = [member for member in get_args(kind) if member is not types.NoneType]
    optional = len(members) < len(get_args(kind))

    def read(value: Any, _: Any) -> Any:
        if value is None and optional:
            return None
        found: Exception | None = None
        for member in members:
            try:
                return converter.structure(value, member)
            except Exception as error:
                found = found or error
        assert found is not None
        raise found

    return read


def _literal_hook(kind: Any, _: cattrs.Converter) -> Hook:
    choices = get_args(kind)

    def read(value: Any, _: Any) -> Any:
        if value not in choices:
            raise ValueError(f"unknown value {value!r}; {nearest(str(value), map(str, choices))}")
        return value

    return read


def _is(*origins: Any) -> Callable[[Any], bool]:
    """Whether a type is one of these, with or without arguments."""

    def fits(kind: Any) -> bool:
        return (get_origin(kind) or kind) in origins

    return fits


_FACTORIES: tuple[tuple[Callable[[Any], bool], Any], ...] = (
    (attrs.has, _class_hook),
    (_is(tuple, list), _list_hook),
    (_is(dict, Mapping), _mapping_hook),
    (_is(Union, types.UnionType), _union_hook),
    (_is(Literal), _literal_hook),
)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind, word in ((int, "a whole number"), (str, "a text"), (bool, "true or false")):
        converter.register_structure_hook(kind, _exactly(kind, word))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(Path, _path)
    converter.register_structure_hook(Bytes, _amount)
    for fits, factory in _FACTORIES:
        converter.register_structure_hook_factory(fits, factory)
    return converter


_CONVERTER = _converter()
