"""Plan, size, then construct: the one place that turns layers and a config into a storage."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig
from kvarena.assembly.hooks import HookPlugin, clearance_of, follow_life, hook_plugins
from kvarena.assembly.loader import check_eviction, declared_layers, make, make_policies
from kvarena.assembly.places import Places
from kvarena.chain.chain import Chain
from kvarena.planning.plan import Plan
from kvarena.planning.sizing import Sizing, size_plan
from kvarena.storage.requests import RequestTable
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError, KvarenaError, PluginError
from kvarena.terms.events import event_log
from kvarena.terms.layers import Layer
from kvarena.terms.ports import Device
from kvarena.terms.units import ceil_div, format_bytes

_log = event_log()


def build_storage(
    layers: Sequence[Layer], config: StorageConfig, catalog: Catalog | None = None, *, source: str | Places = ""
) -> Storage:
    """A storage for these layers, or for those that the config declares where ``layers`` is empty.

    ``source`` names the config in messages, or the places of its settings. The caller owns the storage:
    ``storage.release()`` gives the memory back and tells the hook plugins.

    Raises:
        ConfigError: the config asks for something that is not there or does not fit.
        PluginError: a plugin that it names is missing or broken.
    """
    places = Places.of(source)
    catalog = catalog or Catalog.installed(config.plugins, source=places)
    layers = layers or declared_layers(config, catalog, places)
    if not layers:
        raise ConfigError(f"{places.place('layers')}: no model and no [[layers]]; one of them is needed")
    with places.planning():
        plan = plan_arena(layers, config.arena)
        sizing = size_plan(plan, config.arena.memory, limits_of(config.arena, config.prefix, plan, source=places))
    policies = make_policies(catalog, config.policies, places)
    check_eviction(catalog, config.prefix, places)
    device: Device = make(catalog, "backends", config.backend, "backend", places=places)
    hooks = hook_plugins(catalog, config.plugins)
    make_chain = partial(
        Chain,
        plan,
        device=device,
        policies=policies,
        checks=config.checks.level,
        in_flight=config.arena.forwards_in_flight,
        clearance=clearance_of(hooks),
    )
    check_bookkeeping(sizing, places)
    _reserve(device, sizing, places)
    try:
        storage = Storage(plan, sizing, device, lambda size: _books(plan, size, make_chain), prefix=config.prefix)
        device.warm([pool.unit_bytes for pool in plan.sub_pools if pool.unit_bytes])
    except BaseException:
        device.close()
        raise
    size = {"arena_bytes": sizing.arena_bytes, "rows": sizing.running, **sizing.units}
    _log.info("storage.opened", backend=device.name, **size)
    _tell_opened(hooks, storage)
    return storage


def _tell_opened(hooks: Sequence[HookPlugin], storage: Storage) -> None:
    """Tell the hook plugins; where one fails, the storage is released before that is told."""
    try:
        follow_life(hooks, storage)
    except PluginError as fault:
        try:
            storage.release()
        except PluginError as other:
            raise PluginError(f"{fault}; {other}") from fault
        raise


def check_bookkeeping(sizing: Sizing, places: Places | None = None) -> None:
    """The host's own tables must fit the machine: an absurd context or concurrency would take all its memory.

    Raises:
        ConfigError: they do not; with their bytes.
    """
    there = machine_bytes()
    if there is not None and sizing.host_bytes > there:
        place = f"{places.place('arena.context_tokens')}: " if places is not None and places != Places() else ""
        raise ConfigError(
            f"{place}{sizing.running:,} requests of {sizing.context_tokens:,} tokens over "
            f"{format_bytes(sizing.arena_bytes)} take {format_bytes(sizing.host_bytes)} "
            f"of bookkeeping, and this machine has {format_bytes(there)}; lower context_tokens, max_running or memory"
        )


def machine_bytes() -> int | None:
    """The machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _reserve(device: Device, sizing: Sizing, places: Places) -> None:
    try:
        device.reserve(sizing.arena_bytes)
    except MemoryError:
        place = places.place("arena.memory")
        raise KvarenaError(
            f"{place}: backend {device.name!r} cannot get {sizing.arena_bytes:,} bytes for the arena; lower it"
        ) from None


def _books(plan: Plan, sizing: Sizing, make_chain: Callable[..., Chain]) -> tuple[Chain, RequestTable]:
    """Everything whose size follows the sizing: the chain's maps and the request table."""
    check_bookkeeping(sizing)
    # any free byte may become a slot, so there are ids for as many as the arena could hold
    slot_ids = sizing.arena_bytes // plan.slots.unit_bytes if plan.slots else 0
    chain, limits = make_chain(sizing.arena_bytes, slot_count=slot_ids), sizing.limits
    table = RequestTable(
        sizing.running,
        ceil_div(sizing.context_tokens, plan.page_tokens) if plan.token_pools else 0,
        pools=len(plan.sub_pools),
        slots_per_row=limits.slots_per_request if plan.slots else 0,
        spare_slots=limits.spare_slots if plan.slots else 0,
        live_slots=1 if plan.slots and limits.grid is not None else None,
    )
    return chain, table
