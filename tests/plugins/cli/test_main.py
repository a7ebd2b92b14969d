"""The command line: one clear error and an exit code, whatever goes wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import kvarena
import kvarena.plugins.cli.main as cli_main
from kvarena.assembly.catalog import Catalog, Entry, installed_entries
from kvarena.plugins.cli.start import main as start_main
from kvarena.terms.errors import ConfigError, InvariantError

Capture = pytest.CaptureFixture[str]
OURS = [entry for entry in installed_entries() if entry.distribution == "kvarena"]


@click.command()
@click.argument("how")
def sample(how: str) -> None:
    """Fail in the way that is asked for."""
    if how == "config":
        raise ConfigError("quickstart.toml: arena.memory: is missing")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "crash":
        raise RuntimeError("no luck\nand more")
    if how == "bug":
        raise InvariantError("band.free_of_bound_page: pages=3")
    if how == "pipe":
        raise BrokenPipeError
    click.echo("done")


@pytest.fixture
def with_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ``sample`` is offered beside ours, and ``broken`` by a plugin that does not import."""
    more = [
        Entry("commands", "sample", "other", "1", f"{__name__}:sample"),
        Entry("commands", "broken", "other", "1", "no_such_module_here:x"),
    ]
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls, plugins=None: Catalog([*OURS, *more], plugins)))


def test_alone_it_prints_its_help(capsys: Capture) -> None:
    """``kvarena`` is a question, not an error."""
    assert cli_main.run([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: kvarena")
    for command in ("plan", "run", "replay", "plugins", "doctor"):
        assert f"\n  {command}" in out


def test_the_version_is_the_distribution_s(capsys: Capture) -> None:
    """``--version`` prints the name and one number."""
    assert cli_main.run(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "kvarena"


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("config", 2, "kvarena: quickstart.toml: arena.memory: is missing\n"),
        ("interrupt", 130, "kvarena: interrupted\n"),
    ],
)
def test_what_a_user_can_mend_is_one_message(
    with_sample: None, capsys: Capture, how: str, code: int, message: str
) -> None:
    """No traceback; the exit code tells a script which it was."""
    assert cli_main.run(["sample", how]) == code
    captured = capsys.readouterr()
    assert captured.err.endswith(message)
    assert "Traceback" not in captured.err + captured.out


def test_a_bug_of_ours_keeps_its_traceback(with_sample: None) -> None:
    """A broken invariant is never dressed up as the user's mistake."""
    with pytest.raises(InvariantError):
        cli_main.run(["sample", "bug"])


def test_a_crash_of_a_strangers_command_names_who_brought_it(with_sample: None, capsys: Capture) -> None:
    """What another distribution's command raises is one line: the command, its distribution, the error, the place."""
    assert cli_main.run(["sample", "crash"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvarena: command 'sample' (other 1) crashed: RuntimeError: no luck (")
    assert f"{Path(__file__).name}:" in line


def test_a_command_that_is_left_out_says_why(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A stranger's command is installed and hidden: that is told, not that there is none."""
    entries = [*OURS, Entry("commands", "sample", "other", "1", f"{__name__}:sample")]
    hidden = Catalog(entries, autoload=False)
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls: hidden))

    assert cli_main.run(["sample", "done"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvarena: command 'sample' (other 1) is installed, but KVARENA_DISABLE_PLUGIN_AUTOLOAD is")


def test_python_runs_the_package_as_the_command() -> None:
    """``python -m kvarena`` is the console script, and ``kvarena.__version__`` what it prints."""
    command = [sys.executable, "-m", "kvarena", "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)

    assert finished.stdout == f"kvarena {kvarena.__version__}\n"


def test_a_broken_command_is_named_and_the_others_work(with_sample: None, capsys: Capture) -> None:
    """Help lists it with its reason; calling it exits with 2; calling another works."""
    assert cli_main.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "command 'broken' (other 1): there is no module 'no_such_module_here'" in " ".join(out.split())
    assert "The command line: one clear error and an exit code, whatever goes wrong." in " ".join(out.split())
    assert cli_main.run(["broken"]) == 2
    assert "command 'broken' (other 1): ModuleNotFoundError" in capsys.readouterr().err
    assert cli_main.run(["sample", "well"]) == 0
    assert capsys.readouterr().out == "done\n"


@pytest.mark.parametrize("arguments", [["plna"], ["plan"], ["plan", "--nothing"], ["--wrong"]])
def test_a_wrong_command_line_exits_with_2(capsys: Capture, arguments: list[str]) -> None:
    """Usage errors and our own share one exit code and one form: a line with the finding and where help is."""
    assert cli_main.run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvarena")
    assert line.endswith(" --help)")


def test_a_misspelt_command_is_told_the_nearest(capsys: Capture) -> None:
    """As with every other name."""
    cli_main.run(["plna"])
    assert "did you mean 'plan'?" in capsys.readouterr().err


def start(*arguments: str | Path) -> "subprocess.Popen[str]":
    # a shell's background job ignores Ctrl-C, and its children inherit that: ask for Python's own handler
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from kvarena.plugins.cli.main import main; main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )


def test_a_closed_pipe_is_quiet(config: Callable[..., Path]) -> None:
    """``kvarena plan ... | head -0`` prints no traceback."""
    process = start("plan", config(), "--memory", "1GiB", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait()


def test_ctrl_c_ends_a_command_with_130(tmp_path: Path) -> None:
    """A real signal to a real process: one line, no traceback."""
    fifo = tmp_path / "config.json"
    os.mkfifo(fifo)
    process = start("plan", fifo, "--memory", "1GiB")
    with fifo.open("w"):  # opens when the command does: it is reading now, and waits
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert process.stderr is not None
    assert process.returncode == 130
    assert process.stderr.read().strip() == "kvarena: interrupted"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"\\u2190"), ("utf-8", "←".encode())])
def test_letters_that_the_terminal_lacks_are_escaped(config: Callable[..., Path], encoding: str, shown: bytes) -> None:
    """An arrow or a file's odd name never ends a command with a traceback."""
    code = "from kvarena.plugins.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", config("\udc80.json"), "--memory", "1GiB"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert b"\\udc80" in done.stdout


@pytest.mark.parametrize(("redirect", "code"), [(">&-", 0), (">/dev/full", 2), ("2>&-", 0), ("2>/dev/full", 0)])
def test_streams_that_are_closed_or_full_give_no_traceback(
    config: Callable[..., Path], redirect: str, code: int
) -> None:
    """A full disk is one line and exit code 2; a closed stream is nobody's business."""
    script = f'"$0" -c "from kvarena.plugins.cli.start import main; main()" plan "$1" --memory 1GiB {redirect}'
    done = subprocess.run(["sh", "-c", script, sys.executable, config()], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("No space left" in done.stderr) == (code == 2)


def test_ctrl_c_while_the_command_is_imported_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The console script starts with next to nothing, and answers from then on."""

    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupt)
    with pytest.raises(SystemExit) as left:
        start_main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "kvarena: interrupted\n"
