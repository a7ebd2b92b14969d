"""Named promises, and the page that lists them all."""

import ast
import re
from pathlib import Path

import pytest

from kvarena.terms.errors import InvariantError
from kvarena.terms.invariants import broken, invariant

ROOT = Path(__file__).parents[3]
ROOMS = ("core", "layouts", "backends", "policies", "plugins")
CALLS = ("invariant", "fail", "broken", "InvariantError", "misbehaves", "_wrong", "_fail")


def named_in_code() -> set[str]:
    """The names of every check: what the calls that raise or tell say first."""
    names = set()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if getattr(node.func, "id", getattr(node.func, "attr", None)) in CALLS:
                first = node.args[0]
                text = first.values[0] if isinstance(first, ast.JoinedStr) else first
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    names |= set(re.findall(r"^[a-z0-9_]+\.[a-z0-9_]+", text.value))
    return names


def rows_of_the_page() -> list[tuple[str, str, str, str]]:
    """The rows of the tables in docs/checks.md: name, what it asserts, level, fatal."""
    page = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z0-9_]+\.[a-z0-9_]+)` \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)


def test_an_invariant_says_its_name_and_what_was_found() -> None:
    """Nothing while it holds; else the name that tests and notes use, and the values."""
    invariant("band.sum", True, live=1)
    with pytest.raises(InvariantError, match=r"^band\.sum: live=1 holes=\[2\]$"):
        invariant("band.sum", False, live=1, holes=[2])
    assert broken("chain.plain") == "chain.plain"


@pytest.mark.req("CHK-1")
def test_every_check_has_its_row_and_every_row_its_check() -> None:
    """docs/checks.md lists the named checks of all rooms, each once."""
    listed = [name for name, *_ in rows_of_the_page()]

    assert len(listed) > 80
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == named_in_code()


@pytest.mark.req("CHK-1")
def test_a_check_awaits_what_it_guards() -> None:
    """The page says so, until pipeline stages are there: then it has its row."""
    page, awaited = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8"), "chain.stage_capacity_agreement"

    assert f"`{awaited}`" in page
    assert f"| `{awaited}` |" not in page
    assert awaited not in named_in_code()


@pytest.mark.req("CHK-1")
def test_every_row_says_its_level_and_whether_it_is_fatal() -> None:
    """The document's own names are among them, with the level from which each is looked at."""
    rows = {name: (level, fatal) for name, _, level, fatal in rows_of_the_page()}

    assert {level[:1] for level, _ in rows.values()} == {"0", "1", "2", "i"}
    assert {fatal for _, fatal in rows.values()} == {"yes", "at 2"}
    assert rows["band.free_of_bound_page"][1] == rows["band.free_outside_reservation"][1] == "yes"
    assert rows["chain.estimate_read_in_decision"] == ("1", "at 2")
