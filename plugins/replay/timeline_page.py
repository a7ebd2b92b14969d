"""A timeline as a page: the arena by address, what the bands hold, and the requests, over one axis of time.

One file that needs nothing else: drawn here as SVG, with the figures under the pointer. ``timeline.html`` is its frame.
"""

import html
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple, TextIO

import attrs

from kvarena.plugins.replay.timeline import Row, Timeline
from kvarena.terms.units import format_bytes

DRAWN_MAX = 1_500
"""So many moments are drawn, some for each point of the screen."""

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7000", "#7f7f7f")
"""For bands, in chain order: told apart by most eyes, on light and on dark."""

WIDTH, LEFT, RIGHT, TITLE, AXIS = 1120, 78, 1104, 26, 24
_FRAME = Path(__file__).with_name("timeline.html")
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Layer(NamedTuple):
    """One area of a panel: its edges at every moment, and how it is painted."""

    colour: str
    opacity: float
    low: Sequence[float]
    high: Sequence[float]


@attrs.frozen
class Scale:
    """From values to places on the page, both along one axis."""

    first: float
    last: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The place of a value, to a tenth of a point."""
        share = (value - self.first) / (self.last - self.first) if self.last > self.first else 0.0
        return round(self.start + share * (self.stop - self.start), 1)


def write_page(timeline: Timeline, file: TextIO) -> None:
    """The page. A run without a step gives one that says so."""
    rows = list(timeline.rows(DRAWN_MAX))
    file.write(
        Template(_FRAME.read_text(encoding="utf-8")).substitute(
            summary=_summary(timeline, rows),
            drawing=_drawing(timeline, rows) if rows else "<svg></svg>",
            legend="\n".join(_legend(timeline, rows)),
            loop=_peaks(rows),
            data=_data(timeline, rows),
        )
    )


def _summary(timeline: Timeline, rows: Sequence[Row]) -> str:
    if not rows:
        return "No step was made."
    drawn = f"{len(rows):,} of {timeline.noted:,} moments" if len(rows) < timeline.noted else "every moment"
    spent = rows[-1].seconds - rows[0].seconds
    return f"An arena of {format_bytes(timeline.arena_bytes)} over {spent:,.1f} s: {drawn}, no peak left out."


def _peaks(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    most = [max(getattr(row, name) for row in rows) for name in ("running", "waiting")]
    least = format_bytes(min(row.free_bytes for row in rows))
    return f"at most {most[0]:,} running, {most[1]:,} waiting; at least {least} free"


# -- the drawing


def _drawing(timeline: Timeline, rows: Sequence[Row]) -> str:
    """The three panels, one under the other, and the line that follows the pointer."""
    across = Scale(rows[0].seconds, rows[-1].seconds, LEFT, RIGHT)
    times = [row.seconds for row in rows]
    top = 0.0
    parts: list[str] = []
    for title, height, layers in (
        ("the arena by address: the span of each band", 240, _spans(timeline, rows)),
        ("what the bands hold: live, lighter what the cache would give back", 240, _held(timeline, rows)),
    ):
        up = Scale(0, timeline.arena_bytes, top + TITLE + height, top + TITLE)
        parts += _plot(title, up, _byte_ticks(timeline.arena_bytes), _bytes)
        parts += [
            f'<path d="{_area(across, up, times, layer)}" fill="{layer.colour}" fill-opacity="{layer.opacity}"/>'
            for layer in layers
        ]
        parts += _clock(across, up.start)
        top = up.start + AXIS
    most = max(1, *(max(row.running, row.waiting) for row in rows))
    up = Scale(0, most, top + TITLE + 120, top + TITLE)
    parts += _plot("requests: running, and waiting in the queue", up, _count_ticks(most), lambda count: f"{count:,.0f}")
    for name in ("running", "waiting"):
        values = [getattr(row, name) for row in rows]
        parts.append(f'<path class="{name}" d="{_line(across, up, times, values)}"/>')
        parts.append(_named_line(name, up))
    parts += _clock(across, up.start)
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{TITLE}" y2="{up.start}"/>')
    return f'<svg viewBox="0 0 {WIDTH} {up.start + AXIS:.0f}" role="img">\n' + "\n".join(parts) + "\n</svg>"


def _spans(timeline: Timeline, rows: Sequence[Row]) -> Iterator[Layer]:
    for at, (_, unit) in enumerate(timeline.units):
        low = [row.bands[at].start * unit for row in rows]
        high = [(row.bands[at].start + row.bands[at].span) * unit for row in rows]
        yield Layer(_colour(at), 0.85, low, high)


def _held(timeline: Timeline, rows: Sequence[Row]) -> Iterator[Layer]:
    floor = [0.0] * len(rows)
    for at, (_, unit) in enumerate(timeline.units):
        bands = [row.bands[at] for row in rows]
        used = [below + (band.live - band.cached) * unit for below, band in zip(floor, bands, strict=True)]
        top = [below + band.cached * unit for below, band in zip(used, bands, strict=True)]
        yield Layer(_colour(at), 0.85, floor, used)
        yield Layer(_colour(at), 0.4, used, top)
        floor = top


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def _area(across: Scale, up: Scale, times: Sequence[float], layer: Layer) -> str:
    """There along the upper edge in steps, and back along the lower one."""
    there = _line(across, up, times, layer.high)
    back = [f"V{up(layer.low[-1])}"]
    for at in range(len(times) - 1, 0, -1):
        back.append(f"H{across(times[at])}")
        if layer.low[at - 1] != layer.low[at]:
            back.append(f"V{up(layer.low[at - 1])}")
    return f"{there}{''.join(back)}H{across(times[0])}Z"


def _line(across: Scale, up: Scale, times: Sequence[float], values: Sequence[float]) -> str:
    """A value holds until the next moment."""
    parts = [f"M{across(times[0])},{up(values[0])}"]
    for at in range(1, len(times)):
        if values[at] != values[at - 1]:
            parts.append(f"H{across(times[at])}V{up(values[at])}")
    return f"{''.join(parts)}H{across(times[-1])}"


def _plot(title: str, up: Scale, ticks: Sequence[float], label: Callable[[float], str]) -> Iterator[str]:
    yield f'<text class="title" x="{LEFT}" y="{up.stop - 8}">{title}</text>'
    yield f'<rect class="plot" x="{LEFT}" y="{up.stop}" width="{RIGHT - LEFT}" height="{up.start - up.stop}"/>'
    for tick in ticks:
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{up(tick)}" y2="{up(tick)}"/>'
        yield f'<text x="{LEFT - 6}" y="{up(tick) + 4}" text-anchor="end">{label(tick)}</text>'


def _named_line(name: str, up: Scale) -> str:
    x = RIGHT - (150 if name == "running" else 70)
    y = up.stop - 12
    return f'<path class="{name}" d="M{x},{y}h14"/><text x="{x + 18}" y="{y + 4}">{name}</text>'


def _clock(across: Scale, y: float) -> Iterator[str]:
    """The ticks of the time axis, under a panel."""
    span = across.last - across.first
    step = next((step for step in _TIMES if span / step <= 12), _TIMES[-1]) if span > 10 else _round_step(span, 10)
    unit, name = next((size, name) for size, name in ((3600, "h"), (60, "min"), (1, "s")) if step >= size or size == 1)
    tick = math.ceil(across.first / step) * step
    while tick <= across.last:
        yield f'<text x="{across(tick)}" y="{y + 15}" text-anchor="middle">{tick / unit:g} {name}</text>'
        tick += step


def _round_step(span: float, ticks: int) -> float:
    """The least of 1, 2, 5 times a power of ten that needs no more ticks; 1 for no span."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / ticks))
    return next(times * power for times in (1, 2, 5, 10, 20) if span / (times * power) <= ticks)


