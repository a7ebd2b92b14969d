"""From layers to sub-pools: which parts live together, how their bytes lie in a unit, and in what order.

1. Parts with one lifetime form one *sub-pool*; its unit is a page of tokens, or a slot per request.
2. Each part's fields become *placements* inside the unit: offset, rows, type and shape.
3. The sub-pools are put in chain order by the rank of their lifetime, and an owner of ids is chosen.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import attrs

from kvarena.planning.declared import declared_fields
from kvarena.planning.probing import check_lifetime
from kvarena.terms.errors import PlanError, nearest
from kvarena.terms.fields import Field, zeroes_on_take
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import WINDOW_RANK, Lifetime, Union, common_multiple, outlives
from kvarena.terms.ports import FieldView
from kvarena.terms.ranges import spelled
from kvarena.terms.units import PAGE_TOKENS_MAX, align_up

DEFAULT_PAGE_TOKENS = 16


@attrs.frozen
class Placed:
    """One field of one part of one layer, at its place in every unit of the sub-pool.

    ``rows`` entries follow each other from ``offset_bytes``; 1 for a slot.
    """

    layer: int
    role: str
    field: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    offset_bytes: int
    bytes: int


@attrs.frozen
class SubPool:
    """One kind of memory: all parts of one lifetime, stored unit by unit.

    ``entry_bytes`` is what a token (or a request, for a slot) costs in layer fields alone, as an exact
    fraction where a part keeps one entry per k tokens; ``unit_bytes`` is what a unit really spans. ``cap``: the
    most units that may be live at once; None where the arena alone limits them. ``checkpoint_intervals``: where its
    parts may be copied for a prefix cache, as far as their lifetimes say, each once and rising.
    """

    name: str
    lifetime: Lifetime
    page_tokens: int | None
    placed: tuple[Placed, ...]
    entry_bytes: Fraction
    unit_bytes: int
    zero_on_take: bool
    draft: bool = False
    cap: int | None = None
    checkpoint_intervals: tuple[int, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The indices of the layers that keep something here, in order."""
        return tuple(dict.fromkeys(placed.layer for placed in self.placed))

    @property
    def is_slots(self) -> bool:
        """Whether a unit is a slot per request, with ids of its own, instead of a page of tokens."""
        return self.page_tokens is None

    @property
    def unpadded_bytes(self) -> int:
        """The bytes of a unit's fields without alignment."""
        return int(self.entry_bytes * (self.page_tokens or 1))

    def views(self, pages: int) -> dict[tuple[int, str, str], FieldView]:
        """For each (layer, role, field) the view over ``pages`` units of the arena."""
        return {
            (placed.layer, placed.role, placed.field): FieldView(
                placed.dtype, placed.shape, placed.rows, placed.offset_bytes, self.unit_bytes, pages
            )
            for placed in self.placed
        }


