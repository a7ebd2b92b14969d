"""What one seed stands for: a chain, its policies, how work lands, and how often each thing happens.

Each seed draws its own weights, some of them zero (swarm testing), so that runs differ in what they do and not only in
the numbers that they do it with.
"""

import functools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from kvarena.assembly.arena import limits_of, plan_arena
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, PluginsConfig, SettingError, StorageConfig, at_least, structure
from kvarena.assembly.loader import declared_layers
from kvarena.planning.demand import RequestShape, request_demand
from kvarena.planning.sizing import least_budget

ACTIONS: Mapping[str, float] = {
    "start": 6.0,
    "advance": 20.0,
    "finish": 3.0,
    "abort": 1.0,
    "retract": 1.0,
    "free": 0.5,
    "process": 12.0,
    "flush": 6.0,
    "draft": 3.0,
    "commit": 3.0,
    "cache": 2.0,
    "evict": 2.0,
    "backup": 4.0,
    "load": 4.0,
    "name": 1.0,
    "submit": 4.0,
    "end": 2.0,
    "cancel": 0.4,
    "copy_state": 2.0,
    "checkpoint": 2.0,
    "send": 2.0,
    "receive": 2.0,
    "publish": 3.0,
    "peer_write": 3.0,
    "release": 3.0,
    "relief": 1.5,
    "ask": 1.0,
    "turn": 5.0,
}
"""What may happen, and how often where a seed changes nothing."""

SHARING: Mapping[str, float] = {
    "begin": 12.0,
    "twin": 4.0,
    "offer": 10.0,
    "insert": 6.0,
    "narrow": 3.0,
    "relax": 3.0,
    "shed": 3.0,
}
"""What may happen beside it where requests share prefixes."""

NEEDED = frozenset({"start", "advance", "finish", "process"})
"""Without these nothing else has anything to work on."""

WINDOWS = (2, 3, 4, 6, 8, 12, 20)
TIMINGS = ("random", "early", "late")
GRAINS = (2, 4, 8, 8, 8, 16, 16)
"""Every unit of a world is a whole number of so many bytes: the fewer, the more borders do not meet."""

PAGE_TOKENS = (1, 1, 2, 2, 4, 8)
COMPACTIONS: tuple[Any, ...] = (
    "eager",
    "eager",
    {"name": "lazy", "max_moves": 1},
    {"name": "lazy", "max_moves": 3},
    "lazy",
    "none",
)
HOLES: tuple[Any, ...] = (
    "nearest",
    "recent",
    {"name": "nearest", "recent_max": 0},
    {"name": "nearest", "recent_max": 2},
)
STRATEGIES = ("extra_buffer", "extra_buffer", "extra_buffer_lazy", "extra_buffer_lazy", "no_buffer")
EVICTIONS: tuple[Any, ...] = ("lru", "lru", "lfu", "worth", {"name": "lru", "splits": False}, "priority")
SHARING_SEED = 1 << 40
SHARING_SHARE = 0.4
"""So often requests share prefixes in a world."""


