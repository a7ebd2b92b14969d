"""A chain for people and for logs: the arena drawn in proportion, and its counts."""

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvarena.bands.band import Band
from kvarena.bands.float_band import FloatBand
from kvarena.bands.id_band import IdBand
from kvarena.bands.unit_ids import UNOWNED
from kvarena.chain.chain import Chain
from kvarena.chain.estimates import free_bytes
from kvarena.terms.ports import HIGH, LOW, IntArray
from kvarena.terms.units import format_bytes

WIDTH = 78
SINK, LIVE, HOLE, PENDING, FIXED, GAP = "x", "#", "o", "~", "@", "."
LEGEND = {LIVE: "live", FIXED: "fixed", PENDING: "pending", HOLE: "hole", GAP: "gap", SINK: "sink"}
"""What a cell of the picture shows. Where two fill a cell alike, the rarer one is drawn: see ``cells``."""


def stats(chain: Chain) -> Mapping[str, Mapping[str, int]]:
    """Exact counts per sub-pool, in units.

    Always: live + holes + pending + vacated + reserved == span. ``fixed``: pages that may not move, with an id or
    without. ``moves`` and ``refusals`` count since the chain was laid out: pages moved, and refused takes that asked
    for this sub-pool. ``ids_free``: how many more ids can be bound, a cap of the band included.
    """
    moved, refused = chain.counters.moved_by, chain.counters.refused_by
    return {
        name: {
            "live": shot.live,
            "holes": shot.holes,
            "pending": shot.pending,
            "vacated": shot.vacated,
            "reserved": shot.reserved,
            "span": shot.stop - shot.start,
            "fixed": 0 if isinstance(band, IdBand) else len(band.still.immovable),
            "ids_free": shot.ids_free,
            "unit_bytes": shot.unit_bytes,
            "moves": moved.get(name, 0),
            "refusals": refused.get(name, 0),
        }
        for (name, band), shot in zip(chain.bands.items(), chain.snapshot().bands, strict=True)
    }


def describe(chain: Chain, width: int = WIDTH) -> str:
    """The arena as text: a picture in proportion, the bands under it by letter, one line per band, and the sums."""
    drawn = picture(chain, width)
    legend = "  ".join(f"{sign} {word}" for sign, word in LEGEND.items() if sign in drawn)
    scale = f"{format_bytes(chain.arena_bytes)}, {format_bytes(chain.arena_bytes // len(drawn))} a cell"
    lines = [f"|{drawn}|", f" {ruler(chain, len(drawn))}".rstrip(), f" {legend}   ({scale})", ""]
    return "\n".join([*lines, *_table(chain), *_sums(chain)])


def picture(chain: Chain, width: int = WIDTH) -> str:
    """The arena in so many cells, fewer where it has fewer bytes: each shows what most of its bytes are."""
    edges = _edges(chain.arena_bytes, width)
    amounts = cells(chain, edges)
    signs = list(amounts)
    most = np.argmax([amounts[sign] for sign in signs], axis=0)
    return "".join(signs[at] for at in most.tolist())


def cells(chain: Chain, edges: IntArray) -> Mapping[str, IntArray]:
    """The bytes of each sign between every two edges; of equal shares the first in the order given is drawn."""
    holes, waiting, fixed, live = (np.zeros(len(edges) - 1, dtype=np.int64) for _ in range(4))
    inside = np.clip(edges, chain.usable.start, chain.usable.stop)
    sinks = _steps(edges) - _steps(inside)
    gaps = _steps(inside)
    for band in _with_bytes(chain):
        unit = band.grid.unit_bytes
        owners = band.ids.owners_of(slice(band.start, band.stop))
        own = _steps(np.clip(edges, band.start * unit, band.stop * unit))
        unowned = (owners == UNOWNED).nonzero()[0] + band.start
        late = np.sort(np.concatenate((band.pending.pages(), band.vacated.pages())))
        still = band.still.immovable
        free = _bytes_between(edges, np.setdiff1d(unowned, np.concatenate((late, still))), unit)
        late_bytes, kept = _bytes_between(edges, late, unit), _bytes_between(edges, still, unit)
        holes += free
        waiting += late_bytes
        fixed += kept
        live += own - free - late_bytes - kept
        gaps -= own
    return {FIXED: fixed, PENDING: waiting, HOLE: holes, LIVE: live, SINK: sinks, GAP: gaps}


