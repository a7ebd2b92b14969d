"""Traces that are tables of lengths: Azure's LLM inference traces and BurstGPT (CSV, no prefix identity)."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import attrs

from kvarena.plugins.replay.trace_rows import BadRow, BadValueError, TraceRow, number, tokens
from kvarena.terms.errors import ConfigError, nearest

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")

Clock = Callable[[str], float]
"""Turns the text of a time column into seconds; made anew for each file."""


@attrs.frozen
class Table:
    """A CSV format with a header: which columns hold the time and the two lengths.

    Azure: https://github.com/Azure/AzurePublicDataset (absolute times, 7 fractional digits; the first row
    is second 0). BurstGPT: https://github.com/HPMLL/BurstGPT (seconds; failed requests are rows of zeros).
    """

    name: str
    time: str
    prompt: str
    output: str
    clock: Callable[[], Clock]

    def recognizes(self, path: Path, head: str) -> bool:
        header = next(csv.reader([head.lstrip("\ufeff").partition("\n")[0].strip()]), [])
        return {self.prompt, self.output} <= {column.strip() for column in header}

    def rows(self, path: Path, seed: int) -> Iterator[TraceRow | BadRow]:
        seconds = self.clock()
        with path.open(encoding="utf-8-sig", newline="") as text:
            table = csv.reader(text)
            columns = self._columns(path, next(table, []))
            while True:
                try:
                    fields = next(table)
                    if fields:
                        yield self._row(table.line_num, columns, fields, seconds)
                except StopIteration:
                    return
                except (BadValueError, csv.Error) as bad:
                    yield BadRow(path, f"line {table.line_num}", str(bad))

    def _columns(self, path: Path, header: list[str]) -> Mapping[str, int]:
        columns = {name.strip(): index for index, name in enumerate(header)}
        for name in (self.time, self.prompt, self.output):
            if name not in columns:
                raise ConfigError(f"{path}: line 1: no column {name!r} in the header; {nearest(name, columns)}")
        return columns

    def _row(self, line: int, columns: Mapping[str, int], fields: list[str], seconds: Clock) -> TraceRow:
        if len(fields) < len(columns):
            raise BadValueError(f"{len(fields)} fields, where the header has {len(columns)}; the row may be cut off")
        prompt, output = fields[columns[self.prompt]].strip(), fields[columns[self.output]].strip()
        if _is_zero(prompt) and _is_zero(output):
            raise BadValueError(f"{self.prompt} and {self.output} are 0: a failed request, which needs no memory")
        return TraceRow(
            line=line,
            prompt_tokens=tokens(self.prompt, prompt),
            output_tokens=tokens(self.output, output),
            arrival=seconds(fields[columns[self.time]].strip()),
        )


def _is_zero(text: str) -> bool:
    return text != "" and not text.strip("0")


def stamps() -> Clock:
    """Absolute times, as seconds since the first one seen."""
    first: list[int] = []

    def seconds(text: str) -> float:
        nanoseconds = _nanoseconds(text)
        if not first:
            first.append(nanoseconds)
        if nanoseconds < first[0]:
            raise BadValueError(f"time {text!r} is before that of the first row")
        return (nanoseconds - first[0]) / 1e9

    return seconds


def _nanoseconds(text: str) -> int:
    match = _STAMP.fullmatch(text)
    try:
        moment = datetime.fromisoformat(f"{match[1]}{match[3] or '+00:00'}") if match else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        raise BadValueError(f"time {text!r} is not like '2023-11-16 18:15:46.6805900'")
    fraction = (match[2] or "").ljust(9, "0")
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 10**9 + int(fraction)


def plain_seconds() -> Clock:
    """Times that are seconds already."""
    return lambda text: number("time", text)


AZURE = Table("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", stamps)
BURSTGPT = Table("burstgpt", "Timestamp", "Request tokens", "Response tokens", plain_seconds)
