"""``[chain]`` of a scenario: a small chain in units of bytes, whose sub-pools share exactly so many units."""

from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import (
    ArenaConfig,
    ChecksConfig,
    Choice,
    PoliciesConfig,
    PrefixConfig,
    SettingError,
    StorageConfig,
    at_least,
    choice_of,
)
from kvarena.assembly.loader import make, make_eviction
from kvarena.assembly.places import Places
from kvarena.planning.charges import Charges
from kvarena.planning.packing import usable_range
from kvarena.planning.plan import Plan
from kvarena.plugins.stress.stage.stage import CHUNK_TOKENS, HOST_PLACES, Stage
from kvarena.terms.errors import ConfigError
from kvarena.terms.fields import Field
from kvarena.terms.invariants import STRICT
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Lifetime


@attrs.frozen
class Opaque:
    """Entries of so many bytes that nobody interprets, zeroed when they are handed out or not."""

    size: int
    zero_on_take: bool = True
    name = "opaque"

    def fields(self) -> tuple[Field, ...]:
        """One field."""
        return (Field("bytes", "uint8", (self.size,)),)


@attrs.frozen(kw_only=True)
class PoolSpec:
    """``[chain.sub_pools]``: a lifetime by name, with its settings, and the size of one page or slot in units."""

    lifetime: Choice = attrs.field(converter=choice_of)
    units: int = attrs.field(default=1, validator=at_least(1, 1 << 20))
    zero: bool = True


@attrs.frozen(kw_only=True)
class ChainSpec:
    """``[chain]``. ``unit`` is u in bytes; ``arena`` how many u the sub-pools share, sinks not counted.

    ``memory`` instead of ``arena`` is a budget in bytes, all counted. ``models`` are for planning: each a model's
    config, or a table with ``layers``.
    """

    unit: int = attrs.field(default=256, validator=at_least(1, 1 << 30))
    arena: int | None = attrs.field(default=None, validator=at_least(1, 1 << 24))
    memory: int | None = attrs.field(default=None, validator=at_least(1, 1 << 40))
    page_tokens: int = attrs.field(default=1, validator=at_least(1, 1 << 16))
    requests: int = attrs.field(default=4, validator=at_least(1, 1 << 12))
    context: int = attrs.field(default=16, validator=at_least(1, 1 << 24))
    slots_per_request: int = attrs.field(default=1, validator=at_least(1, 1 << 10))
    forwards_in_flight: int = attrs.field(default=0, validator=at_least(0, 64))
    chunk: int = attrs.field(default=CHUNK_TOKENS, validator=at_least(1, 1 << 24))
    output_fraction: float = attrs.field(default=1.0, validator=[attrs.validators.gt(0), attrs.validators.le(1)])
    host_places: int = attrs.field(default=HOST_PLACES, validator=at_least(1, 1 << 16))
    mirrors: bool = False
    owner: str = attrs.field(default="any", validator=attrs.validators.in_(("any", "required")))
    checks: int = attrs.field(default=STRICT, validator=at_least(0, STRICT))
    policies: PoliciesConfig = attrs.field(factory=PoliciesConfig)
    prefix: PrefixConfig = attrs.field(factory=PrefixConfig)
    sub_pools: Mapping[str, PoolSpec] = attrs.field(factory=dict)
    models: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)

    @memory.validator
    def _one_size(self, attribute: "attrs.Attribute[Any]", value: int | None) -> None:
        if value is not None and self.arena is not None:
            raise SettingError("memory", "arena is set too; the size follows one of them")

    @sub_pools.validator
    def _has_a_size(self, attribute: "attrs.Attribute[Any]", value: Mapping[str, PoolSpec]) -> None:
        if value and self.arena is None and self.memory is None:
            raise SettingError("arena", "is missing: how many units the sub-pools share (or memory, in bytes)")


def lifetimes_of(spec: ChainSpec, catalog: Catalog, source: str) -> dict[str, Lifetime]:
    """The lifetime of each sub-pool, by its name in the file.

    Raises:
        ConfigError: two sub-pools have one lifetime, so they would be one.
    """
    places = {name: f"{source}: chain.sub_pools.{name}.lifetime" for name in spec.sub_pools}
    made = {name: make(catalog, "lifetimes", pool.lifetime, places[name]) for name, pool in spec.sub_pools.items()}
    for name, lifetime in made.items():
        twin = next((other for other, theirs in made.items() if other != name and theirs.name == lifetime.name), None)
        if twin is not None:
            raise ConfigError(f"{places[name]}: sub-pool {twin!r} has the lifetime {lifetime.name!r} too; merge them")
    return made


