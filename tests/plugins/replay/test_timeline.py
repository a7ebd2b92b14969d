"""The timeline: rows that were so, no peak lost however few are kept, and the three files that it becomes."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, opened, overlapped, process, run_forward, stepped, storage_of

from kvarena.plugins.replay.timeline import PEAKS, Row, Timeline
from kvarena.plugins.replay.timeline_files import WRITERS, columns, writer_of
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError
from kvarena.terms.ports import IntArray


class Given:
    """A cache that would give back what a test says."""

    def __init__(self, *units: int) -> None:
        self.units: tuple[int, ...] | IntArray = units

    def evictable(self) -> Any:
        return self.units


def drifting(storage: Storage, steps: int, *, rows_max: int = 100, seed: int = 0, cache: Any = None) -> Timeline:
    """Requests come, grow and go; each step is noted, at times that lie unevenly."""
    timeline, draw, now = Timeline(storage, cache, rows_max=rows_max), np.random.default_rng(seed), 0.0
    for step in range(steps):
        rows = storage.requests.open_rows()
        storage.close(rows[draw.random(len(rows)) < 0.15])
        if storage.requests.free_count:
            opened(storage)
        rows = storage.requests.open_rows()
        storage.step(rows, np.minimum(storage.requests.lengths[rows] + draw.integers(1, 9, len(rows)), 60))
        now += float(draw.choice([0.0, 0.01, 0.02, 3.0]))
        timeline.note(now, step=step, running=len(rows), waiting=int(draw.integers(0, 5)))
    return timeline


def test_a_row_is_what_the_storage_holds() -> None:
    """Clock, step, requests, free bytes, and of each band what ``stats`` says, with the cache's share of the live."""
    storage = overlapped(STATE, SHORT, FULL)
    row = opened(storage)
    forward = run_forward(storage, stepped(storage, (row, 17)))
    timeline = Timeline(storage, Given(0, 2, 3))
    timeline.note(1.5, step=7, running=1, waiting=4)
    storage.close(row)
    timeline.note(2.5, step=8, running=0, waiting=3)
    process(storage, forward)

    first, second = timeline.rows()
    assert first[:4] == (1.5, 7, 1, 4)
    assert [band.cached for band in first.bands] == [0, 2, 3]
    assert [band.live for band in first.bands] == [1, 5, 5]
    assert [band.pending for band in second.bands] == [1, 5, 5]
    assert first.free_bytes + sum(b.live * unit for b, (_, unit) in zip(first.bands, timeline.units, strict=True)) == (
        len(storage.chain.usable)
    )
    for band, shot in zip(second.bands, storage.chain.snapshot().bands, strict=True):
        assert band.span == band.live + band.holes + band.pending
        assert band.start * shot.unit_bytes < storage.chain.arena_bytes


def test_few_rows_are_all_kept() -> None:
    """Nothing is thinned that can be told in full."""
    timeline = drifting(storage_of((STATE, SHORT, FULL)), 90)
    assert [row.step for row in timeline.rows()] == list(range(90))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), steps=st.integers(101, 500), rows_max=st.integers(1, 120))
def test_no_peak_is_lost_however_few_rows_are_kept(seed: int, steps: int, rows_max: int) -> None:
    """The rows kept are rows that were, in order, the first and the last among them, and have every extreme."""
    storage = storage_of((STATE, SHORT, FULL), running=5)
    few = drifting(storage, steps, rows_max=rows_max, seed=seed)
    every = list(drifting(storage_of((STATE, SHORT, FULL), running=5), steps, rows_max=steps, seed=seed).rows())
    kept = list(few.rows())

    assert len(kept) == len(few) <= max(rows_max, 21)
    assert few.noted == len(every) == steps
    places = [every.index(row) for row in kept]
    assert places == sorted(set(places))
    assert (places[0], places[-1]) == (0, steps - 1)
    assert extremes(kept) == extremes(every)
    assert extremes(list(few.rows(10))) == extremes(every)


def extremes(rows: list[Row]) -> list[int]:
    """The largest of every count, and the least free."""
    bands = [max(getattr(row.bands[at], name) for row in rows) for at in range(len(rows[0].bands)) for name in PEAKS]
    return [*bands, max(r.running for r in rows), max(r.waiting for r in rows), min(r.free_bytes for r in rows)]


def test_rows_are_kept_evenly_in_time() -> None:
    """A stretch without steps takes no rows from one with many, and each half of an even run keeps as many."""
    storage = storage_of((FULL,))
    timeline = Timeline(storage, rows_max=100)
    for step in range(10_000):
        timeline.note(step / 10, step=step, running=1, waiting=0)
    kept = [row.seconds for row in timeline.rows()]

    assert 50 <= len(kept) <= 100
    gaps = np.diff(kept[:-1])
    assert gaps.max() < 2.1 * gaps.min()


