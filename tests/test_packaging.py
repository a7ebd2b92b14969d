"""What the wheel holds: every room, every type, and pins for all that it needs."""

import re
from pathlib import Path

import importlib_metadata

from kvarena.assembly.config import read_toml

ROOT = Path(__file__).parents[1]
PYPROJECT = read_toml(ROOT / "pyproject.toml")
FOLDERS = {"kvarena": "core", "kvarena.layouts": "layouts", "kvarena.backends": "backends"}
FOLDERS |= {"kvarena.policies": "policies", "kvarena.plugins": "plugins"}


def test_constraints_pin_every_dependency() -> None:
    """Whatever pyproject.toml asks for has one exact version in constraints.txt."""
    project = PYPROJECT["project"]
    asked = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    names = {re.match(r"[\w.-]+", need)[0].lower().replace("_", "-") for need in asked}  # type: ignore[index]

    assert names <= pinned


def test_every_room_is_in_the_wheel() -> None:
    """A package that pyproject.toml does not list would be missing for everyone but its author."""
    found = set()
    for top, folder in FOLDERS.items():
        for file in (ROOT / folder).rglob("__init__.py"):
            inner = file.parent.relative_to(ROOT / folder).parts
            found.add(".".join((top, *inner)))

    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_entry_point_names_a_module_of_ours() -> None:
    """What is offered is there: a plugin is not offered before it exists, nor after it went."""
    lost = []
    for group, points in PYPROJECT["project"]["entry-points"].items():
        for name, target in points.items():
            module = target.partition(":")[0]
            top = max((package for package in FOLDERS if f"{module}.".startswith(f"{package}.")), key=len)
            inner = module.removeprefix(top).strip(".").replace(".", "/")
            path = ROOT / FOLDERS[top] / inner
            if not path.with_suffix(".py").is_file() and not (path / "__init__.py").is_file():
                lost.append(f"{group}: {name} = {target}")
    assert not lost


def test_the_package_is_typed_and_licensed() -> None:
    """Type checkers read ``py.typed``; the licence and the notices travel with the wheel."""
    project = PYPROJECT["project"]

    assert (ROOT / "core" / "py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["kvarena"]
    assert project["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    for file in project["license-files"]:
        assert (ROOT / file).stat().st_size


def test_the_version_is_said_once() -> None:
    """The installed metadata, pyproject.toml and the newest heading of the changelog agree."""
    version = PYPROJECT["project"]["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert importlib_metadata.version("kvarena") == version
    assert newest is not None
    assert newest[1] == version


def test_every_data_file_is_noticed() -> None:
    """Data of others that the repository carries is named in NOTICE, by file or by folder."""
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    data = [
        path.relative_to(ROOT)
        for folder in ("examples/data", "tests/data", "benchmarks/data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in (".json", ".jsonl", ".csv")
    ]
    missing = [path for path in data if str(path) not in notice and f"{path.parent}/*{path.suffix}" not in notice]

    assert data
    assert not missing
