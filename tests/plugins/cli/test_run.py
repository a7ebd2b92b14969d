"""``kvarena run``: the main job, as a user starts it."""

import json
from pathlib import Path

import attrs
import pytest

from kvarena.plugins.cli import main as cli_main
from kvarena.plugins.cli import run as run_module
from kvarena.plugins.cli.run_config import read_run_config
from kvarena.plugins.cli.run_prompts import with_prompts
from kvarena.plugins.serving.port import Request
from kvarena.plugins.transformers.verify import Difference, Verdict

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"
Capture = pytest.CaptureFixture[str]


def document(capsys: Capture, *arguments: str) -> dict:
    """The JSON of a run that must succeed."""
    assert cli_main.run(["run", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_quickstart_waits_retracts_and_gives_equal_tokens(capsys: Capture) -> None:
    """32 requests of a real trace, some wait, one at least is retracted, and every token is transformers' own."""
    found = document(capsys, str(QUICKSTART))

    assert (found["done"], found["refused"], found["failed"]) == (32, 0, 0)
    assert found["waits"] > 0
    assert found["retractions"] >= 1
    assert found["cache"]["cached_tokens"] > 0
    assert found["cache"]["checkpoints_taken"] > 0
    assert found["tokens_equal"] is True
    assert found["tokens_compared"] == found["output_tokens"]
    assert [band["name"] for band in found["bands"]] == ["state", "window-16", "full"]
    assert all(band["peak"] >= band["mean"] > 0 for band in found["bands"])


def test_prompts_begin_alike_as_far_as_the_config_and_the_trace_say() -> None:
    """The shared head is everybody's, a block of the trace is that of all who name it, and the rest is drawn."""
    config = attrs.evolve(read_run_config(QUICKSTART), shared_tokens=3)
    requests = [
        Request(0, 0.0, 10, 1, prefix_ids=(7, 8), block_tokens=4),
        Request(1, 0.0, 9, 1, prefix_ids=(7, 9), block_tokens=4),
        Request(2, 0.0, 2, 1),
        Request(3, 0.0, 9, 1),
    ]
    prompts = [request.prompt or () for request in with_prompts(tuple(requests), 500, config)]

    assert [len(prompt) for prompt in prompts] == [10, 9, 2, 9]
    assert prompts[0][:4] == prompts[1][:4]
    assert prompts[0][4:8] != prompts[1][4:8]
    assert prompts[0][:3] == prompts[3][:3]
    assert prompts[2] == prompts[0][:2]
    assert prompts[0][3] != prompts[3][3]
    assert min(map(min, prompts)) >= 3


def test_a_dry_run_plans_and_runs_nothing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what would run; the loop is never started."""
    monkeypatch.setattr(run_module, "Scheduler", None)
    found = document(capsys, str(QUICKSTART), "--dry-run")

    assert found["dry_run"] is True
    assert found["requests"] == 32
    assert "tokens_equal" not in found


def test_unequal_tokens_fail_the_run(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is no ornament: a difference is told with its place, and the exit code says so."""
    difference = Verdict(False, 1, 4, Difference(3, 3, expected=7, got=9))
    monkeypatch.setattr(run_module, "verify", lambda *arguments, **options: difference)

    assert cli_main.run(["run", str(QUICKSTART)]) == 2
    captured = capsys.readouterr()
    assert "DIFFER" in captured.out
    assert "request 3: token 3 after its prompt is 9" in captured.err


def test_without_the_check_nothing_is_claimed(capsys: Capture) -> None:
    """--no-verify leaves the question open instead of answering it."""
    found = document(capsys, str(QUICKSTART), "--no-verify", "--model", "llama")

    assert found["tokens_equal"] is None
    assert found["done"] == 32


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "hi"], "--prompt needs --model FOLDER"),
        (["--prompt", "hi", "--model", "x", "--dry-run"], "--dry-run goes without it"),
        ([], "name a CONFIG file"),
        ([str(QUICKSTART), "--model", "lfm33"], "did you mean 'lfm3'?"),
    ],
)
def test_what_cannot_be_run_is_told(capsys: Capture, arguments: list[str], words: str) -> None:
    """One line, exit code 2."""
    assert cli_main.run(["run", *arguments]) == 2
    assert words in capsys.readouterr().err
