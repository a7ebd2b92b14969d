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
from collections.abc import Callable

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.batch import reads_of
from kvarena.plugins.stress.checks import CRASH, FEASIBLE_LIES, LOST_WRITE, RANK_DIVERGENCE, Broken, Checks
from kvarena.plugins.stress.operations import Op
from kvarena.plugins.stress.small_world import Move, SmallWorld, moves_of, probes_of
from kvarena.plugins.stress.small_world_key import Keys
from kvarena.plugins.stress.small_world_memory import Memory
from kvarena.plugins.stress.stage import Outcome, Stage
from kvarena.plugins.stress.tags import spelled
from kvarena.terms.errors import InvariantError

UNEXPECTED = "unexpected_error"
UNSTEADY = "state_differs_on_replay"
CHANGED = "error_has_changed_something"
MAY_REFUSE = {"free": "storage.free_below_what_retired"}
"""By verb, the named error that a move may come to: what a scheduler need not know beforehand."""


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


def explore(
    world: SmallWorld,
    depth: int,
    catalog: Catalog,
    *,
    found_max: int = 1,
    told: Callable[[Level], None] | None = None,
) -> Report:
    """Search a world to a depth in moves; stop after ``found_max`` broken promises.

    Raises:
        KvarenaError: the world cannot be built.
    """
    began = time.monotonic()
    with contextlib.closing(Player(world, catalog)) as player:
        search = _Search(player, found_max, told)
        level = 0
        while level < depth and search.to_follow and not search.is_done:
            level += 1
            search.follow(level)
        return Report(
            world.name, level, tuple(search.states), search.moves, player.probes, time.monotonic() - began,
            tuple(search.found), not search.to_follow and not search.found,
        )  # fmt: skip


def replay(world: SmallWorld, path: tuple[Move, ...], catalog: Catalog) -> Broken | None:
    """Play a path on new stages: the promise that it breaks."""
    with contextlib.closing(Player(world, catalog)) as player:
        return player.go(path) or player.look()


class _Search:
    """The states met so far, and those still to follow."""

    def __init__(self, player: "Player", found_max: int, told: Callable[[Level], None] | None) -> None:
        self.found: list[Found] = []
        broken = player.go(())
        if broken is not None:
            self._report(broken, ())
        first = _State(None, (), player.key() if broken is None else b"")
        self.to_follow = [first]
        self.states = [1]
        self.moves = 0
        self._player = player
        self._known = {first.key}
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
        for number, state in enumerate(following, start=1):
            self._from(state)
            if self._told is not None:
                self._told(Level(depth, number, len(following), len(self._known), self.moves))
            if self.is_done:
                return

    def _from(self, state: _State) -> None:
        player, path = self._player, state.path()
        broken = player.go(path)
        if broken is None and player.key() != state.key and state.key:
            broken = Broken(UNSTEADY, "the same moves led to another state than before")
        if broken is not None:
            self._report(broken, path)
            return
        broken = player.probe(path)
        if broken is not None:
            self._report(broken[0], broken[1])
            if self.is_done:
                return
        for move in player.moves():
            player.back()
            self.moves += 1
            wrong = player.play(move)
            key = player.key() if wrong is None else b""
            if wrong is None and player.was_error and key != state.key:
                wrong = Broken(CHANGED, f"{move[-1]} was an error, and something has changed")
            if wrong is None and key not in self._known:
                self._known.add(key)
                wrong = player.look()
                if wrong is None:
                    self.states[-1] += 1
                    self.to_follow.append(_State(state, move, key))
            if wrong is not None:
                self._report(wrong, (*path, move))
                if self.is_done:
                    return

    def _report(self, broken: Broken, path: tuple[Move, ...]) -> None:
        if broken.check not in {found.check for found in self.found}:
            self.found.append(Found(broken.check, broken.words, path))


