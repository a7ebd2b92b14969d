"""The fenced blocks of a page, and how each is run: what a reader would do with them, in a folder of the page's own.

``python`` runs in order, in one namespace for a page. Any block whose first line is a comment with a file's name
(``# serve.toml``, ``# kvarena_mine.py``) is written to that file; ``# NAME, continued`` goes behind what is there. A
``toml`` block without a name is a config, or a part of one. ``sh`` runs in the folder, with ``kvarena``, ``pip`` and
``python`` as installed; ``cd`` lasts to the page's end. A ``text`` block behind python, sh or a named file is what that
printed. A word of three dots in it stands for anything.
``# not run: WHY`` as the first line leaves a block out.
"""

import contextlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig, read_toml, structure
from kvarena.assembly.loader import declared_layers
from kvarena.plugins.cli.run_config import RunConfig

ROOT = Path(__file__).parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "changelog.d/README.md")
PAGES = [*(ROOT / name for name in OUTSIDE), *sorted(ROOT.glob("docs/**/*.md"))]
"""All pages of the site, and what else tells people how to do something; tests/test_examples.py reads examples/."""

RUN = frozenset({"python", "toml", "sh"})
SHOWN = frozenset({"text", "json"})
"""Words for people, and what a block before has printed."""

PIP = """\
#!{python}
# What a page installs goes to a folder of the page alone, and nothing is fetched: --target takes no --editable.
import os, sys
words = [word for word in sys.argv[1:] if word not in ("-e", "--editable")]
if words[:1] == ["install"]:
    words[1:1] = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--upgrade", "--target", {site!r}]
os.execv(sys.executable, [sys.executable, "-m", "pip", "--disable-pip-version-check", *words])
"""