def test_memory_does_not_grow_with_the_run() -> None:
    """However long a run is, there are never more rows to read than were asked for, and the peak is among them."""
    storage = storage_of((FULL,))
    timeline = Timeline(storage, rows_max=100)
    for step in range(5_000):
        timeline.note(float(step), step=step, running=step % 7, waiting=0)
        assert step % 50 or len(timeline) <= 100
    assert max(row.running for row in timeline.rows()) == 6


@pytest.fixture
def timeline() -> Timeline:
    """Forty steps of a storage of three kinds, one of whose names a page must spell with care."""
    made = drifting(storage_of((STATE, SHORT, FULL)), 40, cache=Given(0, 1, 2))
    made.units = (("state", 40), ("<b>&window", 40), ("full", 24))
    return made


def written(timeline: Timeline, suffix: str) -> str:
    out = io.StringIO()
    writer_of(Path(f"what{suffix}"))(timeline, out)
    return out.getvalue()


def test_a_table_has_units_and_bytes(timeline: Timeline) -> None:
    """One heading, one line a row; each count in units and in bytes."""
    lines = list(csv.DictReader(io.StringIO(written(timeline, ".csv"))))
    rows = list(timeline.rows())

    assert list(lines[0]) == list(columns(timeline))
    assert len(lines) == 40
    for line, row in zip(lines, rows, strict=True):
        assert float(line["seconds"]) == row.seconds
        assert [int(line[name]) for name in ("step", "running", "waiting", "free_bytes")] == list(row[1:5])
        assert (int(line["full.live"]), int(line["full.live_bytes"])) == (row.bands[2].live, row.bands[2].live * 24)
        assert int(line["full.start_bytes"]) == row.bands[2].start * 24
        assert int(line["full.cached"]) == 2


def test_lines_of_json_say_the_same(timeline: Timeline) -> None:
    """One object a line, with the bands by name: what the table says, figure by figure."""
    table = list(csv.DictReader(io.StringIO(written(timeline, ".csv"))))
    lines = [json.loads(line) for line in written(timeline, ".jsonl").splitlines()]

    assert len(lines) == 40
    for line, row in zip(lines, table, strict=True):
        bands = line.pop("bands")
        flat = line | {f"{name}.{key}": value for name, counts in bands.items() for key, value in counts.items()}
        assert {name: str(value) for name, value in flat.items()} == row


class Page(HTMLParser):
    """What a browser would find: tags that are closed, links, and the text of the script."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "path", "rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.script += data


def test_a_page_needs_nothing_else(timeline: Timeline) -> None:
    """Every tag is closed, nothing is loaded, names cannot become tags, and each area is drawn."""
    text = written(timeline, ".html")
    page = Page()
    page.feed(text)

    assert not page.open
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert "&lt;b&gt;&amp;window" in text
    assert "<b>" not in text
    paths = [attributes["d"] for tag, attributes in page.tags if tag == "path"]
    assert len([path for path in paths if path and path.endswith("Z")]) == 3 + 2 * 3
    assert "nan" not in text.lower()


def test_the_figures_under_the_pointer_are_those_of_the_rows(timeline: Timeline) -> None:
    """What the page's script reads is what the table says."""
    page = Page()
    page.feed(written(timeline, ".html"))
    data = json.loads(re.search(r"const data = (.*);\n", page.script)[1])  # type: ignore[index]

    assert [row[:5] for row in data["rows"]] == [list(row[:5]) for row in timeline.rows()]
    assert data["rows"][9][5:9] == list(list(timeline.rows())[9].bands[0][:4])
    assert data["units"] == [40, 40, 24]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_no_step_or_of_one_is_drawn_too(steps: int) -> None:
    """Without a span of time nothing is divided by it."""
    storage = storage_of((FULL,))
    timeline = Timeline(storage)
    for step in range(steps):
        timeline.note(0.0, step=step, running=0, waiting=0)

    assert ("No step was made." in written(timeline, ".html")) == (steps == 0)
    assert len(written(timeline, ".csv").splitlines()) == 1 + steps


@pytest.mark.parametrize("name", ["bands.png", "bands", "bands.json"])
def test_a_suffix_that_no_timeline_has_is_told(name: str) -> None:
    """With those that there are."""
    with pytest.raises(ConfigError, match=re.escape(f"{name}: a timeline is written as .csv, .jsonl, .html")):
        writer_of(Path(name))
    assert writer_of(Path("BANDS.CSV")) is WRITERS[".csv"]
