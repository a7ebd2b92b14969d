"""The terms of one byte budget, and the questions that sizing asks of them. Every answer is exact and monotone."""

from collections.abc import Callable

import attrs

from kvarena.planning.demand import check_grid, decode_demand
from kvarena.planning.mirroring import ID_BYTES, mirror_shape
from kvarena.planning.packing import check_countable, packs
from kvarena.planning.plan import Plan
from kvarena.terms.errors import PlanError
from kvarena.terms.units import ceil_div, format_bytes

DEFAULT_CONTEXT_TOKENS = 32768
ROW_COLUMNS = 16
"""Numbers that the request table keeps for a row, beside its pages, its slots and one number per sub-pool."""


@attrs.frozen
class Limits:
    """What the user fixes of a sizing; None leaves a term to be solved.

    ``context_tokens``: the longest sequence a row can hold, and the length that concurrency is counted at.
    ``slots_per_request``: state slots of a running request (2 where checkpoints are tracked in a spare).
    ``spare_slots``: places for more slots that a row has and nobody is charged for (checkpoints tracked lazily).
    ``grid``: tokens between the checkpoints of a prefix cache, a multiple of the page size, which windows are kept
    for; None where nothing is shared or no state is kept.
    ``scratch_slots_per_request``: state slots outside the arena for drafts, one set more than requests run.
    ``row_bytes``: request-scoped device memory that plugins register. ``mirrors``: charge the device's
    copies of the id maps and request rows; a device without bytes has none. ``in_flight``: the most forwards that are
    launched and not processed, each of which has an update of the mirrors staged.
    """

    context_tokens: int = attrs.field(default=DEFAULT_CONTEXT_TOKENS, validator=attrs.validators.ge(1))
    max_running: int | None = None
    state_slots: int | None = None
    state_share: float | None = None
    slots_per_request: int = 1
    scratch_slots_per_request: int = 0
    row_bytes: int = 0
    mirrors: bool = True
    in_flight: int = 0
    grid: int | None = None
    spare_slots: int = 0

    @property
    def slot_places(self) -> int:
        """The places for slots that a request row has."""
        return self.slots_per_request + self.spare_slots


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


