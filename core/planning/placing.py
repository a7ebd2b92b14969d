"""Where one band may lie: its shapes under a demand.

A *shape* is a length and the range of first pages that it may have. In place a band keeps its span and grows
at its frontiers. Packed, an end closes its pages around its fixed ones, and a float is one block that covers
its fixed ones. A packed length is the least that will do: the live, reserved and asked pages, or more where fixed
pages lie farther apart than that (a float), or farther from where the band begins (an end).
"""

import enum

from kvarena.planning.snapshot import BandShot
from kvarena.terms.ports import LOW


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


Shape = tuple[Action, int, int, int, int]
"""A form that a band may take: the action, the pages, the least and the greatest first page, and what it costs.

The cost is what the form moves at most, in bytes, and one more; 0 where nothing moves.
"""


def in_place(shot: BandShot, count: int, top: int) -> Shape | None:
    """The band where it is, with what its free pages lack added at a frontier; None if it holds nothing.

    A float that holds nothing has no place yet: its first page may be anywhere. An empty end begins at its anchor.
    """
    _, unit, end, live, holes, start, stop, _, pending, vacated, reserved, _, _ = shot
    if not unit:
        return None
    if live or pending or vacated or reserved:
        growth = count - holes - pending - vacated
        if growth < 0:
            growth = 0
        length = stop - start + growth
        if end is None:
            return Action.STAY, length, start - growth, start, 0
    elif not count:
        return None
    else:
        length = count
        if end is None:
            return Action.STAY, length, 0, top // unit, 0
    first = start if end is LOW else stop - length
    return Action.STAY, length, first, first, 0


def packed(shot: BandShot, count: int, top: int) -> Shape:
    """The band in its least length. Pending and vacated pages are settled: they are holes by now."""
    unit, size = shot.unit_bytes, shot.live + shot.reserved + count
    low, high = shot.fixed_start, shot.fixed_stop
    is_fixed = low < high
    if shot.end is None:
        length = max(size, high - low)
        least, most = (high - length, low) if is_fixed else (0, top // unit)
        return Action.MOVE, length, least, most, 1 + shot.live * unit
    cost = 1 + min(shot.live, shot.holes) * unit
    if shot.end is LOW:
        length = max(size, high - shot.start) if is_fixed else size
        return Action.FLUSH, length, shot.start, shot.start, cost
    length = max(size, shot.stop - low) if is_fixed else size
    return Action.FLUSH, length, shot.stop - length, shot.stop - length, cost


def shapes(shot: BandShot, count: int, top: int, step: Step) -> tuple[Shape, ...]:
    """Every form that ``step`` allows; none for a band that holds nothing and asks for nothing."""
    stay = in_place(shot, count, top)
    if stay is None:
        return ()
    if step is Step.NO_MOVE or not shot.live + shot.reserved:
        return (stay,)
    if shot.end is None:
        return (stay, packed(shot, count, top)) if step is Step.RELAYOUT else (stay,)
    close = packed(shot, count, top)
    return (stay, close) if close[1] < stay[1] else (stay,)
