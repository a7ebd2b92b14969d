"""Where a plan's layers come from: a model's config.json, or ``[[layers]]`` declared in TOML."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, PrefixConfig, SettingError, StorageConfig, read_toml, structure
from kvarena.assembly.loader import check_eviction, declared_layers, make_policies
from kvarena.assembly.places import Places
from kvarena.planning.charges import DEFAULT_CONTEXT_TOKENS
from kvarena.plugins.cli.logs import settle_logs
from kvarena.plugins.models import ModelSpec, read_config, read_model
from kvarena.plugins.models.kv_layout import KvLayout
from kvarena.terms.errors import ConfigError, PluginError
from kvarena.terms.layers import Layer

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "page_size": "page_tokens",
        "unit_align": "unit_align",
        "owner": "owner",
        "context": "context_tokens",
        "max_running": "max_running",
        "state_slots": "state_slots",
        "state_share": "state_share",
        "slots_per_request": "slots_per_request",
        "scratch_slots": "scratch_slots_per_request",
    }
)
"""The options that stand for settings of ``[arena]``."""


@attrs.frozen
class Source:
    """The layers to plan, and what is known around them. ``spec`` is None for declared layers.

    ``declared`` is the whole storage config of a TOML file, whose arena settings stand where the command
    line says nothing.
    """

    name: str
    layers: tuple[Layer, ...]
    spec: ModelSpec | None = None
    declared: StorageConfig | None = None

    @property
    def context_max(self) -> int | None:
        """The longest request that the config names, in tokens."""
        if self.spec is not None:
            return self.spec.context_max
        return self.declared.arena.context_tokens if self.declared else None

    @property
    def prefix(self) -> PrefixConfig:
        """How prefixes are shared: as declared; a model's config says nothing of it."""
        return self.declared.prefix if self.declared else PrefixConfig()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the config wants a person to know."""
        return self.spec.notes if self.spec else ()


def read_source(
    path: Path, catalog: Catalog, *, tp: int, dtype: str | None, kv_layout: KvLayout | None = None
) -> Source:
    """Read CONFIG: TOML by its suffix, else a model's config.json or its folder.

    ``kv_layout`` keeps a model's keys and values per head in place of ``mha``.

    Raises:
        KvarenaError: it cannot be read, or says something impossible.
    """
    if path.suffix == ".toml":
        if kv_layout is not None:
            raise ConfigError(f"{path}: --kv-layout is for a model's config; declared layers name their own layouts")
        return _declared(path, catalog, tp=tp, dtype=dtype)
    spec = read_model(read_config(path), tp=tp, dtype=dtype, source=str(path), catalog=catalog, kv_layout=kv_layout)
    return Source(str(path), spec.layers, spec=spec)


def _declared(path: Path, catalog: Catalog, *, tp: int, dtype: str | None) -> Source:
    if tp != 1 or dtype is not None:
        raise ConfigError(
            f"{path}: --tp and --dtype cut a model's config; declared layers are one rank's, typed as written"
        )
    places = Places.in_file(path)
    config = structure(StorageConfig, read_toml(path), places)
    settle_logs(config.logs)
    catalog = catalog.under(config.plugins, source=places)
    make_policies(catalog, config.policies, places)
    check_eviction(catalog, config.prefix, places)
    try:
        catalog.find("backends", config.backend.name)  # found, not made: a backend may need torch
    except PluginError as error:
        raise PluginError(f"{places.place('backend')}: {error}") from None
    layers = declared_layers(config, catalog, places)
    if not layers:
        raise ConfigError(f"{path}: layers: none is declared, so there is nothing to plan; add [[layers]] tables")
    return Source(str(path), layers, declared=config)


def places_of(source: Source, options: Mapping[str, Any]) -> Places:
    """Where each setting stands: the option that was given for it, or the source."""
    names = {**SETTINGS, "memory": "memory", "gpu_memory": "memory"}
    given = {f"arena.{setting}": name for name, setting in names.items() if options[name] is not None}
    path = Path(source.name) if source.declared else None
    return Places(source.name, {key: f"--{name.replace('_', '-')}" for key, name in given.items()}, path)


def arena_of(source: Source, options: Mapping[str, Any]) -> ArenaConfig:
    """The settings of ``[arena]`` by the command line, and by a TOML file where it is silent; not its memory.

    The context of a config.json is what the model could reach, so it only shortens the usual one; that of an
    ``[arena]`` is what its storage will be built for.

    Raises:
        ConfigError: an option out of range.
    """
    declared = source.declared.arena if source.declared else None
    if declared is None:
        usual = min(DEFAULT_CONTEXT_TOKENS, source.context_max or DEFAULT_CONTEXT_TOKENS)
        declared = ArenaConfig(memory=1, context_tokens=usual)  # type: ignore[arg-type]
    try:
        given = {setting: options[name] for name, setting in SETTINGS.items() if options[name] is not None}
        return attrs.evolve(declared, **given)
    except SettingError as error:
        place = places_of(source, options).place(f"arena.{error.setting}")
        raise ConfigError(f"{place} {error.finding}") from None