def ruler(chain: Chain, width: int = WIDTH) -> str:
    """Which cells each band spans: its letter where it is anchored, an arrow at each frontier.

    ``a--->`` grows up, ``<---b`` down, ``<-c->`` to either side. An empty end stands at its anchor, an empty float
    nowhere. Of bands that share a cell the earlier one is drawn.
    """
    edges = _edges(chain.arena_bytes, width)
    line = [" "] * (len(edges) - 1)
    for letter, band in _lettered(chain):
        unit = band.grid.unit_bytes
        low, high = band.start * unit, band.stop * unit
        if low == high and isinstance(band, FloatBand):
            continue
        first = min(int(np.searchsorted(edges, low, side="right")), len(line)) - 1
        last = max(first, int(np.searchsorted(edges, high - 1, side="right")) - 1)
        where = [cell for cell in range(first, last + 1) if line[cell] == " "]
        for cell, sign in zip(where, _mark(letter, len(where), band), strict=True):
            line[cell] = sign
    return "".join(line).rstrip()


def _mark(letter: str, size: int, band: Band | FloatBand) -> str:
    if size < 2:
        return letter[:size]
    if band.grid.end is LOW:
        return letter + "-" * (size - 2) + ">"
    if band.grid.end is HIGH:
        return "<" + "-" * (size - 2) + letter
    return "<" + letter.center(size - 2, "-") + ">" if size > 2 else letter + ">"


def _edges(total: int, width: int) -> IntArray:
    """Where cells begin, and where the last one ends, in bytes."""
    width = max(1, min(width, total))
    return np.array([at * total // width for at in range(width + 1)], dtype=np.int64)


def _bytes_between(edges: IntArray, pages: IntArray, unit: int) -> IntArray:
    """How many bytes of these pages, which rise, lie between every two edges."""
    page = edges // unit
    before = np.searchsorted(pages, page)
    cut = np.zeros(len(edges), dtype=np.bool_)
    there = before < len(pages)
    cut[there] = pages[before[there]] == page[there]
    return _steps(before * unit + cut * (edges - page * unit))


def _steps(marks: IntArray) -> IntArray:
    """From each to the next."""
    return marks[1:] - marks[:-1]


def _with_bytes(chain: Chain) -> Sequence[Band | FloatBand]:
    return [band for band in chain.bands.values() if not isinstance(band, IdBand)]


def _lettered(chain: Chain) -> Iterator[tuple[str, Band | FloatBand]]:
    """The bands with bytes, in chain order, with a letter each."""
    return zip(itertools.cycle(string.ascii_letters), _with_bytes(chain), strict=False)


def _table(chain: Chain) -> list[str]:
    """One line per band."""
    letters = {band.grid.name: letter for letter, band in _lettered(chain)}
    counts = stats(chain)
    rare = [key for key in ("pending", "vacated", "fixed") if any(found[key] for found in counts.values())]
    shown = ["live", "holes", *rare]
    rows = [["", "band", *shown, "unit", "from", "to", "ids left"]]
    for name, band in chain.bands.items():
        found = counts[name]
        unit, where = "no bytes", ["", ""]
        if not isinstance(band, IdBand):
            unit = format_bytes(band.grid.unit_bytes)
            ends = (band.start * band.grid.unit_bytes, band.stop * band.grid.unit_bytes)
            where = [format_bytes(end) for end in ends] if found["span"] else ["empty", ""]
        numbers = [f"{found[key]:,}" for key in shown]
        rows.append([letters.get(name, ""), name, *numbers, unit, *where, f"{found['ids_free']:,}"])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    letter, name, *numbers = row
    cells = [number.rjust(width) for number, width in zip(numbers, widths[2:], strict=True)]
    return f" {letter:<{widths[0]}} " + "  ".join([name.ljust(widths[1]), *cells])


def _sums(chain: Chain) -> list[str]:
    """What is free, and what has happened."""
    snapshot, counters = chain.snapshot(), chain.counters
    holes = sum(shot.holes * shot.unit_bytes for shot in snapshot.bands)
    free = free_bytes(snapshot)
    return [
        f"free {format_bytes(free)} of {format_bytes(len(chain.usable))}: {format_bytes(holes)} in holes, "
        f"{format_bytes(free - holes)} in gaps",
        f"takes {counters.takes:,} · refusals {counters.refusals:,} · moves {counters.moves:,} "
        f"({format_bytes(counters.moved_bytes)}) · relocations {counters.relocations:,}",
    ]