@attrs.frozen
class Plan:
    """The sub-pools in chain order (first: grows up from byte 0; last: grows down from the top).

    ``owner`` names the token sub-pool that mints virtual page ids; None where no part is per token.
    ``tree_slots`` is the order in which a prefix tree keeps one slot per sub-pool.
    """

    sub_pools: tuple[SubPool, ...]
    page_tokens: int
    owner: str | None
    tree_slots: tuple[str, ...]
    shared_layers: tuple[tuple[int, int], ...] = ()

    def __getitem__(self, name: str) -> SubPool:
        for sub_pool in self.sub_pools:
            if sub_pool.name == name:
                return sub_pool
        raise KeyError(name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The sub-pools' names in chain order."""
        return tuple(sub_pool.name for sub_pool in self.sub_pools)

    @cached_property
    def slots(self) -> SubPool | None:
        """The sub-pool with a slot per request, if the model has any state."""
        return next((sub_pool for sub_pool in self.sub_pools if sub_pool.is_slots), None)

    @cached_property
    def token_pools(self) -> tuple[SubPool, ...]:
        """The sub-pools whose units are pages of tokens."""
        return tuple(sub_pool for sub_pool in self.sub_pools if not sub_pool.is_slots)

    @cached_property
    def primary(self) -> SubPool | None:
        """The kind whose tokens are counted: the owner of ids, or the longest-lived one with bytes."""
        backed = [pool for pool in self.token_pools if pool.unit_bytes]
        return next((pool for pool in backed if pool.name == self.owner), backed[-1] if backed else None)

    def owner_ids(self, arena_bytes: int) -> int:
        """How many virtual page ids the owner can ever mint in an arena: what every map is sized by."""
        if self.owner is None:
            return 0
        owner = self[self.owner]
        if owner.unit_bytes:
            return arena_bytes // owner.unit_bytes
        return sum(arena_bytes // pool.unit_bytes for pool in self.token_pools if pool.unit_bytes)


def plan_storage(
    layers: Sequence[Layer],
    *,
    page_tokens: int | None = None,
    unit_align: int = 1,
    owner: str = "any",
    draft: Sequence[Layer] = (),
) -> Plan:
    """Plan the sub-pools for a model's layers, and for a draft model's that share its arena.

    ``page_tokens`` is the page size of every token sub-pool; None takes 16, raised to the least multiple
    that every rate of one entry per k tokens divides. ``unit_align`` pads units to a multiple of so many
    bytes as well as of their widest item. ``owner="required"`` refuses a model without full attention.

    Raises:
        PlanError: naming the layers: nothing to keep, a part declared twice with two geometries, a page
            size that a rate does not divide, a missing owner, a recurrent draft without a place, two
            lifetimes of one name, slots of two lifetimes.
    """
    if unit_align < 1:
        finding = f"unit_align = {unit_align}: units are padded to a whole number of bytes, at least 1"
        raise PlanError(finding, setting="unit_align")
    _check_layers([*layers, *draft])
    _check_draft(layers, draft)
    tokens = _page_size([*layers, *draft], page_tokens)
    groups = _grouped([*layers, *draft])
    _check_lifetimes(groups, tokens)
    targets = _grouped(layers)
    pools = [_sub_pool(parts, tokens, unit_align, draft=name not in targets) for name, parts in groups.items()]
    if not pools:
        raise PlanError("none of the layers keeps any memory; declare at least one part")
    pools.sort(key=lambda pool: (pool.lifetime.rank, pool.name))
    mint = _owner(pools, tokens, required=owner == "required", layers=layers)
    if mint is not None and mint not in pools:
        pools.append(mint)
    return Plan(
        sub_pools=tuple(pools),
        page_tokens=tokens,
        owner=mint.name if mint else None,
        tree_slots=_tree_slots(pools),
        shared_layers=tuple((layer.index, layer.shares) for layer in layers if layer.shares is not None),
    )


def capped(plan: Plan, caps: Mapping[str, int]) -> Plan:
    """The plan with at most so many units of these sub-pools live at once, by name; the others keep what they have.

    Raises:
        PlanError: there is no such sub-pool, or it has no bytes.
    """
    for name in caps:
        if name not in plan.names:
            raise PlanError(f"caps: the plan has no sub-pool {name!r}; {nearest(name, plan.names)}", setting="caps")
        if not plan[name].unit_bytes:
            raise PlanError(
                f"caps: sub-pool {name!r} only mints ids and has no bytes; cap those that have", setting="caps"
            )
    pools = tuple(attrs.evolve(pool, cap=caps.get(pool.name, pool.cap)) for pool in plan.sub_pools)
    return attrs.evolve(plan, sub_pools=pools) if caps else plan


def _check_layers(layers: Sequence[Layer]) -> None:
    """Each part of a layer is declared once, and a shared layer exists and owns something."""
    owned: dict[tuple[int, str], Part] = {}
    for layer in layers:
        for part in layer.parts:
            known = owned.get((layer.index, part.role))
            if known is not None:
                raise PlanError(_declared_twice(layer.index, known, part))
            if part.lifetime.own_ids and part.tokens_per_entry > 1:
                raise PlanError(
                    f"layer {layer.index}: its part {part.role!r} is a slot per request and cannot keep one entry "
                    f"per {part.tokens_per_entry} tokens; leave tokens_per_entry at 1"
                )
            owned[layer.index, part.role] = part
    owners = {index for index, _ in owned}
    for layer in layers:
        if layer.shares is not None and layer.shares not in owners:
            raise PlanError(f"layer {layer.index} shares the memory of layer {layer.shares}, which owns none")


def _declared_twice(index: int, known: Part, part: Part) -> str:
    if known.layout == part.layout:
        return (
            f"layer {index}: its part {part.role!r} is declared twice; give each part of a layer a role of its own, "
            "and number a draft model's layers after the target's"
        )
    return (
        f"layer {index}: its part {part.role!r} is declared with two geometries, "
        f"{known.layout.name} and {part.layout.name}; give each part of a layer one"
    )


def _check_draft(layers: Sequence[Layer], draft: Sequence[Layer]) -> None:
    """A recurrent draft lives in the target's state slots, and only where checkpoints can roll it back."""
    recurrent = [layer.index for layer in draft for part in layer.parts if part.lifetime.own_ids]
    if not recurrent:
        return
    states = [part.lifetime for layer in layers for part in layer.parts if part.lifetime.own_ids]
    if not any(getattr(state, "checkpoint_interval", None) for state in states):
        raise PlanError(
            f"draft layers {spelled(recurrent)} are recurrent: they need a target with state layers and a "
            "checkpoint_interval, so that rejected tokens can be rolled back"
        )


def _page_size(layers: Sequence[Layer], asked: int | None) -> int:
    rates = {part.tokens_per_entry for layer in layers for part in layer.parts}
    multiple = common_multiple(rates)
    if multiple > PAGE_TOKENS_MAX:
        raise PlanError(f"the tokens per entry {sorted(rates)} meet in no page of at most {PAGE_TOKENS_MAX:,} tokens")
    if asked is None:
        return align_up(DEFAULT_PAGE_TOKENS, multiple)
    if not isinstance(asked, int) or not 1 <= asked <= PAGE_TOKENS_MAX:
        raise PlanError(
            f"page size {asked!r}: a page holds a whole number of tokens, at least 1 and at most {PAGE_TOKENS_MAX:,}",
            setting="page_tokens",
        )
    torn = {layer.index for layer in layers for part in layer.parts if asked % part.tokens_per_entry}
    if torn:
        raise PlanError(
            f"page size {asked} is no multiple of the tokens per entry of layers {spelled(sorted(torn))}; "
            f"use a multiple of {multiple}",
            setting="page_tokens",
        )
    return asked


def _grouped(layers: Iterable[Layer]) -> dict[str, list[tuple[int, Part]]]:
    """Parts by the name of their lifetime, which is the name of their sub-pool, in layer order."""
    groups: dict[str, list[tuple[int, Part]]] = {}
    for layer in layers:
        for part in layer.parts:
            groups.setdefault(part.lifetime.name, []).append((layer.index, part))
    return groups


def _check_lifetimes(groups: Mapping[str, list[tuple[int, Part]]], tokens: int) -> None:
    """One name stands for one lifetime, and a request's slots lie in one sub-pool: it has ids for no second."""
    for name, parts in groups.items():
        for _, part in parts:
            check_lifetime(part.lifetime, tokens)
        kinds = list(dict.fromkeys(part.lifetime for _, part in parts if not part.lifetime.own_ids))
        if len(kinds) > 1:
            torn = spelled([index for index, part in parts if part.lifetime != kinds[0]])
            raise PlanError(f"layers {torn}: their lifetime {kinds[1]} has the name {name!r} of {kinds[0]}; rename one")
    slots = {name: parts for name, parts in groups.items() if parts[0][1].lifetime.own_ids}
    if len(slots) > 1:
        raise PlanError(
            f"layers {spelled([index for parts in slots.values() for index, _ in parts])} keep slots of the lifetimes "
            f"{', '.join(map(repr, slots))}: a request has slots of one; give these parts one lifetime"
        )


def _sub_pool(parts: list[tuple[int, Part]], tokens: int, unit_align: int, *, draft: bool) -> SubPool:
    """Lay the parts out in one unit, each field aligned to its items, the unit to its widest item."""
    lifetime = parts[0][1].lifetime
    page_tokens = None if lifetime.own_ids else tokens
    placed: list[Placed] = []
    entry_bytes = Fraction(0)
    known: dict[int, tuple[Field, ...]] = {}
    intervals = [getattr(part.lifetime, "checkpoint_interval", None) for _, part in parts]
    offset, widest = 0, 1
    for index, part in parts:
        rows = (page_tokens or 1) // part.tokens_per_entry
        if id(part.layout) not in known:
            known[id(part.layout)] = declared_fields(part.layout)
        for field in known[id(part.layout)]:
            offset = align_up(offset, field.item_bytes)
            size = rows * field.bytes
            placed.append(Placed(index, part.role, field.name, field.dtype, field.shape, rows, offset, size))
            offset += size
            widest = max(widest, field.item_bytes)
            entry_bytes += Fraction(field.bytes, part.tokens_per_entry)
    return SubPool(
        name=lifetime.name,
        lifetime=lifetime,
        page_tokens=page_tokens,
        placed=tuple(placed),
        entry_bytes=entry_bytes,
        unit_bytes=align_up(offset, math.lcm(widest, unit_align)),
        zero_on_take=any(zeroes_on_take(part.layout) for _, part in parts),
        draft=draft,
        checkpoint_intervals=tuple(sorted(set(filter(None, intervals)))),
    )


def _owner(pools: list[SubPool], tokens: int, *, required: bool, layers: Sequence[Layer]) -> SubPool | None:
    """The token sub-pool that outlives all others mints the ids; failing one, a new one without bytes."""
    candidates = [pool for pool in pools if not pool.is_slots]
    if required and not any(pool.lifetime.name == "full" for pool in candidates):
        raise PlanError(
            f"no full-attention layer owns the virtual ids among layers {spelled([layer.index for layer in layers])} "
            '(owner = "required"); add one, or leave owner = "any" so that another sub-pool mints them',
            setting="owner",
        )
    for pool in reversed(candidates):
        others = [other.lifetime for other in candidates if other is not pool]
        if all(outlives(pool.lifetime, other) for other in others):
            return pool
    if not candidates:
        return None
    union = Union(tuple(pool.lifetime for pool in candidates))
    return SubPool(union.name, union, tokens, (), Fraction(0), 0, zero_on_take=False)


def _tree_slots(pools: Sequence[SubPool]) -> tuple[str, ...]:
    """Full, the target's primary (longest) window, the remaining windows from the longest, then state."""
    full = [pool.name for pool in pools if not pool.is_slots and pool.lifetime.rank[0] > WINDOW_RANK]
    windows = [pool for pool in pools if not pool.is_slots and pool.lifetime.rank[0] == WINDOW_RANK]
    windows.sort(key=lambda pool: pool.lifetime.rank)
    primary = next((pool for pool in windows if not pool.draft), None)
    ordered = [pool.name for pool in windows if pool is not primary]
    slots = [pool.name for pool in pools if pool.is_slots]
    return tuple(full + ([primary.name] if primary else []) + ordered + slots)