def layers_of(spec: ChainSpec, catalog: Catalog, source: str) -> list[Layer]:
    """One layer per sub-pool."""
    layers = []
    for index, (name, lifetime) in enumerate(lifetimes_of(spec, catalog, source).items()):
        pool = spec.sub_pools[name]
        rows = 1 if lifetime.own_ids else spec.page_tokens
        if pool.units * spec.unit % rows:
            raise ConfigError(
                f"{source}: chain.sub_pools.{name}: {pool.units * spec.unit} B a page are no whole number for each of "
                f"{rows} rows; choose another unit"
            )
        part = Part(Opaque(pool.units * spec.unit // rows, pool.zero), lifetime, role=lifetime.name)
        layers.append(Layer(index, (part,)))
    return layers


def open_stage(spec: ChainSpec, backend: Choice, catalog: Catalog, source: str) -> Stage:
    """A stage for this chain on this device. The caller releases ``stage.storage``.

    Raises:
        ConfigError: the chain cannot be built, or not for so many requests.
    """
    layers = layers_of(spec, catalog, source)
    config = _config(spec, backend, 1)
    with _places(source).planning():
        plan = plan_arena(layers, config.arena)
    memory = spec.memory or _budget(spec, plan, source)
    storage = build_storage(layers, _config(spec, backend, memory), catalog, source=_places(source))
    if len(storage.requests) < spec.requests:
        there = len(storage.requests)
        storage.release()
        raise ConfigError(
            f"{source}: chain.requests: {spec.requests} rows are asked for, and the arena starts {there} at once; "
            "lower it, or the context"
        )
    return Stage(
        storage, chunk_tokens=spec.chunk, host_places=spec.host_places, output_fraction=spec.output_fraction,
        eviction=make_eviction(catalog, spec.prefix, _places(source)),
    )  # fmt: skip


def _config(spec: ChainSpec, backend: Choice, memory: int) -> StorageConfig:
    arena = ArenaConfig(
        memory=memory, page_tokens=spec.page_tokens, context_tokens=spec.context, max_running=spec.requests,
        slots_per_request=spec.slots_per_request, mirrors=spec.mirrors, owner=spec.owner,
        forwards_in_flight=spec.forwards_in_flight,
    )  # fmt: skip
    checks = ChecksConfig(level=spec.checks)
    return StorageConfig(arena=arena, backend=backend, policies=spec.policies, prefix=spec.prefix, checks=checks)


def _places(source: str) -> Places:
    """Where a scenario says what a config says in other places."""
    keys = {"arena.memory": "memory", "arena.page_tokens": "page_tokens", "arena.context_tokens": "context"}
    keys |= {"arena.max_running": "requests", "arena.slots_per_request": "slots_per_request", "arena.owner": "owner"}
    keys |= {f"prefix.{name}": f"prefix.{name}" for name in ("checkpoint_tokens", "eviction", "strategy")}
    keys |= {f"policies.{name}": f"policies.{name}" for name in ("holes", "compaction", "placement")}
    return Places(source, {theirs: f"{source}: chain.{ours}" for theirs, ours in keys.items()})


def _budget(spec: ChainSpec, plan: Plan, source: str) -> int:
    """The budget whose arena leaves exactly the units that were asked for between its sinks.

    Raises:
        ConfigError: the grids of the sub-pools allow no such arena.
    """
    wanted = (spec.arena or 0) * spec.unit
    most = max((pool.unit_bytes for pool in plan.sub_pools), default=0)
    for arena_bytes in range(wanted, wanted + 3 * most + spec.unit, spec.unit):
        if len(usable_range(plan, arena_bytes)) == wanted:
            config = _config(spec, Choice("host"), 1)
            limits = limits_of(config.arena, config.prefix, plan, source=_places(source))
            return arena_bytes + sum(Charges(plan, arena_bytes, limits).fixed(spec.requests, arena_bytes).values())
    raise ConfigError(
        f"{source}: chain.arena: no arena leaves exactly {spec.arena} units beside the sinks, as pages lie on grids "
        "of their own; choose a multiple of the largest page"
    )
