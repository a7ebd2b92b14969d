"""The views by layer: what a runner of a model asks for, whichever sub-pool holds it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from kvarena.planning.plan import Plan


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
