"""``--timeline`` and the metrics of ``replay`` and ``run``: there in whole or not at all, wrong ones told at once."""

import csv
import json
import os
import re
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvarena.plugins.cli import main as cli_main
from kvarena.plugins.cli import replay as replay_module
from kvarena.plugins.cli.whole_file import WholeFile
from kvarena.terms.errors import ConfigError

TRACE = Path(__file__).parents[3] / "examples" / "data" / "azure_conv_48.csv"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def replayed(config: Callable[..., Path], tmp_path: Path) -> Callable[..., int]:
    """Run ``kvarena replay`` over a small trace with more options; its exit code."""
    model = config()

    def run(*more: str) -> int:
        cut = ("--limit", "12", "--length-scale", "0.1", "--output-max", "20")
        return cli_main.run(
            ["replay", "--model", str(model), "--memory", "4MiB", "--trace", str(TRACE), *cut, "--json", *more]
        )

    return run


def test_a_timeline_has_a_row_for_each_step(replayed: Callable[..., int], tmp_path: Path, capsys: Capture) -> None:
    """As many as the report has steps, on its clock, and no band above the report's peak; the same each time."""
    assert replayed("--timeline", str(tmp_path / "bands.csv")) == 0
    document = json.loads(capsys.readouterr().out)
    with (tmp_path / "bands.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert {int(row["step"]) for row in rows} == set(range(int(rows[0]["step"]), document["steps"] + 1))
    assert float(rows[-1]["seconds"]) == document["throughput"]["seconds"]
    for band in document["bands"]:
        live = [int(row[f"{band['name']}.live"]) for row in rows]
        assert 0 < max(live) <= band["peak"]
        assert all(
            int(row[f"{band['name']}.live_bytes"]) == count * band["unit_bytes"]
            for row, count in zip(rows, live, strict=True)
        )

    assert replayed("--timeline", str(tmp_path / "again.csv")) == 0
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "bands.csv").read_text()


def test_rows_can_be_thinned(replayed: Callable[..., int], tmp_path: Path, capsys: Capture) -> None:
    """To so many; how many of how many is told on stderr."""
    path = tmp_path / "bands.jsonl"
    assert replayed("--timeline", str(path), "--timeline-rows", "100") == 0

    lines = path.read_text().splitlines()
    assert len(lines) <= 100
    told = re.search(r"timeline: ([\d,]+) of ([\d,]+) moments in ", capsys.readouterr().err)
    assert told is not None
    assert int(told[1].replace(",", "")) == len(lines) < int(told[2].replace(",", ""))


def test_a_page_is_written_too(replayed: Callable[..., int], tmp_path: Path) -> None:
    """The third suffix, whatever its case."""
    assert replayed("--timeline", str(tmp_path / "bands.HTML")) == 0
    assert (tmp_path / "bands.HTML").read_text().startswith("<!doctype html>")


def test_the_metrics_of_the_end_are_those_of_the_report(
    replayed: Callable[..., int], tmp_path: Path, capsys: Capture
) -> None:
    """Requests by fate, steps, tokens and moves; nobody runs or waits any more."""
    assert replayed("--metrics-file", str(tmp_path / "end.prom")) == 0
    document = json.loads(capsys.readouterr().out)
    text = (tmp_path / "end.prom").read_text()
    found = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}

    assert found["kvarena_requests_done_total"] == document["requests"]["done"] == 12
    assert found["kvarena_steps_total"] == document["steps"]
    assert found["kvarena_forwarded_tokens_total"] == document["throughput"]["tokens_forwarded"]
    assert found["kvarena_generated_tokens_total"] == document["throughput"]["output_tokens"]
    assert found["kvarena_requests_running"] == found["kvarena_requests_waiting"] == 0


def test_metrics_are_served_while_it_runs(
    replayed: Callable[..., int], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is told before the first step, answers during the run, and is given back at its end."""
    answers: list[str] = []
    real = replay_module.replay_trace

    def replay_and_look(*arguments: object, on_step: Callable[[object], None], **more: object) -> object:
        told = re.search(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", capsys.readouterr().err)
        assert told is not None

        def look(progress: object) -> None:
            on_step(progress)
            if len(answers) < 3:
                with urllib.request.urlopen(told[1], timeout=10) as answer:
                    answers.append(answer.read().decode())

        answered = real(*arguments, on_step=look, **more)
        answers.append(told[1])
        return answered

    monkeypatch.setattr(replay_module, "replay_trace", replay_and_look)
    assert replayed("--metrics-port", "0") == 0
    assert all("kvarena_requests_running" in answer for answer in answers[:3])
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(answers[3], timeout=10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--timeline", "bands.png"), "bands.png: a timeline is written as .csv, .jsonl, .html"),
        (("--timeline", "no/such/folder/bands.csv"), "--timeline no/such/folder/bands.csv: cannot be written: No such"),
        (("--metrics-file", "no/such/folder/x"), "--metrics-file no/such/folder/x: cannot be written: No such file"),
        (("--timeline", "config.json/bands.csv"), "config.json/bands.csv: cannot be written: Not a directory"),
        (("--timeline", "b.csv", "--metrics-file", "b.csv"), "are both b.csv: name two files"),
        (("--timeline-rows", "200"), "--timeline-rows thins a timeline: name its file with --timeline FILE"),
        (("--timeline", "b.csv", "--timeline-rows", "10"), "10 is not in the range x>=100"),
        (("--metrics-port", "65536"), "65536 is not in the range 0<=x<=65535"),
        (("--timeline", "."), "is a directory"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_run(
    replayed: Callable[..., int], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    options: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    """One line, exit code 2, and no replay has begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replay_module, "replay_trace", None)
    assert replayed(*options) == 2
    assert words in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"config.json"}


