"""``kvarena scenario``: exit codes, what it prints, and JSON."""

import json
from pathlib import Path

import pytest

from kvarena.plugins.cli.main import run

Capture = pytest.CaptureFixture[str]

TEXT = """version = 1
title = "rows come and go"

[chain]
arena = 4
context = 4
requests = 1
sub_pools = {F = {lifetime = "full"}}

[script]
steps = [
    {do = "take", request = "R", rows = 4},
    {do = "fits", units = {F = 1}, expect = false},
    {do = "finish", request = "R"},
]
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """One that passes, one that fails, one that awaits something, one that is wrong."""
    texts = {
        "passes": TEXT,
        "fails": TEXT.replace("expect = false", "expect = true"),
        "awaits": TEXT.replace("expect = false", 'expect = true, awaits = "more memory"'),
        "wrong": TEXT.replace('"fits"', '"fitz"'),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return {name: str(tmp_path / f"{name}.toml") for name in texts}


def test_all_passed_is_0(files: dict[str, str], capsys: Capture) -> None:
    """Each file on a line, and the sum."""
    assert run(["scenario", files["passes"], files["passes"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"passed: {files['passes']}: rows come and go (4 runs, 16 steps)"] * 2 + ["2 passed"]


def test_a_failure_is_1_and_says_where(files: dict[str, str], capsys: Capture) -> None:
    """With the line, the step, and what came."""
    with pytest.raises(SystemExit) as left:
        run(["scenario", files["fails"], files["passes"], "--timing", "late"])
    out = capsys.readouterr().out
    assert left.value.code == 1
    assert f"  {files['fails']}:13: fits units={{'F': 1}}: the answer is False, not True [late]\n" in out
    assert out.endswith("1 passed, 1 failed\n")


def test_what_awaits_something_is_listed_apart(files: dict[str, str], capsys: Capture) -> None:
    """Neither passed nor failed."""
    assert run(["scenario", files["awaits"]]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1:] == ["  awaits more memory", "1 awaiting"]


def test_bad_input_is_2_and_nothing_runs(files: dict[str, str], capsys: Capture) -> None:
    """The message has the file and the line."""
    assert run(["scenario", files["passes"], files["wrong"]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{files['wrong']}:13: there is no operation 'fitz'; did you mean 'fits'?" in captured.err


def test_verbose_prints_each_step(files: dict[str, str], capsys: Capture) -> None:
    """With what came of it."""
    assert run(["scenario", "-v", "--timing", "early", files["passes"]]) == 0
    assert f"  {files['passes']}:13: fits units={{'F': 1}} -> False\n" in capsys.readouterr().out


def test_json_is_one_document(files: dict[str, str], capsys: Capture) -> None:
    """With every failure and what is awaited."""
    with pytest.raises(SystemExit):
        run(["scenario", "--json", "--timing", "late", *(files[name] for name in ("passes", "fails", "awaits"))])
    scenarios = json.loads(capsys.readouterr().out)["scenarios"]
    assert [one["fate"] for one in scenarios] == ["passed", "failed", "awaiting"]
    assert scenarios[1]["failures"][0]["place"] == f"{files['fails']}:13"
    assert scenarios[2]["awaits"] == ["more memory"]
