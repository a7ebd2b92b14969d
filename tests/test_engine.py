"""The toy engine of docs/embed.md: every token as if there were no arena, whatever gives way."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvarena import ConfigError, check_idle
from kvarena.assembly.config import read_toml

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example, imported as its reader would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("engine"), importlib.import_module("toy_model")
    for name in ("engine", "toy_model"):
        del sys.modules[name]


def built(toy: Any, memory: str) -> Any:
    settings = read_toml(EXAMPLES / "engine.toml")
    settings["arena"]["memory"] = memory
    return toy[0].Engine(settings)


def right(toy: Any, request: Any) -> bool:
    """Whether its answer is the one without an arena."""
    prompt = request.tokens[: request.prompt].tolist()
    answer: list[int] = toy[1].plain(prompt, len(request.tokens) - request.prompt)
    return bool(request.answer == answer)


def test_the_engine_is_short() -> None:
    """A whole engine in less than 120 lines; the model that it runs is a file of its own."""
    assert len((EXAMPLES / "engine.py").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"backend": "simulated"}, "backend"),
        ({"prefix": {"share": False}}, "prefix.share"),
        ({"prefix": {"share": True, "strategy": "no_buffer"}}, "prefix.strategy"),
        ({"layers": 1}, "layers"),
        ({"dtype": "bfloat16"}, "layers: kv_heads, head_dim, dtype"),
    ],
)
def test_a_config_that_the_example_cannot_run_on_is_one_clear_error(change: Any, key: str, toy: Any) -> None:
    """Another backend, no shared prefixes, another layer: told at the start, with the setting and what it must be."""
    settings = read_toml(EXAMPLES / "engine.toml")
    if "layers" in change:
        change = {"layers": settings["layers"][change["layers"] :]}
    if "dtype" in change:
        settings["layers"][1] |= change
        change = {}

    with pytest.raises(ConfigError, match=f"engine.toml: {key}: this example needs "):
        toy[0].Engine({**settings, **change})


@pytest.mark.parametrize("memory", ["10KiB", "14KiB", "16KiB", "20KiB", "256KiB"])
def test_every_answer_is_that_of_the_model_alone(memory: str, toy: Any) -> None:
    """In any arena that can hold it a request is served to its last token, and nothing is left behind."""
    engine, requests = built(toy, memory), toy[1].traffic()
    engine.waiting += requests
    while engine.step():
        pass
    engine.storage.verify()
    engine.tree.verify()
    done = [request for request in requests if request.fate == "done"]
    told = [request for request in requests if request.fate.startswith("never")]

    assert len(done) + len(told) == len(requests)
    assert len(told) == (3 if memory == "10KiB" else 1)
    assert all(right(toy, request) for request in done)
    engine.tree.clear()
    assert not check_idle(engine.storage)
    engine.storage.release()


def test_the_example_is_under_pressure(toy: Any) -> None:
    """At the size of its config prefixes are read, steps are refused, requests give way, and pages move."""
    engine, requests = built(toy, read_toml(EXAMPLES / "engine.toml")["arena"]["memory"]), toy[1].traffic()
    engine.waiting += requests
    while engine.step():
        pass
    stats = engine.storage.stats().values()

    assert sum(request.cached for request in requests) > 0
    assert sum(request.retracted for request in requests) > 0
    assert all(sum(band[word] for band in stats) > 0 for word in ("refusals", "moves"))
    assert engine.tree.stats().evictions > 0
    engine.storage.release()


@pytest.mark.parametrize("after", [1, 3, 9])
def test_an_abort_takes_nothing_from_the_others(after: int, toy: Any) -> None:
    """Whoever is aborted leaves at once, from the queue or under a forward that reads it; the others come out right."""
    engine, requests = built(toy, "16KiB"), toy[1].traffic()
    engine.waiting += requests
    for _ in range(after):
        engine.step()
    victim = engine.running[0]
    assert any(request is victim for _, batch in engine.flying for request, _, _ in batch)
    engine.abort(victim)
    queued = engine.waiting[-1]
    engine.abort(queued)
    while engine.step():
        pass
    engine.abort(next(request for request in requests if request.fate == "done"))  # too late: nothing happens

    assert [request for request in requests if request.fate == "aborted"] == [victim, queued]
    assert all(right(toy, request) for request in requests if request.fate == "done")
    engine.tree.clear()
    assert not check_idle(engine.storage)
    engine.storage.release()


def test_the_script_tells_what_became_of_each() -> None:
    """One line a request: what was cached of its prompt, how often it gave way, its fate and its answer."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "serve_toy.py")], capture_output=True, text=True, check=True, timeout=120
    )
    lines = done.stdout.splitlines()

    assert len(lines) == 11
    assert sum(": done" in line or ", done" in line for line in lines) == 10
    assert "never" in lines[-1]
