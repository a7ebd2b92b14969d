"""Random programs, judged twice: by the device's clocks and shadows, and by a graph that is searched edge by edge."""

import random
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from simulations import TIMINGS, checks

from kvarena.backends.simulated import SimulatedDevice
from kvarena.terms.ports import IntArray, Touch

GRAIN = 64
GRAINS = 24
UNITS = (64, 128, 192)


@attrs.define(eq=False)
class Node:
    """A piece of work, or something that the host does, with the nodes that come directly before it."""

    name: str
    before: list["Node"]
    reads: set[int] = attrs.field(factory=set)
    writes: set[int] = attrs.field(factory=set)

    def all_before(self) -> set["Node"]:
        """Everything that comes before it, found by walking."""
        found: set[Node] = set()
        walk = list(self.before)
        while walk:
            node = walk.pop()
            if node not in found:
                found.add(node)
                walk += node.before
        return found


@attrs.define(eq=False)
class Lane:
    """A stream, an engine or the host: what its next node comes directly behind."""

    handle: Any
    is_engine: bool = False
    is_inline: bool = False
    tail: list[Node] = attrs.field(factory=list)


MIRROR = -1
"""A mirror, as one more grain of the model."""


class Program:
    """The same random calls to a device and to the model."""

    def __init__(self, seed: int, timing: str, asks_done: bool = True) -> None:
        self.random = random.Random(seed)
        self.device = SimulatedDevice(seed, timing)
        self.device.reserve(GRAINS * GRAIN)
        self.mirror = self.device.mirror(8, 2, 4)
        self.host = Lane(None)
        self.lanes = [Lane(self.device.stream(f"s{number}")) for number in range(3)]
        self.lanes.append(Lane(self.device.current(), is_inline=True))
        self.events: list[tuple[Any, list[Node]]] = []
        self.nodes: list[Node] = []
        self.landed: list[Node] = []
        self.staged: dict[int, Node] = {}
        self.staging_faults = 0
        self.verdicts: list[bool] = []
        self.asks_done = asks_done

    def play(self, count: int) -> None:
        """So many random calls; each verdict is compared as it falls."""
        moves: list[tuple[int, Callable[[], None]]] = [
            (6, self.run),
            (3, self.copy),
            (2, self.zero),
            (2, self.update),
            (1, self.read_mirror),
            (5, self.record),
            (5, self.wait),
            (2, self.synchronize),
            (1 if self.asks_done else 0, self.ask),
            (1, self.host_read),
            (1, self.engine),
            (2, self.turn),
        ]
        weights = [weight for weight, _ in moves]
        for _ in range(count):
            self.random.choices(moves, weights)[0][1]()
        self.device.drain()

    # -- nodes

    def node(self, lane: Lane, reads: set[int], writes: set[int]) -> Node:
        tail = lane.tail if lane.is_engine or lane is self.host else lane.tail + self.host.tail
        node = Node(f"w{len(self.nodes)}", tail, reads, writes)
        lane.tail = [node]
        if lane.is_inline:
            self.host.tail = [node]
        return node

    def judge(self, node: Node, found: int) -> None:
        """The device found a race of this node just if an unordered node is in its way; and it names such a one."""
        ordered = node.all_before()
        in_the_way = {
            other.name
            for other in self.nodes
            if other not in ordered
            and (node.writes & (other.reads | other.writes) or node.reads & other.writes) - {MIRROR}
        }
        self.nodes.append(node)
        new = [one for one in self.device.violations[found:] if "mirror" not in one.words]
        new = [one for one in new if one.check == "unordered_overlap"]
        assert bool(new) == bool(in_the_way), (node, in_the_way, new)
        for one in new:
            if one.other.startswith("run of"):
                assert one.other.split()[2] in in_the_way
        self.verdicts.append(bool(new))

    def pages(self) -> tuple[int, IntArray, set[int]]:
        """Some pages of some grid, and their grains."""
        unit = self.random.choice(UNITS)
        count = GRAINS * GRAIN // unit
        pages = self.random.sample(range(count), self.random.randint(0, 2))
        each = unit // GRAIN
        grains = {page * each + grain for page in pages for grain in range(each)}
        return unit, np.array(pages, dtype=np.int64), grains

    # -- moves

    def run(self, mirror: bool = False) -> None:
        lane, found = self.random.choice(self.lanes), len(self.device.violations)
        read, written = self.pages(), self.pages()
        node = self.node(lane, read[2] | ({MIRROR} if mirror else set()), written[2])

        def work() -> None:
            self.landed.append(node)
            if mirror:
                self.mirror.read(np.array([1, 2]))

        work.__name__ = node.name
        self.device.run(lane.handle, work, [Touch(*read[:2], "")], [Touch(*written[:2], "")])
        self.judge(node, found)

    def read_mirror(self) -> None:
        self.run(mirror=True)

    def update(self) -> None:
        lane, slot = self.random.choice(self.lanes), self.random.randrange(2)
        before, found = self.staged.get(slot), checks(self.device).count("staging_overwritten")
        is_fault = before is not None and before not in Node("host", self.host.tail).all_before()
        self.staged[slot] = node = self.node(lane, set(), {MIRROR})
        self.nodes.append(node)
        self.mirror.apply(lane.handle, slot, np.array([3]), np.array([len(self.nodes)]))
        assert checks(self.device).count("staging_overwritten") == found + is_fault

    def copy(self) -> None:
        unit, pages, _ = self.pages()
        if len(pages) == 2:
            lane, found, each = self.random.choice(self.lanes), len(self.device.violations), unit // GRAIN
            grains = [{int(page) * each + grain for grain in range(each)} for page in pages]
            node = self.node(lane, *grains)
            self.device.copy_pages(lane.handle, unit, pages[:1], pages[1:])
            self.judge(node, found)

    def zero(self) -> None:
        unit, pages, grains = self.pages()
        if len(pages):
            lane, found = self.random.choice(self.lanes), len(self.device.violations)
            node = self.node(lane, set(), grains)
            self.device.zero_pages(lane.handle, unit, pages)
            self.judge(node, found)

    def record(self) -> None:
        lane = self.random.choice(self.lanes)
        self.events.append((self.device.record(lane.handle), list(lane.tail)))

    def wait(self) -> None:
        if self.events:
            lane, (event, nodes) = self.random.choice(self.lanes), self.random.choice(self.events[-4:])
            self.device.wait(lane.handle, event)
            lane.tail = lane.tail + nodes

    def synchronize(self) -> None:
        if self.events:
            event, nodes = self.random.choice(self.events)
            self.device.synchronize(event)
            self.host.tail = self.host.tail + nodes

    def ask(self) -> None:
        if self.events:
            event, nodes = self.random.choice(self.events)
            if event.done():
                self.host.tail = self.host.tail + nodes

    def host_read(self) -> None:
        unit, pages, grains = self.pages()
        self.host.tail = self.host.tail + [node for node in self.nodes if node.writes & grains]
        found = len(self.device.violations)
        node = self.node(self.host, grains, set())
        self.device.host_read(unit, pages)
        self.judge(node, found)

    def engine(self) -> None:
        event, nodes = self.random.choice(self.events) if self.events and self.random.random() < 0.7 else (None, [])
        handle = self.device.engine(f"t{len(self.nodes)}", event)
        self.lanes[5:] = self.lanes[4:5]  # two engines are in use at a time
        self.lanes[4:5] = [Lane(handle, is_engine=True, tail=self.host.tail + nodes)]

    def turn(self) -> None:
        self.device.turn(self.random.choice((None, 1, 2)))

    # -- at the end

    def check_landings(self) -> None:
        """All work landed, each piece behind all that comes before it."""
        place = {node: number for number, node in enumerate(self.landed)}
        assert len(place) == len(self.landed)
        for node in self.landed:
            assert all(place[other] < place[node] for other in node.all_before() if other in place)

    def check_mirror(self) -> None:
        """A race on the mirror is found just if there is one."""
        users = [node for node in self.nodes if MIRROR in node.reads | node.writes]
        is_race = any(
            one not in other.all_before() and other not in one.all_before()
            for number, one in enumerate(users)
            for other in users[:number]
            if MIRROR in one.writes | other.writes
        )
        found = [one for one in self.device.violations if one.check == "unordered_overlap" and "mirror" in one.words]
        assert bool(found) == is_race


