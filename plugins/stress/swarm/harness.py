"""One case on two ranks: the same operations, work that lands at different times, and every promise after each."""

import collections
import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from kvarena.assembly.arena import plan_arena
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.assembly.loader import declared_layers, make_eviction
from kvarena.assembly.places import Places
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import Stage
from kvarena.plugins.stress.swarm.case import Case
from kvarena.plugins.stress.swarm.checks import CRASH, Broken, Checks
from kvarena.plugins.stress.swarm.draw import Draw
from kvarena.plugins.stress.swarm.engines import Engines
from kvarena.plugins.stress.swarm.generate import Generator
from kvarena.plugins.stress.swarm.rest import rest
from kvarena.plugins.stress.swarm.scene import Scene
from kvarena.plugins.stress.swarm.shrink import shrink
from kvarena.plugins.stress.swarm.world import World, catalog_under
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError, KvarenaError, PluginError

SIMULATED = "simulated"
HOST_PLACES = 512
"""Pages of each sub-pool that host memory has room for."""
SHRINK_TRIES = 1500
WATCHED_EVERY = 8
"""In one world of so many, bytes that a forward changes and did not name are found too: it takes a fifth more time."""
TO_THE_CACHE = frozenset(
    {"cache", "finish", "checkpoint", "spare", "process", "admit", "evict", "lock", "unlock", "entries"}
)
"""What the cache has may be other after these."""
YOUNG_OBJECTS = 5_000
"""So many are made in a run before the collector looks at them."""


@attrs.frozen
class Run:
    """What a run came to. ``counts``: how often each verb came to a value, a refusal or an error.

    ``case``: what broke; None where every promise held. ``played``: the operations, where they were to be kept.
    """

    operations: int
    counts: "collections.Counter[tuple[str, str]]"
    case: Case | None = None
    played: tuple[Op, ...] | None = None

    def as_case(self, world: World) -> Case:
        """What was kept, as a case that broke nothing or something."""
        return self.case or Case(world=world, operations=self.played or ())


class Ranks:
    """The ranks of one run, and what is checked of them."""

    def __init__(self, world: World, device: str, catalog: Catalog | None = None) -> None:
        """Build both storages. ``catalog``: where its plugins are found; None for all that is installed.

        Raises:
            KvarenaError: one cannot be built.
        """
        self.world = world
        self.stages: list[Stage] = []
        self.scene = Scene()
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        config = world.config()
        eviction = make_eviction(catalog or catalog_under(config.plugins), config.prefix)
        for storage in open_storages(world, device, catalog=catalog):
            stage = Stage(storage, host_places=HOST_PLACES, eviction=eviction)
            if world.waits_for_engines:
                storage.chain.usage.waiter = Engines(stage)
            self.stages.append(stage)
        self.checks = Checks(self.stages)
        self.played = 0
        self._overlaps = world.in_flight > 0

    def play(self, op: Op) -> Broken | None:
        """One operation on both ranks; the promise that it broke."""
        if self.scene.is_pointless(op, overlaps=self._overlaps):
            return None
        expected = self.checks.feasible(op) if op.verb == "relief" else None
        try:
            outcomes = [stage.apply(op) for stage in self.stages]
            broken = self.checks.after(op, outcomes, in_use=self.scene.is_in_use(op))
        except Exception as error:  # whatever an operation stops with is what we are here to find
            return Broken(f"{CRASH}.{type(error).__name__}", f"{op}: {type(error).__name__}: {error}")
        for outcome in outcomes:
            if outcome.name == PluginError.__name__:  # no refusal of an operation: the plugin's own fault, on any rank
                return Broken(f"{CRASH}.{outcome.name}", f"{op}: {outcome.words}")
        if broken is None and op.verb == "relief":
            broken = self.checks.served(op, expected, outcomes[0])
        first = outcomes[0]
        self.counts[op.verb, first.kind] += 1
        if first.kind == "value":
            self.scene.saw(op, first.value)
            if op.verb in TO_THE_CACHE and self.stages[0].entries.is_open:
                self.scene.sees(self.stages[0].entries.seen())
        elif first.kind == "error":
            self.scene.failed(op)
        self.played += 1
        if broken is None and self.played % self.world.verify_every == 0:
            broken = self.checks.verify()
        return broken

    def rest(self) -> Broken | None:
        """Bring everything to rest, and look at what is left."""
        for op in rest(self.stages[0], self.scene):
            broken = self.play(op)
            if broken is not None:
                return attrs.evolve(broken, words=f"while coming to rest: {broken.words}")
        outcomes = [stage.apply(Op("quiet", {})) for stage in self.stages]
        return self.checks.at_rest(outcomes) or self.checks.after(Op("quiet", {}), outcomes) or self.checks.verify()

    def close(self) -> None:
        """Give both arenas back."""
        for stage in self.stages:
            stage.storage.release()


