"""Sizes that keep the code readable. A number that hurts a good shape is argued with in a design note."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "layouts", "backends", "policies", "plugins")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PUBLIC_METHODS_MAX = 12
PARAMETERS_MAX = 5
"""Positional ones, ``self`` aside; what is keyword-only is named where it is called, and does not count."""

COMMAND_LINE = "click"
"""Functions under a click decorator take one parameter per option, by name: there the options are the list."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> list[Path]:
    """Every file of the package."""
    return sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def functions(module: ast.AST) -> Iterator[Function]:
    for node in ast.walk(module):
        if isinstance(node, Function):
            yield node


def decorators(node: Function | ast.ClassDef) -> str:
    return " ".join(ast.unparse(decorator) for decorator in node.decorator_list)


@pytest.mark.parametrize("path", files(), ids=str)
def test_sizes(path: Path) -> None:
    """A file, a function and a class each fit what a reader can hold."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = [f"{path}: {text.count(chr(10))} lines"] if text.count("\n") > FILE_LINES_MAX else []
    for node in ast.walk(tree(path)):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{path}:{node.lineno} {node.name}: {lines} lines")
            found += too_many_parameters(path, node)
        elif isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, Function)]
            public = [
                child.name
                for child in methods
                if not child.name.startswith("_") and "property" not in decorators(child)
            ]
            if len(public) > PUBLIC_METHODS_MAX:
                found.append(f"{path}:{node.lineno} {node.name}: {len(public)} public methods")
    assert not found, "\n".join(found)


def too_many_parameters(path: Path, node: Function) -> list[str]:
    """At most five parameters, ``self`` aside; keyword-only ones are free past that."""
    if COMMAND_LINE in decorators(node) or "option" in decorators(node):
        return []
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
    if len(positional) > PARAMETERS_MAX:
        return [f"{path}:{node.lineno} {node.name}: {len(positional)} positional parameters; make them keywords"]
    return []


@pytest.mark.parametrize("path", files(), ids=str)
def test_every_import_is_at_the_top(path: Path) -> None:
    """What loads late is a plugin, loaded by the catalog; no import hides in a function."""
    hidden = [
        f"{path}:{node.lineno} in {function.name}"
        for function in functions(tree(path))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert not hidden, "\n".join(hidden)


@pytest.mark.parametrize("path", files(), ids=str)
def test_nobody_reads_anothers_private_parts(path: Path) -> None:
    """``x._name`` is used where ``_name`` is defined: in the same file."""
    module = tree(path)
    own = {node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute) and is_self(node.value)}
    own |= {node.name for node in ast.walk(module) if isinstance(node, (ast.ClassDef, *Function.__args__))}
    own |= {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    foreign = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and re.match(r"_[^_]", node.attr)
        and not is_self(node.value)
        and node.attr not in own
    ]
    foreign += [
        f"{path}:{node.lineno}: from {node.module} import {alias.name}"
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if re.match(r"_[^_]", alias.name) and node.module != "__future__"
    ]
    assert not foreign, "\n".join(foreign)


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@pytest.mark.parametrize("path", files(), ids=str)
def test_a_file_says_what_it_owns(path: Path) -> None:
    """A module's docstring is its door plate; a public class or function has one too."""
    module = tree(path)
    assert ast.get_docstring(module), f"{path} has no docstring"
    silent = [
        f"{path}:{node.lineno} {node.name}"
        for node in module.body
        if isinstance(node, (ast.ClassDef, *Function.__args__))
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not silent, "\n".join(silent)


def test_no_unfinished_places() -> None:
    """What is not done is an issue, not a word in a comment."""
    words = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|NotImplemented" r"Error)\b")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1)
        if words.search(line)
    ]
    assert not found, "\n".join(found)


def test_test_files_mirror_what_they_test() -> None:
    """``tests/core/bands`` has the tests of ``core/bands``: no test folder without its room."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    strays = sorted(
        str(folder)
        for folder in folders
        if folder.parts[:1] and folder.parts[0] in ROOMS and not (ROOT / folder).is_dir()
    )
    assert not strays, f"no such rooms: {strays}"
