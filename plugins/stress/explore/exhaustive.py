"""Every order of everything that may happen in a tiny world, to a depth: no draw, no luck, the states counted.

Breadth first, so the first operations that break a promise are the fewest. A state that was met before on another path
is not followed again (``small_world_key``). To follow one, its path is played from the start once; then each of its
moves is tried from there, and everything is put back between them (``small_world_memory``). That the path leads to the
state it led to before is checked each time.

When work lands is the adversary's choice, and two choices stand for all of them. Each world is played on two ranks: on
one everything lands as soon as it is queued, on the other nothing does before the host waits for it, and then the
newest first. That is enough:

- A race is found whatever lands when: the device judges accesses when they are queued, by what comes before what.
- Where there is no race, any two works that touch the same bytes, one of them writing, are ordered by what was queued.
  Orders of landing that keep all such pairs as they are differ only in the order of works that have nothing to do with
  each other, so all of them leave the same bytes and every work reads the same: one order stands for its whole class,
  and there is only one class.
- The host decides alike whenever work lands: a decision that asked whether some event has come would hear yes on one
  rank and no on the other, unless the host has waited for it, and the ranks would part. (One that asked several events
  and answered by a sum of theirs, the same for all and for none, could hide.)
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.explore.player import Player
from kvarena.plugins.stress.explore.world import Move, SmallWorld
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.checks import Broken
from kvarena.plugins.stress.workers import lost, worker_pool

UNSTEADY = "state_differs_on_replay"
CHANGED = "error_has_changed_something"
CHUNK = 16
"""So many states are handed to a worker at once."""


@attrs.frozen
class Found:
    """A promise that did not hold, and the fewest moves that break it: no shorter path breaks any."""

    check: str
    words: str
    path: tuple[Move, ...]

    @property
    def operations(self) -> tuple[Op, ...]:
        """The path, operation by operation."""
        return tuple(op for move in self.path for op in move)


@attrs.frozen
class Report:
    """What a search came to. ``states``: distinct ones, the first among them, by the depth at which each was met first.

    ``moves``: all that were tried, and ``probes``: demands at the border of what fits that were taken to see whether
    they do. ``is_whole``: no state was left to follow, so that going deeper would find no other.
    """

    world: str
    depth: int
    states: tuple[int, ...]
    moves: int
    probes: int
    seconds: float
    found: tuple[Found, ...]
    is_whole: bool

    @property
    def state_count(self) -> int:
        """How many distinct states were visited."""
        return sum(self.states)


@attrs.frozen
class Level:
    """How far a search is: for those who watch it."""

    depth: int
    followed: int
    to_follow: int
    states: int
    moves: int


@attrs.frozen
class _State:
    """A state on the list of those to follow: where it came from, and by which move."""

    before: "_State | None"
    move: Move
    key: bytes

    def path(self) -> tuple[Move, ...]:
        moves: list[Move] = []
        state: _State | None = self
        while state is not None and state.before is not None:
            moves.append(state.move)
            state = state.before
        return tuple(reversed(moves))


@attrs.define
class _Followed:
    """What came of following a state. ``new``: states that whoever followed it had not met, by the move to each."""

    moves: int = 0
    probes: int = 0
    new: list[tuple[Move, bytes]] = attrs.field(factory=list)
    found: list[Found] = attrs.field(factory=list)


_Task = tuple[tuple[Move, ...], bytes]
"""A state to follow: the path to it, and its key."""
_Follow = Callable[[Sequence[_Task]], Iterable[_Followed]]


def explore(
    world: SmallWorld,
    depth: int,
    catalog: Catalog,
    *,
    found_max: int = 1,
    workers: int = 1,
    told: Callable[[Level], None] | None = None,
) -> Report:
    """Search a world to a depth in moves; stop after ``found_max`` broken promises. The counts hang on no workers.

    Raises:
        KvarenaError: the world cannot be built, or a worker was killed.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        player = stack.enter_context(contextlib.closing(Player(world, catalog)))
        broken = player.go(())
        follow = stack.enter_context(_workers(world, workers)) if workers > 1 else _here(player)
        search = _Search(_State(None, (), player.key()), follow, found_max, told)
        if broken is not None:
            search.found.append(Found(broken.check, broken.words, ()))
        level = 0
        while level < depth and search.to_follow and not search.is_done:
            level += 1
            search.follow(level)
        return Report(
            world.name, level, tuple(search.states), search.moves, search.probes, time.monotonic() - began,
            tuple(search.found), not search.to_follow and not search.found,
        )  # fmt: skip


