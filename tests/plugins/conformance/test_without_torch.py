"""The kit where torch is not installed: it is there, and says what it leaves out."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
from kvarena.layouts.latent import Latent
from kvarena.plugins.conformance import LayoutConformance, LifetimeConformance
from kvarena import Window


class TestLatent(LayoutConformance):
    declines = ("codec",)
    layout = pytest.fixture(lambda self: Latent(row_bytes=8))


class TestWindow(LifetimeConformance):
    lifetime = pytest.fixture(lambda self: Window(6))
"""

RUN = """
import sys
sys.modules.update(dict.fromkeys(["torch", "triton", "transformers"]))
import pytest
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", "-k", "not stress", "test_plugins.py"]))
"""
"""``None`` in ``sys.modules`` makes an import of the name fail as if it were not installed."""


def test_only_what_reads_real_bytes_is_skipped(tmp_path: Path) -> None:
    """Without torch every class of the kit is imported; a promise that needs it says so, the others are tested."""
    (tmp_path / "test_plugins.py").write_text(TESTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    skips = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED") and "declined" not in line]

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert " passed" in done.stdout
    assert len(skips) == 1
    assert "pip install 'kvarena[torch]'" in skips[0]
