"""A trace file: JSON lines, run by run, written and read one line at a time.

A run is a line that says what it runs on, a line per operation, and a line that closes it with their number; the last
line of the file has the number of runs. So a file that was cut off is never taken for a shorter one.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import attrs

from kvarena.terms.errors import ConfigError

TRACE_VERSION = 1
LINE_BYTES_MAX = 1 << 24


class TraceWriter:
    """Writes runs to a file: ``begin``, ``operation`` again and again, ``end``. Used as a context."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs = self._operations = 0
        self._file: IO[str] | None = None

    def __enter__(self) -> "TraceWriter":
        try:
            self._file = self._path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be written: {error.strerror}") from None
        return self

    def begin(self, header: Mapping[str, Any]) -> None:
        """A run begins; the header says on what."""
        self._operations = 0
        self._write({"version": TRACE_VERSION, **header})

    def operation(self, record: Mapping[str, Any]) -> None:
        """One operation and what came of it."""
        self._operations += 1
        self._write(record)

    def end(self) -> None:
        """The run is whole."""
        self._runs += 1
        self._write({"end": self._operations})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        if error is None:
            self._write({"runs": self._runs})
        self._file.close()


@attrs.frozen
class Line:
    """One line: where it is, and what it says."""

    place: str
    says: Mapping[str, Any]


class RecordedRun:
    """One run of a file. Its operations are read while they are asked for."""

    def __init__(self, header: Line, lines: Iterator[Line]) -> None:
        self.place = header.place
        self.header = header.says
        self.name = str(header.says["run"])
        self.is_read = False
        self._count = 0
        self._lines = lines

    def operations(self) -> Iterator[Line]:
        """Each operation once, in order: a second call goes on where the first was left.

        Raises:
            ConfigError: the run has no end, or another number of operations than its end says.
        """
        for line in () if self.is_read else self._lines:
            if "do" in line.says:
                self._count += 1
                yield line
            elif line.says.get("end") == self._count:
                self.is_read = True
                return
            else:
                raise ConfigError(
                    f"{line.place}: run {self.name!r} should go on here, or end after {self._count} operations"
                )
        if self.is_read:
            return
        raise ConfigError(f"{self.place}: run {self.name!r} has no end: the file was cut off; record it again")


class TraceReader:
    """The runs of a file, one after another; ``bytes_read`` of ``size`` tell how far it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size if path.is_file() else 0
        self.bytes_read = 0

    def runs(self) -> Iterator[RecordedRun]:
        """Each run; what the caller has not read of it is passed over.

        Raises:
            ConfigError: no such file, another version, a line that is cut off or makes no sense; with its place.
        """
        lines = self._lines()
        for count, line in enumerate(lines):
            if "runs" in line.says:
                if line.says["runs"] != count:
                    raise ConfigError(f"{line.place}: {line.says['runs']} runs are said to be here, and {count} are")
                return
            run = RecordedRun(_header(line), lines)
            yield run
            for _ in run.operations():
                pass
        raise ConfigError(f"{self.path}: there is no end: the file was cut off, or is no trace; record it again")

    def _lines(self) -> Iterator[Line]:
        try:
            with self.path.open("rb") as file:
                for number, raw in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), start=1):
                    self.bytes_read += len(raw)
                    yield Line(f"{self.path}:{number}", _read(raw, f"{self.path}:{number}"))
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: there is no such file") from None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None


def _read(raw: bytes, place: str) -> Mapping[str, Any]:
    if not raw.endswith(b"\n"):
        raise ConfigError(f"{place}: the line has no end: the file was cut off; record it again")
    try:
        says = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: is no JSON: {error}") from None
    if not isinstance(says, dict):
        raise ConfigError(f"{place}: must be a JSON object, not {str(says)[:60]!r}")
    return says


def _header(line: Line) -> Line:
    """The first line of a run.

    Raises:
        ConfigError: it is none, or of another version.
    """
    if "version" not in line.says or "run" not in line.says:
        raise ConfigError(f"{line.place}: a run should begin here, with its version and name")
    if line.says["version"] != TRACE_VERSION or isinstance(line.says["version"], bool):
        raise ConfigError(
            f"{line.place}: version {line.says['version']!r} of a trace is not known here; this kvarena reads version "
            f"{TRACE_VERSION}: record it again"
        )
    return line
