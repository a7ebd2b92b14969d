"""The search that leaves nothing out: what it counts, that it may merge what it merges, and that it finds faults."""

import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from kvarena.bands.still import Still
from kvarena.ledger.ledger import Ledger
from kvarena.ledger.timeline import Timeline
from kvarena.plugins.stress.explore.exhaustive import Level, explore, replay
from kvarena.plugins.stress.explore.memory import Memory
from kvarena.plugins.stress.explore.player import UNEXPECTED, Player
from kvarena.plugins.stress.explore.world import MOVES, WORLDS, Move
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.world import installed
from kvarena.terms.ports import IntArray

CORE = ("take", "finish", "forward", "process", "flush")
"""A life without copies and transfers: few enough moves to go deep."""


@pytest.mark.req("HAR-1")
@pytest.mark.parametrize(("name", "states"), [("two-ends-busy", 500), ("float-busy", 600)])
def test_every_order_to_a_depth_of_three_keeps_every_promise(name: str, states: int) -> None:
    """From a busy start, all moves in all orders: hundreds of distinct states, and nothing broken in any of them."""
    report = explore(WORLDS[name], 3, installed())

    assert not report.found
    assert report.depth == 3
    assert report.state_count > states
    assert report.moves > report.state_count
    assert report.probes > 200
    assert len(report.states) == 4
    assert not report.is_whole


def test_the_count_is_the_same_each_time() -> None:
    """States are counted by what they are, so a second search counts the same ones."""
    counts = {explore(WORLDS["two-ends"], 3, installed()).states for _ in range(2)}

    assert len(counts) == 1


@pytest.mark.slow
def test_workers_count_the_same() -> None:
    """Two processes share the states, and what comes of them is the same to the number."""
    one, two = (explore(WORLDS["two-ends"], 4, installed(), workers=workers) for workers in (1, 2))

    assert (one.states, one.moves, one.probes) == (two.states, two.moves, two.probes)


def test_a_world_with_few_moves_is_searched_whole() -> None:
    """Where forwards only come and go, the states come to an end: deeper there is none, and the report says so."""
    world = attrs.evolve(WORLDS["two-ends"], moves=("take", "finish"), length_max=1)
    report = explore(world, 60, installed())

    assert report.is_whole
    assert report.depth < 60


@pytest.mark.parametrize("name", ["two-ends-busy", "float-busy"])
def test_states_that_are_counted_as_one_have_one_future(name: str) -> None:
    """Whatever may happen after one path to a state may happen after the others, and leads to the same states."""
    player = Player(WORLDS[name], installed())
    try:
        ways: dict[bytes, list[tuple[Move, ...]]] = {}
        for path in paths(player, 2):
            ways.setdefault(player.key(), []).append(path)
        several = [paths for paths in ways.values() if len(paths) > 1]

        assert len(several) > 20
        for paths_ in several[::3]:
            first, other = (futures(player, path) for path in (paths_[0], paths_[-1]))
            assert first == other, (paths_[0], paths_[-1])
    finally:
        player.close()


def test_putting_back_is_playing_again() -> None:
    """A state that is put back goes on like the same state reached by playing its path once more."""
    player = Player(WORLDS["float-busy"], installed())
    try:
        for path in list(paths(player, 1)):
            assert player.go(path) is None
            straight = player.key()
            player.go(())
            for move in player.moves():
                player.back()
                player.play(move)
            player.back()
            for move in path:
                player.play(move)
            assert player.key() == straight
    finally:
        player.close()


def test_the_search_tells_how_far_it_is() -> None:
    """Each state that was followed is told, with the counts so far."""
    told: list[Level] = []
    report = explore(WORLDS["two-ends"], 2, installed(), told=told.append)

    assert [level.followed for level in told if level.depth == 2] == [1, 2, 3]
    assert told[-1].states == report.state_count
    assert told[-1].moves == report.moves


@pytest.mark.req("HAR-3")
def test_a_launch_that_does_not_wait_for_the_allocator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait for the tail of the allocator's stream, a page is read beside its zeroing: two moves show it."""
    monkeypatch.setattr(Timeline, "hand", lambda self, stream: None)
    (found,) = explore(WORLDS["two-ends"], 4, installed()).found

    assert found.check == "unordered_overlap"
    assert [op.verb for op in found.operations] == ["take", "launch", "record"]
    assert "zeroing" in found.words


