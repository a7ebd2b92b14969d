"""docs/catalogue.md beside the code: every refusal, class of exceptions, fate and exit code, both ways."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarena.assembly.config import read_toml
from kvarena.plugins.serving import report

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "layouts", "backends", "policies", "plugins")
ANSWERS = frozenset({"Refused", "Wait", "Never"})
SAID_FOR_THEM = frozenset({"why_no_more", "reason"})
"""Functions that make no answer, and give one its words."""

COMMON = frozenset({0, 2, 130})
"""What every command may end with."""


@functools.cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    """Every file of the package, as a path from the root."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def rows(section: str, columns: int) -> list[tuple[str, ...]]:
    """The rows of the tables with so many columns in a section of the page, heads left out."""
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    split = [[cell.strip().strip("`") for cell in line] for line in lines if not set("".join(line)) <= set("-|")]
    found = [tuple(line) for line in split if len(line) == columns]
    assert found
    return found[1:]


def called(node: ast.AST) -> str:
    """The name of what a call calls; nothing for what is no call."""
    return getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""


def texts(node: ast.AST) -> Iterator[str]:
    """The texts under a node, but for those of errors and of other calls than those that make or join answers."""
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and called(node) not in ANSWERS | {"join"}):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def words(function: ast.FunctionDef) -> set[str]:
    """The texts that a function puts together, without what is filled in; its docstring left out."""
    body = function.body[ast.get_docstring(function) is not None :]
    found = {text.strip(" ;:,") for statement in body for text in texts(statement)}
    return {text for text in found if " " in text}


def said() -> dict[str, set[str]]:
    """The words of refusals, by file."""
    found: dict[str, set[str]] = {}
    for path, tree in trees():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            makes = any(called(node) in ANSWERS for node in ast.walk(function))
            if makes or (function.name in SAID_FOR_THEM and path in ("core/terms/answers.py", "core/bands/grid.py")):
                found.setdefault(path, set()).update(words(function))
    return found


def pieces(text: str) -> list[str]:
    """A reason without what is filled in."""
    return [piece for part in text.split("…") for piece in [part.strip(" ;:,")] if " " in piece or len(piece) > 6]


def test_every_refusal_is_listed_with_its_reason() -> None:
    """Whatever the code says in a refusal stands in the table, in the row of the file that says it."""
    listed: dict[str, str] = {}
    for _, reason, path, _ in rows("Answers", 4):
        listed[path] = f"{listed.get(path, '')} {reason}"
    code = said()
    lost = [(path, text) for path, found in code.items() for text in found if text not in listed.get(path, "")]

    assert code
    assert not lost


def test_every_listed_refusal_is_said() -> None:
    """No row outlives its refusal: each piece of its reason is in the file that it names."""
    code = said()
    lost = [
        (path, piece)
        for _, reason, path, _ in rows("Answers", 4)
        for piece in pieces(reason)
        if not any(piece in text or text in piece for text in code.get(path, ()))
    ]
    assert not lost
    assert {answer for answer, *_ in rows("Answers", 4)} == ANSWERS


def plugin_errors() -> dict[str, set[str]]:
    """What is said of plugins where they are refused, by file, without what is filled in."""
    found: dict[str, set[str]] = {}
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) == "PluginError" and node.args:
                parts = {text.strip(" ;:,'[]()") for part in node.args for text in texts(part)}
                found.setdefault(path, set()).update(part for part in parts if " " in part)
    return found


def test_every_refusal_of_a_plugin_is_listed() -> None:
    """What a ``PluginError`` says in words of its own has its row, and a row is said by the file that it names."""
    listed: dict[str, str] = {}
    for said_of, path, _ in rows("Refusals of plugins", 3):
        listed[path] = f"{listed.get(path, '')} {said_of}"
    code = plugin_errors()
    lost = [(path, text) for path, found in code.items() for text in found if text not in listed.get(path, "")]
    over = [
        (path, piece)
        for path, said_of in listed.items()
        for piece in pieces(said_of)
        if " " in piece and not any(piece in text or text in piece for text in code.get(path, ()))
    ]

    assert sum(map(len, code.values())) > 10
    assert not lost
    assert not over


def test_every_class_of_exceptions_is_listed() -> None:
    """Each with what it is a kind of and where it lives, and none that is not there."""
    code = {
        (node.name, ast.unparse(node.bases[0]), path)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.bases
        and re.search(r"(Error|Exception)$", ast.unparse(node.bases[0]))
    }
    listed = [(name, base, home) for name, base, home, _ in rows("Exceptions", 4)]

    assert sorted(listed) == sorted(code)


def test_every_fate_is_listed() -> None:
    """The words of ``Served.fate`` are the four of the table."""
    assert [fate for fate, _ in rows("Fates", 2)] == [report.DONE, report.REFUSED, report.FAILED, report.ABORTED]


def codes_of(path: str) -> set[int]:
    """The exit codes that a module of commands gives by itself: its constants, and what it leaves with."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and str(getattr(node.targets[0], "id", "")).startswith("EXIT_"):
            assert isinstance(node.value, ast.Constant)
            found.add(node.value.value)
        elif called(node) == "exit" and isinstance(node, ast.Call):
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return {code for code in found if isinstance(code, int)}


def test_every_exit_code_of_every_command_is_listed() -> None:
    """Each command has its row, with the codes that it gives beside those of all; and only commands have rows."""
    commands = read_toml(ROOT / "pyproject.toml")["project"]["entry-points"]["kvarena.commands"]
    files = {
        name: target.partition(":")[0].replace("kvarena.plugins", "plugins").replace(".", "/") + ".py"
        for name, target in commands.items()
    }
    listed = rows("Exit codes", 3)
    by_command = {name: {int(code) for row, code, _ in listed if row == name and code != "none"} for name, *_ in listed}

    assert set(by_command) == set(commands)
    for name, path in files.items():
        own = codes_of(path)
        assert own - COMMON <= by_command[name], f"{name} gives {own}, and the page has {by_command[name]}"
        assert by_command[name] <= own | COMMON, f"the page has {by_command[name]} for {name}, which gives {own}"


def test_the_codes_of_all_commands_are_those_of_the_entry() -> None:
    """0, and what ``kvarena.plugins.cli.main`` and ``start`` turn errors and Ctrl-C into."""
    entry = codes_of("plugins/cli/main.py") | codes_of("plugins/cli/start.py")

    assert {int(code) for code, _ in rows("Exit codes", 2)} == entry | {0} == COMMON


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_else_leaves_the_process(room: str) -> None:
    """Only commands have exit codes: no other room calls ``sys.exit`` or ``os._exit``, or raises ``SystemExit``."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees()
        if path.startswith(f"{room}/") and not path.startswith("plugins/cli/")
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "os._exit", "exit"))
        or (isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc))
    ]
    assert not found
