"""A case: a world, its operations and the promise that they broke, as a TOML file that ``--replay`` reads.

The operations stand last and in one list, so that a file that was cut off is never taken for a shorter case.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.config import at_least, known_version, read_toml, structure
from kvarena.plugins.stress.stage.operations import Op, read_operation
from kvarena.plugins.stress.swarm.world import World
from kvarena.terms.errors import ConfigError

CASE_VERSION = 1
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@attrs.frozen(kw_only=True)
class Case:
    """What was run, and what it broke. ``check``: the name of the broken promise, empty where none is.

    ``words``: what happened, with the operation, for people. ``device``: the backend it was seen on.
    """

    world: World
    operations: tuple[Op, ...]
    check: str = ""
    words: str = ""
    device: str = "simulated"

    @property
    def seed(self) -> int:
        """The seed of the world."""
        return self.world.seed


@attrs.frozen(kw_only=True)
class _Play:
    """``[play]`` of a case file: each operation is a table with its verb and arguments."""

    operations: tuple[Mapping[str, Any], ...]


@attrs.frozen(kw_only=True)
class _File:
    """A case file as TOML has it."""

    version: int = attrs.field(validator=known_version)
    seed: int = attrs.field(validator=at_least(0, 1 << 62))
    world: Mapping[str, Any]
    play: _Play
    check: str = ""
    words: str = ""
    device: str = "simulated"


def read_case(path: Path) -> Case:
    """A case that ``dump_case`` wrote.

    Raises:
        ConfigError: no such file, no TOML (a file that was cut off is none), of another version, or an operation or a
            setting that is not known, with its place.
    """
    file = structure(_File, read_toml(path), path.name)
    world = structure(World, {"seed": file.seed, **file.world}, path.name, at="world")
    world.config(f"{path.name}: world.storage")
    operations = []
    for number, table in enumerate(file.play.operations):
        place = f"{path.name}: play.operations[{number}]"
        if not isinstance(table.get("verb"), str):
            raise ConfigError(f"{place}: verb: is missing, or no text; a table has the operation's name there")
        arguments = {name: value for name, value in table.items() if name != "verb"}
        operations.append(read_operation(table["verb"], arguments, place))
    return Case(world=world, operations=tuple(operations), check=file.check, words=file.words, device=file.device)


def dump_case(case: Case) -> str:
    """The file of a case, as text."""
    world = attrs.asdict(case.world, recurse=False)
    storage = world.pop("storage")
    del world["seed"]
    lines = [
        f"version = {CASE_VERSION}",
        f"seed = {case.seed}",
        f"check = {_value(case.check)}",
        f"words = {_value(case.words)}",
        f"device = {_value(case.device)}",
        "",
        *_table("world", world),
        *_storage(storage),
        "[play]",
        "operations = [",
        *(f"    {_value({'verb': op.verb, **_given(op)})}," for op in case.operations),
        "]",
    ]
    return "\n".join(lines) + "\n"


def _given(op: Op) -> dict[str, Any]:
    """The arguments that say something."""
    return {name: value for name, value in op.arguments.items() if value is not None}


def _storage(sections: Mapping[str, Any]) -> Iterable[str]:
    """The sections of a storage's config, in its own order; layers as a list of tables."""
    plain = {name: value for name, value in sections.items() if not isinstance(value, Mapping) and name != "layers"}
    if plain:
        yield from _table("world.storage", plain)
    for name, value in sections.items():
        if isinstance(value, Mapping):
            yield from _table(f"world.storage.{name}", value)
    for layer in sections.get("layers", ()):
        yield from _table("[world.storage.layers]", layer)


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items()), ""]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """One value on one line, as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(str(key))} = {_value(item)}" for key, item in value.items())
        return f"{{{inside}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"a case file cannot hold a {type(value).__name__}: {value!r}")
