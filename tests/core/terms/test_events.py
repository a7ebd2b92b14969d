"""Events: told to the standard library's logging, silent until somebody listens."""

import io
import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from kvarena.terms.events import event_log, tells_debug
from kvarena.terms.telling import CARRIES, LOGGER, tell_events


@pytest.fixture
def untouched() -> Iterator[None]:
    """The logger is left as it was found."""
    kept = LOGGER.handlers[:], LOGGER.level
    yield
    LOGGER.handlers[:], LOGGER.level = kept


def test_an_event_is_one_line_with_its_sum(caplog: pytest.LogCaptureFixture) -> None:
    """The event's name first, then what belongs to it."""
    with caplog.at_level(logging.INFO, logger="kvarena"):
        event_log().info("request.retracted", request=7, generated=3)
    assert caplog.messages == ["event='request.retracted' request=7 generated=3"]


def test_a_handler_of_the_programs_own_gets_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    """As a mapping beside the words, so that nobody has to take the line apart."""
    with caplog.at_level(logging.INFO, logger="kvarena"):
        event_log().info("request.retracted", request=7)
    assert getattr(caplog.records[0], CARRIES) == {"event": "request.retracted", "request": 7}


def test_below_its_level_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A library that nobody asked is quiet."""
    with caplog.at_level(logging.WARNING, logger="kvarena"):
        event_log().info("request.retracted", request=7)
    assert caplog.messages == []


SERVES = """
import logging
from kvarena import build_storage
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.layouts.mha import Mha
from kvarena.terms.events import event_log
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full

{asks}
storage = build_storage(
    [Layer(0, (Part(Mha(kv_heads=2, head_dim=16), Full()),))],
    StorageConfig(arena=ArenaConfig(memory="56KiB", context_tokens=256), backend="host"),
)
event_log().warning("request.failed", request=7, reason="it cannot go on")
storage.release()
"""


@pytest.mark.parametrize(
    ("asks", "heard"),
    [
        ("", []),
        ("logging.basicConfig(format='%(message)s')", ["event='request.failed' request=7"]),
        (
            "from kvarena.terms.telling import tell_events; tell_events('info')",
            ["INFO event='storage.opened'", "WARNING event='request.failed'", "INFO event='storage.closed'"],
        ),
    ],
    ids=["nobody", "logging of the program's own", "tell_events"],
)
def test_a_library_is_silent_until_it_is_asked(asks: str, heard: list[str]) -> None:
    """In a process of its own: not even a warning is printed, until the program says that it wants to hear."""
    code = SERVES.format(asks=asks)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()

    assert done.stdout == ""
    assert len(lines) == len(heard)
    assert all(line.startswith(start) for line, start in zip(lines, heard, strict=True))


@pytest.mark.usefixtures("untouched")
def test_an_event_as_json_is_an_object_of_its_fields() -> None:
    """One a line, numbers as numbers, with its level and its time; a plain message of logging is one too."""
    out = io.StringIO()
    tell_events("info", "json", out)
    event_log().info(
        "cache.evicted", entries=np.int64(3), units={"full": np.int64(2)}, at=(1, 2), reason=ValueError("x")
    )
    logging.getLogger("kvarena").warning("plain %d", 7)
    first, second = map(json.loads, out.getvalue().splitlines())

    assert 1.7e9 < first.pop("time") <= second["time"]
    assert first == {
        "event": "cache.evicted", "level": "info", "entries": 3, "units": {"full": 2}, "at": [1, 2], "reason": "x",
    }  # fmt: skip
    assert (second["event"], second["level"]) == ("plain 7", "warning")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (np.float32("inf"), "Infinity"),
        (np.float64("nan"), "NaN"),
        (np.array([1.5, math.nan]), [1.5, "NaN"]),
        ({"full": (math.inf, 2)}, {"full": ["Infinity", 2]}),
        ({math.nan: 1, (1, 2): 2, np.int64(3): 3}, {"NaN": 1, "[1, 2]": 2, "3": 3}),
        ({True, None} - {None}, "{True}"),
        (True, True),
    ],
    ids=repr,
)
def test_every_line_is_json_in_the_strict_sense(value: object, read: object) -> None:
    """A number that is none is told as text, wherever it stands."""

    def strange(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    out = io.StringIO()
    tell_events("info", "json", out)
    event_log().info("cache.evicted", value=value)

    assert json.loads(out.getvalue(), parse_constant=strange)["value"] == read


@pytest.mark.usefixtures("untouched")
def test_what_is_asked_last_holds() -> None:
    """A second call replaces the first: no event is told twice."""
    first, second = io.StringIO(), io.StringIO()
    tell_events("debug", stream=first)
    assert tells_debug()
    tell_events("warning", stream=second)
    event_log().warning("request.failed", request=1)
    event_log().info("request.refused", request=2)

    assert not tells_debug()
    assert (first.getvalue(), second.getvalue()) == ("", "WARNING event='request.failed' request=1\n")


@pytest.mark.parametrize(("level", "form"), [("loud", "console"), ("info", "yaml")])
def test_an_unknown_level_or_form_is_refused(level: str, form: str) -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match="a level is one of debug, info, warning, a form one of console, json"):
        tell_events(level, form)