def _byte_ticks(most: int) -> list[float]:
    step = 1
    while most / step > 5:
        step *= 2
    return [float(tick) for tick in range(0, most + 1, step)]


def _count_ticks(most: int) -> list[float]:
    step = max(1, round(_round_step(most, 4)))
    return [float(tick) for tick in range(0, most + 1, step)]


def _bytes(amount: float) -> str:
    return format_bytes(round(amount)).replace(".00", "")


# -- the figures


def _legend(timeline: Timeline, rows: Sequence[Row]) -> Iterator[str]:
    """A row a band: its colour, and its peaks until the pointer asks for a moment."""
    for at, (name, unit) in enumerate(timeline.units):
        peaks = [max((getattr(row.bands[at], field) for row in rows), default=0) for field in _TOLD]
        cells = [*(f"{peak:,}" for peak in peaks), format_bytes(peaks[0] * unit)]
        sign = f'<span class="swatch" style="background:{_colour(at)}"></span>{html.escape(name)}'
        yield f"<tr><td>{sign}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


_TOLD = ("live", "cached", "holes", "pending")


def _data(timeline: Timeline, rows: Sequence[Row]) -> str:
    """What the page's script reads: numbers only."""
    told = [[*row[:-1], *(getattr(band, field) for band in row.bands for field in _TOLD)] for row in rows]
    first, last = (rows[0].seconds, rows[-1].seconds) if rows else (0.0, 0.0)
    return json.dumps(
        {
            "rows": told,
            "units": [unit for _, unit in timeline.units],
            "from": first,
            "to": last,
            "left": LEFT,
            "right": RIGHT,
            "width": WIDTH,
        },
        separators=(",", ":"),
    )
