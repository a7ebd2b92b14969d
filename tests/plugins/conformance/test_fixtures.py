"""Fixtures of an author that give the kit nothing to test: told once, in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTHOR = """
import pytest

from kvarena.layouts.mha import Mha
from kvarena.plugins.conformance import LayoutConformance
"""
BODIES = {
    "TestNone": ("return None", "'layout' returned None; return a value of your layout"),
    "TestClass": ("return Mha", "'layout' returned the class Mha; return a value: Mha(...)"),
    "TestRaises": ("return {}['x']", "'layout' raised KeyError: 'x'; return a value of your layout"),
    "TestLeaves": ("raise SystemExit(0)", "'layout' raised SystemExit: 0; return a value of your layout"),
}


@pytest.mark.req("PLG-1")
def test_a_fixture_that_gives_no_value_is_told_once(tmp_path: Path) -> None:
    """One test of each class says what to return; the others are skipped, and nothing passes."""
    classes = "".join(
        f"\nclass {name}(LayoutConformance):\n    @pytest.fixture\n    def layout(self):\n        {body}\n"
        for name, (body, _) in BODIES.items()
    )
    (tmp_path / "test_mine.py").write_text(AUTHOR + classes, encoding="utf-8")
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", "test_mine.py", *quiet]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    for name, (_, words) in BODIES.items():
        assert ran.stdout.count(f"\n{name}: fixture {words}\n") == 1
    last = ran.stdout.splitlines()[-1]
    assert f"{len(BODIES)} errors" in last
    assert "skipped" in last
    assert "passed" not in last
    assert "failed" not in last
    assert "Traceback" not in ran.stdout
