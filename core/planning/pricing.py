"""Does a demand fit, and by which rearrangement? Pure functions on a frozen snapshot of the chain.

A *demand* is a tuple of units per sub-pool in chain order. Three steps of rearrangement, each reaching all
that the one before it reaches:

    NO_MOVE     holes are reused, each span extends at its frontiers
    FLUSH_ENDS  the ends are compacted first
    RELAYOUT    floats are moved as packed blocks between the compacted ends

Positions are exact: every span lies on its own grid from byte 0, an empty float takes no room and its
neighbours see through it, an empty end takes nothing beyond its sink. One pass from the right finds how
far right each span may lie; one pass from the left then places each between its least and its greatest
position, so a preference never makes a feasible demand fail.
"""

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import HIGH, LOW
from kvarena.terms.units import ceil_div

Place = Callable[[int, int], int]


class Step(enum.IntEnum):
    """How much may be rearranged."""

    NO_MOVE = 0
    FLUSH_ENDS = 1
    RELAYOUT = 2


class Action(enum.Enum):
    """What happens to a band before its take."""

    STAY = "stay"
    FLUSH = "flush"
    MOVE = "move"


class Placing(NamedTuple):
    """Where a band's span lies after the take, in pages of its own grid."""

    name: str
    action: Action
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.name} [{self.start}, {self.stop}) {self.action.value}"


class Arrangement(NamedTuple):
    """An answer: the least or the asked step, and every band that holds something, in chain order."""

    step: Step
    places: tuple[Placing, ...]

    def __str__(self) -> str:
        return f"{self.step.name}: " + ", ".join(str(place) for place in self.places)


def middle(lowest: int, highest: int) -> int:
    """The default place of an empty float: the middle of where it may start."""
    return (lowest + highest) // 2


