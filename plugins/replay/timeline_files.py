"""A timeline as a file: a table for spreadsheets, lines of JSON for programs, or a page to look at."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from kvarena.plugins.replay.timeline import BAND, LOOP, Row, Timeline
from kvarena.plugins.replay.timeline_page import write_page
from kvarena.terms.errors import ConfigError, nearest

Writer = Callable[[Timeline, TextIO], None]


def columns(timeline: Timeline) -> Iterator[str]:
    """The names of a table's columns: those of the loop, then each band's counts and, with ``_bytes``, their bytes."""
    yield from LOOP
    for name, _ in timeline.units:
        for field in BAND:
            if field != "start":
                yield f"{name}.{field}"
            yield f"{name}.{field}_bytes"


def write_csv(timeline: Timeline, file: TextIO) -> None:
    """A table with a heading; one row a line."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(columns(timeline))
    for row in timeline.rows():
        bands = _bands(timeline, row).values()
        table.writerow([*row[:-1], *(value for counts in bands for value in counts.values())])


def write_jsonl(timeline: Timeline, file: TextIO) -> None:
    """One JSON object a line: what the loop had, and ``bands`` by name."""
    for row in timeline.rows():
        line = dict(zip(LOOP, row, strict=False))
        file.write(json.dumps({**line, "bands": _bands(timeline, row)}) + "\n")


WRITERS: Mapping[str, Writer] = {".csv": write_csv, ".jsonl": write_jsonl, ".html": write_page}
"""Who writes a file of this suffix."""


def writer_of(path: Path) -> Writer:
    """Who writes such a file, told by its suffix.

    Raises:
        ConfigError: nobody does.
    """
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ConfigError(f"{path}: a timeline is written as {', '.join(WRITERS)}; {nearest(path.suffix, WRITERS)}")
    return writer


def _bands(timeline: Timeline, row: Row) -> dict[str, dict[str, int]]:
    """Each band's counts and their bytes; of ``start`` the bytes alone: where the span begins in the arena."""
    found: dict[str, dict[str, int]] = {}
    for (name, unit), band in zip(timeline.units, row.bands, strict=True):
        counts = found[name] = {}
        for field, value in zip(BAND, band, strict=True):
            if field != "start":
                counts[field] = value
            counts[f"{field}_bytes"] = value * unit
    return found
