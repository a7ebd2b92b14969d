"""What a start brings in: no torch where no tensor is touched, no numpy where nothing is counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = str(Path(__file__).parent / "data" / "models" / "llama-3.1-8b.json")
PLANNED = 'backend = "host"\n[arena]\nmemory = "1GiB"\ncontext_tokens = 4096\n'
COMMAND = "from kvarena.plugins.cli.main import run\nassert run({arguments!r}) == 0"
HEAVY = {"torch", "transformers", "triton"}


def brought_in(code: str) -> set[str]:
    """The packages that are imported once a fresh process has run the code."""
    tell = "import json, sys\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    finished = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import kvarena",
        "import kvarena\nfor name in kvarena.__all__: getattr(kvarena, name)",
        COMMAND.format(arguments=["plan", MODEL, "--memory", "40GiB", "--compare"]),
        COMMAND.format(arguments=["plugins"]),
        COMMAND.format(arguments=["config", "show", "planned.toml"]),
        COMMAND.format(arguments=["--help"]),
    ],
    ids=["import", "face", "plan", "plugins", "config", "help"],
)
def test_nothing_heavy_is_imported(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the face nor a command that only reads and counts imports torch, transformers or triton.

    A config is shown with the settings of the backend that it names, so this one names the host.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planned.toml").write_text(PLANNED)

    assert not brought_in(code) & HEAVY


@pytest.mark.parametrize("arguments", [["plugins"], ["--help"]], ids=["plugins", "help"])
def test_what_is_only_listed_needs_no_numpy(arguments: list[str]) -> None:
    """Commands that read metadata alone import neither numpy nor structlog, which are most of a start."""
    assert not brought_in(COMMAND.format(arguments=arguments)) & {"numpy", "structlog"}
