"""kvarena: one arena, many bands. This is its face: the names that stay, each found where it lives.

Names only, and loaded when first asked for, so that ``kvarena plan`` never pays for what it does not use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvarena.admission.admission import Admission, Asked
    from kvarena.admission.preemption import Victim
    from kvarena.assembly.build import build_storage
    from kvarena.assembly.catalog import Catalog
    from kvarena.assembly.config import ArenaConfig, ChecksConfig, PluginsConfig, PoliciesConfig, StorageConfig
    from kvarena.chain.describe import describe, stats
    from kvarena.chain.explain import explain
    from kvarena.planning.charges import Limits
    from kvarena.planning.demand import Purpose, RequestShape, request_demand
    from kvarena.planning.plan import Plan, SubPool, plan_storage
    from kvarena.planning.sizing import Sizing, size_plan
    from kvarena.storage.checks import check_idle
    from kvarena.storage.iteration_ids import IterationIds
    from kvarena.storage.storage import Storage
    from kvarena.terms.answers import Admit, Never, Refused, Wait
    from kvarena.terms.errors import ConfigError, InvariantError, KvarenaError, PlanError, PluginError
    from kvarena.terms.fields import Field, Layout
    from kvarena.terms.layers import Layer, Part
    from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
    from kvarena.terms.marks import hookimpl
    from kvarena.terms.units import format_bytes, parse_bytes

    __version__: str

_HOMES = {
    "admission.admission": ("Admission", "Asked"),
    "admission.preemption": ("Victim",),
    "assembly.build": ("build_storage",),
    "assembly.catalog": ("Catalog",),
    "assembly.config": ("ArenaConfig", "ChecksConfig", "PluginsConfig", "PoliciesConfig", "StorageConfig"),
    "chain.describe": ("describe", "stats"),
    "chain.explain": ("explain",),
    "planning.charges": ("Limits",),
    "planning.demand": ("Purpose", "RequestShape", "request_demand"),
    "planning.plan": ("Plan", "SubPool", "plan_storage"),
    "planning.sizing": ("Sizing", "size_plan"),
    "storage.checks": ("check_idle",),
    "storage.iteration_ids": ("IterationIds",),
    "storage.storage": ("Storage",),
    "terms.answers": ("Admit", "Never", "Refused", "Wait"),
    "terms.errors": ("ConfigError", "InvariantError", "KvarenaError", "PlanError", "PluginError"),
    "terms.fields": ("Field", "Layout"),
    "terms.layers": ("Layer", "Part"),
    "terms.lifetimes": ("Chunk", "Full", "Lifetime", "State", "Window"),
    "terms.marks": ("hookimpl",),
    "terms.units": ("format_bytes", "parse_bytes"),
    "terms.version": ("__version__",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Admission",
    "Admit",
    "ArenaConfig",
    "Asked",
    "Catalog",
    "ChecksConfig",
    "Chunk",
    "ConfigError",
    "Field",
    "Full",
    "InvariantError",
    "IterationIds",
    "KvarenaError",
    "Layer",
    "Layout",
    "Lifetime",
    "Limits",
    "Never",
    "Part",
    "Plan",
    "PlanError",
    "PluginError",
    "PluginsConfig",
    "PoliciesConfig",
    "Purpose",
    "Refused",
    "RequestShape",
    "Sizing",
    "State",
    "Storage",
    "StorageConfig",
    "SubPool",
    "Victim",
    "Wait",
    "Window",
    "build_storage",
    "check_idle",
    "describe",
    "explain",
    "format_bytes",
    "hookimpl",
    "parse_bytes",
    "plan_storage",
    "request_demand",
    "size_plan",
    "stats",
]


def __getattr__(name: str) -> Any:
    """A name of the face, from its home."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kvarena' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kvarena.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