@attrs.frozen
class Block:
    """One fenced block: its language, its text, the line of its fence, and the output that stands behind it."""

    language: str
    text: str
    line: int
    printed: str | None

    @property
    def not_run(self) -> str | None:
        """Why it is left out; None where it runs."""
        found = re.match(r"# not run: (.+)\n", self.text)
        return found[1] if found else None

    @property
    def file(self) -> tuple[str, bool] | None:
        """The file that it is written to, and whether it goes behind what is there."""
        found = re.match(r"# ([\w./-]+\.\w+)(, continued)?\n", self.text)
        return (found[1], bool(found[2])) if found else None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order; those inside of list items too."""
    text = page.read_text(encoding="utf-8")
    fences = list(re.finditer(r"^( *)```([^\n`]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL))
    found = []
    for number, fence in enumerate(fences):
        after = fences[number + 1] if number + 1 < len(fences) else None
        follows = after is not None and after[2] == "text" and not text[fence.end() : after.start()].strip()
        printed = textwrap.dedent(after[3]) if after is not None and follows and fence[2] in RUN else None
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(fence[2], textwrap.dedent(fence[3]), line, printed))
    return found


def matches(printed: str, expected: str) -> bool:
    """Whether this is what the page shows.

    A word of three dots stands for anything, lines included: figures that differ each time, what is not of interest.
    """
    shown = "\n".join(line.rstrip() for line in expected.strip("\n").splitlines())
    came = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    parts = re.split(r" *(?<!\S)\.\.\.(?!\S) *", shown)
    return re.fullmatch(".*".join(map(re.escape, parts)), came, re.DOTALL) is not None


class Reader:
    """Somebody who does what a page says, from its first line to its last."""

    def __init__(self, folder: Path, given: dict[str, Any]) -> None:
        self.folder = self.here = folder
        self.site, self.tools = folder / ".site", folder / ".tools"
        self.module = types.ModuleType("page")
        vars(self.module).update(given)
        self.tests: dict[int, Path] = {}
        self.site.mkdir()
        self.tools.mkdir()
        pip = self.tools / "pip"
        pip.write_text(PIP.format(python=sys.executable, site=str(self.site)))
        pip.chmod(0o755)
        for part in ("examples", "tests/data"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "build"))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """In the page's folder, which Python imports from as if the page's packages were installed."""
        before, path, modules = Path.cwd(), sys.path[:], set(sys.modules)
        log = logging.getLogger("kvarena")
        told = log.handlers[:], log.level, log.propagate
        sys.path[:0] = [str(self.site), str(self.folder)]
        sys.modules["page"] = self.module
        os.chdir(self.folder)
        try:
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            log.handlers[:], log.level, log.propagate = told
            for name in set(sys.modules) - modules:
                file = getattr(sys.modules[name], "__file__", None)
                if name == "page" or (file and Path(file).is_relative_to(self.folder)):
                    del sys.modules[name]

    def read(self, blocks: Iterable[Block], page: str) -> None:
        """Run these blocks of a page, in order.

        Raises:
            AssertionError: one failed, or printed something else; with the page and the line of its fence.
        """
        with self.at_work():
            for block in blocks:
                if block.language in RUN and not block.not_run:
                    try:
                        self.run(block)
                    except Exception as error:
                        raise AssertionError(f"{page}:{block.line}: {type(error).__name__}: {error}") from error
            for line, path in self.tests.items():
                came = self.shell(f"python -m pytest -q -p no:cacheprovider {path.name}", path.parent)
                check(came, None, f"{page}:{line}")

    def run(self, block: Block) -> None:
        """One block, by what it is."""
        if block.file:
            self.write(block, *block.file)
        elif block.language == "toml":
            check_config(block.text)
        elif block.language == "python":
            check((0, execute(block.text, self.module)), block.printed)
        else:
            script = f"trap 'pwd > {self.folder}/.here' EXIT\n{block.text}"
            check(self.shell(script, self.here), block.printed)
            self.here = Path((self.folder / ".here").read_text(encoding="utf-8").strip())
            os.chdir(self.here)
            sys.path.insert(0, str(self.here))
            if "pytest" in block.text:
                self.tests.clear()

    def write(self, block: Block, name: str, behind: bool) -> None:
        """A file of the page: a config is read, a module is imported, tests run by the page's end at the latest."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if behind else "w", encoding="utf-8") as file:
            file.write(block.text.partition("\n")[2] if behind else block.text)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            if set(read_toml(path)) & {"arena", "layers"}:
                check_config(text)
        elif path.name.startswith("test_"):
            self.tests[block.line] = path
        elif path.suffix == ".py":
            module = types.ModuleType(path.stem)
            module.__file__ = str(path)
            sys.modules[path.stem] = module
            sys.path.insert(0, str(path.parent))
            check((0, execute(text, module)), block.printed)

    def shell(self, script: str, folder: Path) -> tuple[int, str]:
        """Run a script with bash as at a prompt that stops at the first mistake; its exit code and all it printed."""
        paths = os.pathsep.join([str(self.tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        ours = {"PATH": paths, "PYTHONPATH": str(self.site), "COLUMNS": "120", "NO_COLOR": "1", "OMP_NUM_THREADS": "2"}
        ours |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVARENA_", "PYTEST_"))}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=kept | ours,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout


def check(came: tuple[int, str], expected: str | None, place: str = "") -> None:
    """It went well, and printed what the page says."""
    code, printed = came
    assert code == 0, f"{place}: exit code {code}, and said:\n{printed}".removeprefix(": ")
    if expected is not None:
        assert matches(printed, expected), f"the page says\n{expected}\nand this came:\n{printed}"


def execute(code: str, module: types.ModuleType) -> str:
    """Run Python in a module's namespace; what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, module.__name__, "exec"), vars(module))
    return out.getvalue()


def check_config(text: str) -> None:
    """A config, or a part of one: of a storage, or of a run; what must be there and is not shown is put there."""
    table = tomllib.loads(text)
    if set(table) <= {field.name for field in attrs.fields(StorageConfig)}:
        table["arena"] = {"memory": "1GiB", **table.get("arena", {})}
        config = structure(StorageConfig, table, "the page")
        if config.layers:
            assert declared_layers(config, Catalog.installed())
    elif set(table) <= {field.name for field in attrs.fields(RunConfig)}:
        if "memory_requests" not in table:
            table["arena"] = {"memory": "1GiB", **table.get("arena", {})}
        structure(RunConfig, {"model": "lfm3", "trace": {"file": "trace.csv"}, **table}, "the page")
    else:
        raise AssertionError("neither the config of a storage nor of a run; say in its first line which file it is")