def feasible(snapshot: ChainSnapshot, demand: Sequence[int]) -> bool:
    """Whether any reachable arrangement serves the demand: everything packed as far left as it goes.

    Exact: RELAYOUT reaches all that the other steps reach, and packing left leaves the most to the right.
    """
    edge, room = snapshot.base, snapshot.top
    for shot, count in zip(snapshot.bands, demand, strict=True):
        _, unit, end, live, _, start, stop, ids_free, *_ = shot
        if not 0 <= count <= ids_free:
            invariant("pricing.negative_demand", count >= 0, sub_pool=shot.name, count=count)
            return False
        size = (live + count) * unit
        if size:
            if end is None:
                edge = -(-edge // unit) * unit + size
            elif end is LOW:
                edge = start * unit + size
            else:
                room = stop * unit - size
    return edge <= room


def first_plan(snapshot: ChainSnapshot, demand: Sequence[int], place: Place = middle) -> Arrangement | None:
    """The least rearrangement that serves the demand; None if none does."""
    for step in Step:
        arrangement = plan(snapshot, demand, step, place)
        if arrangement is not None:
            return arrangement
    return None


def plan(snapshot: ChainSnapshot, demand: Sequence[int], step: Step, place: Place = middle) -> Arrangement | None:
    """An arrangement that serves the demand with this much rearrangement; None if there is none.

    ``place`` chooses the first page of an empty float, between the least and the greatest that serve.
    """
    if any(count > shot.ids_free for shot, count in zip(snapshot.bands, demand, strict=True)):
        return None
    wants = [
        _Want.of(shot, count)
        for shot, count in zip(snapshot.bands, demand, strict=True)
        if shot.unit_bytes and shot.live + count
    ]
    limits: list[int] = []
    edge = snapshot.top
    for want in reversed(wants):
        limits.append(edge)
        start = want.rightmost(edge, step)
        if start is None:
            return None
        edge = start * want.unit_bytes
    places: list[Placing] = []
    edge = snapshot.base
    for want, limit in zip(wants, reversed(limits), strict=True):
        placing = want.placing(edge, limit, step, place)
        if placing is None:
            return None
        places.append(placing)
        edge = placing.stop * want.unit_bytes
    return Arrangement(step, tuple(places))


def move_order(snapshot: ChainSnapshot, arrangement: Arrangement) -> tuple[str, ...]:
    """The floats that move, in an order in which none is copied onto bytes that another still holds.

    There always is one. Both the old and the new spans lie in chain order, so if a float waits for one to
    its right, everything between them goes right too, and nothing from there waits for a float on the left.
    """
    shots = {shot.name: shot for shot in snapshot.bands}
    waiting = [place for place in arrangement.places if place.action is Action.MOVE]
    order: list[str] = []
    while waiting:
        ready = next(
            (
                place
                for place in waiting
                if not any(_onto(place, shots[place.name], shots[other.name]) for other in waiting if other != place)
            ),
            None,
        )
        invariant("pricing.moves_in_a_circle", ready is not None, waiting=[str(place) for place in waiting])
        if ready is not None:
            waiting.remove(ready)
            order.append(ready.name)
    return tuple(order)


def _onto(place: Placing, shot: BandShot, other: BandShot) -> bool:
    """Whether the new block of ``shot`` touches the present bytes of ``other``."""
    low, high = place.start * shot.unit_bytes, place.stop * shot.unit_bytes
    return low < other.stop * other.unit_bytes and other.start * other.unit_bytes < high


class _Want(NamedTuple):
    """One band that will hold something: how long its span gets in place (``length``) and packed (``size``)."""

    shot: BandShot
    unit_bytes: int
    size: int
    growth: int
    length: int

    @classmethod
    def of(cls, shot: BandShot, count: int) -> "_Want":
        growth = max(0, count - shot.holes)
        return cls(shot, shot.unit_bytes, shot.live + count, growth, shot.stop - shot.start + growth)

    def rightmost(self, edge: int, step: Step) -> int | None:
        """The greatest first page with which the leanest form that ``step`` allows ends at or before ``edge``.

        None for an end that reaches beyond. A float may be pushed further left than it can go: ``placing`` sees it.
        """
        shot = self.shot
        limit = edge // self.unit_bytes
        if shot.end is not None:
            length = self.size if step >= Step.FLUSH_ENDS else self.length
            start = shot.start if shot.end is LOW else shot.stop - length
            return start if start + length <= limit else None
        if not shot.live or step is Step.RELAYOUT:
            return limit - self.size
        return min(shot.start, limit - self.length)

    def placing(self, edge: int, limit: int, step: Step, place: Place) -> Placing | None:
        """The place between ``edge`` and ``limit``, in bytes; None if it does not fit between them."""
        shot = self.shot
        lowest, stop = ceil_div(edge, self.unit_bytes), limit // self.unit_bytes
        if shot.end is LOW:
            return self._placing_low(stop, step)
        if shot.end is HIGH:
            return self._placing_high(lowest, step)
        if not shot.live:
            highest = stop - self.size
            if lowest > highest:
                return None
            return self._at(min(max(place(lowest, highest), lowest), highest), self.size)
        least, most = max(lowest, shot.start - self.growth), min(shot.start, stop - self.length)
        if least <= most:
            above = limit - shot.stop * self.unit_bytes >= shot.start * self.unit_bytes - edge
            return self._at(most if above else least, self.length)
        highest = stop - self.size
        if step is not Step.RELAYOUT or lowest > highest:
            return None
        return self._at(min(max(shot.start, lowest), highest), self.size, Action.MOVE)

    def _placing_low(self, limit: int, step: Step) -> Placing | None:
        """In place while the rest still fits beside it; else packed, once the step allows it."""
        start = self.shot.start
        if start + self.length <= limit and step is not Step.RELAYOUT:
            return self._at(start, self.length)
        if step is Step.NO_MOVE or start + self.size > limit:
            return None
        return self._packed(start)

    def _placing_high(self, edge: int, step: Step) -> Placing | None:
        stop = self.shot.stop
        if stop - self.length >= edge and step is not Step.RELAYOUT:
            return self._at(stop - self.length, self.length)
        if step is Step.NO_MOVE or stop - self.size < edge:
            return None
        return self._packed(stop - self.size)

    def _packed(self, start: int) -> Placing:
        return self._at(start, self.size, Action.FLUSH if self.length > self.size else Action.STAY)

    def _at(self, start: int, length: int, action: Action = Action.STAY) -> Placing:
        return Placing(self.shot.name, action, start, start + length)
