"""One byte budget, solved: what is fixed, how many requests run, and the boot targets of each sub-pool.

1. Floor: a budget below one request at batch size 1 is refused, with each term and its bytes.
2. Running requests: given, or limited by state slots, or the most that fit at the context length. Rows,
   mirrors and scratch grow with them, and the arena is what these leave: a fixed point, found exactly.
3. State slots: given, a share of the arena, or so many per running request.
4. Tokens: the most pages of the owner whose windows also fit.

The targets are boot targets: at run time any sub-pool may take any free bytes.
"""

from collections.abc import Callable, Mapping

import attrs

from kvarena.planning.demand import decode_peak_pages
from kvarena.planning.packing import packs, usable_range
from kvarena.planning.plan import PAGES_MAX, Plan, SubPool
from kvarena.terms.errors import PlanError
from kvarena.terms.units import ceil_div, format_bytes

ID_BYTES = 4
"""Bytes of one id in a device mirror (int32)."""
RUNNING_MAX = 1 << 20


@attrs.frozen
class Limits:
    """What the user fixes of a sizing; None leaves a term to be solved.

    ``context_tokens``: the longest sequence a row can hold, and the length that concurrency is counted at.
    ``slots_per_request``: state slots of a running request (2 where checkpoints are tracked in a spare).
    ``scratch_slots_per_request``: state slots outside the arena for drafts, one set more than requests run.
    ``row_bytes``: request-scoped device memory that plugins register. ``mirrors``: charge the device's
    copies of the id maps and request rows; a device without bytes has none.
    """

    context_tokens: int = attrs.field(default=32768, validator=attrs.validators.ge(1))
    max_running: int | None = None
    state_slots: int | None = None
    state_share: float | None = None
    slots_per_request: int = 1
    scratch_slots_per_request: int = 0
    row_bytes: int = 0
    mirrors: bool = True


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
        """The bytes of the device's copies of maps and request rows."""
        return self.fixed["id maps"] + self.fixed["request rows"]


def size_plan(plan: Plan, budget_bytes: int, limits: Limits | None = None) -> Sizing:
    """Solve a budget of device bytes for a plan.

    Raises:
        PlanError: the budget is below the floor of one request, or a sub-pool would have more than
            2^31 - 1 pages, or the limits contradict each other.
    """
    solver = _Solver(plan, budget_bytes, limits or Limits())
    solver.check_limits()
    solver.check_floor()
    running, slots, binds = solver.running()
    arena = solver.arena(running)
    solver.check_pages(arena)
    units = solver.targets(arena, running, slots)
    concurrency = most(lambda count: packs(plan, arena, solver.needs(count, slots)), running)
    usable = usable_range(plan, arena)
    primary = solver.primary
    return Sizing(
        limits=solver.limits,
        budget_bytes=budget_bytes,
        arena_bytes=arena,
        fixed=solver.fixed(running, arena),
        running=running,
        concurrency=concurrency,
        units=dict(zip(plan.names, units, strict=True)),
        tokens=units[plan.sub_pools.index(primary)] * plan.page_tokens if primary else 0,
        state_slots=slots,
        scratch_slots=solver.scratch_slots(running),
        id_count=plan.owner_ids(arena),
        sink_bytes=arena - len(usable),
        host_bytes=solver.host_bytes(running, arena),
        binds=binds,
    )


