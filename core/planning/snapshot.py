"""A chain as pricing sees it: host integers of one epoch, frozen, never the position of a hole."""

from typing import NamedTuple

from kvarena.terms.ports import End


class BandShot(NamedTuple):
    """One band: counts in units, ``start`` and ``stop`` in pages of its own grid.

    Always: live + holes + pending + vacated + reserved == stop - start.

    ``end`` is None for a float. An anchored end's outer page (``start`` if low, ``stop`` if high) is where it
    begins, also when it is empty. ``ids_free``: how many more ids can be bound, a cap of the band included.
    ``pending``: pages freed under a forward, free for every question. ``vacated``: old places of moved pages that a
    forward may still read: free for every question too, once it is waited for. ``reserved``: pages that lost their
    owner and that an open transfer still touches: they have no id, and are in the span and in everybody's way until
    it has ended.
    ``fixed_start`` to ``fixed_stop`` covers every page that may not move, with or without an id; the two are equal
    where none is.
    """

    name: str
    unit_bytes: int
    end: End | None
    live: int
    holes: int
    start: int
    stop: int
    ids_free: int
    pending: int = 0
    vacated: int = 0
    reserved: int = 0
    fixed_start: int = 0
    fixed_stop: int = 0


class ChainSnapshot(NamedTuple):
    """The chain at one epoch: usable bytes ``[base, top)`` and its bands in chain order. No hole positions.

    ``released``: the bands as they are once every transfer has been waited for on the host, each with its span and
    no less free; None where no transfer keeps pages, or where the host may not wait for it.
    """

    base: int
    top: int
    bands: tuple[BandShot, ...]
    released: tuple[BandShot, ...] | None = None


def settled(snapshot: ChainSnapshot) -> ChainSnapshot:
    """After recovery: every pending and vacated page is a hole. The same value where there is none.

    No span is shortened, since nobody says here where the new holes lie: the chain absorbs those at its frontiers.
    """
    if not any(shot.pending or shot.vacated for shot in snapshot.bands):
        return snapshot
    base, top, bands, released = snapshot
    return ChainSnapshot(base, top, tuple(map(_calm, bands)), released)


def after_transfers(snapshot: ChainSnapshot) -> ChainSnapshot:
    """After the host has waited for every transfer, and recovery: fewer pages are fixed, and fewer reserved."""
    if snapshot.released is None:
        return settled(snapshot)
    return settled(ChainSnapshot(snapshot.base, snapshot.top, snapshot.released))


def _calm(shot: BandShot) -> BandShot:
    name, unit, end, live, holes, start, stop, ids_free, pending, vacated, *rest = shot
    return BandShot(name, unit, end, live, holes + pending + vacated, start, stop, ids_free, 0, 0, *rest)