def _as_tuple(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(words)


@attrs.frozen(kw_only=True)
class World:
    """One run's circumstances. ``storage``: the sections of a storage's config file; ``weights``: per action.

    ``timings``: how work lands on the two ranks. ``pressure``: how often sizes are drawn large, ``patience``: how long
    the engines, copies and results of the outside world let others wait, ``misuse``: how often somebody tries what is
    refused by name; each 0 to 1. ``waits_for_engines``: whether the host can wait for transfers when all else fails.
    ``verify_every``: operations between two looks at every sum and map.
    """

    seed: int = attrs.field(validator=at_least(0, 1 << 62))
    storage: Mapping[str, Any]
    weights: Mapping[str, float] = attrs.field()
    timings: tuple[str, ...] = attrs.field(default=("random", "late"), converter=_as_tuple)
    pressure: float = attrs.field(default=0.3, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    patience: float = attrs.field(default=0.5, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    misuse: float = attrs.field(default=0.02, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    waits_for_engines: bool = True
    prompt_max: int = attrs.field(default=8, validator=at_least(1, 1 << 20))
    verify_every: int = attrs.field(default=40, validator=at_least(1, 1 << 20))

    @weights.validator
    def _weights_are_known(self, attribute: "attrs.Attribute[Any]", value: Mapping[str, float]) -> None:
        known = {**ACTIONS, **SHARING}
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise SettingError("weights", f"no action is named {unknown[0]!r}; choose from: {', '.join(known)}")

    @timings.validator
    def _timings_are_known(self, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
        if len(value) != 2 or not set(value) <= set(TIMINGS):
            raise SettingError("timings", f"two of {', '.join(TIMINGS)}, one for each rank; not {value!r}")

    def config(self, source: str = "storage") -> StorageConfig:
        """The storage's config.

        Raises:
            ConfigError: a section says something impossible, with its place.
        """
        return structure(StorageConfig, dict(self.storage), source)

    @property
    def in_flight(self) -> int:
        """The most forwards that are launched and not processed."""
        return int(self.storage["arena"].get("forwards_in_flight", 0))


@attrs.frozen(kw_only=True)
class Wanted:
    """What a drawn world must have; the rest of it is drawn. Empty: nothing in particular.

    ``layers``: the ``[[layers]]`` of its chain. ``policies``: of these settings of ``[policies]``. ``prefix``: requests
    share prefixes, with these settings of ``[prefix]``; None leaves it to the seed. ``context_tokens``: at least so
    many for a request. ``overlaps``: false where no forward may be in flight, as on a device without streams.
    """

    layers: tuple[Mapping[str, Any], ...] = ()
    policies: Mapping[str, Any] = attrs.field(factory=dict)
    prefix: Mapping[str, Any] | None = None
    context_tokens: int = 0
    overlaps: bool = True


ANYTHING = Wanted()


@functools.cache
def installed() -> Catalog:
    """The catalog of this process: metadata is read once."""
    return Catalog.installed()


def catalog_under(plugins: PluginsConfig) -> Catalog:
    """The catalog of this process under the ``[plugins]`` of a file.

    Raises:
        ConfigError: ``[plugins]`` names what is not there.
    """
    return installed() if plugins == PluginsConfig() else installed().under(plugins)


def draw_world(
    seed: int,
    storage: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    *,
    wanted: Wanted = ANYTHING,
) -> World:
    """The world of a seed. ``storage``: the sections of a user's own config, kept as they are; else ``wanted`` says
    what the drawn ones must have.

    Raises:
        KvarenaError: what is wanted cannot be planned, or a plugin of it is broken.
    """
    rng, apart = random.Random(seed), random.Random(seed + SHARING_SEED)
    drawn = _draw_storage(rng, apart, catalog or installed(), wanted) if storage is None else storage
    shares = bool(drawn.get("prefix", {}).get("share"))
    page_tokens = int(drawn["arena"].get("page_tokens") or 16)
    first = rng.choice(TIMINGS)
    return World(
        seed=seed,
        storage=drawn,
        weights=_draw_weights(rng, ACTIONS) | (_draw_weights(apart, SHARING) if shares else {}),
        timings=(first, rng.choice([timing for timing in TIMINGS if timing != first or timing == "random"])),
        pressure=round(rng.random() ** 2, 3),
        patience=round(rng.random(), 3),
        waits_for_engines=rng.random() < 0.7,
        prompt_max=page_tokens * rng.randint(1, 5),
        verify_every=rng.choice((20, 40, 80)),
    )


def _draw_weights(rng: random.Random, actions: Mapping[str, float]) -> dict[str, float]:
    """Some actions never happen, the others more or less often than usual."""
    silent = rng.choice((0.0, 0.1, 0.25, 0.4))
    return {
        name: 0.0 if name not in NEEDED and rng.random() < silent else round(base * math.exp(rng.uniform(-1.2, 1.2)), 3)
        for name, base in actions.items()
    }


def _draw_storage(rng: random.Random, apart: random.Random, catalog: Catalog, wanted: Wanted) -> dict[str, Any]:
    """A chain of two to five bands with units of mixed sizes, on an arena that holds a few requests.

    ``apart`` draws what only a world has in which requests share prefixes.
    """
    page_tokens = rng.choice(PAGE_TOKENS)
    running = rng.randint(3, 8)
    context = page_tokens * max(rng.randint(4, 10), -(-wanted.context_tokens // page_tokens))
    layers = _draw_layers(rng, rng.choice(GRAINS)) if not wanted.layers else list(wanted.layers)
    has_state = any(layer["lifetime"] == "state" for layer in layers)
    arena: dict[str, Any] = {
        "page_tokens": page_tokens,
        "context_tokens": context,
        "max_running": running,
        "mirrors": rng.random() < 0.6,
        "forwards_in_flight": rng.choice((0, 1, 1, 1, 2, 2, 3)),
    }
    if not wanted.overlaps:
        arena["forwards_in_flight"] = 0
    if has_state:
        arena["slots_per_request"] = rng.choice((1, 1, 2))
        arena["state_slots"] = running * arena["slots_per_request"]
    drawn: dict[str, Any] = {
        "arena": arena,
        "layers": layers,
        "policies": {"holes": rng.choice(HOLES), "compaction": rng.choice(COMPACTIONS), **wanted.policies},
        "checks": {"level": rng.choice((1, 1, 2))},
    }
    if apart.random() < SHARING_SHARE or wanted.prefix is not None:
        arena.pop("slots_per_request", None)
        arena["context_tokens"] = context = 2 * context
        drawn["prefix"] = _draw_prefix(apart, page_tokens) | dict(wanted.prefix or {})
        drawn["layers"] = _narrower(apart, layers, context // 4)
    arena["memory"] = _tight_memory(drawn, rng.uniform(1.2, 3.5), catalog)
    if has_state:
        del arena["state_slots"]
    return drawn


def _draw_prefix(rng: random.Random, page_tokens: int) -> dict[str, Any]:
    """Requests share prefixes, and states are kept on a grid or at their end alone."""
    return {
        "share": True,
        "strategy": rng.choice(STRATEGIES),
        "checkpoint_tokens": page_tokens * rng.choice((1, 1, 2, 3)),
        "eviction": rng.choice(EVICTIONS),
    }


def _narrower(rng: random.Random, layers: Sequence[Mapping[str, Any]], widest: int) -> list[dict[str, Any]]:
    """The layers with windows so short that requests move past them."""
    kept = {width for layer in layers if (width := layer.get(layer["lifetime"], 0)) <= widest}
    short = [width for width in WINDOWS[:5] if width <= max(widest, WINDOWS[2]) and width not in kept]
    rng.shuffle(short)
    return [
        {**layer, layer["lifetime"]: short.pop()} if layer.get(layer["lifetime"], 0) > widest else dict(layer)
        for layer in layers
    ]


def _draw_layers(rng: random.Random, grain: int) -> list[dict[str, Any]]:
    """A state end, floats, and an owner end: with or without a state, and now and then an owner without bytes."""
    has_state = rng.random() < 0.7
    owner_has_bytes = rng.random() < 0.85
    least = 2 - has_state - owner_has_bytes
    lifetimes: list[dict[str, Any]] = [{"lifetime": "state"}] if has_state else []
    floats = rng.sample(WINDOWS, max(least, rng.choice((0, 1, 1, 1, 2, 2, 3))))
    for width in floats:
        kind = "chunk" if width > 3 and rng.random() < 0.15 else "window"
        lifetimes.append({"lifetime": kind, kind: width})
    if owner_has_bytes:
        lifetimes.append({"lifetime": "full"})
    return [
        {"index": index, **lifetime, **_draw_layout(rng, lifetime, grain)} for index, lifetime in enumerate(lifetimes)
    ]


def _draw_layout(rng: random.Random, lifetime: Mapping[str, Any], grain: int) -> dict[str, Any]:
    """Entries of a few grains: units are multiples of one another as often as they are not."""
    if lifetime["lifetime"] == "state":
        shape = [rng.randint(2, 12) * max(1, grain // 4)]
        return {"layout": "tensors", "tensors": [{"name": "state", "dtype": "float32", "shape": shape}]}
    entry_bytes = grain * rng.randint(1, 4)
    if entry_bytes % 4 or rng.random() < 0.5:
        return {"layout": "latent", "row_bytes": entry_bytes}
    return {"layout": "mha", "kv_heads": 1, "head_dim": entry_bytes // 4, "dtype": "float16"}


def _tight_memory(storage: Mapping[str, Any], requests: float, catalog: Catalog) -> int:
    """Room for so many requests of the full context, and not much more."""
    arena = structure(ArenaConfig, {**storage["arena"], "memory": 1}, "", at="arena")
    config = structure(StorageConfig, {**storage, "arena": {**storage["arena"], "memory": 1}}, "")
    plan = plan_arena(declared_layers(config, catalog), arena)
    context = arena.context_tokens or 1
    shape = RequestShape(max(1, context // 2), context - context // 2)
    limits = limits_of(attrs.evolve(arena, state_slots=None), config.prefix, plan)
    demand = request_demand(
        plan, shape, chunk_tokens=context, slots_per_request=limits.slots_per_request, grid=limits.grid
    )
    return least_budget(plan, tuple(math.ceil(units * requests) for units in demand), limits)
