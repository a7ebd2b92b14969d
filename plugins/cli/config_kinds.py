"""The kinds of file that commands read as a config, and where in them plugins are named."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from kvarena.assembly.config import StorageConfig
from kvarena.plugins.cli.run_config import RunConfig
from kvarena.plugins.replay.gpus import Gpu

STORAGE, RUN, GPUS = KINDS = ("storage", "run", "gpus")
CLASSES: Mapping[str, type] = MappingProxyType({STORAGE: StorageConfig, RUN: RunConfig, GPUS: Gpu})
READ_BY: Mapping[str, str] = MappingProxyType(
    {
        STORAGE: "kvarena plan FILE, stress --config FILE, replay --config FILE",
        RUN: "kvarena run FILE",
        GPUS: "kvarena replay --gpu FILE[:NAME]",
    }
)
"""Each kind of file, and who reads it."""

RUN_KEYS = ("model", "trace", "memory_requests")
"""What only the file of a run has."""

CHOICES: Mapping[str, tuple[str, str | None]] = MappingProxyType(
    {
        "backend": ("backends", None),
        "kv_layout": ("layouts", None),
        "policies.holes": ("policies", "policies.holes"),
        "policies.compaction": ("policies", "policies.compaction"),
        "policies.placement": ("policies", "policies.placement"),
        "prefix.eviction": ("policies", "prefix.eviction"),
    }
)
"""Each setting that names a plugin: the plugin's kind, and for a policy the role that says of which sort."""


def kind_of(data: Mapping[str, Any]) -> str:
    """Which kind of file this is, by its keys: a run, tables of accelerators, or else a storage."""
    if any(key in data for key in RUN_KEYS):
        return RUN
    known = {attribute.name for attribute in attrs.fields(StorageConfig)} - {"version"}
    tables = [value for key, value in data.items() if key != "version"]
    if tables and all(isinstance(value, dict) for value in tables) and not known & data.keys():
        named = {attribute.name for attribute in attrs.fields(Gpu)} | {"base"}
        if any(named & table.keys() for table in tables):
            return GPUS
    return STORAGE
