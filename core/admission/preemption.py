"""Which running requests would make room for another, if they were stopped. Nobody is stopped by asking."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, cast

from kvarena.planning.demand import Demand
from kvarena.terms.doors import whole
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import Cache, IntArray


class Victim(NamedTuple):
    """A running request that could be stopped: its row, and the cache entry that it has locked, if any.

    ``relaxed``: it has let go of the entry's windows and state already, and locks the rest alone: such a cache takes
    ``relaxed=True`` with ``lock`` and ``unlock``.
    """

    row: int
    reading: Any = None
    relaxed: bool = False


class Relaxing(Cache, Protocol):
    """A cache some of whose readers have let go of an entry's windows and state: their locks keep the path alone."""

    def lock(self, entry: Any, relaxed: bool = False) -> None:
        """One reader more; ``relaxed``: one that needs the path alone."""
        ...

    def unlock(self, entry: Any, relaxed: bool = False) -> None:
        """One reader fewer; ``relaxed``: one that needed the path alone."""
        ...


class Unlocked:
    """The locks of some victims, taken off for a question and put back after it, each of the kind that it was."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self._off: dict[int, Victim] = {}

    def take_off(self, victim: Victim) -> None:
        """As if it were stopped."""
        if self.cache is not None and victim.reading is not None:
            if victim.relaxed:
                cast(Relaxing, self.cache).unlock(victim.reading, relaxed=True)
            else:
                self.cache.unlock(victim.reading)
            self._off[victim.row] = victim

    def put_back(self, victim: Victim) -> None:
        """It goes on."""
        if self.cache is not None and victim.row in self._off:
            if victim.relaxed:
                cast(Relaxing, self.cache).lock(victim.reading, relaxed=True)
            else:
                self.cache.lock(victim.reading)
            del self._off[victim.row]

    def put_all_back(self) -> None:
        """Every lock is as it was."""
        for victim in [*self._off.values()]:
            self.put_back(victim)


def fewest(
    victims: Sequence[Victim], unlocked: Unlocked, fits: Callable[[Sequence[Victim]], bool]
) -> tuple[int, ...] | None:
    """The rows to stop, in the victims' order: the first ones until it fits, and of those none that can be spared.

    The one that is worth the most, the last, is tried to be spared first. None where all of them together do not do.
    """
    stopped: list[Victim] = []
    left = iter(victims)
    while not fits(stopped):
        victim = next(left, None)
        if victim is None:
            return None
        unlocked.take_off(victim)
        stopped.append(victim)
    for victim in reversed(stopped[:-1]):  # without the last it did not fit
        rest = [other for other in stopped if other is not victim]
        unlocked.put_back(victim)
        if fits(rest):
            stopped = rest
        else:
            unlocked.take_off(victim)
    return tuple(victim.row for victim in stopped)


def units_by_row(victims: Iterable[Victim], by_row: IntArray) -> Demand:
    """The units of these rows together, of an array (sub-pools, rows)."""
    rows = [victim.row for victim in victims]
    return tuple(by_row[:, rows].sum(axis=1).tolist())


def check_victims(victims: Sequence[Victim], rows: int) -> None:
    """Each is a row, and named once.

    Raises:
        KvarenaError: one is not, or is named twice.
    """
    if not isinstance(victims, Sequence):
        raise KvarenaError(f"the victims are {victims!r}; give a sequence of Victim(row, reading, relaxed)")
    seen: set[int] = set()
    for victim in victims:
        if not isinstance(victim, Victim):
            raise KvarenaError(f"a victim is {victim!r}; give Victim(row, reading, relaxed)")
        whole(victim.row, "a victim's row")
        if not 0 <= victim.row < rows or victim.row in seen:
            raise KvarenaError(f"victim {victim.row} is no request row of {rows}, or is named twice")
        seen.add(victim.row)