def most(holds: Callable[[int], bool], limit: int) -> int:
    """The largest count up to ``limit`` for which a condition that only ever ends holds; 0 if none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def least_budget(plan: Plan, units: tuple[int, ...], limits: Limits) -> int:
    """The least budget of bytes whose arena serves these units per sub-pool, in chain order.

    The rows and scratch of ``limits.max_running`` requests (of one, where it is None) are paid beside them.
    """
    running = limits.max_running or 1
    high = 1
    while not _Solver(plan, high, limits).fits(running, units):
        high *= 2
    return 1 + most(lambda budget: not _Solver(plan, budget, limits).fits(running, units), high - 1)


class _Solver:
    """The searches over one plan, one budget and one set of limits. Every answer is exact and monotone."""

    def __init__(self, plan: Plan, budget_bytes: int, limits: Limits) -> None:
        self.plan = plan
        self.budget_bytes = budget_bytes
        self.limits = limits
        self.row_pages = ceil_div(limits.context_tokens, plan.page_tokens)
        self.per_request = tuple(self._per_request(pool) for pool in plan.sub_pools)
        owner = plan[plan.owner] if plan.owner else None
        backed = [pool for pool in plan.token_pools if pool.unit_bytes]
        self.primary = owner if owner and owner.unit_bytes else (backed[-1] if backed else None)

    def _per_request(self, pool: SubPool) -> int:
        if pool.page_tokens is None:
            return self.limits.slots_per_request
        return decode_peak_pages(pool.lifetime, pool.page_tokens, self.limits.context_tokens)

    # -- terms

    def scratch_slots(self, running: int) -> int:
        """Draft scratch: one set of slots per running request, and one for the padding row."""
        per_request = self.limits.scratch_slots_per_request
        return (running + 1) * per_request if per_request and self.plan.slots else 0

    def fixed(self, running: int, arena_bytes: int) -> dict[str, int]:
        """The bytes beside the arena when so many requests run and the arena is so large."""
        slots = self.plan.slots
        rows = running + 1
        row_ids = (self.row_pages if self.plan.token_pools else 0) + (self.limits.slots_per_request if slots else 0)
        ids = len(self.plan.token_pools) * self.plan.owner_ids(arena_bytes)
        if slots:
            ids += arena_bytes // slots.unit_bytes
        mirrors = ID_BYTES if self.limits.mirrors else 0
        return {
            "request rows": rows * row_ids * mirrors,
            "id maps": ids * mirrors,
            "draft scratch": self.scratch_slots(running) * (slots.unit_bytes if slots else 0),
            "request state": rows * self.limits.row_bytes,
        }

    def arena(self, running: int) -> int:
        """The largest arena that leaves room for the fixed terms of so many running requests; 0 if none."""
        return most(
            lambda arena: arena + sum(self.fixed(running, arena).values()) <= self.budget_bytes, self.budget_bytes
        )

    def host_bytes(self, running: int, arena_bytes: int) -> int:
        """Host bookkeeping: two maps of 8 bytes and a mark per page, the ids to mint, and the request table."""
        ids = self.plan.owner_ids(arena_bytes)
        total = running * (self.row_pages + self.limits.slots_per_request + 3 + len(self.plan.sub_pools)) * 8
        for pool in self.plan.sub_pools:
            pages = arena_bytes // pool.unit_bytes if pool.unit_bytes else ids
            minted = (pages if pool.is_slots else ids) if pool.is_slots or pool.name == self.plan.owner else 0
            total += pages * 9 + (pages if pool.is_slots else ids) * 8 + minted * 8
        return total

    # -- questions

    def needs(self, requests: int, slots: int) -> tuple[int, ...]:
        """Units of so many requests at the context length, beside so many state slots."""
        return tuple(
            slots if pool.is_slots else requests * count
            for pool, count in zip(self.plan.sub_pools, self.per_request, strict=True)
        )

    def floor_units(self) -> tuple[int, ...]:
        """One request at batch size 1: its window rows and slots, and one page of full attention."""
        full = self.limits.context_tokens
        return tuple(
            1 if pool is self.primary and pool.lifetime.retained(full) == full else count
            for pool, count in zip(self.plan.sub_pools, self.per_request, strict=True)
        )

    def fits(self, running: int, units: tuple[int, ...]) -> bool:
        """Whether these units and the fixed terms of so many running requests fit the budget."""
        return packs(self.plan, self.arena(running), units)

    # -- checks

    def check_limits(self) -> None:
        """Limits that contradict each other or the plan are refused before anything is solved."""
        limits = self.limits
        for name in ("max_running", "state_slots", "slots_per_request"):
            value = getattr(limits, name)
            if value is not None and value < 1:
                raise PlanError(f"{name} = {value}: it must be at least 1")
        if limits.state_share is not None and not 0 < limits.state_share < 1:
            raise PlanError(f"state_share = {limits.state_share}: it is a share of the arena, between 0 and 1")
        if limits.state_slots is not None and limits.state_share is not None:
            raise PlanError("state_slots and state_share both fix the state slots; give one of them")
        if limits.state_slots is not None and limits.state_slots < limits.slots_per_request:
            raise PlanError(
                f"state_slots = {limits.state_slots} is less than the {limits.slots_per_request} slots of one request"
            )
        if not self.plan.slots and (limits.state_slots or limits.state_share):
            raise PlanError("the model has no state layers, so state_slots and state_share mean nothing; remove them")

    def check_floor(self) -> None:
        """A budget that cannot hold one request is refused, term by term (SIZ-2)."""
        units = self.floor_units()
        if self.fits(1, units):
            return
        terms = {**self.fixed(1, self.arena(1)), **self._sinks()}
        for pool, count in zip(self.plan.sub_pools, units, strict=True):
            terms[f"{pool.name}: {count} x {pool.unit_bytes:,} B"] = count * pool.unit_bytes
        listed = "\n".join(f"  {name}: {size:,} B" for name, size in terms.items() if size)
        raise PlanError(
            f"a budget of {self.budget_bytes:,} B ({format_bytes(self.budget_bytes)}) cannot hold one request; "
            f"it needs, beside alignment, {sum(terms.values()):,} B:\n{listed}"
        )

    def _sinks(self) -> dict[str, int]:
        sinks = {f"{pool.name} sink": pool.unit_bytes for pool in self.plan.sub_pools if pool.is_slots}
        tokens = max((pool.unit_bytes for pool in self.plan.token_pools), default=0)
        return {**sinks, "token sink": tokens}

    def check_pages(self, arena_bytes: int) -> None:
        """Ids are int32 on the device: no sub-pool may have more pages than that can count."""
        for pool in self.plan.sub_pools:
            pages = arena_bytes // pool.unit_bytes if pool.unit_bytes else self.plan.owner_ids(arena_bytes)
            if pages > PAGES_MAX:
                raise PlanError(
                    f"sub-pool {pool.name!r} would have {pages:,} pages of {pool.unit_bytes:,} B; at most "
                    f"{PAGES_MAX:,} can be numbered: raise the page size, or shrink the budget"
                )

    # -- solving

    def running(self) -> tuple[int, int, str]:
        """How many requests run, their state slots, and the term that stops one more."""
        if self.plan.slots and (self.limits.state_slots or self.limits.state_share or not self.primary):
            return self._running_by_slots()
        cap = self.limits.max_running
        if cap is not None:
            minimum = self.floor_units()
            found = most(
                lambda count: self.fits(count, tuple(count * units for units in minimum)), min(cap, RUNNING_MAX)
            )
            binds = "max_running" if found == cap else self._largest(minimum)
        else:
            found = most(lambda count: self.fits(count, self.needs(count, self._slots_for(count))), RUNNING_MAX)
            binds = self._largest(self.per_request)
        running = max(1, found)
        return running, self._slots_for(running), binds

    def _running_by_slots(self) -> tuple[int, int, str]:
        """State slots decide: a number, a share of the arena, or all that the budget holds."""
        limits, unit = self.limits, self._slot_bytes()
        floor = self.floor_units()

        def holds(slots: int) -> bool:
            running = self._running_of(slots)
            share = limits.state_share
            if share is not None and (slots + 1) * unit > share * self.arena(running):
                return False
            pools = zip(self.plan.sub_pools, floor, strict=True)
            return self.fits(running, tuple(slots if pool.is_slots else units for pool, units in pools))

        cap = limits.state_slots or self.budget_bytes // unit
        slots = most(holds, cap)
        if slots < limits.slots_per_request or (limits.state_slots and slots < cap):
            name = "state_slots" if limits.state_slots else "state_share"
            asked = f"{name} = {getattr(limits, name)}"
            raise PlanError(
                f"{asked}: {slots} slots of {unit:,} B fit beside the sinks, one request's rows and the fixed terms "
                f"in a budget of {self.budget_bytes:,} B; lower it, or raise the budget"
            )
        running = self._running_of(slots)
        binds = "max_running" if running == limits.max_running else "state slots"
        return running, slots, binds

    def _slot_bytes(self) -> int:
        slots = self.plan.slots
        return slots.unit_bytes if slots else 0

    def _running_of(self, slots: int) -> int:
        running = max(1, slots // self.limits.slots_per_request)
        return min(running, self.limits.max_running or running)

    def _slots_for(self, running: int) -> int:
        return running * self.limits.slots_per_request if self.plan.slots else 0

    def _largest(self, per_request: tuple[int, ...]) -> str:
        sizes = [count * pool.unit_bytes for pool, count in zip(self.plan.sub_pools, per_request, strict=True)]
        return self.plan.sub_pools[sizes.index(max(sizes))].name

    def targets(self, arena_bytes: int, running: int, slots: int) -> tuple[int, ...]:
        """State slots as decided, then the most pages of the owner whose windows also fit."""

        def units(pages: int) -> tuple[int, ...]:
            return tuple(
                slots if pool.is_slots else pages if pool is self.primary else min(pages, running * count)
                for pool, count in zip(self.plan.sub_pools, self.per_request, strict=True)
            )

        primary = self.primary.unit_bytes if self.primary else 0
        limit = arena_bytes // primary if primary else 0
        return units(most(lambda pages: packs(self.plan, arena_bytes, units(pages)), limit))
