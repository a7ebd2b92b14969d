"""Coding-agent sessions (kv-cache-tester): one JSON file a session, or a folder of them; sub-agents nest."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvarena.plugins.replay.trace_rows import BadRow, BadValueError, TraceRow, block_ids, member, number, tokens
from kvarena.terms.errors import ConfigError

_END = object()


class Sessions:
    """``{"id", "block_size": 64, "requests": [{"t", "in", "out", "hash_ids"} or a sub-agent]}``.

    Source: https://github.com/callanjfox/kv-cache-tester. Ids are local to the session and name whole
    blocks only: floor(in / block_size) of them. A sub-agent has ``requests`` of its own, timed from its
    start. ``line`` of a row is its number in the file, sub-agents' requests counted where they stand.
    """

    name = "coding-agent"

    def recognizes(self, path: Path, head: str) -> bool:
        return head.lstrip().startswith("{") and '"block_size"' in head and '"requests"' in head

    def rows(self, path: Path, seed: int) -> Iterator[TraceRow | BadRow]:
        for file in session_files(path):
            yield from _session(file)


def session_files(path: Path) -> list[Path]:
    """The file itself, or the JSON files of a folder by name."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.json"))
    if not files:
        raise ConfigError(f"{path}: no *.json session in this folder; name a trace file, or a folder of sessions")
    return files


def _session(path: Path) -> Iterator[TraceRow | BadRow]:
    text = path.read_text(encoding="utf-8")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}: line {error.lineno}: broken JSON ({error.msg}); the file may be cut off, fetch it again"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: line 1: JSON that cannot be read ({error}); fetch it again") from None
    try:
        block = tokens("block_size", member(record, "block_size"))
        found = list(_flatten(member(record, "requests"), start=0.0, first=1))
    except BadValueError as bad:
        raise ConfigError(f"{path}: the session: {bad}; a session is an object with block_size and requests") from None
    name = str(record.get("id", path.stem))
    rows = [_row(path, name, block, line=line, start=start, request=request) for line, start, request in found]
    yield from sorted(rows, key=lambda row: row.arrival if isinstance(row, TraceRow) else 0.0)


def _flatten(requests: Any, *, start: float, first: int) -> Iterator[tuple[int, float, Any]]:
    """(number, start of its list in seconds, request) depth first, through sub-agents of any depth."""
    pending, line = [(iter(_list(requests)), start)], first
    while pending:
        siblings, origin = pending[-1]
        request = next(siblings, _END)
        if request is _END:
            pending.pop()
        elif isinstance(request, dict) and "requests" in request:
            pending.append((iter(_list(request["requests"])), origin + number("t", request.get("t", 0))))
        else:
            yield line, origin, request
            line += 1


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadValueError(f"'requests' is {type(value).__name__}, not a list")
    return value


def _row(path: Path, session: str, block: int, *, line: int, start: float, request: Any) -> TraceRow | BadRow:
    try:
        prompt = tokens("in", member(request, "in"))
        ids = block_ids("hash_ids", member(request, "hash_ids"))
        if len(ids) != prompt // block:
            raise BadValueError(f"{len(ids)} hash_ids for in {prompt}; whole blocks of {block} make {prompt // block}")
        return TraceRow(
            line=line,
            arrival=start + number("t", member(request, "t")),
            prompt_tokens=prompt,
            output_tokens=tokens("out", member(request, "out")),
            prefix_ids=ids,
            block_tokens=block,
            session=session,
        )
    except BadValueError as bad:
        return BadRow(path, f"request {line}", str(bad))
