"""What ``[arena]`` and ``[prefix]`` fix of a plan and its sizing. Pure: nothing is made."""

from collections.abc import Sequence

import attrs

from kvarena.assembly.config import (
    CHECKPOINT_TOKENS_MAX,
    EXTRA_BUFFER_LAZY,
    NO_BUFFER,
    ArenaConfig,
    PrefixConfig,
)
from kvarena.assembly.places import Places
from kvarena.planning.charges import DEFAULT_CONTEXT_TOKENS, Limits
from kvarena.planning.plan import Plan, capped, plan_storage
from kvarena.terms.errors import ConfigError
from kvarena.terms.layers import Layer
from kvarena.terms.lifetimes import common_multiple
from kvarena.terms.units import align_up

CHECKPOINT_TOKENS = 64
"""Tokens between the checkpoints of a prefix cache where neither the config nor the layers say."""


def plan_arena(layers: Sequence[Layer], config: ArenaConfig) -> Plan:
    """The plan of these layers under the settings of ``[arena]``."""
    plan = plan_storage(layers, page_tokens=config.page_tokens, unit_align=config.unit_align, owner=config.owner)
    return capped(plan, config.caps)


def limits_of(
    config: ArenaConfig, prefix: PrefixConfig | None = None, plan: Plan | None = None, *, source: str | Places = ""
) -> Limits:
    """What ``[arena]`` fixes of the sizing and, given the plan, ``[prefix]``.

    Raises:
        ConfigError: the grid of checkpoints is no multiple of the page size; or it is left to the layers, and their
            intervals meet nowhere in reach.
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
        grid=_grid_of(prefix, plan, Places.of(source)),
        slots_per_request=limits.slots_per_request if lazy else max(2, limits.slots_per_request),
        spare_slots=1 if lazy else 0,
    )


def _grid_of(prefix: PrefixConfig, plan: Plan, places: Places) -> int:
    """The tokens between two checkpoints: as asked, or where all layers may be copied, or the default."""
    asked, size, place = prefix.checkpoint_tokens, plan.page_tokens, places.place("prefix.checkpoint_tokens")
    if asked is None:
        intervals = plan.slots.checkpoint_intervals if plan.slots else ()
        if len(intervals) < 2:
            return align_up(intervals[0] if intervals else CHECKPOINT_TOKENS, size)
        grid = common_multiple({*intervals, size})
        if grid > CHECKPOINT_TOKENS_MAX:
            listed = ", ".join(f"{interval:,}" for interval in intervals)
            raise ConfigError(
                f"{place}: the layers' checkpoint_interval are {listed}, which meet with pages of {size:,} tokens at "
                f"no multiple up to {CHECKPOINT_TOKENS_MAX:,}; give them ones that divide each other, or a grid here"
            )
        return grid
    if asked % size:
        pages = f"the page size of {size:,} tokens ({places.word('arena.page_tokens')})"
        raise ConfigError(
            f"{place}: {asked:,} is no multiple of {pages}; take {align_up(asked, size):,}, or leave it out"
        )
    return asked
