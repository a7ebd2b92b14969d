"""Two ranks of a small world, on which moves are played and taken back, with every check after each."""

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.explore.key import Keys
from kvarena.plugins.stress.explore.memory import Memory
from kvarena.plugins.stress.explore.world import Move, SmallWorld, moves_of, probes_of
from kvarena.plugins.stress.stage.batch import reads_of
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import Outcome
from kvarena.plugins.stress.swarm.checks import CRASH, FEASIBLE_LIES, RANK_DIVERGENCE, Broken, Checks
from kvarena.terms.errors import InvariantError

UNEXPECTED = "unexpected_error"
MAY_REFUSE = {"free": "storage.free_below_what_retired"}
"""By verb, the named error that a move may come to: what a scheduler need not know beforehand."""


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
            if storage.requests.away.holds[request.row]:  # its copy or peer writes whole pages, zeroed or not
                continue
            for check in reads_of(props, (name,), storage.translate(props.rows([name]))):
                props.tell("a look at what nobody reads yet", check, check.tags.compare(check.pages, check.expected))
        if stage.findings:
            return Broken(stage.findings[0].check, stage.findings[0].words)
        return None


def _unexpected(op: Op, outcomes: list[Outcome]) -> Broken | None:
    """Every move is one that may be made: none of them comes to an error, a named one included."""
    for outcome in outcomes:
        if outcome.kind not in ("value", "refused") and MAY_REFUSE.get(op.verb) != outcome.name:
            return Broken(UNEXPECTED, f"{op} came to {outcome}")
    return None
