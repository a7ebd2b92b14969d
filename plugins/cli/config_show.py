"""The effective values of a config file, and where each comes from: the file, an option, the environment, a default."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.catalog import NO_AUTOLOAD, Catalog
from kvarena.assembly.config import ArenaConfig, Choice, StorageConfig, read_toml, structure
from kvarena.assembly.hooks import clearance_of, hook_plugins
from kvarena.assembly.lines import spelt, steps_of
from kvarena.assembly.loader import check_backend, check_eviction, declared_layers, default_settings, make_policies
from kvarena.assembly.places import Places
from kvarena.plugins.cli.config_kinds import CHOICES, GPUS, STORAGE, kind_of
from kvarena.plugins.cli.logs import LOG_FORMAT_VARIABLE, LOG_VARIABLE
from kvarena.plugins.cli.run_config import RunConfig
from kvarena.plugins.replay.gpus import load_gpu
from kvarena.terms.errors import ConfigError

VARIABLES = {"logs.level": LOG_VARIABLE, "logs.format": LOG_FORMAT_VARIABLE}
"""Settings that a variable of the environment stands for."""

_STEP = r'(?:[^.\[\]"]+|"[^"]*")'
_KEY_PATH = re.compile(rf"{_STEP}(?:\.{_STEP}|\[\d+\])*")


@attrs.frozen
class Shown:
    """One effective value: its key path, what it is, and in words where it comes from."""

    key: str
    value: Any
    source: str


@attrs.frozen
class Effective:
    """A whole file: its name, its kind, and its values in order."""

    file: str
    kind: str
    values: tuple[Shown, ...]


def effective(path: Path, changes: Iterable[str], catalog: Catalog, options: Mapping[str, str]) -> Effective:
    """The values of a file under ``changes`` (``KEY=VALUE``); ``options`` are those that the command line gives.

    Raises:
        KvarenaError: the file cannot be read, or says what its command would refuse.
    """
    data = read_toml(path)
    places = Places.in_file(path, {key: f"--set {key}" for key in _applied(data, changes)})
    kind = kind_of(data)
    if kind == GPUS:
        rows = _gpus(path, data, places)
    else:
        rows = _Walk(places, _given(options)).rows(_checked(kind, data, catalog, places), catalog)
    off = os.environ.get(NO_AUTOLOAD)
    more = [Shown(NO_AUTOLOAD, off, "environment")] if off is not None else []
    return Effective(str(path), kind, (*rows, *more))


def _applied(data: dict[str, Any], changes: Iterable[str]) -> list[str]:
    """Write each ``KEY=VALUE`` into the tables; the keys."""
    keys = []
    for change in changes:
        key, equals, text = change.partition("=")
        steps = steps_of(key.strip())
        if not equals or not _KEY_PATH.fullmatch(key.strip()):
            raise ConfigError(f"--set {change}: must be KEY=VALUE, such as --set prefix.share=true")
        value = _value(key, text)
        target: Any = data
        for step, following in pairwise(steps):
            there = isinstance(step, int) and isinstance(target, list) and step < len(target)
            if isinstance(step, str) and isinstance(target, dict):
                target.setdefault(step, {} if isinstance(following, str) else [])
            elif not there:
                raise ConfigError(f"--set {key}: there is no {step!r} to set something in")
            target = target[step]
        try:
            if isinstance(steps[-1], int) and isinstance(target, dict):
                raise TypeError
            target[steps[-1]] = value
        except (TypeError, IndexError):
            raise ConfigError(f"--set {key}: there is no table or list to set {steps[-1]!r} in") from None
        keys.append(spelt(steps))
    return keys


def _value(key: str, text: str) -> Any:
    """What is set: a value of TOML, or a bare word as a text."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    if len(tables) > 1:
        raise ConfigError(f"--set {key}: {text!r} sets more than one key; give each a --set of its own")
    return tables["value"]


