"""The kit is tested by saboteurs: one tiny broken plugin for each promise, found by that promise and by no other."""

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sabotage import ALONE, WHOLE

import kvarena.plugins.conformance as kit
from kvarena.plugins.conformance import Conformance, promises

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent / "saboteurs"
FILES = sorted(path.stem for path in FOLDER.glob("*.py"))
KITS = [getattr(kit, name) for name in kit.__all__ if name.endswith("Conformance") and name != "Conformance"]


def module_of(name: str) -> ModuleType:
    """A file of saboteurs, imported."""
    spec = importlib.util.spec_from_file_location(f"saboteurs_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saboteurs_of(name: str) -> dict[str, Any]:
    """The test classes of a file, by their names there."""
    return {known: one for known, one in vars(module_of(name)).items() if known.startswith("Test")}


def outcomes(name: str, into: Path) -> Iterator[tuple[str, str, str, str]]:
    """Run a file of saboteurs: of each test its class, its promise, what came of it, and the words of a failure."""
    report = into / "report.xml"
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", str(FOLDER / f"{name}.py"), *quiet]
    env = {**os.environ, ALONE: "1"}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False, env=env)
    assert report.exists(), ran.stdout + ran.stderr
    for case in ET.parse(report).iter("testcase"):
        found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        words = (found.get("message") or "") + (found.text or "") if found is not None else ""
        yield case.attrib["classname"].rpartition(".")[2], case.attrib["name"], getattr(found, "tag", "passed"), words


@pytest.mark.slow
@pytest.mark.req("PLG-1")
@pytest.mark.parametrize("name", FILES)
def test_each_saboteur_is_caught_by_the_promise_that_it_breaks(name: str, tmp_path: Path) -> None:
    """Exactly that promise fails, by a line that names the plugin. Where kvarena itself refuses it, others may too."""
    caught: dict[str, dict[str, str]] = defaultdict(dict)
    for of, promise, came, words in outcomes(name, tmp_path):
        if came in ("failure", "error"):
            caught[of][promise] = words
    for of, one in saboteurs_of(name).items():
        failed = set(caught[of])
        assert one.breaks in failed, f"{of} is not caught by {one.breaks}; {sorted(failed)} failed"
        assert failed - WHOLE <= {one.breaks}, f"{of} breaks {one.breaks}, and {sorted(failed)} failed"
        assert any(f"{one.word} '" in line for line in caught[of][one.breaks].splitlines()), caught[of][one.breaks]


@pytest.mark.req("PLG-1")
def test_each_promise_has_a_saboteur() -> None:
    """A promise that nothing breaks is not known to look at anything."""
    broken = {getattr(one.__mro__[1], one.breaks) for name in FILES for one in saboteurs_of(name).values()}
    silent = [
        f"{one.__name__}.{promise.name}"
        for one in KITS
        for promise in promises(one)
        if getattr(one, promise.name) not in broken
    ]
    assert not silent


@pytest.mark.parametrize("one", KITS)
def test_each_promise_is_a_sentence(one: type[Conformance]) -> None:
    """Its docstring says it, and a power that it needs is one that its class tells of."""
    for promise in promises(one):
        assert promise.sentence.endswith("."), promise
        assert promise.power is None or promise.power in one.powers, promise
    assert set(one.powers) == {promise.power for promise in promises(one)} - {None} | (set(one.powers) & {"streams"})