@pytest.mark.req("HAR-3")
@pytest.mark.req("CMP-5")
def test_a_vacated_page_that_is_reused_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing out the old place of a moved page under a forward that reads it: the fewest moves are five."""
    monkeypatch.setattr(Ledger, "due_after_forward", lambda self, actors: False)
    world = attrs.evolve(WORLDS["two-ends-busy"], moves=CORE)
    (found,) = explore(world, 6, installed()).found

    assert found.check == "unordered_overlap"
    verbs = [move[0].verb for move in found.path]
    assert len(verbs) == 5
    assert verbs[-1] in ("take", "extend", "relief")
    assert "flush" in verbs
    assert replay(world, found.path, installed()) is not None


@pytest.mark.req("HAR-3")
def test_a_sent_page_that_is_handed_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page freed under a send that is not kept back is offered to the next who takes one."""

    def reserve(self: Still, pages: IntArray) -> IntArray:
        return pages

    monkeypatch.setattr(Still, "reserve", reserve)
    (found,) = explore(WORLDS["two-ends-busy"], 4, installed()).found

    assert [op.verb for op in found.operations] == ["send", "free", "relief"]


@pytest.mark.req("HAR-3")
@pytest.mark.req("LIF-10")
def test_an_answer_that_asks_an_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settle that is spared where the forward happens to have ended parts the ranks, as work lands at other times."""
    settle = Ledger.settle

    def eager(self: Ledger, forward: int) -> None:
        if forward > self.steps.retired and not self.steps.event_of(forward).done():
            settle(self, forward)

    monkeypatch.setattr(Ledger, "settle", eager)
    (found,) = explore(WORLDS["two-ends-busy"], 3, installed()).found

    assert found.check == "rank_divergence"


def test_a_move_that_should_be_possible_and_is_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every move offered is one that may be made; one that comes to an error is reported with its path."""

    def out_of_order(scene: Any) -> Iterator[Move]:
        if len(scene.flying) > 1:
            yield (Op("process", {"forward": scene.flying[-1].name}),)

    monkeypatch.setitem(MOVES, "process", out_of_order)  # type: ignore[arg-type]
    world = attrs.evolve(WORLDS["two-ends"], moves=("take", "forward", "process"))
    (found,) = explore(world, 5, installed()).found

    assert found.check == UNEXPECTED
    assert "forwards.process_out_of_order" in found.words
    assert [op.verb for op in found.operations] == ["take", "launch", "record", "launch", "record", "process"]


def test_a_byte_that_nobody_reads_yet_is_missed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that copies the wrong page breaks a row which no operation has read: the look at every state sees it."""

    def backwards(self: Timeline, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        self.device.copy_pages(self.memory, unit_bytes, targets, sources)

    monkeypatch.setattr(Timeline, "copy_pages", backwards)
    world = attrs.evolve(WORLDS["two-ends-busy"], moves=("finish", "process", "flush"))
    (found,) = explore(world, 4, installed()).found

    assert found.check == "lost_write"
    assert "a look at what nobody reads yet" in found.words
    assert sorted(op.verb for op in found.operations) == ["finish", "flush", "process"]


def test_what_is_put_back_keeps_its_identity() -> None:
    """Containers, slots, arrays and what hides in functions have their contents again; a view is still a view."""

    @attrs.define(eq=False)
    class Slotted:
        inside: Any

    bytes_ = np.zeros(8, dtype=np.uint8)
    view, hidden, one = bytes_.view(np.int32), [1], Slotted(deque([1, 2]))
    held = {"view": view, "one": one, "look": lambda: hidden, "later": functools.partial(len, {3}), "set": {1}}
    memory = Memory([held])
    view[0], held["new"] = 7, 1
    hidden.append(2)
    one.inside.append(3)
    one.inside = None
    held["set"] = set()
    memory.put_back()

    assert bytes_.tolist() == [0] * 8
    assert held["view"] is view
    assert view.base is bytes_
    assert hidden == [1]
    assert list(one.inside) == [1, 2]
    assert held["set"] == {1}
    assert "new" not in held


def test_what_cannot_be_put_back_is_refused() -> None:
    """An object of which nothing is known inside is named: a search that leaves it as it is would lie."""
    with pytest.raises(TypeError, match="iterator cannot be put back"):
        Memory([{"it": iter([1, 2])}])


def paths(player: Player, depth: int) -> Iterator[tuple[Move, ...]]:
    """Every path of so many moves; the player is at the end of each while it is given."""
    ends: list[tuple[Move, ...]] = [()]
    for _ in range(depth):
        ends = [(*path, move) for path in ends if player.go(path) is None for move in player.moves()]
    for path in ends:
        if player.go(path) is None:
            yield path


def futures(player: Player, path: tuple[Move, ...]) -> dict[str, object]:
    """What each move comes to from the end of a path; forwards by whichever of their names."""
    assert player.go(path) is None
    found: dict[str, object] = {}
    for move in player.moves():
        player.back()
        words = " ; ".join(map(str, move)).replace("f1", "f").replace("f2", "f")
        found[words] = (player.play(move), player.key())
    return found
