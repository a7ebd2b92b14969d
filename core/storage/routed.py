"""The views by layer: what a runner of a model asks for, whichever sub-pool holds it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import attrs

from kvarena.planning.plan import Plan
from kvarena.planning.sizing import Sizing
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.ports import Device


@attrs.frozen(eq=False)
class PartView:
    """One part of one layer: the sub-pool whose ids index it, and its fields as typed views.

    Each view has shape (pages, entries per page, *field shape) over the whole arena.
    """

    pool: str
    fields: Mapping[str, Any]


class Routed(Mapping[int, Mapping[str, PartView]]):
    """``routed[layer][role]`` is a part's view. A layer that shares another's memory has that layer's parts."""

    def __init__(self, plan: Plan, views: Callable[[str], Mapping[tuple[int, str, str], Any]]) -> None:
        """Ask for the views of every sub-pool with bytes, once."""
        fields: dict[int, dict[str, tuple[str, dict[str, Any]]]] = {}
        for pool in plan.sub_pools:
            for (layer, role, field), view in (views(pool.name) if pool.unit_bytes else {}).items():
                fields.setdefault(layer, {}).setdefault(role, (pool.name, {}))[1][field] = view
        self._parts = {
            layer: {role: PartView(*found) for role, found in sorted(roles.items())}
            for layer, roles in sorted(fields.items())
        }
        for layer, shared in plan.shared_layers:
            self._parts[layer] = self._parts[shared]

    def __getitem__(self, layer: int) -> Mapping[str, PartView]:
        return self._parts[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class Viewed(Protocol):
    """What views are of: a ``Storage`` is one."""

    plan: Plan
    sizing: Sizing
    device: Device


def views_of(storage: Viewed, name: str) -> Mapping[tuple[int, str, str], Any]:
    """Typed views of a sub-pool over the whole arena, by (layer, role, field).

    Each has shape (pages, entries per page, *field shape) and is indexed with physical pages.

    Raises:
        KvarenaError: no such sub-pool, or the device holds no bytes.
    """
    if name not in storage.plan.names:
        raise KvarenaError(f"there is no sub-pool {name!r}; {nearest(name, storage.plan.names)}")
    pool = storage.plan[name]
    pages = storage.sizing.arena_bytes // pool.unit_bytes if pool.unit_bytes else 0
    return {key: storage.device.view(field) for key, field in pool.views(pages).items()}
