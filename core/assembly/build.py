"""Plan, size, then construct: the one place that turns layers and a config into a storage."""

import os
from collections.abc import Callable, Sequence
from functools import partial

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import EXTRA_BUFFER_LAZY, NO_BUFFER, ArenaConfig, PrefixConfig, StorageConfig
from kvarena.assembly.loader import call_hook, clearance_of, declared_layers, hook_manager, make, make_policies
from kvarena.chain.chain import Chain
from kvarena.planning.charges import DEFAULT_CONTEXT_TOKENS, Limits
from kvarena.planning.plan import Plan, capped, plan_storage
from kvarena.planning.sizing import Sizing, size_plan
from kvarena.storage.requests import RequestTable
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError, KvarenaError, PluginError
from kvarena.terms.events import event_log
from kvarena.terms.layers import Layer
from kvarena.terms.ports import Device
from kvarena.terms.units import align_up, ceil_div, format_bytes

_log = event_log()

CHECKPOINT_TOKENS = 64
"""Tokens between the checkpoints of a prefix cache where neither the config nor the layers say."""


def build_storage(
    layers: Sequence[Layer], config: StorageConfig, catalog: Catalog | None = None, *, source: str = ""
) -> Storage:
    """A storage for these layers, or for those that the config declares where ``layers`` is empty.

    ``source`` names the config in messages. The caller owns the storage: ``storage.release()`` gives the
    memory back and tells the hook plugins.

    Raises:
        ConfigError: the config asks for something that is not there or does not fit.
        PluginError: a plugin that it names is missing or broken.
    """
    catalog = catalog or Catalog.installed(config.plugins)
    layers = layers or declared_layers(config, catalog, source)
    if not layers:
        raise ConfigError(f"{source + ': ' if source else ''}layers: no model and no [[layers]]; one of them is needed")
    plan = plan_arena(layers, config.arena)
    sizing = size_plan(plan, config.arena.memory, limits_of(config.arena, config.prefix, plan, source=source))
    policies = make_policies(catalog, config.policies, source)
    device: Device = make(catalog, "backends", config.backend, f"{source}: backend" if source else "backend")
    hooks = hook_manager(catalog, config.plugins)
    make_chain = partial(
        Chain,
        plan,
        device=device,
        policies=policies,
        checks=config.checks.level,
        in_flight=config.arena.forwards_in_flight,
        clearance=clearance_of(hooks),
    )
    check_bookkeeping(sizing)
    _reserve(device, sizing)
    try:
        storage = Storage(plan, sizing, device, lambda size: _books(plan, size, make_chain), prefix=config.prefix)
        device.warm([pool.unit_bytes for pool in plan.sub_pools if pool.unit_bytes])
    except BaseException:
        device.close()
        raise
    storage.at_release.append(lambda: call_hook(hooks, "kvarena_storage_closed", storage=storage))
    try:
        call_hook(hooks, "kvarena_storage_opened", storage=storage)
    except PluginError:
        device.close()
        raise
    size = {"arena_bytes": sizing.arena_bytes, "rows": sizing.running, **sizing.units}
    _log.info("storage_opened", backend=device.name, **size)
    return storage


def plan_arena(layers: Sequence[Layer], config: ArenaConfig) -> Plan:
    """The plan of these layers under the settings of ``[arena]``."""
    plan = plan_storage(layers, page_tokens=config.page_tokens, unit_align=config.unit_align, owner=config.owner)
    return capped(plan, config.caps)


def limits_of(
    config: ArenaConfig, prefix: PrefixConfig | None = None, plan: Plan | None = None, *, source: str = ""
) -> Limits:
    """What ``[arena]`` fixes of the sizing and, given the plan, ``[prefix]``.

    Raises:
        ConfigError: the grid of checkpoints is no multiple of the page size.
    """
    limits = Limits(
        context_tokens=config.context_tokens or DEFAULT_CONTEXT_TOKENS,
        max_running=config.max_running,
        state_slots=config.state_slots,
        state_share=config.state_share,
        slots_per_request=config.slots_per_request,
        scratch_slots_per_request=config.scratch_slots_per_request,
        mirrors=config.mirrors,
        in_flight=config.forwards_in_flight,
    )
    if prefix is None or plan is None or plan.slots is None or not prefix.share or prefix.strategy == NO_BUFFER:
        return limits
    lazy = prefix.strategy == EXTRA_BUFFER_LAZY
    return attrs.evolve(
        limits,
        grid=_grid_of(prefix, plan, source),
        slots_per_request=limits.slots_per_request if lazy else max(2, limits.slots_per_request),
        spare_slots=1 if lazy else 0,
    )


def _grid_of(prefix: PrefixConfig, plan: Plan, source: str) -> int:
    """The tokens between two checkpoints: as asked, or as the layers say, or the default."""
    asked, size = prefix.checkpoint_tokens, plan.page_tokens
    if asked is None:
        own = getattr(plan.slots and plan.slots.lifetime, "checkpoint_interval", None)
        return align_up(own or CHECKPOINT_TOKENS, size)
    if asked % size:
        place = ": ".join(part for part in (source, "prefix.checkpoint_tokens") if part)
        raise ConfigError(
            f"{place}: {asked:,} is no multiple of the page size of {size:,} tokens (arena.page_tokens); "
            f"take {align_up(asked, size):,}, or leave it out"
        )
    return asked


def check_bookkeeping(sizing: Sizing) -> None:
    """The host's own tables must fit the machine: an absurd context or concurrency would take all its memory.

    Raises:
        ConfigError: they do not; with their bytes.
    """
    there = machine_bytes()
    if there is not None and sizing.host_bytes > there:
        raise ConfigError(
            f"{sizing.running:,} requests of {sizing.context_tokens:,} tokens over {format_bytes(sizing.arena_bytes)} "
            f"take {format_bytes(sizing.host_bytes)} of bookkeeping, and this machine has {format_bytes(there)}; "
            "lower context_tokens, max_running or memory"
        )


def machine_bytes() -> int | None:
    """The machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _reserve(device: Device, sizing: Sizing) -> None:
    try:
        device.reserve(sizing.arena_bytes)
    except MemoryError:
        raise KvarenaError(
            f"backend {device.name!r} cannot get {sizing.arena_bytes:,} bytes for the arena; lower [arena] memory"
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
