"""Bytes: their type and their spelling; and the few roundings that bytes, pages and tokens share."""

import re
from typing import NewType

Bytes = NewType("Bytes", int)

_SCALE = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}
_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*")

BYTES_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([bB]|[kKmMgGtT][iI]?[bB])?\s*$"
"""What ``parse_bytes`` reads of a text, as a regular expression."""

BYTES_MAX = 1 << 60
"""The most bytes that anybody means: an exbibyte."""
TOKENS_MAX = 1 << 40
"""The longest window or sequence that anybody means; sums of such lengths stay in 64 bits."""
PAGE_TOKENS_MAX = 1 << 20
"""The most tokens of one page."""


def ceil_div(amount: int, step: int) -> int:
    """The number of steps that cover ``amount``."""
    return -(-amount // step)


def align_up(amount: int, step: int) -> int:
    """The least multiple of ``step`` that is at least ``amount``; a step of 0 aligns nothing."""
    return ceil_div(amount, step) * step if step else amount


def align_down(amount: int, step: int) -> int:
    """The greatest multiple of ``step`` that is at most ``amount``; a step of 0 aligns nothing."""
    return amount // step * step if step else amount


def parse_bytes(text: str | int) -> Bytes:
    """Read ``"80GiB"``, ``"1.5 MB"`` or ``4096`` as bytes.

    Binary units (KiB, MiB, GiB, TiB) are powers of 1024, decimal ones (KB, MB, GB, TB) of 1000.

    Raises:
        ValueError: the text is no quantity of bytes (the message names the units that are known), or an absurd one.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return _sane(text)
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[2].lower() not in _SCALE:
        raise ValueError(
            f"{str(text)[:40]!r} is not an amount of bytes; "
            "write a number and one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"
        )
    number, scale = match[1], _SCALE[match[2].lower()]
    return _sane(int(number) * scale if "." not in number else int(float(number) * scale))


def _sane(amount: int) -> Bytes:
    if amount < 0:
        raise ValueError(f"{amount} is a negative number of bytes")
    if amount > BYTES_MAX:
        raise ValueError(f"an absurd number of bytes; at most {BYTES_MAX:,}")
    return Bytes(amount)


def format_bytes(amount: int) -> str:
    """Spell bytes for a person, in binary units: ``1536`` is ``"1.50 KiB"``."""
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{amount:,} B" if unit == "B" else f"{size:,.2f} {unit}"
        size /= 1024
    return f"{size:,.2f} TiB"
