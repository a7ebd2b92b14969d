"""What a run of a trace is on: a storage of a seed's world or a scenario's chain, told so that any checkout builds it.

A run is told by its storage and its operations, not by its seed: another checkout may draw another world of a seed.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice, StorageConfig, at_least, structure
from kvarena.assembly.loader import declared_layers, make_eviction
from kvarena.planning.sizing import least_budget, size_plan
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, open_stage
from kvarena.plugins.stress.stage.stage import Stage
from kvarena.plugins.stress.swarm.engines import Engines
from kvarena.plugins.stress.swarm.world import World
from kvarena.terms.errors import ConfigError

HOST_PLACES = 512
"""Pages of each sub-pool that host memory has room for."""


@attrs.frozen(kw_only=True)
class Setting:
    """One of ``storage``, the sections of a storage's config, and ``chain``, that of a scenario file; and the device.

    ``waits``: the host can wait for transfers when nothing else makes room.
    """

    storage: Mapping[str, Any] = attrs.field(factory=dict)
    chain: Mapping[str, Any] = attrs.field(factory=dict)
    device: str = "host"
    timing: str = ""
    waits: bool = False
    host_places: int = attrs.field(default=HOST_PLACES, validator=at_least(1, 1 << 20))

    def open(self, catalog: Catalog, place: str) -> Stage:
        """A stage on a new storage. The caller releases it.

        Raises:
            KvarenaError: it cannot be built here, with the place.
        """
        backend = Choice(self.device, {"timing": self.timing} if self.timing else {})
        if self.chain:
            return open_stage(structure(ChainSpec, dict(self.chain), place, at="chain"), backend, catalog, place)
        config = structure(StorageConfig, dict(self.storage), place, at="storage")
        settings = dict(config.backend.settings) if config.backend.name == self.device else {}
        config = attrs.evolve(config, backend=Choice(self.device, {**settings, **backend.settings}))
        eviction = make_eviction(catalog, config.prefix, place)
        storage = build_storage((), config, catalog, source=place)
        stage = Stage(storage, host_places=self.host_places, eviction=eviction)
        if self.waits:
            stage.storage.chain.usage.waiter = Engines(stage)
        return stage

    def told(self) -> dict[str, Any]:
        """As the header of a run has it."""
        told = attrs.asdict(self, recurse=False)
        return {name: value for name, value in told.items() if value not in ("", {}, False)}


def read_setting(header: Mapping[str, Any], place: str) -> Setting:
    """The setting in a header.

    Raises:
        ConfigError: it says something impossible, or something that this version does not know.
    """
    on = header.get("on", {})
    if not isinstance(on, Mapping):
        raise ConfigError(f"{place}: on: must be a table, not {str(on)[:60]!r}")
    return structure(Setting, dict(on), place, at="on")


def setting_of(world: World, device: str) -> Setting:
    """That of a seed's world."""
    return Setting(
        storage=world.storage, device=device, timing="late" if device == "simulated" else "",
        waits=world.waits_for_engines,
    )  # fmt: skip


def paged(world: World, page_tokens: int, catalog: Catalog) -> World:
    """The world with pages of so many tokens: as many pages of each sub-pool, of a request and of the grid."""
    config = world.config()
    before = config.arena.page_tokens or page_tokens
    arena = attrs.evolve(
        config.arena, page_tokens=page_tokens,
        context_tokens=-(-(config.arena.context_tokens or before) // before) * page_tokens,
    )  # fmt: skip
    layers = declared_layers(config, catalog)
    units = size_plan(plan_arena(layers, config.arena), config.arena.memory, limits_of(config.arena)).units
    plan = plan_arena(layers, arena)
    memory = least_budget(plan, tuple(units[name] for name in plan.names), limits_of(arena))
    told = {"page_tokens": page_tokens, "context_tokens": arena.context_tokens, "memory": memory}
    storage = {**world.storage, "arena": {**world.storage["arena"], **told}}
    if config.prefix.checkpoint_tokens:
        grid = max(1, config.prefix.checkpoint_tokens // before) * page_tokens
        storage["prefix"] = {**world.storage["prefix"], "checkpoint_tokens": grid}
    return attrs.evolve(world, storage=storage, prompt_max=max(1, world.prompt_max // before) * page_tokens)
