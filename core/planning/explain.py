"""Why a demand fits or does not, for a person: the layout, what may move, what is waited for, or what is short."""

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from kvarena.planning.charges import most
from kvarena.planning.placing import in_place, packed
from kvarena.planning.pricing import Action, Arrangement, Place, Waits, feasible, first_plan, middle
from kvarena.planning.snapshot import BandShot, ChainSnapshot, after_transfers, settled
from kvarena.terms.units import align_up, format_bytes


class Moved(NamedTuple):
    """What of a band moves at most."""

    name: str
    pages: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.name} {self.pages:,} ({format_bytes(self.bytes)})"


class Short(NamedTuple):
    """The band at which a demand fails, and by how much: ``ids``, or ``bytes`` in whole units of that band.

    ``shot``: the band as it is now. ``most``: the greatest ask that fits beside the rest of the demand; None where
    not even 0 does, because the rest alone is too much.
    """

    shot: BandShot
    asked: int
    ids: int
    bytes: int
    most: int | None


@attrs.frozen
class Explanation:
    """An answer to a demand with its reasons. ``arrangement`` where it fits, ``short`` where it does not.

    ``moved`` says what each band moves, at most or, where ``exact``, by count; ``settling`` the pending and vacated
    pages per band that are settled first; ``arrangement.waits`` says whether transfers are waited for.
    """

    demand: tuple[tuple[str, int], ...]
    arrangement: Arrangement | None
    moved: tuple[Moved, ...]
    settling: tuple[tuple[str, int], ...]
    short: Short | None
    exact: bool = False

    @property
    def fits(self) -> bool:
        """Whether the demand can be served."""
        return self.arrangement is not None

    def __str__(self) -> str:
        asked = ", ".join(f"{count:,} of {name!r}" for name, count in self.demand if count) or "nothing"
        if self.arrangement is not None:
            return "\n".join((f"{asked}: fits", *self._how(self.arrangement)))
        return "\n".join((f"{asked}: does not fit", *(_why(self.short) if self.short else ())))

    def _how(self, arrangement: Arrangement) -> tuple[str, ...]:
        pages, size = sum(moved.pages for moved in self.moved), sum(moved.bytes for moved in self.moved)
        moves, most = ", ".join(map(str, self.moved)), "" if self.exact else "at most "
        settles = ", ".join(f"{name} {count:,}" for name, count in self.settling)
        waits = [f"pending and vacated pages ({settles})"] if settles else []
        waits += ["every transfer, on the host"] if arrangement.waits is Waits.TRANSFERS else []
        return (
            f"  layout: {arrangement}",
            f"  moves: {most}{pages:,} pages, {format_bytes(size)}: {moves}" if moves else "  moves: nothing",
            f"  waits: {' · '.join(waits) or 'nothing'}",
        )


def explain(snapshot: ChainSnapshot, demand: Sequence[int], place: Place = middle) -> Explanation:
    """The answer of ``first_plan`` with its reasons."""
    feasible(snapshot, demand)  # says what is wrong with a demand that is none
    asked = tuple((shot.name, count) for shot, count in zip(snapshot.bands, demand, strict=True))
    arrangement = first_plan(snapshot, demand, place)
    if arrangement is None:
        return Explanation(asked, None, (), (), _shortage(snapshot, tuple(demand)))
    return Explanation(asked, arrangement, most_moved(snapshot, arrangement), _settling(snapshot, arrangement), None)


def most_moved(snapshot: ChainSnapshot, arrangement: Arrangement) -> tuple[Moved, ...]:
    """What each band moves at most; the chain knows where its live pages lie, and so how many move indeed."""
    shots = {shot.name: shot for shot in _reached(snapshot, arrangement.waits).bands}
    found: list[Moved] = []
    for place in arrangement.places:
        shot = shots[place.name]
        pages = 0
        if place.action is Action.FLUSH:
            pages = min(shot.live, shot.holes)
        elif place.action is Action.MOVE:
            stays = max(0, min(place.stop, shot.stop) - max(place.start, shot.start))
            pages = min(shot.live, shot.stop - shot.start - stays)
        if pages:
            found.append(Moved(place.name, pages, pages * shot.unit_bytes))
    return tuple(found)


def _reached(snapshot: ChainSnapshot, waits: Waits) -> ChainSnapshot:
    """The chain once that has been waited for."""
    if waits is Waits.TRANSFERS:
        return after_transfers(snapshot)
    return settled(snapshot) if waits is Waits.SETTLE else snapshot


def _settling(snapshot: ChainSnapshot, arrangement: Arrangement) -> tuple[tuple[str, int], ...]:
    """The pending and vacated pages per band that the arrangement waits for."""
    if arrangement.waits is Waits.NOTHING:
        counts = [(place.name, place.settles) for place in arrangement.places]
    else:
        counts = [(shot.name, shot.pending + shot.vacated) for shot in snapshot.bands]
    return tuple((name, count) for name, count in counts if count)


def _shortage(snapshot: ChainSnapshot, demand: tuple[int, ...]) -> Short:
    """Served in chain order, the first band whose ask does not fit any more."""
    last = after_transfers(snapshot)
    rest = (0,) * len(demand)
    index = next(at for at in range(len(demand)) if not feasible(last, demand[: at + 1] + rest[at + 1 :]))
    shot, count = snapshot.bands[index], demand[index]
    ids = max(0, count - last.bands[index].ids_free)
    size = 0 if ids else align_up(_overlap(last, demand), shot.unit_bytes)
    return Short(shot, count, ids, size, _most(last, demand, index))


def _most(snapshot: ChainSnapshot, demand: tuple[int, ...], index: int) -> int | None:
    """The most units of one band that fit beside the rest of the demand; None if not even none of it does."""

    def fits(count: int) -> bool:
        return feasible(snapshot, (*demand[:index], count, *demand[index + 1 :]))

    return most(fits, demand[index]) if fits(0) else None


def _overlap(snapshot: ChainSnapshot, demand: tuple[int, ...]) -> int:
    """How many bytes too far right the first band lies that does not fit, all packed as far left as it goes."""
    edge, top = snapshot.base, snapshot.top
    for shot, count in zip(snapshot.bands, demand, strict=True):
        if in_place(shot, count, top) is None:
            continue
        unit = shot.unit_bytes
        _, length, least, most, _ = packed(shot, count, top)
        start, most = max(-(-edge // unit), least), min(most, top // unit - length)
        if start > most:
            return (start - most) * unit
        edge = (start + length) * unit
    return 0


def _why(short: Short) -> tuple[str, ...]:
    shot, ids, size = short.shot, short.ids, short.bytes
    have = f"{short.most:,} can be had beside the rest" if short.most is not None else "the rest alone is too much"
    if short.most is None:
        nearest = "ask for less of the other sub-pools, or free some of any band"
    else:
        nearest = f"ask for at most {short.most:,} of {shot.name!r}, or free some of any band"
    return (
        f"  needs {short.asked:,} units of {shot.name!r}; {have}",
        f"  {shot.name}: live {shot.live:,} · holes {shot.holes:,} · pending {shot.pending:,} · "
        f"vacated {shot.vacated:,} · reserved {shot.reserved:,} · ids left {shot.ids_free:,}",
        f"  {ids:,} more than there are ids left"
        if ids
        else f"  short of {format_bytes(size)}, everything settled, released and packed",
        f"  nearest: {nearest}",
    )
