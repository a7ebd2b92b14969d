"""The lines of a TOML file on which its settings stand, by key path, so that a message or a listing can name them.

``tomllib`` tells no positions. But each statement of a file is TOML by itself: the lines are gathered until they parse,
and what they set belongs to the table that was opened last.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Step = str | int
Path = tuple[Step, ...]


def steps_of(key: str) -> Path:
    """``layers[2].window`` as steps: ``("layers", 2, "window")``. A name with dots in it stands in quotes."""
    found = re.findall(r'"([^"]*)"|\[(\d+)\]|([^.\[\]"]+)', key)
    return tuple(int(number) if number else quoted or bare for quoted, number, bare in found)


def spelt(steps: Sequence[Step]) -> str:
    """The other way: steps as a key path."""
    text = ""
    for step in steps:
        name = str(step) if re.fullmatch(r"[\w-]+", str(step)) else f'"{step}"'
        text += f"[{step}]" if isinstance(step, int) else f".{name}" if text else name
    return text


def positions(text: str) -> dict[Path, int]:
    """The line, counted from 1, of every table and every key of a TOML text; of what it cannot split, none."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for start, lines in _statements(text):
        tables = tomllib.loads("\n".join(lines))
        head = lines[0].lstrip()
        if head.startswith("["):
            table = _opened(tables, counts, is_array=head.startswith("[["))
            found.setdefault(table, start)
            continue
        for path in _paths(tables):
            word = next((step for step in reversed(path) if isinstance(step, str)), "")
            at = next((at for at, line in enumerate(lines) if word in line), 0)
            found.setdefault((*table, *path), start + at)
    return found


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each statement with the number of its first line."""
    gathered: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(), start=1):
        if not gathered:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start = number
        gathered.append(line)
        try:
            tomllib.loads("\n".join(gathered))
        except (ValueError, RecursionError):
            continue
        yield start, gathered
        gathered = []


def _opened(tables: Mapping[str, Any], counts: dict[Path, int], *, is_array: bool) -> Path:
    """The path of the table that a header opens; of an array of tables, its next or its present element."""
    path: Path = ()
    value: Any = tables
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        path = (*path, name)
        value = value[0] if isinstance(value, list) else value
        if is_array and not value:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _paths(value: Any) -> Iterator[Path]:
    """The path of every key in what one statement sets."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield (step,)
        for path in _paths(inner):
            yield (step, *path)
