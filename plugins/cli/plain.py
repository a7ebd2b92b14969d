"""What every command prints with: lines and plain tables for people, one JSON document for programs.

Results go to stdout, words about them to stderr. Nothing here imports a terminal library, so that a command
that only answers a question starts fast; ``output`` adds what long runs need.
"""

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

_BOLD, _NORMAL = "\x1b[1m", "\x1b[0m"


def settle_streams() -> None:
    """Make stdout and stderr such that no text fails on them: closed ones lead nowhere, odd letters are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def lines(*texts: str) -> None:
    """Print lines on stdout as they are."""
    for text in texts:
        sys.stdout.write(text.rstrip() + "\n")


def write_line(text: str) -> None:
    """One line for people on stderr, whatever the terminal."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # nobody listens; the exit code still says it, and the last flush must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def coloured(stream: IO[str]) -> bool:
    """Whether escape codes may be written: a terminal that is not dumb, and no ``NO_COLOR``."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on stdout, its heading in bold where the terminal can."""
    heading, *body = grid(columns, rows)
    lines(f"{_BOLD}{heading}{_NORMAL}" if coloured(sys.stdout) else heading, *body)


def grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table, the heading first; columns that hold only amounts lean right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    right = [bool(cells) and all(is_amount(row[i]) for row in cells) for i in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if leans else cell.ljust(width)
            for cell, width, leans in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(columns), *cells]
    ]


def is_amount(cell: str) -> bool:
    """Whether a cell is a number, perhaps with a unit, or stands for one that is not there."""
    return cell in ("", "-") or cell[:1].isdigit()


def pairs(rows: Mapping[str, Any]) -> str:
    """Aligned ``name  value`` lines, for the few facts around a table."""
    width = max((len(name) for name in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def print_json(document: Any) -> None:
    """One JSON document on stdout: keys in the order given, no NaN, floats as they are."""
    sys.stdout.write(to_json(document) + "\n")


def to_json(document: Any) -> str:
    """The text that ``print_json`` prints: the same for the same document, in letters that any terminal has."""
    return json.dumps(document, indent=2, allow_nan=False)
