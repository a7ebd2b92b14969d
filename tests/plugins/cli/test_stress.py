"""``kvarena stress``: exit codes, cases on disk and again, other devices and chains, and one message for bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from planted import FAULTS

from kvarena.plugins.cli.main import run
from kvarena.plugins.stress.swarm.case import dump_case, read_case
from kvarena.plugins.stress.swarm.harness import run_seed
from kvarena.plugins.stress.swarm.world import draw_world

CONFIG = """
version = 1
[arena]
memory = "3KiB"
page_tokens = 2
context_tokens = 16
max_running = 4
forwards_in_flight = 2
[policies]
compaction = "eager"
[[layers]]
index = 0
layout = "latent"
row_bytes = 16
lifetime = "window"
window = 4
[[layers]]
index = 1
layout = "latent"
row_bytes = 24
lifetime = "full"
"""


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that is found soon."""
    next(fault for fault in FAULTS if fault.name == "pages are not zeroed on hand-out").plant(monkeypatch)


@pytest.mark.req("HAR-2")
def test_clean_seeds_end_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """Seeds, operations and speed in one line; progress on stderr."""
    assert run(["stress", "--seeds", "0:3", "--ops", "60"]) == 0

    told = capsys.readouterr()
    assert "3 seeds, 180 operations on the simulated device" in told.out
    assert "every promise held" in told.out
    assert "seeds: 3/3" in told.err
    assert "operations/s, 0 broken" in told.err


@pytest.mark.req("HAR-2")
def test_a_violation_ends_with_one_and_leaves_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seed, the promise in words and a file; the file runs again, with the fault to 1 and without it to 0."""
    with monkeypatch.context() as inner:
        plant(inner)
        assert run(["stress", "--seeds", "0", "--ops", "100", "--minimize", "--out", str(tmp_path / "out")]) == 1
        told = capsys.readouterr().out
        path = tmp_path / "out" / "seed-0.toml"
        assert "seed=0  lost_write: " in told
        assert f"kvarena stress --replay {path}" in told.replace("\n", "")
        assert len(read_case(path).operations) < 10
        assert run(["stress", "--replay", str(path)]) == 1
        assert "seed=0  lost_write: " in capsys.readouterr().out

    assert run(["stress", "--replay", str(path)]) == 0
    assert "every promise held; the file says that lost_write broke" in capsys.readouterr().out


def test_without_a_folder_the_case_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the file that --replay reads."""
    plant(monkeypatch)
    assert run(["stress", "--seeds", "0", "--ops", "100", "--minimize"]) == 1

    out = capsys.readouterr().out
    path = tmp_path / "printed.toml"
    path.write_text(out[out.index("version = 1") : out.rindex("]") + 1])
    assert read_case(path).check == "lost_write"


def test_json_is_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else on stdout, and the same for the same seeds."""
    plant(monkeypatch)
    assert run(["stress", "--seeds", "0:2", "--ops", "60", "--json"]) == 1
    first = capsys.readouterr()
    assert run(["stress", "--seeds", "0:2", "--ops", "60", "--json"]) == 1

    assert capsys.readouterr().out == first.out
    document = json.loads(first.out)
    assert document["seeds"] == 2
    assert document["broken"][0]["check"] == "lost_write"


@pytest.mark.req("HAR-2")
def test_real_streams_and_a_chain_of_ones_own(tmp_path: Path) -> None:
    """``--device cpu`` and ``--config`` run the same operations there."""
    config = tmp_path / "mine.toml"
    config.write_text(CONFIG)

    assert run(["stress", "--seeds", "1:3", "--ops", "60", "--device", "cpu"]) == 0
    assert run(["stress", "--seeds", "0:3", "--ops", "60", "--config", str(config)]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "9:3"], "is no seed and no range of seeds; write 17, or 0:200"),
        (["--seeds", "some"], "is no seed and no range of seeds"),
        (["--seeds", "\u0661"], "is no seed and no range of seeds"),
        (["--seeds", "0", "--out", ""], "a folder's name cannot be empty"),
        (["--device", "coda"], "--device coda: no backend of this name is installed here; there are: cpu, cuda"),
        (["--ops", "0"], "--ops"),
        (["--config", "none.toml"], "none.toml: there is no such file"),
        (["--replay", "none.toml"], "none.toml: there is no such file"),
    ],
)
def test_bad_input_is_one_message_and_two(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was given, what is wrong with it and what would do."""
    assert run(["stress", *arguments]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("version = 1", "version = 7"), "version: 7 is not known here"),
        (('verb = "take"', 'verb = "grab"'), "there is no operation 'grab'"),
        (('verb = "', "verb = "), "is no TOML"),
        (("forwards_in_flight = ", "forwards_on_flight = "), "unknown key; did you mean 'forwards_in_flight'"),
    ],
)
def test_a_wrong_case_file_is_refused(
    tmp_path: Path, change: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version, an unknown operation, a broken file: exit code 2, nothing is run."""
    world = draw_world(1)
    plain = run_seed(world, 40, keep=True).as_case(world)
    path = tmp_path / "case.toml"
    path.write_text(dump_case(plain).replace(*change))

    assert run(["stress", "--replay", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_config_that_cannot_be_built_says_so_before_any_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layout that is not there, no layers, a budget below the floor: by file."""
    config = tmp_path / "mine.toml"
    for old, new, words in (
        ('"latent"', '"latnt"', "latnt"),
        ("3KiB", "100B", "mine.toml"),
        (
            "[policies]",
            '[backend]\nname = "simulatd"\n[policies]',
            ": backend: no backend is named 'simulatd'",
        ),
        ("[policies]", '[plugins]\ndisable = ["latnt"]\n[policies]', ": plugins.disable: no installed plugin"),
        ("[policies]", '[plugins]\ndisable = ["layouts:latent"]\n[policies]', "[plugins] disable leaves it out"),
        ("[policies]", '[plugins]\ndisable = ["backends:simulated"]\n[policies]', "no backend of this name"),
        (CONFIG[CONFIG.index("[[layers]]") :], "", "mine.toml: layers: a run needs [[layers]]"),
    ):
        config.write_text(CONFIG.replace(old, new))
        assert run(["stress", "--seeds", "0", "--config", str(config)]) == 2
        assert words in capsys.readouterr().err


def test_plugins_of_the_config_are_those_of_every_seed(tmp_path: Path) -> None:
    """What it leaves out is not asked for, and what it does not name goes on working: on two workers too."""
    config = tmp_path / "mine.toml"
    config.write_text(CONFIG + '[plugins]\ndisable = ["layouts:mha", "backends:cpu"]\n[backend]\nname = "host"\n')
    for jobs in ("1", "2"):
        assert run(["stress", "--seeds", "0:2", "--ops", "20", "--config", str(config), "--jobs", jobs]) == 0
    assert run(["stress", "--seeds", "0", "--ops", "20", "--config", str(config), "--device", "cpu"]) == 2


def test_ctrl_c_ends_all_workers_with_130(tmp_path: Path) -> None:
    """No traceback, and nobody goes on working."""
    # a shell's job in the background begins deaf to Ctrl-C, and so do these tests where they are one
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{hears}; from kvarena.plugins.cli.main import main; main()"]
    seeds = ["stress", "--seeds", "0:100000", "--ops", "400", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, *seeds], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    time.sleep(4)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=30)

    assert process.returncode == 130, told
    assert "kvarena: interrupted" in told
    assert "Traceback" not in told