class Charges:
    """A plan, its bytes and the limits that the user fixed: what so many requests cost, and whether they fit.

    ``per_request``: the units that one request of the context length holds, in chain order. ``primary``: the
    token sub-pool that gets what the others leave; None where nothing is kept per token.
    """

    def __init__(self, plan: Plan, budget_bytes: int, limits: Limits) -> None:
        """Raises:
        PlanError: the checkpoint grid is no multiple of the page size.
        """
        check_grid(limits.grid, plan.page_tokens)
        self.plan = plan
        self.budget_bytes = budget_bytes
        self.limits = limits
        self.row_pages = ceil_div(limits.context_tokens, plan.page_tokens)
        self.per_request = decode_demand(
            plan, limits.context_tokens, slots_per_request=limits.slots_per_request, grid=limits.grid
        )
        self.primary = plan.primary

    # -- terms

    def scratch_slots(self, running: int) -> int:
        """Draft scratch: one set of slots per running request, and one for the padding row."""
        per_request = self.limits.scratch_slots_per_request
        return (running + 1) * per_request if per_request and self.plan.slots else 0

    def fixed(self, running: int, arena_bytes: int) -> dict[str, int]:
        """The bytes beside the arena when so many requests run and the arena is so large."""
        slots, limits = self.plan.slots, self.limits
        shape = mirror_shape(
            self.plan, arena_bytes=arena_bytes, running=running, row_pages=self.row_pages,
            slots_per_request=limits.slot_places, in_flight=limits.in_flight,
        )  # fmt: skip
        mirrors = ID_BYTES if limits.mirrors else 0
        return {
            "request rows": shape.row_entries * mirrors,
            "id maps": shape.map_entries * mirrors,
            "map updates": shape.staging_bytes if limits.mirrors else 0,
            "draft scratch": self.scratch_slots(running) * (slots.unit_bytes if slots else 0),
            "request state": shape.rows * limits.row_bytes,
        }

    def arena(self, running: int) -> int:
        """The largest arena that leaves room for the fixed terms of so many running requests; 0 if none."""
        return most(
            lambda arena: arena + sum(self.fixed(running, arena).values()) <= self.budget_bytes, self.budget_bytes
        )

    def host_bytes(self, running: int, arena_bytes: int) -> int:
        """Host bookkeeping: two maps of 8 bytes and the holes per page, the ids to mint, and the request table.

        A hole order that keeps more than two bytes a page takes that in addition.
        """
        ids = self.plan.owner_ids(arena_bytes)
        columns = ROW_COLUMNS + len(self.plan.sub_pools)
        total = running * (self.row_pages + self.limits.slot_places + columns) * 8
        for pool in self.plan.sub_pools:
            pages = arena_bytes // pool.unit_bytes if pool.unit_bytes else ids
            minted = (pages if pool.is_slots else ids) if pool.is_slots or pool.name == self.plan.owner else 0
            total += pages * 10 + (pages if pool.is_slots else ids) * 8 + minted * 10
        return total

    def largest(self, per_request: tuple[int, ...]) -> str:
        """The sub-pool that takes the most bytes of one request."""
        sizes = [count * pool.unit_bytes for pool, count in zip(self.plan.sub_pools, per_request, strict=True)]
        return self.plan.sub_pools[sizes.index(max(sizes))].name

    # -- questions

    def needs(self, requests: int) -> tuple[int, ...]:
        """Units of so many requests at the context length, their slots included."""
        return tuple(requests * count for count in self.per_request)

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

    def running_of(self, slots: int) -> int:
        """How many requests so many state slots serve: at least one, at most those that may run."""
        running = max(1, slots // self.limits.slots_per_request)
        return min(running, self.limits.max_running or running)

    def slots_for(self, running: int) -> int:
        """The state slots of so many running requests."""
        return running * self.limits.slots_per_request if self.plan.slots else 0


def check_limits(charges: Charges) -> None:
    """Limits that contradict each other or the plan are refused before anything is solved."""
    limits = charges.limits
    for name in ("max_running", "state_slots", "slots_per_request"):
        value = getattr(limits, name)
        if value is not None and value < 1:
            raise PlanError(f"{name} = {value}: it must be at least 1", setting=name)
    if limits.spare_slots < 0:
        raise PlanError(f"spare_slots = {limits.spare_slots}: it must be at least 0")
    if limits.state_share is not None and not 0 < limits.state_share < 1:
        finding = f"state_share = {limits.state_share}: it is a share of the arena, between 0 and 1"
        raise PlanError(finding, setting="state_share")
    if limits.state_slots is not None and limits.state_share is not None:
        raise PlanError("state_slots and state_share both fix the state slots; give one of them", setting="state_slots")
    if limits.state_slots is not None and limits.state_slots < limits.slots_per_request:
        raise PlanError(
            f"state_slots = {limits.state_slots} is less than the {limits.slots_per_request} slots of one request",
            setting="state_slots",
        )
    if not charges.plan.slots and (limits.state_slots or limits.state_share):
        setting = "state_slots" if limits.state_slots else "state_share"
        raise PlanError(
            "the model has no state layers, so state_slots and state_share mean nothing; remove them", setting=setting
        )


def check_floor(charges: Charges) -> None:
    """A budget that cannot hold one request is refused, term by term."""
    units = charges.floor_units()
    if charges.fits(1, units):
        return
    for pool, count in zip(charges.plan.sub_pools, units, strict=True):
        if pool.cap is not None and count > pool.cap:
            raise PlanError(
                f"caps: one request holds {count:,} units of {pool.name!r} at once; its cap is {pool.cap:,}, raise it",
                setting="caps",
            )
    terms = {**charges.fixed(1, charges.arena(1)), **_sinks(charges.plan)}
    for pool, count in zip(charges.plan.sub_pools, units, strict=True):
        terms[f"{pool.name}: {count} x {pool.unit_bytes:,} B"] = count * pool.unit_bytes
    listed = "\n".join(f"  {name}: {size:,} B" for name, size in terms.items() if size)
    raise PlanError(
        f"a budget of {charges.budget_bytes:,} B ({format_bytes(charges.budget_bytes)}) cannot hold one request; "
        f"it needs, beside alignment, {sum(terms.values()):,} B:\n{listed}\n"
        "give it more memory, or lower context_tokens",
        setting="memory",
    )


def check_pages(charges: Charges, arena_bytes: int) -> None:
    """Ids are int32 on the device: no sub-pool may have more pages than that can count."""
    for pool in charges.plan.sub_pools:
        pages = arena_bytes // pool.unit_bytes if pool.unit_bytes else charges.plan.owner_ids(arena_bytes)
        check_countable(pool, pages)


def _sinks(plan: Plan) -> dict[str, int]:
    sinks = {f"{pool.name} sink": pool.unit_bytes for pool in plan.sub_pools if pool.is_slots}
    tokens = max((pool.unit_bytes for pool in plan.token_pools), default=0)
    return {**sinks, "token sink": tokens}
