"""The Mooncake traces (FAST'25): JSONL, prompts as ids of 512-token blocks that are shared by the whole file."""

import json
from collections.abc import Iterator
from pathlib import Path

from kvarena.plugins.replay.trace_rows import BadRow, BadValueError, TraceRow, block_ids, member, number, tokens
from kvarena.terms.units import ceil_div

BLOCK_TOKENS = 512


class Mooncake:
    """``{"timestamp": ms, "input_length", "output_length", "hash_ids"}``, one object a line.

    Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces. The last block of a prompt may
    be partial, so there are ceil(input_length / 512) ids.
    """

    name = "mooncake"

    def recognizes(self, path: Path, head: str) -> bool:
        first = head.lstrip().partition("\n")[0]
        return first.startswith("{") and '"hash_ids"' in first and '"input_length"' in first

    def rows(self, path: Path, seed: int) -> Iterator[TraceRow | BadRow]:
        with path.open(encoding="utf-8") as lines:
            for line, text in enumerate(lines, start=1):
                if not text.strip():
                    continue
                try:
                    yield _row(line, text)
                except BadValueError as bad:
                    yield BadRow(path, f"line {line}", str(bad))


def _row(line: int, text: str) -> TraceRow:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        cut = "" if text.endswith("\n") else "; the file ends here without a newline: it may be cut off"
        raise BadValueError(f"broken JSON ({error}){cut}") from None
    prompt = tokens("input_length", member(record, "input_length"))
    ids = block_ids("hash_ids", member(record, "hash_ids"))
    if len(ids) != ceil_div(prompt, BLOCK_TOKENS):
        raise BadValueError(
            f"{len(ids)} hash_ids for input_length {prompt}; blocks of {BLOCK_TOKENS} tokens make "
            f"{ceil_div(prompt, BLOCK_TOKENS)}"
        )
    return TraceRow(
        line=line,
        arrival=number("timestamp", member(record, "timestamp")) / 1000,
        prompt_tokens=prompt,
        output_tokens=tokens("output_length", member(record, "output_length")),
        prefix_ids=ids,
        block_tokens=BLOCK_TOKENS,
    )