def open_storages(
    world: World, device: str, ranks: Sequence[int] = (0, 1), *, catalog: Catalog | None = None
) -> list[Storage]:
    """The storages of these ranks, each on a device of this name and its own. ``catalog``: None for what is installed.

    Raises:
        KvarenaError: there is no such backend, or the storage cannot be built on it.
    """
    config = world.config()
    catalog = catalog or catalog_under(config.plugins)
    layers = declared_layers(config, catalog, "storage")
    choices = [Choice(device, config.backend.settings if config.backend.name == device else {}) for _ in ranks]
    if device == SIMULATED:
        grain = math.gcd(*(pool.unit_bytes for pool in plan_arena(layers, config.arena).sub_pools))
        same = {"grain_bytes": grain, "watch_writes": world.seed % WATCHED_EVERY == 0}
        times = [{"seed": 2 * world.seed + rank, "timing": world.timings[rank]} for rank in ranks]
        choices = [Choice(device, time | same) for time in times]
    places = Places(options={"backend": f"--device {device}"})
    return [build_storage(layers, attrs.evolve(config, backend=choice), catalog, source=places) for choice in choices]


def run_seed(
    world: World, operations: int, device: str = SIMULATED, *, keep: bool = False, catalog: Catalog | None = None
) -> Run:
    """So many random operations in a world, then to rest. ``keep``: with the operations, also where nothing broke."""

    def drawn(ranks: Ranks) -> Iterator[Op]:
        storage = ranks.stages[0].storage
        units = [(name, band.grid.page_count) for name, band in storage.chain.bands.items() if band.grid.unit_bytes]
        limits = (len(storage.requests), storage.sizing.context_tokens)
        generator = Generator(Draw(world, ranks.scene, units, limits))
        for _ in range(operations):
            yield generator.next()

    run, played = _run(world, drawn, device, catalog)
    return attrs.evolve(run, played=played) if keep else run


def run_operations(
    world: World, operations: Sequence[Op], device: str = SIMULATED, *, catalog: Catalog | None = None
) -> Run:
    """These operations, then to rest. One that has become impossible is refused on both ranks alike."""
    return _run(world, lambda ranks: iter(operations), device, catalog)[0]


def replay_case(case: Case, device: str | None = None) -> Run:
    """A saved case again, on the device it was seen on or on another."""
    return run_operations(case.world, case.operations, device or case.device)


def shrink_case(case: Case, *, tries_max: int = SHRINK_TRIES, catalog: Catalog | None = None) -> Case:
    """The shortest operations that break the same promise. A case that does not break is left as it is."""

    def breaks(operations: Sequence[Op]) -> bool:
        found = run_operations(case.world, operations, case.device, catalog=catalog).case
        return found is not None and found.check == case.check

    if not breaks(case.operations):
        return case
    left = shrink(case.operations, breaks, simpler, tries_max=tries_max).left
    return run_operations(case.world, left, case.device, catalog=catalog).case or case


def simpler(op: Op) -> list[Op]:
    """The same operation about less."""
    found: list[dict[str, Any]] = []
    for name, value in op.arguments.items():
        if name in ("rows", "prompt", "output") and isinstance(value, int) and value > 1:
            found += [{name: 1}, {name: value // 2}, {name: value - 1}]
        elif isinstance(value, dict) and name in ("to", "units"):
            found += [{name: {key: value[key] for key in value if key != gone}} for gone in value if len(value) > 1]
            found += [{name: value | {key: count - 1}} for key, count in value.items() if count > 1]
        elif name == "requests":
            found += [{name: [one for one in value if one != gone]} for gone in value if len(value) > 1]
    return [Op(op.verb, {**op.arguments, **less}) for less in found]


def check_world(world: World, device: str, source: str) -> None:
    """Whether a run can begin: its storage is built once, and given back.

    Raises:
        KvarenaError: it cannot, with the reason.
    """
    backends = catalog_under(world.config().plugins).names("backends")
    if device not in backends:
        known = ", ".join(backends)
        raise ConfigError(f"--device {device}: no backend of this name is installed here; there are: {known}")
    try:
        open_storages(world, device, ranks=(0,))[0].release()
    except KvarenaError as error:
        raise ConfigError(f"{source}: {error}") from error


def _run(
    world: World, operations: Callable[[Ranks], Iterator[Op]], device: str, catalog: Catalog | None = None
) -> tuple[Run, tuple[Op, ...]]:
    ranks = Ranks(world, device, catalog)
    played: list[Op] = []
    with contextlib.closing(ranks), _few_collections():
        for op in operations(ranks):
            played.append(op)
            broken = ranks.play(op)
            if broken is not None:
                break
        else:
            broken = ranks.rest()
    case = None
    if broken is not None:
        words = f"{broken.words} (after {len(played):,} operations)"
        case = Case(world=world, operations=tuple(played), check=broken.check, words=words, device=device)
    return Run(len(played), ranks.counts, case), tuple(played)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """A run makes many small objects and few cycles, so the collector looks for those less often until it is over."""
    before = gc.get_threshold()
    if before[0]:  # else nothing is collected anyway
        gc.set_threshold(max(before[0], YOUNG_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
