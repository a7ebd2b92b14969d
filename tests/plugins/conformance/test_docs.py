"""docs/kit.md: its tables are the code's."""

import re
from pathlib import Path

import kvarena.plugins.conformance as kit
from kvarena.plugins.conformance import Conformance, promises

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "kit.md"
BEGIN, END = "<!-- promises -->\n", "<!-- end of promises -->\n"
KITS: list[type[Conformance]] = [
    getattr(kit, name) for name in kit.__all__ if name.endswith("Conformance") and name != "Conformance"
]


def table_of(one: type[Conformance]) -> str:
    """What the page says of one class."""
    lines = [f"### {one.__name__}", "", *(f"- Power `{power}`: {words}." for power, words in one.powers.items())]
    lines += ["", "| promise | what it says | power |", "| - | - | - |"]
    for promise in promises(one):
        power = f"`{promise.power}`" if promise.power else ""
        lines.append(f"| `{promise.name}` | {promise.sentence} | {power} |")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def test_the_page_has_every_promise_and_power() -> None:
    """The tables between the two marks are what the classes say; the text to put there is in the failure."""
    text = PAGE.read_text(encoding="utf-8")
    there = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert there == "\n".join(table_of(one) for one in KITS).strip()


def test_the_page_names_every_class() -> None:
    """The table of fixtures has a line for each class of the kit."""
    joined = PAGE.read_text(encoding="utf-8").partition("## Decline")[0]
    assert re.findall(r"\| `(\w+Conformance)` \|", joined) == [
        "LayoutConformance", "LifetimeConformance", "HoleOrderConformance", "CompactionConformance",
        "PlacementConformance", "EvictionConformance", "BackendConformance", "ReaderConformance",
    ]  # fmt: skip
