"""What long runs print with: a console on rich, tables in it, and progress that moves only on a terminal.

Colours and moving bars only on a terminal, and no colours where ``NO_COLOR`` is set; progress goes to stderr.
"""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

import rich.console
import rich.progress
import rich.table
import rich.text

from kvarena.plugins.cli.plain import is_amount, pairs, print_json

__all__ = ["Progress", "console", "pairs", "print_json", "table"]

PLAIN_WIDTH = 200
LINE_SECONDS = 5.0
"""Without a terminal, progress is a plain line at most so often."""


def console(stream: IO[str] | None = None) -> rich.console.Console:
    """A console on stdout, or on the stream given; wide and plain where that is no terminal."""
    stream = stream or sys.stdout
    return rich.console.Console(
        file=stream,
        width=None if stream.isatty() else PLAIN_WIDTH,
        soft_wrap=not stream.isatty(),
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> rich.table.Table:
    """A table for ``console().print``; columns that hold only amounts lean right."""
    made = rich.table.Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        numeric = bool(rows) and all(is_amount(str(row[position])) for row in rows)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(rich.text.Text(str(cell)) for cell in row))
    return made


class Progress:
    """How far something is: a bar on a terminal, a plain line now and then elsewhere. On stderr.

    Used as ``with Progress("requests", 32) as progress: progress.at(3, "2 waiting")``.
    """

    def __init__(self, label: str, total: int, *, quiet: bool = False, stream: IO[str] | None = None) -> None:
        self._label, self._total, self._quiet = label, total, quiet
        self._stream = stream or sys.stderr
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._next_line = 0.0

    def __enter__(self) -> "Progress":
        if not self._quiet and self._stream.isatty():
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TimeElapsedColumn(),
                rich.progress.TextColumn("{task.fields[note]}"),
                console=console(self._stream),
                transient=True,
            )
            self._task = self._bar.add_task(self._label, total=self._total, note="")
            self._bar.start()
        return self

    def at(self, done: int, note: str = "") -> None:
        """So much is done; ``note`` is a word on what happens now. Cheap enough for every step."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, note=note)
        elif not self._quiet and (done >= self._total or time.monotonic() >= self._next_line):
            self._next_line = time.monotonic() + LINE_SECONDS
            print(f"{self._label}: {done}/{self._total}{f' ({note})' if note else ''}", file=self._stream, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
