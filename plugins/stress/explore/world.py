"""Tiny worlds for a search that leaves nothing out: a handful of pages, two requests, all that may happen to them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice, structure
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, open_stage
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.props import Request
from kvarena.plugins.stress.stage.questions import free_of
from kvarena.plugins.stress.stage.stage import Stage
from kvarena.plugins.stress.swarm.engines import Engines

Move = tuple[Op, ...]
"""What a scheduler does at once: between the launch of a forward and its recording nothing else may happen."""

COPY, LOAD, TRANSFER = "save", "load", "wire"
FORWARDS = ("f1", "f2", "f3")


@attrs.frozen(kw_only=True)
class SmallWorld:
    """One tiny world. ``chain``: as in a scenario file, with sub-pools by kvarena's own names.

    ``length_max``: rows that a request may have. ``moves``: the kinds of move that are tried, by the names of
    ``MOVES``. ``start``: what has happened before the search begins. ``waits``: the host can wait for transfers when
    nothing else makes room.
    """

    name: str
    about: str
    chain: Mapping[str, Any]
    moves: tuple[str, ...]
    requests: tuple[str, ...] = ("A", "B")
    length_max: int = 2
    start: tuple[Move, ...] = ()
    waits: bool = False

    def open(self, timing: str, catalog: Catalog) -> Stage:
        """A stage of this world, on a simulated device with this timing. The caller releases its storage."""
        source = f"small world {self.name}"
        spec = structure(ChainSpec, dict(self.chain), source, at="chain")
        device = Choice("simulated", {"timing": timing, "grain_bytes": spec.unit})
        stage = open_stage(spec, device, catalog, source)
        if self.waits:
            stage.storage.chain.usage.waiter = Engines(stage)
        return stage


_EVERYTHING = (
    "take", "extend", "free", "finish", "forward", "process", "flush", "backup", "load", "submit", "end", "send",
    "recv", "publish", "peer_write", "release", "abort", "copy_state",
)  # fmt: skip

_TWO_ENDS = SmallWorld(
    name="two-ends",
    about="a state at the low end and full attention at the high end, pages of one size, five in all",
    chain={
        "unit": 16, "arena": 5, "requests": 2, "context": 4, "forwards_in_flight": 2, "host_places": 4,
        "sub_pools": {"state": {"lifetime": "state"}, "full": {"lifetime": "full"}},
    },
    moves=_EVERYTHING,
)  # fmt: skip
_FLOAT = SmallWorld(
    name="float",
    about="a window of two between a state of two units and full attention, ten units in all",
    chain={
        "unit": 16, "arena": 10, "requests": 2, "context": 4, "forwards_in_flight": 2, "host_places": 4,
        "sub_pools": {
            "state": {"lifetime": "state", "units": 2},
            "window-2": {"lifetime": {"name": "window", "window": 2}},
            "full": {"lifetime": "full"},
        },
    },
    moves=_EVERYTHING,
    length_max=3,
    waits=True,
)  # fmt: skip
_BUSY: tuple[Move, ...] = (
    (Op("take", {"request": "B", "rows": 1}),),
    (Op("take", {"request": "A", "rows": 1}),),
    (Op("extend", {"to": {"A": 2}}),),
    (Op("launch", {"forward": "f1", "requests": ["A", "B"]}), Op("record", {"forward": "f1"})),
)

WORLDS: Mapping[str, SmallWorld] = {
    world.name: world
    for world in (
        _TWO_ENDS,
        attrs.evolve(
            _TWO_ENDS, name="two-ends-busy", start=_BUSY, about="the same, full, under the first forward of all it has"
        ),
        _FLOAT,
        attrs.evolve(
            _FLOAT, name="float-busy", start=_BUSY, about="the same, half full, under the first forward of all it has"
        ),
    )
}
"""By name."""


def moves_of(world: SmallWorld, stage: Stage) -> Iterator[Move]:
    """Every move that a scheduler could make now; each of them must come to a value or a refusal."""
    scene = _Scene(world, stage)
    for name in world.moves:
        yield from MOVES[name](scene)


def probes_of(stage: Stage) -> Iterator[tuple[Op, bool]]:
    """Demands at the border of what fits, and whether each does: of each sub-pool all it could get, and one more."""
    chain = stage.storage.chain
    if chain.ledger.steps.is_open:
        return
    for name, band in chain.bands.items():
        if not band.grid.unit_bytes:
            continue
        ids = next(minter.pool.free for minter in chain.minters.values() if name in minter.names)
        most = min(free_of(chain, name), ids)
        if most:
            yield Op("relief", {"units": {name: most}}), True
        if most < ids:
            yield Op("relief", {"units": {name: most + 1}}), False


class _Scene:
    """Who is there now, as far as a scheduler knows."""

    def __init__(self, world: SmallWorld, stage: Stage) -> None:
        self.world = world
        self.stage = stage
        storage, props = stage.storage, stage.props
        self.steps = storage.chain.ledger.steps
        self.has_state = storage.plan.slots is not None
        self.copies = stage.copies.under_way
        flights = stage.forwards.flights.values()
        self.flying = sorted(
            (flight for flight in flights if flight.forward.number > self.steps.processed),
            key=lambda flight: flight.forward.number,
        )
        passages = stage.transfers.passages.values()
        self.passage = next((passage for passage in passages if not passage.transfer.released), None)
        requests = [props.requests[name] for name in world.requests if name in props.requests]
        named = {copy.whose[0] for copy in self.copies.values() if not copy.is_load and copy.copy.state == "made"}
        self.absent = [name for name in world.requests if name not in props.requests]
        self.ready = [one for one in requests if not storage.requests.away.holds[one.row]]
        """Requests that may step: no load or receive is under way for them."""
        self.written = [one for one in self.ready if 0 < props.length(one) <= one.written]
        self.loose = [one for one in self.ready if one.name not in named]
        """Requests whose rows may go: no backup that is still to be submitted names their pages."""
        self.quiet = [one for one in self.ready if self.passage is None or self.passage.request is not one]
        """Requests that may be written: no transfer reads them."""
        self.receiving = [one for one in requests if storage.requests.away.holds[one.row] < 0]

    def length(self, request: Request) -> int:
        """Its rows."""
        return self.stage.props.length(request)


def _take(scene: _Scene) -> Iterator[Move]:
    for name in scene.absent:
        yield (Op("take", {"request": name, "rows": 1}),)


def _extend(scene: _Scene) -> Iterator[Move]:
    """Not of a request that a backup names: its window may leave pages behind."""
    for one in scene.loose:
        length = scene.length(one)
        if length < scene.world.length_max:
            yield (Op("extend", {"to": {one.name: length + 1}}),)


def _free(scene: _Scene) -> Iterator[Move]:
    for one in scene.loose:
        length = scene.length(one)
        if length > 1:
            yield (Op("free", {"request": one.name, "pieces": [[length - 1, length]]}),)


def _finish(scene: _Scene) -> Iterator[Move]:
    for one in scene.loose:
        yield (Op("finish", {"request": one.name}),)


def _abort(scene: _Scene) -> Iterator[Move]:
    for one in scene.receiving:
        yield (Op("abort", {"request": one.name}),)


def _forward(scene: _Scene) -> Iterator[Move]:
    """Of each request alone, and of all together."""
    if len(scene.flying) >= scene.steps.in_flight:
        return
    taken = {flight.name for flight in scene.flying}
    forward = next(name for name in FORWARDS if name not in taken)
    names = [one.name for one in scene.quiet if scene.length(one)]
    batches = [[name] for name in names] + ([names] if len(names) > 1 else [])
    for batch in batches:
        yield Op("launch", {"forward": forward, "requests": batch}), Op("record", {"forward": forward})


def _process(scene: _Scene) -> Iterator[Move]:
    if scene.flying:
        yield (Op("process", {"forward": scene.flying[0].name}),)


def _flush(scene: _Scene) -> Iterator[Move]:
    yield (Op("flush", {}),)


def _backup(scene: _Scene) -> Iterator[Move]:
    if not scene.copies and COPY not in scene.stage.copies.saved:
        for one in scene.written:
            yield (Op("backup", {"copy": COPY, "request": one.name}),)


def _load(scene: _Scene) -> Iterator[Move]:
    saved = scene.stage.copies.saved.get(COPY)
    if saved and not scene.copies:
        slots = scene.stage.props.maps.slots_name
        rows = max((int(mine.at[-1]) + 1 for name, mine in saved.items() if name != slots), default=0)
        for name in scene.absent[:1] if rows else ():
            yield (Op("load", {"copy": LOAD, "request": name, "rows": rows, "source": COPY}),)


def _submit(scene: _Scene) -> Iterator[Move]:
    for name, copy in scene.copies.items():
        if copy.copy.state == "made":
            yield (Op("submit", {"copy": name}),)


def _end(scene: _Scene) -> Iterator[Move]:
    for name, copy in scene.copies.items():
        if copy.copy.state == "submitted":
            yield (Op("end", {"copy": name}),)


def _send(scene: _Scene) -> Iterator[Move]:
    if scene.passage is None:
        for one in scene.written:
            yield (Op("send", {"transfer": TRANSFER, "request": one.name}),)


def _recv(scene: _Scene) -> Iterator[Move]:
    if scene.passage is None:
        for name in scene.absent[:1]:
            yield (Op("recv", {"transfer": TRANSFER, "request": name, "rows": 1}),)


def _publish(scene: _Scene) -> Iterator[Move]:
    """Not of a row that was closed: its peer never learns the pages."""
    passage = scene.passage
    if passage is not None and passage.request in scene.receiving and not passage.transfer.published:
        yield (Op("publish", {"transfer": TRANSFER}),)


def _peer_write(scene: _Scene) -> Iterator[Move]:
    passage = scene.passage
    if passage is not None and passage.is_receive and passage.engine is not None and passage.event is None:
        yield (Op("peer_write", {"transfer": TRANSFER}),)


def _release(scene: _Scene) -> Iterator[Move]:
    if scene.passage is not None:
        yield (Op("release", {"transfer": TRANSFER}),)


def _copy_state(scene: _Scene) -> Iterator[Move]:
    if scene.has_state and len(scene.ready) > 1 and scene.ready[0].written and scene.ready[1] in scene.quiet:
        source, target = scene.ready[0].name, scene.ready[1].name
        yield (Op("copy_state", {"source": source, "target": target}),)


MOVES: Mapping[str, Callable[[_Scene], Iterator[Move]]] = {
    "take": _take, "extend": _extend, "free": _free, "finish": _finish, "abort": _abort, "forward": _forward,
    "process": _process, "flush": _flush, "backup": _backup, "load": _load, "submit": _submit, "end": _end,
    "send": _send, "recv": _recv, "publish": _publish, "peer_write": _peer_write, "release": _release,
    "copy_state": _copy_state,
}  # fmt: skip
"""The kinds of move, by name."""