def _given(options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Values that stand in for the file's: of the environment, or of options of ``kvarena`` itself."""
    found = {key: (os.environ[name], f"environment {name}") for key, name in VARIABLES.items() if os.environ.get(name)}
    return found | {key: (value, "--log" if key == "logs.level" else "--log-format") for key, value in options.items()}


def _checked(kind: str, data: Mapping[str, Any], catalog: Catalog, places: Places) -> StorageConfig | RunConfig:
    """The file as its command reads it, with all that can be checked without a model."""
    cls: type[StorageConfig] | type[RunConfig] = StorageConfig if kind == STORAGE else RunConfig
    config: StorageConfig | RunConfig = structure(cls, dict(data), places)
    catalog = catalog.under(config.plugins, source=places)
    make_policies(catalog, config.policies, places)
    check_eviction(catalog, config.prefix, places)
    check_backend(catalog, config.backend, places)
    clearance_of(hook_plugins(catalog, config.plugins))
    if isinstance(config, StorageConfig):
        layers = declared_layers(config, catalog, places)
        if layers:
            with places.planning():
                limits_of(config.arena, config.prefix, plan_arena(layers, config.arena), source=places)
    else:
        structure(ArenaConfig, {"memory": 1, **config.arena}, places, at="arena")
    return config


class _Walk:
    """Through the classes of a config, key by key."""

    def __init__(self, places: Places, given: Mapping[str, tuple[str, str]]) -> None:
        self._places = places
        self._given = given

    def rows(self, config: StorageConfig | RunConfig, catalog: Catalog) -> tuple[Shown, ...]:
        """Every value of the file's class, the settings of its plugins among them."""
        return tuple(self._class(config, "", catalog.under(config.plugins)))

    def _class(self, value: Any, at: str, catalog: Catalog) -> Iterator[Shown]:
        for attribute in attrs.fields(type(value)):
            key = f"{at}.{attribute.name}" if at else attribute.name
            inner = getattr(value, attribute.name)
            if key == "arena" and isinstance(inner, Mapping):  # of a run: its memory may be counted in requests
                arena = structure(ArenaConfig, {"memory": 1, **inner}, self._places, at=key)
                rows = self._class(arena, key, catalog)
                yield from (row for row in rows if row.key != "arena.memory" or "memory" in inner)
            elif key == "layers":
                for position, table in enumerate(inner):
                    yield from self._layer(table, f"layers[{position}]", catalog)
            elif isinstance(inner, Choice):
                yield Shown(key, inner.name, self._source(key))
                yield from self._plugin(inner.settings, key, (CHOICES[key][0], inner.name), catalog)
            elif attrs.has(type(inner)):
                yield from self._class(inner, key, catalog)
            else:
                stands_in = self._given.get(key)
                yield Shown(key, *stands_in) if stands_in else Shown(key, inner, self._source(key))

    def _layer(self, table: Mapping[str, Any], at: str, catalog: Catalog) -> Iterator[Shown]:
        lifetime = table.get("lifetime", "full")
        for key, value in table.items():
            yield Shown(f"{at}.{key}", value, self._source(f"{at}.{key}"))
        if "layout" in table:
            if "lifetime" not in table:
                yield Shown(f"{at}.lifetime", lifetime, "default")
            for named in (("layouts", table["layout"]), ("lifetimes", lifetime)):
                yield from self._defaults(table, at, named, catalog)

    def _plugin(
        self, settings: Mapping[str, Any], at: str, named: tuple[str, str], catalog: Catalog
    ) -> Iterator[Shown]:
        for name, value in settings.items():
            yield Shown(f"{at}.{name}", value, self._source(f"{at}.{name}"))
        yield from self._defaults(settings, at, named, catalog)

    def _defaults(
        self, settings: Mapping[str, Any], at: str, named: tuple[str, str], catalog: Catalog
    ) -> Iterator[Shown]:
        """What a plugin takes where the config says nothing; nothing of one that cannot be imported here."""
        for name, value in default_settings(catalog, *named).items():
            if name not in settings:
                yield Shown(f"{at}.{name}", value, f"default of {catalog.find(*named)}")

    def _source(self, key: str) -> str:
        """An option, the line of the file, or the default."""
        for option, words in self._places.options.items():
            if key == option or key.startswith((f"{option}.", f"{option}[")):
                return words
        line = self._places.line(key)
        return "default" if line is None else f"{self._places.file}:{line}"


def _gpus(path: Path, data: Mapping[str, Any], places: Places) -> tuple[Shown, ...]:
    """The accelerators of a file, with what they take from their base."""
    rows = []
    for name, table in data.items():
        if name == "version":
            continue
        if places.options:
            raise ConfigError(f"{path}: --set: the tables of accelerators are shown as they are written")
        gpu = load_gpu(f"{path}:{name}")
        for attribute in attrs.fields(type(gpu)):
            key = f"{name}.{attribute.name}"
            line = places.line(key)
            base = f"default of [{table['base']}]" if "base" in table else "default"
            rows.append(Shown(key, getattr(gpu, attribute.name), f"{places.file}:{line}" if line else base))
    return tuple(rows)
