"""In scenario files: plan and size, for models and layers that no storage is opened for."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig, structure
from kvarena.assembly.loader import declared_layers
from kvarena.planning.charges import Limits
from kvarena.planning.demand import decode_peak_pages
from kvarena.planning.packing import ends
from kvarena.planning.plan import Plan, plan_storage
from kvarena.planning.sizing import Sizing, size_plan
from kvarena.plugins.models import read_model
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, layers_of
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.layers import Layer
from kvarena.terms.lifetimes import Window
from kvarena.terms.units import parse_bytes


class Drawing:
    """The planning verbs of one file."""

    def __init__(self, spec: ChainSpec, catalog: Catalog, source: str) -> None:
        self._spec = spec
        self._catalog = catalog
        self._source = source

    def plan(
        self,
        *,
        tp: int = 1,
        dtype: str = "",
        page_tokens: int = 0,
        owner: str = "any",
        model: str = "",
        layers: str = "all",
    ) -> dict[str, Any]:
        """What a plan is made of: names in chain order, the owner, and by sub-pool its bytes, layers and end."""
        planned = self._planned(tp, model, dtype=dtype, page_tokens=page_tokens, owner=owner, layers=layers)
        anchored = ends(planned)
        return {
            "names": list(planned.names),
            "owner": planned.owner or "",
            "sub_pools": {
                pool.name: {
                    "entry_bytes": int(pool.entry_bytes), "unit_bytes": pool.unit_bytes, "layers": len(pool.layers),
                    "end": anchored[pool.name].name if pool.name in anchored else "float",
                }
                for pool in planned.sub_pools
            },
        }  # fmt: skip

    def size(
        self, memory: int | str, *, model: str = "", tp: int = 1, state_slots: int = 0, slots_per_request: int = 1,
        scratch_slots_per_request: int = 0, context: int = 0, mirrors: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """What a budget gives; ``allocated_bytes``: of slots, pages and sinks, and beside them."""
        planned = self._planned(tp, model)
        limits = Limits(
            context_tokens=context or self._spec.context, state_slots=state_slots or None, mirrors=mirrors,
            slots_per_request=slots_per_request, scratch_slots_per_request=scratch_slots_per_request,
        )  # fmt: skip
        try:
            budget = parse_bytes(memory)
        except ValueError as error:
            raise ConfigError(f"size: memory: {error}") from None
        sizing = size_plan(planned, budget, limits)
        return {
            "units": dict(sizing.units), "tokens": sizing.tokens, "running": sizing.running,
            "state_slots": sizing.state_slots, "scratch_slots": sizing.scratch_slots,
            "arena_bytes": sizing.arena_bytes, "fixed_bytes": sizing.fixed_bytes,
            "allocated_bytes": _allocated(planned, sizing),
        }  # fmt: skip

    def peak(self, window: int, page_tokens: int = 0) -> int:
        """The most pages of a window, however long the request gets."""
        tokens = page_tokens or self._spec.page_tokens
        return decode_peak_pages(Window(window), tokens, 4 * (window + tokens))

    def _planned(
        self, tp: int, model: str, *, dtype: str = "", page_tokens: int = 0, owner: str = "any", layers: str = "all"
    ) -> Plan:
        chosen = _chosen(self._layers(tp, dtype, model), layers)
        return plan_storage(chosen, page_tokens=page_tokens or self._spec.page_tokens, owner=owner)

    def _layers(self, tp: int, dtype: str, model: str) -> Sequence[Layer]:
        models = self._spec.models
        if not models:
            return layers_of(self._spec, self._catalog, self._source)
        name = model or next(iter(models))
        if name not in models or (not model and len(models) > 1):
            raise ConfigError(f"there is no model {name!r} to plan by default; {nearest(name, models)}")
        table: Mapping[str, Any] = models[name]
        place = f"{self._source}: chain.models.{name}"
        if "layers" not in table:
            return read_model(dict(table), tp=tp, dtype=dtype or None, source=place, catalog=self._catalog).layers
        config = structure(StorageConfig, {"arena": {"memory": 1}, **table}, place)
        return declared_layers(config, self._catalog, place)


def _chosen(layers: Sequence[Layer], which: str) -> Sequence[Layer]:
    """All of them, those with a state alone, or backwards."""
    ways: Mapping[str, Sequence[Layer]] = {
        "all": layers,
        "recurrent": [layer for layer in layers if all(part.lifetime.own_ids for part in layer.parts)],
        "reversed": layers[::-1],
    }
    if which not in ways:
        raise ConfigError(f"layers: there is no choice {which!r}; {nearest(which, ways)}")
    return ways[which]


def _allocated(plan: Plan, sizing: Sizing) -> int:
    """The bytes of all slots and pages that were sized, of the sinks, and of what lies beside the arena."""
    slots = plan.slots
    units = sum(sizing.units[pool.name] * pool.unit_bytes for pool in plan.sub_pools)
    sinks = (slots.unit_bytes if slots else 0) + max((pool.unit_bytes for pool in plan.token_pools), default=0)
    return units + sinks + sizing.fixed_bytes
