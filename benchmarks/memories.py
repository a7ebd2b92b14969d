"""The four memories of ``goodput``: one arena, a split into fixed pools, one page size for all, and a clairvoyant.

Each has 60 GiB beside request rows and maps, and is a storage of kvarena's own with other settings, so that the loop,
admission, the prefix cache and its eviction are the same for all.
"""

from collections.abc import Mapping

import attrs

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import EXTRA_BUFFER_LAZY, ArenaConfig, PrefixConfig, StorageConfig
from kvarena.planning.plan import Plan, plan_storage
from kvarena.plugins.models.spec import ModelSpec
from kvarena.storage.storage import Storage
from kvarena.terms.units import ceil_div, parse_bytes

ARENA_BYTES = parse_bytes("60GiB")
RUNNING_MAX = 2048
PREFIX = PrefixConfig(share=True, strategy=EXTRA_BUFFER_LAZY, eviction="worth", cache_outputs=False)
CATALOG = Catalog.installed()


@attrs.frozen
class Memory:
    """One way to hold the bytes. ``extra_bytes``: what its sinks take, given on top."""

    name: str
    page_tokens: int | None = None
    unit_align: int = 1
    caps: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    extra_bytes: int = 0
    moves_take_time: bool = False

    def open(self, spec: ModelSpec, context_tokens: int) -> Storage:
        """A storage on the host backend: it counts bytes and holds none."""
        arena = ArenaConfig(
            memory=ARENA_BYTES + self.extra_bytes,
            page_tokens=self.page_tokens,
            unit_align=self.unit_align,
            context_tokens=context_tokens,
            max_running=RUNNING_MAX,
            mirrors=False,
            forwards_in_flight=1,
            caps=self.caps,
        )
        return build_storage(spec.layers, StorageConfig(arena=arena, prefix=PREFIX, backend="host"), CATALOG)


KVARENA = Memory("kvarena", moves_take_time=True)


def clairvoyant(spec: ModelSpec) -> Memory:
    """Pages of one token, moves that take no time, and the sinks on top."""
    plan = plan_storage(spec.layers, page_tokens=1)
    return Memory("clairvoyant", page_tokens=1, extra_bytes=2 * sum(pool.unit_bytes for pool in plan.sub_pools))


def one_page(plan: Plan) -> Memory:
    """Every unit a multiple of one page, as vLLM plans hybrid models whose token layers are alike.

    Layers form groups of the fewest layers of any kind. A page holds a group's tokens, and as many of them as it takes
    to hold the states of a group too; what is smaller is padded. Nothing needs to move: every place serves every kind.
    """
    group = min(len(pool.layers) for pool in plan.sub_pools)
    widths = {pool.entry_bytes / len(pool.layers) for pool in plan.token_pools}
    if len(widths) > 1 or any(len(pool.layers) % group for pool in plan.token_pools):
        raise ValueError(f"{', '.join(plan.names)}: token layers that differ are not planned here")
    width, tokens = int(widths.pop()), plan.page_tokens
    if plan.slots is not None:
        tokens *= ceil_div(ceil_div(plan.slots.unit_bytes, len(plan.slots.layers)), width * tokens)
    return Memory("one page size", page_tokens=tokens, unit_align=tokens * width * group)


def split(plan: Plan, share: float) -> Memory:
    """Two pools of fixed sizes: this share of the bytes for the first kind, the rest for the other."""
    first, second = plan.sub_pools
    usable = ARENA_BYTES - first.unit_bytes - 3 * second.unit_bytes  # the sinks, and what alignment costs
    units = max(1, round(share * usable / first.unit_bytes))
    rest = (usable - units * first.unit_bytes) // second.unit_bytes
    return Memory(f"static split, {100 * share:.3g} % {first.name}", caps={first.name: units, second.name: rest})