class Player:
    """Two ranks of a world, on which moves are played and taken back."""

    def __init__(self, world: SmallWorld, catalog: Catalog) -> None:
        """Open both; the caller closes them.

        Raises:
            KvarenaError: the world cannot be built.
        """
        self.probes = 0
        self._world = world
        self._stages = [world.open(timing, catalog) for timing in ("early", "late")]
        self._early, self._late = self._stages
        self._checks = Checks(self._stages)
        self._keys = Keys(self._early)
        for stage in self._stages[1:]:
            Keys(stage)
        self._came = Outcome("value")
        self._start = self._here = self._remembered()

    def close(self) -> None:
        """Give both arenas back."""
        self._start.put_back()
        for stage in self._stages:
            stage.storage.release()

    def key(self) -> bytes:
        """The state of now."""
        return self._keys.key()

    def go(self, path: tuple[Move, ...]) -> Broken | None:
        """To the end of a path, from the start; moves are tried from there."""
        self._start.put_back()
        for move in (*self._world.start, *path):
            broken = self.play(move)
            if broken is not None:
                return broken
        self._here = self._remembered()
        return None

    def back(self) -> None:
        """To where ``go`` led."""
        self._here.put_back()

    @property
    def was_error(self) -> bool:
        """Whether the last operation came to a named error, of those that it may come to."""
        return self._came.kind == "error"

    def moves(self) -> tuple[Move, ...]:
        """What may happen now."""
        return tuple(moves_of(self._world, self._early))

    def play(self, move: Move) -> Broken | None:
        """One move on both ranks; the promise that it broke."""
        for op in move:
            try:
                outcomes = [stage.apply(op) for stage in self._stages]
                self._came = outcomes[0]
                self._early.device.turn()
                broken = self._checks.after(op, outcomes) or _unexpected(op, outcomes)
            except Exception as error:  # whatever an operation stops with is what we are here to find
                return Broken(f"{CRASH}.{type(error).__name__}", f"{op}: {type(error).__name__}: {error}")
            if broken is not None:
                return broken
        return None

    def look(self) -> Broken | None:
        """All that is slow to look at; afterwards the state is another, as everything has landed."""
        try:
            self._early.storage.verify()
            broken = self._unread()
            if broken is None and self._early.digest() != self._late.digest():
                broken = Broken(RANK_DIVERGENCE, "the ranks' maps, lengths or answers differ")
            if broken is None:
                self._late.device.drain()
                broken = self._checks.after(Op("turn", {}), [Outcome("value"), Outcome("value")])
        except InvariantError as error:
            return Broken(str(error).partition(":")[0].partition(" ")[0], str(error))
        return broken

    def probe(self, path: tuple[Move, ...]) -> tuple[Broken, tuple[Move, ...]] | None:
        """Take what is said to fit, to the last unit, and one unit more, which is said not to."""
        for op, fits in tuple(probes_of(self._early)):
            self.back()
            self.probes += 1
            broken = self.play((op,))
            if broken is None and (self._came.kind == "value") != fits:
                said = "fits" if fits else "does not fit"
                broken = Broken(FEASIBLE_LIES, f"{op} {said}, said feasible; and then came {self._came}")
            if broken is not None:
                return broken, (*path, (op,))
        return None

    def _remembered(self) -> Memory:
        still = [part for stage in self._stages for part in (stage.storage.plan, stage.storage.sizing)]
        return Memory(self._stages, still)

    def _unread(self) -> Broken | None:
        """Rows that nobody has read yet hold what they should too, on the rank where everything has landed."""
        stage = self._early
        props, storage = stage.props, stage.storage
        for name, request in props.requests.items():
            if storage.requests.away.holds[request.row] < 0:
                continue
            for check in reads_of(props, (name,), storage.translate(props.rows([name]))):
                for wrong in check.tags.compare(check.pages, check.expected):
                    words = (
                        f"{check.tags.name} row {wrong.place} of page {int(check.pages[wrong.index])} of {name} holds "
                        f"{spelled(wrong.found)}, not {spelled(wrong.expected)}, though nobody has read it yet"
                    )
                    return Broken(LOST_WRITE, words)
        return None


def _unexpected(op: Op, outcomes: list[Outcome]) -> Broken | None:
    """Every move is one that may be made: none of them comes to an error, a named one included."""
    for outcome in outcomes:
        if outcome.kind not in ("value", "refused") and MAY_REFUSE.get(op.verb) != outcome.name:
            return Broken(UNEXPECTED, f"{op} came to {outcome}")
    return None
