"""Does a demand fit, and by which rearrangement? Pure functions on a frozen snapshot of the chain.

A *demand* is a tuple of units per sub-pool in chain order. Three steps of rearrangement, each reaching all
that the one before it reaches:

    NO_MOVE     holes are reused, then vacated, then pending pages, then each span extends at its frontiers
    FLUSH_ENDS  the ends may be packed first, around their fixed pages
    RELAYOUT    floats may be relocated as well, as packed blocks that cover their fixed pages

and three waits, likewise:

    NOTHING     NO_MOVE as the chain is; a take waits for the vacated and pending pages that it needs
    SETTLE      recovery: pending and vacated pages are holes; every step
    TRANSFERS   the host waits for transfers: fewer pages are fixed or reserved; every step

Positions are exact: every span lies on its own grid from byte 0, a float that holds nothing takes no room and
its neighbours see through it, an empty end takes nothing beyond its sink. One pass from the right finds how far
right each band may begin, and which bands stay where they are; one pass from the left then places each between
its least and its greatest position, so a preference never makes a feasible demand fail.

Minimised: the bytes of what moves, a float counted whole, an end by its holes; then the number of bands. Not
minimised beyond that: a relocated float is put as near its old place as what lies on its left allows.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kvarena.planning.placing import Action, Shape, Step, in_place, shapes
from kvarena.planning.snapshot import BandShot, ChainSnapshot, after_transfers, settled
from kvarena.terms.invariants import fail, invariant
from kvarena.terms.ports import LOW

__all__ = [
    "Action", "Arrangement", "Placing", "Step", "Waits", "check_demand", "feasible", "first_plan", "move_order", "plan",
    "serves", "unheld_bytes",
]  # fmt: skip

Place = Callable[[int, int], int]

STATES_MAX = 64
"""How many ways to keep bands in place are remembered at a border; the one that needs the least room always is."""

_new = tuple.__new__  # the step path makes one named tuple per band: this takes half the time


class Waits(enum.IntEnum):
    """What is waited for before an arrangement can be realized."""

    NOTHING = 0
    SETTLE = 1
    TRANSFERS = 2


_AFTER = {Waits.NOTHING: "", Waits.SETTLE: " once settled", Waits.TRANSFERS: " once transfers have ended"}


class Placing(NamedTuple):
    """Where a band's span lies after the take, in pages of its own grid.

    ``settles``: the pending pages that the take itself needs beyond the holes; 0 where recovery settled them all.
    """

    name: str
    action: Action
    start: int
    stop: int
    settles: int = 0

    def __str__(self) -> str:
        settling = f", settles {self.settles}" if self.settles else ""
        return f"{self.name} [{self.start}, {self.stop}) {self.action.value}{settling}"


class Arrangement(NamedTuple):
    """An answer: the least or the asked step, every band that holds something in chain order, what it waits for."""

    step: Step
    places: tuple[Placing, ...]
    waits: Waits = Waits.NOTHING

    def __str__(self) -> str:
        return f"{self.step.name}{_AFTER[self.waits]}: " + ", ".join(str(place) for place in self.places)


def middle(lowest: int, highest: int) -> int:
    """The default place of an empty float: the middle of where it may start."""
    return (lowest + highest) // 2


def feasible(snapshot: ChainSnapshot, demand: Sequence[int]) -> bool:
    """Whether any reachable arrangement serves the demand, after any wait: all packed as far left as it goes.

    Exact: RELAYOUT reaches all that the other steps reach, and packing left leaves the most to the right.
    """
    check_demand(snapshot, demand)
    return serves(snapshot, demand)


def check_demand(snapshot: ChainSnapshot, demand: Sequence[int]) -> None:
    """A demand has one count for every sub-pool, and none is negative.

    Raises:
        InvariantError: it is none of this chain's.
    """
    bands = snapshot.bands
    if len(demand) != len(bands):
        fail("pricing.demand_of_other_bands", bands=len(bands), demand=len(demand))
    if demand and min(demand) < 0:
        short = next((shot.name, count) for shot, count in zip(bands, demand, strict=True) if count < 0)
        fail("pricing.negative_demand", sub_pool=short[0], count=short[1])


def serves(snapshot: ChainSnapshot, units: Sequence[int]) -> bool:
    """``feasible``, of a demand less the live units that are freed before: below zero where these are more. Unchecked.

    Where they lie does not matter: all is packed. None of them may be fixed.
    """
    edge, room, bands, released = snapshot
    if released is not None:
        bands = released
    for shot, count in zip(bands, units, strict=True):
        _, unit, end, live, _, start, stop, ids_free, _, _, reserved, low, high = shot
        if count > ids_free:
            return False
        size = (live + reserved + count) * unit
        if not size:
            continue
        if end is None:
            edge = -(-edge // unit) * unit
            if low < high:
                size = max(size, (high - low) * unit)
                edge = max(edge, high * unit - size)
                if edge > low * unit:
                    return False
            edge += size
        elif end is LOW:
            edge = start * unit + size
            if low < high and edge < high * unit:
                edge = high * unit
        else:
            room = stop * unit - size
            if low < high and room > low * unit:
                room = low * unit
    return edge <= room


def unheld_bytes(snapshot: ChainSnapshot) -> int:
    """The bytes that no live or reserved unit holds, after any wait: no demand for more of them is feasible."""
    bands = snapshot.bands if snapshot.released is None else snapshot.released
    return snapshot.top - snapshot.base - sum([(shot.live + shot.reserved) * shot.unit_bytes for shot in bands])


def first_plan(snapshot: ChainSnapshot, demand: Sequence[int], place: Place = middle) -> Arrangement | None:
    """The least rearrangement that serves the demand, after the least wait; None if none does."""
    found = plan(snapshot, demand, Step.NO_MOVE, place)
    if found is not None:
        return found
    for reached, waits in _tiers(snapshot):
        for step in Step:
            found = plan(reached, demand, step, place)
            if found is not None:
                return Arrangement(step, found.places, waits)
    return None


def plan(snapshot: ChainSnapshot, demand: Sequence[int], step: Step, place: Place = middle) -> Arrangement | None:
    """An arrangement that serves the demand with this much rearrangement; None if there is none.

    NO_MOVE is asked of the snapshot as it is; the other steps come after recovery. None of them waits for
    transfers: ask ``after_transfers(snapshot)`` for that. ``place`` chooses the first page of a float that holds
    nothing, between the least and the greatest that serve.
    """
    check_demand(snapshot, demand)
    waits = Waits.NOTHING
    if step is not Step.NO_MOVE:
        calm = settled(snapshot)
        waits = Waits.NOTHING if calm is snapshot else Waits.SETTLE
        snapshot = calm
    limits = _stays(snapshot, demand) if step is Step.NO_MOVE else _least_moves(snapshot, demand, step)
    if limits is None:
        return None
    return _new(Arrangement, (step, _places(snapshot, limits, place), waits))


def move_order(snapshot: ChainSnapshot, arrangement: Arrangement) -> tuple[str, ...]:
    """The floats that move, in an order in which none is copied onto bytes that another still holds.

    There always is one, whatever is fixed. Both the old and the new spans lie in chain order, so if a float waits
    for one to its right, everything between them goes right too, and nothing from there waits for a float on the
    left. A block may overlap its own old place.
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


