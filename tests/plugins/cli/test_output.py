"""What is printed is plain where nobody watches."""

import io

import pytest

from kvarena.plugins.cli import output, plain


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_grid_leans_amounts_right_and_words_left() -> None:
    """Columns line up, no line ends in blanks."""
    assert plain.grid(["name", "bytes"], [["full", "1,024 B"], ["state", "-"]]) == [
        "name     bytes",
        "full   1,024 B",
        "state        -",
    ]


def test_json_refuses_what_is_no_json() -> None:
    """NaN would be read by nobody."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain.to_json({"x": float("nan")})


def test_colours_need_a_terminal_and_no_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """``NO_COLOR`` and a dumb terminal are respected, and so is a pipe."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert plain.coloured(Terminal())
    assert not plain.coloured(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not plain.coloured(Terminal())
    assert output.console(Terminal()).no_color


def test_progress_is_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal: the first, one per interval, and the last."""
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with output.Progress("requests", 10, stream=stream) as progress:
        for done in range(1, 11):
            progress.at(done, "2 waiting" if done == 1 else "")
            now[0] += 1.0

    assert stream.getvalue() == "requests: 1/10 (2 waiting)\nrequests: 6/10\nrequests: 10/10\n"


def test_progress_can_be_quiet_and_moves_on_a_terminal() -> None:
    """``quiet`` prints nothing; a terminal gets a bar that redraws."""
    silent, terminal = io.StringIO(), Terminal()
    with output.Progress("requests", 2, quiet=True, stream=silent) as progress:
        progress.at(2)
    with output.Progress("requests", 2, stream=terminal) as progress:
        progress.at(1, "1 waiting")

    assert silent.getvalue() == ""
    assert "\x1b[" in terminal.getvalue()


def test_a_console_reads_no_markup() -> None:
    """A path or a list in brackets is printed as it is."""
    stream = io.StringIO()
    output.console(stream).print("layers[0]: [bold]x[/bold] :smile:")

    assert stream.getvalue() == "layers[0]: [bold]x[/bold] :smile:\n"
