"""The vocabulary of events: what the code tells is what docs/events.md says that it tells, both ways."""

import ast
import functools
import logging
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.layouts.mha import Mha
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full

ROOT = Path(__file__).parents[3]
ROOMS = ("core", "layouts", "backends", "policies", "plugins")
LEVELS = ("debug", "info", "warning", "error")


class Told(NamedTuple):
    """One place that tells an event; ``more``: fields that are not named there."""

    place: str
    name: str
    level: str
    fields: frozenset[str]
    more: bool


@functools.cache
def told() -> tuple[Told, ...]:
    """Every event that the code tells."""
    found = []
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                if ast.unparse(node.func.value) != "_log":
                    continue
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert len(node.args) == 1, f"{place}: an event has a name and fields"
                assert isinstance(node.args[0], ast.Constant), f"{place}: the name of an event is a constant"
                names = [keyword.arg for keyword in node.keywords]
                fields = frozenset(name for name in names if name is not None)
                found.append(Told(place, node.args[0].value, node.func.attr, fields, None in names))
    return tuple(found)


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """The rows of the table of events: level and fields by name."""
    text = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \| ([^|]*) \| [^|]+ \|$", text, re.MULTILINE)
    return {name: (level, frozenset(re.findall(r"`(\w+)`", fields))) for name, level, fields in rows}


def test_every_event_is_documented_and_every_documented_event_is_told() -> None:
    """The same names on both sides."""
    assert {event.name for event in told()} == set(documented())


@pytest.mark.parametrize("event", told(), ids=lambda event: f"{event.name} {event.place}")
def test_an_event_has_the_level_and_the_fields_that_are_documented(event: Told) -> None:
    """In every place that tells it; fields that are collected before are among the documented ones too."""
    level, fields = documented()[event.name]
    assert event.level == level
    assert event.fields <= fields if event.more else event.fields == fields


def test_names_are_one_vocabulary() -> None:
    """An event is a thing, a dot and what came of it, as the checks are named; who opens a log calls it ``_log``."""
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", event.name) for event in told())
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        opened = re.findall(r"^(.*)\bevent_log\(\)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert path.name == "events.py" or set(opened) <= {"_log = "}, path


def test_the_fields_that_are_collected_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A storage that opens and is resized tells exactly the documented fields, and each sub-pool's units."""
    layers = [Layer(0, (Part(Mha(kv_heads=2, head_dim=16), Full()),))]
    config = StorageConfig(arena=ArenaConfig(memory="56KiB", context_tokens=256), backend="host")
    with caplog.at_level(logging.INFO, logger="kvarena"):
        storage = build_storage(layers, config)
        storage.resize("64KiB")
        storage.release()
    opened, resized, closed = (re.findall(r"(\w+)=", record.getMessage()) for record in caplog.records)

    assert set(opened) == {"event", *documented()["storage.opened"][1]}
    assert set(resized) == {"event", *documented()["storage.resized"][1], "full"}
    assert set(closed) == {"event", *documented()["storage.closed"][1]}