def replay(world: SmallWorld, path: tuple[Move, ...], catalog: Catalog) -> Broken | None:
    """Play a path on new stages: the promise that it breaks."""
    with contextlib.closing(Player(world, catalog)) as player:
        return player.go(path) or player.look()


class _Search:
    """The states met so far, and those still to follow."""

    def __init__(self, first: _State, follow: _Follow, found_max: int, told: Callable[[Level], None] | None) -> None:
        self.found: list[Found] = []
        self.to_follow = [first]
        self.states = [1]
        self.moves = self.probes = 0
        self._known = {first.key}
        self._follow = follow
        self._found_max = found_max
        self._told = told

    @property
    def is_done(self) -> bool:
        """Whether enough was found."""
        return len(self.found) >= self._found_max

    def follow(self, depth: int) -> None:
        """Try every move of every state on the list; the new ones are the next list."""
        following, self.to_follow = self.to_follow, []
        self.states.append(0)
        tasks = [(state.path(), state.key) for state in following]
        for number, (state, followed) in enumerate(zip(following, self._follow(tasks), strict=False), start=1):
            self.moves += followed.moves
            self.probes += followed.probes
            for move, key in followed.new:
                if key not in self._known:
                    self._known.add(key)
                    self.states[-1] += 1
                    self.to_follow.append(_State(state, move, key))
            for found in followed.found:
                if not self.is_done and all(found.check != other.check for other in self.found):
                    self.found.append(found)
            if self._told is not None:
                self._told(Level(depth, number, len(following), len(self._known), self.moves))
            if self.is_done:
                return


# -- following one state


def _one(player: Player, task: _Task, known: set[bytes]) -> _Followed:
    """Play the path to a state, then try its moves from there. ``known``: states that need no second look; it grows."""
    (path, key), followed = task, _Followed()
    broken = player.go(path)
    if broken is None and player.key() != key:
        broken = Broken(UNSTEADY, "the same moves led to another state than before")
    if broken is not None:
        followed.found.append(Found(broken.check, broken.words, path))
        return followed
    before = player.probes
    lies = player.probe(path)
    followed.probes = player.probes - before
    if lies is not None:
        followed.found.append(Found(lies[0].check, lies[0].words, lies[1]))
    for move in player.moves():
        player.back()
        followed.moves += 1
        wrong, reached = _try(player, move, key)
        if wrong is None and reached not in known:
            known.add(reached)
            wrong = player.look()
            if wrong is None:
                followed.new.append((move, reached))
        if wrong is not None:
            followed.found.append(Found(wrong.check, wrong.words, (*path, move)))
    return followed


def _try(player: Player, move: Move, key: bytes) -> tuple[Broken | None, bytes]:
    """One move, and the state that it leads to."""
    wrong = player.play(move)
    if wrong is not None:
        return wrong, b""
    reached = player.key()
    if player.was_error and reached != key:
        return Broken(CHANGED, f"{move[-1]} was an error, and something has changed"), reached
    return None, reached


def _here(player: Player) -> _Follow:
    """Follow states in this process, one after another."""
    known: set[bytes] = set()
    return lambda tasks: (_one(player, task, known) for task in tasks)


# -- on several workers


@contextlib.contextmanager
def _workers(world: SmallWorld, count: int) -> Iterator[_Follow]:
    """Follow states on several processes. What came of each is given in the order of the states.

    Each remembers what it has met itself, and hands over what is new to it: the first in order always is.
    """
    with worker_pool(count, _begin, world) as pool:

        def follow(tasks: Sequence[_Task]) -> Iterator[_Followed]:
            chunks = [tasks[start : start + CHUNK] for start in range(0, len(tasks), CHUNK)]
            try:
                for followed in pool.map(_several, chunks):
                    yield from followed
            except BrokenProcessPool:
                raise lost(f"the world {world.name!r}, moves of {len(tasks):,} states") from None

        yield follow


_OWN: list[_Follow] = []
"""In a worker: how it follows states."""


def _begin(world: SmallWorld) -> None:
    _OWN.append(_here(Player(world, Catalog.installed())))


def _several(tasks: Sequence[_Task]) -> list[_Followed]:
    return list(_OWN[0](tasks))