@pytest.mark.req("HAR-1")
@pytest.mark.parametrize("timing", TIMINGS)
def test_clocks_judge_as_the_graph_does(timing: str) -> None:
    """Piece by piece: it is found to race just if an unordered piece is in its way, with events polled as they come."""
    races = silent = 0
    for seed in range(150):
        program = Program(seed, timing)
        program.play(50)
        program.check_landings()
        program.check_mirror()
        races += sum(program.verdicts)
        silent += len(program.verdicts) - sum(program.verdicts)
    assert min(races, silent) > 500


@pytest.mark.req("HAR-1")
def test_every_timing_comes_to_the_same_verdicts() -> None:
    """Unless the program asks whether an event has come: then it is another program."""
    for seed in range(100):
        programs = [Program(seed, timing, asks_done=False) for timing in TIMINGS]
        for program in programs:
            program.play(50)
        judged = [[str(one) for one in program.device.violations if "mirror" not in one.words] for program in programs]
        assert judged[0] == judged[1] == judged[2] == judged[3]
        staged = [checks(program.device).count("staging_overwritten") for program in programs]
        assert len(set(staged)) == 1


@pytest.mark.req("HAR-1")
def test_a_program_whose_wait_was_dropped_is_found() -> None:
    """A chain of streams that hand one page on: silent whole, and found without any single wait of it."""
    for dropped in range(-1, 9):
        device = SimulatedDevice(timing="early")
        device.reserve(GRAINS * GRAIN)
        streams = [device.stream(f"s{number}") for number in range(10)]
        page = np.array([3], dtype=np.int64)
        for number, stream in enumerate(streams):
            if number and number - 1 != dropped:
                device.wait(stream, device.record(streams[number - 1]))
            device.zero_pages(stream, GRAIN, page)
        assert bool(device.violations) == (dropped >= 0)
