"""One byte budget, solved: what is fixed, how many requests run, and the boot targets of each sub-pool.

1. Floor: a budget below one request at batch size 1 is refused, with each term and its bytes.
2. Running requests: given, or limited by state slots, or the most that fit at the context length. Rows,
   mirrors and scratch grow with them, and the arena is what these leave: a fixed point, found exactly.
3. State slots: given, a share of the arena, or so many per running request.
4. Tokens: the most pages of the owner whose windows also fit.

The targets are boot targets: at run time any sub-pool may take any free bytes.
"""

from collections.abc import Mapping

import attrs

from kvarena.planning.charges import Charges, Limits, check_floor, check_limits, check_pages, most
from kvarena.planning.packing import packs, usable_range
from kvarena.planning.plan import Plan
from kvarena.terms.errors import PlanError

RUNNING_MAX = 1 << 20


@attrs.frozen
class Sizing:
    """The solved budget. ``fixed`` are the bytes outside the arena, by term.

    ``running``: request rows. ``concurrency``: how many requests fit at once, each of ``context_tokens``.
    ``limits``: what it was solved for. ``units``: boot targets by sub-pool. ``binds``: the term that
    stops one more request.
    """

    limits: Limits
    budget_bytes: int
    arena_bytes: int
    fixed: Mapping[str, int]
    running: int
    concurrency: int
    units: Mapping[str, int]
    tokens: int
    state_slots: int
    scratch_slots: int
    id_count: int
    sink_bytes: int
    host_bytes: int
    binds: str

    @property
    def context_tokens(self) -> int:
        """The longest sequence that a request row holds."""
        return self.limits.context_tokens

    @property
    def fixed_bytes(self) -> int:
        """The bytes of the budget that lie outside the arena."""
        return sum(self.fixed.values())

    @property
    def mirror_bytes(self) -> int:
        """The bytes of the device's copies of maps and request rows, and of their updates."""
        return self.fixed["id maps"] + self.fixed["request rows"] + self.fixed["map updates"]


def size_plan(plan: Plan, budget_bytes: int, limits: Limits | None = None) -> Sizing:
    """Solve a budget of device bytes for a plan.

    Raises:
        PlanError: the budget is below the floor of one request, or a sub-pool would have more than
            2^31 - 1 pages, or the limits contradict each other.
    """
    charges = Charges(plan, budget_bytes, limits or Limits())
    check_limits(charges)
    check_floor(charges)
    running, slots, binds = _running(charges)
    arena = charges.arena(running)
    check_pages(charges, arena)
    units = _targets(charges, arena, running, slots)
    concurrency = most(lambda count: packs(plan, arena, charges.needs(count)), running)
    if concurrency < running:
        binds = charges.largest(charges.per_request)
    usable = usable_range(plan, arena)
    primary = charges.primary
    return Sizing(
        limits=charges.limits,
        budget_bytes=budget_bytes,
        arena_bytes=arena,
        fixed=charges.fixed(running, arena),
        running=running,
        concurrency=concurrency,
        units=dict(zip(plan.names, units, strict=True)),
        tokens=units[plan.sub_pools.index(primary)] * plan.page_tokens if primary else 0,
        state_slots=slots,
        scratch_slots=charges.scratch_slots(running),
        id_count=plan.owner_ids(arena),
        sink_bytes=arena - len(usable),
        host_bytes=charges.host_bytes(running, arena),
        binds=binds,
    )


def least_budget(plan: Plan, units: tuple[int, ...], limits: Limits) -> int:
    """The least budget of bytes whose arena serves these units per sub-pool, in chain order.

    The rows and scratch of ``limits.max_running`` requests (of one, where it is None) are paid beside them.
    """
    running = limits.max_running or 1
    high = 1
    while not Charges(plan, high, limits).fits(running, units):
        high *= 2
    return 1 + most(lambda budget: not Charges(plan, budget, limits).fits(running, units), high - 1)


def _running(charges: Charges) -> tuple[int, int, str]:
    """How many requests run, their state slots, and the term that stops one more."""
    if charges.plan.slots and (charges.limits.state_slots or charges.limits.state_share or not charges.primary):
        return _running_by_slots(charges)
    cap = charges.limits.max_running
    if cap is not None:
        minimum = charges.floor_units()
        found = most(
            lambda count: charges.fits(count, tuple(count * units for units in minimum)), min(cap, RUNNING_MAX)
        )
        binds = "max_running" if found == cap else charges.largest(minimum)
    else:
        found = most(lambda count: charges.fits(count, charges.needs(count)), RUNNING_MAX)
        binds = charges.largest(charges.per_request)
    running = max(1, found)
    return running, charges.slots_for(running), binds


def _running_by_slots(charges: Charges) -> tuple[int, int, str]:
    """State slots decide: a number, a share of the arena, or all that the budget holds."""
    limits, unit = charges.limits, _slot_bytes(charges.plan)
    floor = charges.floor_units()

    def holds(slots: int) -> bool:
        running = charges.running_of(slots)
        share = limits.state_share
        if share is not None and (slots + 1) * unit > share * charges.arena(running):
            return False
        pools = zip(charges.plan.sub_pools, floor, strict=True)
        return charges.fits(running, tuple(slots if pool.is_slots else units for pool, units in pools))

    cap = limits.state_slots or charges.budget_bytes // unit
    slots = most(holds, cap)
    if slots < limits.slots_per_request or (limits.state_slots and slots < cap):
        name = "state_slots" if limits.state_slots else "state_share"
        asked = f"{name} = {getattr(limits, name)}"
        raise PlanError(
            f"{asked}: {slots} slots of {unit:,} B fit beside the sinks, one request's rows and the fixed terms "
            f"in a budget of {charges.budget_bytes:,} B; lower it, or raise the budget",
            setting=name,
        )
    running = charges.running_of(slots)
    binds = "max_running" if running == limits.max_running else "state slots"
    return running, slots, binds


def _targets(charges: Charges, arena_bytes: int, running: int, slots: int) -> tuple[int, ...]:
    """State slots as decided, then the most pages of the owner whose windows also fit."""

    def units(pages: int) -> tuple[int, ...]:
        return tuple(
            slots if pool.is_slots else pages if pool is charges.primary else min(pages, running * count)
            for pool, count in zip(charges.plan.sub_pools, charges.per_request, strict=True)
        )

    primary = charges.primary.unit_bytes if charges.primary else 0
    limit = arena_bytes // primary if primary else 0
    return units(most(lambda pages: packs(charges.plan, arena_bytes, units(pages)), limit))


def _slot_bytes(plan: Plan) -> int:
    return plan.slots.unit_bytes if plan.slots else 0