def _tiers(snapshot: ChainSnapshot) -> Iterator[tuple[ChainSnapshot, Waits]]:
    """What the chain becomes after each wait, the least first."""
    calm = settled(snapshot)
    yield calm, Waits.NOTHING if calm is snapshot else Waits.SETTLE
    if snapshot.released is not None:
        yield after_transfers(snapshot), Waits.TRANSFERS


_Limits = list[tuple[BandShot, int, Shape, int, int]]
"""Per band that holds something, from the right: its shot, what is asked, its shape, the byte at which it must end
and the greatest first page with which it does."""


def _stays(snapshot: ChainSnapshot, demand: Sequence[int]) -> _Limits | None:
    """How far right each band may lie, everything in place; None if it does not fit."""
    base, top, bands, _ = snapshot
    edge, index = top, len(bands)
    limits: _Limits = []
    for shot in reversed(bands):
        index -= 1
        count = demand[index]
        if count > shot.ids_free:
            return None
        shape = in_place(shot, count, top)
        if shape is not None:
            unit = shot.unit_bytes
            _, length, least, most, _ = shape
            start = edge // unit - length
            if start > most:
                start = most
            if start < least:
                return None
            limits.append((shot, count, shape, edge, start))
            edge = start * unit
    return limits if edge >= base else None


def _least_moves(snapshot: ChainSnapshot, demand: Sequence[int], step: Step) -> _Limits | None:
    """The same, where some bands may move: those that cost the least. None if nothing fits.

    Each state is a border, what the bands to its right cost, and how they lie. Of two states the one that
    reaches no further right and costs no less is dropped.
    """
    base, top, bands, _ = snapshot
    states: list[tuple[int, int, _Limits]] = [(top, 0, [])]
    for shot, count in zip(reversed(bands), reversed(demand), strict=True):
        if count > shot.ids_free:
            return None
        forms = shapes(shot, count, top, step)
        if not forms:
            continue
        reached, unit = [], shot.unit_bytes
        for edge, cost, limits in states:
            for shape in forms:
                _, length, least, most, price = shape
                start = min(edge // unit - length, most)
                if start >= least:
                    more = [*limits, (shot, count, shape, edge, start)]
                    reached.append((start * unit, cost + price, more))
        states = _best(reached)
    fitting = [state for state in states if state[0] >= base]
    return min(fitting, key=lambda state: state[1])[2] if fitting else None


def _best(states: list[tuple[int, int, _Limits]]) -> list[tuple[int, int, _Limits]]:
    """Those that no other beats in room and in cost: the border farthest right first."""
    if len(states) < 2:
        return states
    best: list[tuple[int, int, _Limits]] = []
    for state in sorted(states, key=lambda state: (-state[0], state[1])):
        if not best or state[1] < best[-1][1]:
            best.append(state)
    return best[:STATES_MAX]


def _places(snapshot: ChainSnapshot, limits: _Limits, place: Place) -> tuple[Placing, ...]:
    """Each band between what lies on its left and its limit, from the left."""
    edge = snapshot.base
    places: list[Placing] = []
    for shot, count, shape, limit, highest in reversed(limits):
        unit, start = shot.unit_bytes, highest
        if shape[2] < highest:
            lowest = max(-(-edge // unit), shape[2])
            if lowest < highest:
                start = _wish(shot, shape, (lowest, highest), (edge, limit), place)
        stop = start + shape[1]
        settles = shot.pending and max(0, min(count - shot.holes - shot.vacated, shot.pending))
        places.append(_new(Placing, (shot.name, shape[0], start, stop, settles)))
        edge = stop * unit
    return tuple(places)


def _wish(shot: BandShot, shape: Shape, reach: tuple[int, int], gap: tuple[int, int], place: Place) -> int:
    """The first page that a float would like: nearest its old one; if it grows in place, towards the larger gap."""
    _, unit, _, live, _, start, stop, _, pending, vacated, reserved, _, _ = shot
    lowest, highest = reach
    if shape[0] is Action.STAY:
        if live or reserved or pending or vacated:
            return highest if gap[1] - stop * unit >= start * unit - gap[0] else lowest
        start = place(lowest, highest)
    return min(max(start, lowest), highest)
