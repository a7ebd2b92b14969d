"""``kvarena trace``: record, compare, exit codes, what is printed, and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvarena.plugins.cli.main import run

Capture = pytest.CaptureFixture[str]

RECORD = ("trace", "record", "--seeds", "0:2", "--ops", "30", "--page-sizes", "1,16", "--out")


@pytest.fixture
def base(tmp_path: Path, capsys: Capture) -> str:
    """A recorded trace."""
    path = str(tmp_path / "base.jsonl")
    assert run([*RECORD, path]) == 0
    assert "4 runs, 120 operations" in capsys.readouterr().out
    return path


def altered(path: str, **changes: Any) -> str:
    """The trace with another outcome in its third operation, and another start."""
    told = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    told[0].update(changes)
    told[3]["moves"] = 1234
    other = path.replace("base", "other")
    Path(other).write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")
    return other


@pytest.mark.req("TRC-1")
def test_the_same_version_compares_alike(base: str, capsys: Capture) -> None:
    """Exit code 0, and a line with the counts."""
    assert run(["trace", "compare", "--trace", base]) == 0
    assert "4 runs alike, 0 parted; 120 operations were alike" in capsys.readouterr().out


@pytest.mark.req("TRC-1")
def test_the_first_divergence_is_printed_in_words(base: str, capsys: Capture) -> None:
    """Run, operation and what was recorded, then what came: exit code 1."""
    other = altered(base)
    for arguments in (["--trace", other], ["--trace", other, "--with", base]):
        assert run(["trace", "compare", *arguments]) == 1
        out = capsys.readouterr().out
        assert "seed 0, pages of 1: operation 3, " in out
        assert "pages moved: 1234 -> " in out
        assert "3 runs alike, 1 parted" in out


def test_the_limit_is_of_what_is_printed(base: str, capsys: Capture) -> None:
    """The counts are of all runs."""
    assert run(["trace", "compare", "--trace", altered(base), "--limit", "0"]) == 1
    out = capsys.readouterr().out

    assert "operation 3" not in out
    assert "1 parted (1 of them not printed)" in out


def test_json_is_one_document(base: str, capsys: Capture) -> None:
    """The same facts for programs."""
    assert run(["trace", "compare", "--trace", altered(base), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)

    assert document["runs"] == 4
    assert document["diverged"] == 1
    assert document["divergences"][0]["number"] == 3
    assert document["divergences"][0]["words"][0].startswith("pages moved: 1234 -> ")


def test_recording_tells_json_too(tmp_path: Path, capsys: Capture) -> None:
    """Runs and operations."""
    path = str(tmp_path / "base.jsonl")
    assert run(["trace", "record", "--seeds", "3", "--ops", "10", "--out", path, "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {"version": 1, "trace": path, "runs": 1, "operations": 10}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["record", "--out", "x.jsonl", "--page-sizes", "1;2"], "is no list of page sizes"),
        (["record", "--out", "x.jsonl", "--page-sizes", "0"], "sizes from 1 to"),
        (["record", "--out", "x.jsonl", "--page-sizes", "\u0661"], "is no list of page sizes"),
        (["record", "--out", "x.jsonl", "--device", "abacus"], "no backend of this name"),
        (["record", "--out", "x.jsonl", "none.toml"], "none.toml: there is no such file"),
        (["record", "--out", "no/such/folder.jsonl", "--seeds", "1", "--ops", "1"], "folder.jsonl: cannot be written"),
        (["compare", "--trace", "none.jsonl"], "none.jsonl: there is no such file"),
    ],
)
def test_bad_input_is_said_in_one_line(
    arguments: list[str], words: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert run(["trace", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_another_version_is_named_with_its_line(base: str, capsys: Capture) -> None:
    """A trace of another version, and one that was cut off: exit code 2, FILE:LINE."""
    assert run(["trace", "compare", "--trace", altered(base, version=2)]) == 2
    assert "other.jsonl:1: version 2 of a trace is not known here" in capsys.readouterr().err

    Path(base).write_bytes(Path(base).read_bytes()[:-4])
    assert run(["trace", "compare", "--trace", base]) == 2
    assert "base.jsonl:129: the line has no end" in capsys.readouterr().err


def test_alone_it_prints_its_help(capsys: Capture) -> None:
    """As ``kvarena`` itself does: exit code 0."""
    assert run(["trace"]) == 0
    told = capsys.readouterr()
    assert "record" in told.out
    assert "compare" in told.out
    assert told.err == ""


def test_a_damaged_line_is_one_message(base: str, capsys: Capture) -> None:
    """Exit code 2, FILE:LINE, no traceback."""
    lines = Path(base).read_text(encoding="utf-8").splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), "rows": None})
    Path(base).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert run(["trace", "compare", "--trace", base]) == 2
    assert capsys.readouterr().err.endswith("base.jsonl:4: rows: must be a table, not 'None'; record it again\n")
