"""Where a plan's layers come from: a model's config.json, or ``[[layers]]`` declared in TOML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig, read_toml, structure
from kvarena.assembly.loader import declared_layers, make_policies
from kvarena.planning.plan import Plan, plan_storage
from kvarena.plugins.models import ModelSpec, read_config, read_model
from kvarena.terms.errors import ConfigError, PlanError, PluginError
from kvarena.terms.layers import Layer


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
    def notes(self) -> tuple[str, ...]:
        """What the reader of the config wants a person to know."""
        return self.spec.notes if self.spec else ()


def read_source(path: Path, catalog: Catalog, *, tp: int, dtype: str | None) -> Source:
    """Read CONFIG: TOML by its suffix, else a model's config.json or its folder.

    Raises:
        KvarenaError: it cannot be read, or says something impossible.
    """
    if path.suffix == ".toml":
        return _declared(path, catalog, tp=tp, dtype=dtype)
    spec = read_model(read_config(path), tp=tp, dtype=dtype, source=str(path), catalog=catalog)
    return Source(str(path), spec.layers, spec=spec)


def _declared(path: Path, catalog: Catalog, *, tp: int, dtype: str | None) -> Source:
    if tp != 1 or dtype is not None:
        raise ConfigError(
            f"{path}: --tp and --dtype cut a model's config; declared layers are one rank's, typed as written"
        )
    config = structure(StorageConfig, read_toml(path), str(path))
    catalog = catalog.under(config.plugins)
    make_policies(catalog, config.policies, str(path))
    try:
        catalog.find("backends", config.backend.name)  # found, not made: a backend may need torch
    except PluginError as error:
        raise PluginError(f"{path}: backend: {error}") from None
    layers = declared_layers(config, catalog, str(path))
    if not layers:
        raise ConfigError(f"{path}: layers: none is declared, so there is nothing to plan; add [[layers]] tables")
    return Source(str(path), layers, declared=config)


def plan_of(source: Source, options: Mapping[str, Any]) -> Plan:
    """The plan of a source's layers, by the command line, and by a TOML file's ``[arena]`` where it is silent.

    Raises:
        PlanError: no arena can hold these layers; the message starts with the file.
    """
    arena = source.declared.arena if source.declared else None
    given = {"page_tokens": options["page_size"], "unit_align": options["unit_align"], "owner": options["owner"]}
    settings: dict[str, Any] = {name: getattr(arena, name) for name in given} if arena else {}
    settings |= {name: value for name, value in given.items() if value is not None}
    try:
        return plan_storage(source.layers, **settings)
    except PlanError as error:
        raise PlanError(f"{source.name}: {error}") from error
