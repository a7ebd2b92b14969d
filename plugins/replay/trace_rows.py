"""What every trace reader yields: a request row, or a place where none could be read, and why."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import attrs

ROW_TOKENS_MAX = 2**31 - 1
"""The longest prompt or output that a reader believes."""
NUMBER_MAX = 1e15
"""The largest time or rate that a reader believes: no clock that adds a step to it loses that step."""


@attrs.frozen
class TraceRow:
    """One request of a trace.

    ``line`` is where it was read: a line of the file, or the number of a request inside a JSON session.
    ``arrival`` is in seconds from the start of the trace. ``prefix_ids`` names the leading blocks of the
    prompt, ``block_tokens`` tokens each (the last may be partial): equal ids, in one ``session`` where
    there is one, mean equal tokens up to there. Traces without prefix identity carry None.
    """

    line: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] | None = None
    block_tokens: int | None = None
    session: str | None = None


@attrs.frozen
class BadRow:
    """A place of a trace that holds no request: the file, ``"line 17"`` or ``"request 3"``, and why not."""

    source: Path
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.place}: {self.reason}"


class Reader(Protocol):
    """One trace format. A stateless object; readers stand in the table of ``traces``."""

    @property
    def name(self) -> str: ...

    def recognizes(self, path: Path, head: str) -> bool:
        """Whether a file that begins with ``head`` (its first 64 KiB) is in this format."""
        ...

    def rows(self, path: Path, seed: int) -> Iterator[TraceRow | BadRow]:
        """The rows in file order. ``seed`` matters to formats that describe a distribution.

        Raises:
            ConfigError: the file as a whole is not in this format.
        """
        ...


class BadValueError(Exception):
    """A value that cannot be read; readers turn it into a ``BadRow`` with the place."""


def tokens(name: str, value: Any) -> int:
    """A count of tokens from a CSV field or a JSON value.

    Raises:
        BadValueError: not a whole number, not positive, or beyond belief.
    """
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise BadValueError(f"{name} is {value!r}, not a whole number of tokens") from None
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValueError(f"{name} is {value!r}, not a whole number of tokens")
    if value < 1:
        raise BadValueError(f"{name} is {value}; a request has at least 1 token")
    if value > ROW_TOKENS_MAX:
        raise BadValueError(f"{name} is {value}, more than {ROW_TOKENS_MAX}")
    return value


def number(name: str, value: Any) -> float:
    """A number >= 0 within belief, such as a time or a rate, from a CSV field or a JSON value.

    Raises:
        BadValueError: it is none.
    """
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not 0 <= found <= NUMBER_MAX:
        raise BadValueError(f"{name} is {value!r}, not a number from 0 to {NUMBER_MAX:g}")
    return found


def block_ids(name: str, value: Any) -> tuple[int, ...]:
    """The ids of a prompt's blocks from a JSON value.

    Raises:
        BadValueError: not a list of whole numbers.
    """
    if not isinstance(value, list) or not all(type(block) is int for block in value):
        raise BadValueError(f"{name} is not a list of whole numbers")
    return tuple(value)


def member(record: Any, name: str) -> Any:
    """A value of a JSON object.

    Raises:
        BadValueError: no object, or the name is missing.
    """
    if not isinstance(record, dict):
        raise BadValueError(f"found {type(record).__name__}, where an object with {name!r} should stand")
    if name not in record:
        raise BadValueError(f"{name!r} is missing")
    return record[name]
