"""Reading traces: the table of formats, telling them apart, bad rows, and cutting and scaling what is read."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.config import SettingError
from kvarena.plugins.replay.trace_mooncake import Mooncake
from kvarena.plugins.replay.trace_rows import NUMBER_MAX, ROW_TOKENS_MAX, BadRow, Reader, TraceRow
from kvarena.plugins.replay.trace_servegen import ServeGen
from kvarena.plugins.replay.trace_sessions import Sessions, session_files
from kvarena.plugins.replay.trace_tables import AZURE, BURSTGPT
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.units import ceil_div

READERS: dict[str, Reader] = {reader.name: reader for reader in (Mooncake(), AZURE, BURSTGPT, ServeGen(), Sessions())}
"""The trace formats by name."""

_HEAD_CHARACTERS = 65536
ON_BAD = ("stop", "skip")


def _choice(_: object, attribute: Any, value: Any) -> None:
    if value not in ON_BAD:
        raise SettingError(attribute.name, f"is {value!r}; {nearest(str(value), ON_BAD)}")


def _known_format(_: object, attribute: Any, value: Any) -> None:
    if value is not None and value not in READERS:
        raise SettingError(attribute.name, f"is {value!r}; {nearest(str(value), READERS)}")


def _at_least(least: float, *, above: bool = False) -> Any:
    """A validator: a finite number of at least (or above) ``least``, or None."""

    def check(_: object, attribute: Any, value: Any) -> None:
        if value is not None and not (least < value < math.inf or (value == least and not above)):
            raise SettingError(attribute.name, f"is {value}; it must be {'>' if above else '>='} {least:g}")

    return check


@attrs.frozen
class TraceOptions:
    """What part of a trace is read, and how it is shaped.

    ``format`` None tells the format from the content. ``on_bad`` ``"stop"`` refuses the trace at its first bad
    row, ``"skip"`` leaves bad rows out and counts them. Rows that arrive in ``[start, stop)`` seconds are
    taken, the first ``limit`` of them in file order; their arrivals are then counted from ``start`` and
    multiplied by ``time_scale``. Lengths are multiplied by ``length_scale``, then clipped; a block of a
    shared prefix shrinks with them. ``seed`` draws the formats that are distributions.

    Raises:
        SettingError: a value out of range; it names the setting, and whoever read it says where it stood.
    """

    format: str | None = attrs.field(
        default=None, validator=_known_format, metadata={"schema": {"enum": sorted(READERS)}}
    )
    on_bad: str = attrs.field(default="stop", validator=_choice, metadata={"schema": {"enum": list(ON_BAD)}})
    limit: int | None = attrs.field(default=None, validator=_at_least(1), metadata={"schema": {"minimum": 1}})
    start: float = attrs.field(default=0.0, validator=_at_least(0), metadata={"schema": {"minimum": 0}})
    stop: float | None = None
    time_scale: float = attrs.field(default=1.0, validator=_at_least(0), metadata={"schema": {"minimum": 0}})
    length_scale: float = attrs.field(
        default=1.0, validator=_at_least(0, above=True), metadata={"schema": {"exclusiveMinimum": 0}}
    )
    prompt_max: int | None = attrs.field(default=None, validator=_at_least(1), metadata={"schema": {"minimum": 1}})
    output_max: int | None = attrs.field(default=None, validator=_at_least(1), metadata={"schema": {"minimum": 1}})
    seed: int = attrs.field(default=0, validator=_at_least(0), metadata={"schema": {"minimum": 0}})


@attrs.frozen
class Trace:
    """The rows in order of arrival, and the places that were skipped."""

    source: str
    format: str
    rows: tuple[TraceRow, ...]
    skipped: tuple[BadRow, ...] = ()


def read_trace(path: str | Path, options: TraceOptions | None = None) -> Trace:
    """Read a trace file, a ServeGen pair by either half, or a folder of sessions.

    Raises:
        ConfigError: no such file, an empty or unknown one, a bad row under ``on_bad="stop"``, no row in the
            range. The message has file, place and cure.
    """
    options, path = options or TraceOptions(), Path(path)
    try:
        reader = _reader(path, options.format)
        rows, skipped = _collect(reader.rows(path, options.seed), options)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it ({error.strerror}); name a trace file that exists") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file; if it is compressed, unpack it first") from None
    if not rows:
        found = f"{len(skipped)} bad ones were skipped, the first: {skipped[0]}" if skipped else "the range has none"
        raise ConfigError(f"{path}: no request could be read: {found}; check the file, --start, --stop and --format")
    rows.sort(key=lambda row: row.arrival)
    return Trace(str(path), reader.name, tuple(rows), tuple(skipped))


def _reader(path: Path, name: str | None) -> Reader:
    """The reader that was asked for, else the one that knows the head of the file."""
    file = session_files(path)[0]
    with file.open(encoding="utf-8-sig") as text:
        head = text.read(_HEAD_CHARACTERS)
    if not head.strip():
        raise ConfigError(f"{file}: line 1: the file is empty; fetch the trace again")
    if name is not None:
        return READERS[name]
    for reader in READERS.values():
        if reader.recognizes(file, head):
            return reader
    first = head.lstrip().partition("\n")[0][:60]
    raise ConfigError(
        f"{file}: line 1: {first!r} begins no trace format that is known; name it by --format: {', '.join(READERS)}"
    )


def _collect(found: Iterator[TraceRow | BadRow], options: TraceOptions) -> tuple[list[TraceRow], list[BadRow]]:
    rows: list[TraceRow] = []
    skipped: list[BadRow] = []
    for row in found:
        if isinstance(row, BadRow):
            if options.on_bad == "stop":
                raise ConfigError(f"{row}; mend the file, or leave such rows out with --on-bad skip (trace.on_bad)")
            skipped.append(row)
        elif row.arrival >= options.start and (options.stop is None or row.arrival < options.stop):
            rows.append(_shape(row, options))
            if len(rows) == options.limit:
                break
    return rows, skipped


def _shape(row: TraceRow, options: TraceOptions) -> TraceRow:
    """The row with its arrival shifted and scaled, its lengths scaled and clipped, its ids cut to fit."""
    prompt = _length(row.prompt_tokens, options.length_scale, options.prompt_max)
    arrival = (row.arrival - options.start) * options.time_scale
    if not arrival <= NUMBER_MAX:
        raise ConfigError(f"time_scale {options.time_scale:g}: line {row.line} would arrive at second {arrival:g}")
    ids, block = row.prefix_ids, row.block_tokens
    if ids is not None and block is not None:
        block = _length(block, options.length_scale, None)
        ids = ids[: ceil_div(prompt, block)]
    return attrs.evolve(
        row,
        arrival=arrival,
        prompt_tokens=prompt,
        output_tokens=_length(row.output_tokens, options.length_scale, options.output_max),
        prefix_ids=ids,
        block_tokens=block,
    )


def _length(count: int, scale: float, most: int | None) -> int:
    """A length after scaling and clipping: at least 1."""
    most = ROW_TOKENS_MAX if most is None else most
    return max(1, round(min(count * scale, most))) if scale != 1 else min(count, most)
