"""A chain for people and for logs: the arena drawn in proportion, and its counts."""

from collections.abc import Mapping

from kvarena.chain.chain import Chain
from kvarena.planning.snapshot import BandShot, ChainSnapshot
from kvarena.terms.ports import HIGH, LOW
from kvarena.terms.units import format_bytes

WIDTH = 72
FREE, SINK, LIVE, HOLE = " ", "x", "#", "o"


def stats(chain: Chain) -> Mapping[str, Mapping[str, int]]:
    """Exact counts per sub-pool: units live, holes, span and ids left, and the bytes of a unit."""
    return {
        shot.name: {
            "live": shot.live,
            "holes": shot.holes,
            "span": shot.stop - shot.start,
            "ids_free": shot.ids_free,
            "unit_bytes": shot.unit_bytes,
        }
        for shot in chain.snapshot().bands
    }


def describe(chain: Chain) -> str:
    """The arena as text: one line in proportion, one line per band, what is free, and what has moved."""
    snapshot, counters = chain.snapshot(), chain.counters
    lines = [f"|{picture(snapshot)}|", *(_line(shot) for shot in snapshot.bands)]
    lines.append(f"free {format_bytes(snapshot.free_bytes)} of {format_bytes(snapshot.top - snapshot.base)}")
    lines.append(
        f"takes {counters.takes:,} · refusals {counters.refusals:,} · moves {counters.moves:,} "
        f"({format_bytes(counters.moved_bytes)}) · relocations {counters.relocations:,}"
    )
    return "\n".join(lines)


def picture(snapshot: ChainSnapshot, width: int = WIDTH) -> str:
    """The arena in ``width`` characters: sink ``x``, live ``#``, holes ``o`` in the share they have of a span.

    Holes are drawn at the frontier: a snapshot counts them and does not know where they lie. A band that
    holds anything has at least one character.
    """
    cells = [FREE] * width
    scale = width / max(1, snapshot.top)
    cells[: round(snapshot.base * scale)] = [SINK] * round(snapshot.base * scale)
    for shot in snapshot.bands:
        if shot.live and shot.unit_bytes:
            low = min(int(shot.start * shot.unit_bytes * scale), width - 1)
            high = min(max(low + 1, round(shot.stop * shot.unit_bytes * scale)), width)
            live = max(1, round((high - low) * shot.live / (shot.live + shot.holes)))
            drawn = LIVE * live + HOLE * (high - low - live)
            cells[low:high] = reversed(drawn) if shot.end is HIGH else drawn
    return "".join(cells)


def _line(shot: BandShot) -> str:
    if not shot.unit_bytes:
        return f"  {shot.name}: {shot.live:,} ids, no bytes; {shot.ids_free:,} left"
    place = {LOW: "low end, grows up", HIGH: "high end, grows down", None: "float"}[shot.end]
    low, high = shot.start * shot.unit_bytes, shot.stop * shot.unit_bytes
    where = f"bytes {low:,} to {high:,}" if shot.live else "empty"
    return (
        f"  {shot.name} ({place}): live {shot.live:,} · holes {shot.holes:,} units of {format_bytes(shot.unit_bytes)}; "
        f"{where}; {shot.ids_free:,} ids left"
    )