def test_a_port_that_is_taken_is_told(replayed: Callable[..., int], capsys: Capture) -> None:
    """With what the system says of it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert replayed("--metrics-port", str(port)) == 2
    assert f"metrics: port {port} of 127.0.0.1 cannot be served: Address already in use" in capsys.readouterr().err


def test_a_run_that_fails_leaves_no_file(
    replayed: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was there before stays as it was, and nothing lies beside it."""
    (tmp_path / "bands.csv").write_text("of yesterday\n")

    def fail(*_: object, **__: object) -> None:
        raise ConfigError("no")

    monkeypatch.setattr(replay_module, "replay_trace", fail)
    options = ("--timeline", str(tmp_path / "bands.csv"), "--metrics-file", str(tmp_path / "end.prom"))
    assert replayed(*options) == 2
    assert (tmp_path / "bands.csv").read_text() == "of yesterday\n"
    assert {path.name for path in tmp_path.iterdir()} == {"bands.csv", "config.json"}


QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"


@pytest.mark.slow
def test_a_run_of_a_model_is_watched_too(tmp_path: Path, capsys: Capture) -> None:
    """The same options: a row for every step, and the figures of the end."""
    cli_run = pytest.importorskip("kvarena.plugins.cli.run")
    assert cli_run.run is not None
    text = QUICKSTART.read_text().replace("limit = 32", "limit = 4")
    (tmp_path / "few.toml").write_text(text.replace("data/azure_conv_48.csv", str(TRACE)))
    options = ["--timeline", str(tmp_path / "bands.csv"), "--metrics-file", str(tmp_path / "end.prom")]
    assert cli_main.run(["run", str(tmp_path / "few.toml"), "--no-verify", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    with (tmp_path / "bands.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert int(rows[-1]["step"]) == document["steps"]
    assert max(int(row["full.live"]) for row in rows) > 0
    assert f"kvarena_requests_done_total {document['done']}.0" in (tmp_path / "end.prom").read_text()


@pytest.mark.parametrize("other", [("--dry-run", str(QUICKSTART)), ("--prompt", "hello", "--model", "x")])
def test_what_runs_no_loop_cannot_be_watched(other: tuple[str, ...], capsys: Capture, tmp_path: Path) -> None:
    """It is told, and no file is written."""
    pytest.importorskip("torch")
    assert cli_main.run(["run", *other, "--timeline", str(tmp_path / "bands.csv")]) == 2
    assert f"--timeline watches a run of a CONFIG; {other[0]} has none" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_whole_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    """The old one is there until then; a link is followed; rights are those of any new file."""
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    file = WholeFile(tmp_path / "link.csv", "--timeline")
    assert {path.name for path in tmp_path.iterdir()} == {"real.csv", "link.csv"}

    def fill(stream: TextIO) -> None:
        stream.write("new")
        stream.flush()
        assert (tmp_path / "real.csv").read_text() == "old"

    file.write(fill)
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "new"
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "real.csv").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert {path.name for path in tmp_path.iterdir()} == {"real.csv", "link.csv", "plain"}


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """Where the bytes cannot be written, what was there before is there, and nothing beside it."""

    def fill(stream: TextIO) -> None:
        stream.write("half")
        raise OSError(28, os.strerror(28))

    file = WholeFile(tmp_path / "bands.csv", "--timeline")
    with pytest.raises(ConfigError, match=r"--timeline .*bands\.csv: cannot be written: No space left"):
        file.write(fill)
    assert not list(tmp_path.iterdir())


def test_without_prometheus_client_only_metrics_are_missing(config: Callable[..., Path], tmp_path: Path) -> None:
    """A replay runs and writes its timeline; asked for metrics, it says what to install, before it runs."""
    model, timeline = config(), tmp_path / "bands.csv"
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from kvarena.plugins.cli.main import run\n"
        f"same = ['replay', '--model', {str(model)!r}, '--memory', '4MiB', '--trace', {str(TRACE)!r}, '--limit', '2']\n"
        f"print(run([*same, '--timeline', {str(timeline)!r}]), run([*same, '--metrics-port', '0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "0 2"
    assert "pip install 'kvarena[metrics]'" in done.stderr
    assert timeline.exists()
