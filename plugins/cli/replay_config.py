"""What a storage's config says of a replay: ``kvarena replay --config FILE``, under what the command line says."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import click
from click.core import ParameterSource

from kvarena.assembly.config import PluginsConfig, StorageConfig, read_toml, structure
from kvarena.assembly.places import Places
from kvarena.terms.errors import ConfigError

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "memory": "arena.memory",
        "page_tokens": "arena.page_tokens",
        "context_tokens": "arena.context_tokens",
        "max_running": "arena.max_running",
        "forwards_in_flight": "arena.forwards_in_flight",
        "prefix_cache": "prefix.share",
        "strategy": "prefix.strategy",
        "checkpoint_tokens": "prefix.checkpoint_tokens",
        "eviction": "prefix.eviction",
        "cache_outputs": "prefix.cache_outputs",
        "policies": "policies",
    }
)
"""Each setting of a replay, and the one of a storage's config that it is."""


@attrs.frozen
class Configured:
    """The options of a replay with what its config says where the command line is silent; where each setting stands."""

    given: Mapping[str, Any]
    places: Places
    plugins: PluginsConfig = attrs.field(factory=PluginsConfig)


def configured(ctx: click.Context, given: Mapping[str, Any], options: Mapping[str, str]) -> Configured:
    """Read ``--config``, where there is one. ``options``: which flag stands for which setting of a storage.

    Its backend, checks and logs are those of a storage that serves, and none of a replay.

    Raises:
        ConfigError: it cannot be read, declares layers, or says what a replay has no setting for; or nobody says how
            much memory there is.
    """
    given = dict(given)
    path: Path | None = given.pop("config")
    table = {} if path is None else read_toml(path)
    plugins = PluginsConfig()
    if path is not None:
        places = Places.in_file(path)
        config = structure(StorageConfig, table, places)
        _check(table, places)
        plugins = config.plugins
        for setting, key in SETTINGS.items():
            if _says(table, key) and ctx.get_parameter_source(setting) is not ParameterSource.COMMANDLINE:
                given[setting] = _value(config, key)
                options = {name: flag for name, flag in options.items() if name != key}
    if given["memory"] is None:
        raise ConfigError(
            "--memory is missing: say the budget of one rank, such as 60GiB, or give a --config that does"
        )
    return Configured(given, Places("", options) if path is None else Places.in_file(path, options), plugins)


def _check(table: Mapping[str, Any], places: Places) -> None:
    """What the config says can be done in a replay."""
    if table.get("layers"):
        raise ConfigError(f"{places.place('layers')}: a replay has the layers of --model; leave them out")
    known = [key.removeprefix("arena.") for key in SETTINGS.values() if key.startswith("arena.")]
    for setting in table.get("arena", {}):
        if setting not in known:
            place = places.place(f"arena.{setting}")
            raise ConfigError(f"{place}: a replay has no such setting, only {', '.join(known)}")


def _says(table: Mapping[str, Any], key: str) -> bool:
    section, _, setting = key.partition(".")
    return section in table and (not setting or setting in table[section])


def _value(config: StorageConfig, key: str) -> Any:
    section, _, setting = key.partition(".")
    found = getattr(config, section)
    return getattr(found, setting) if setting else found
