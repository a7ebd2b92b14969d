"""What the documents promise: every table is complete, every link leads somewhere, the site builds.

That every block of code runs is in ``test_doc_blocks``.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import click
import pytest
from test_floors import FLOORS, WINGS

import kvarena
from kvarena.assembly import config, hookspecs
from kvarena.assembly.catalog import KINDS
from kvarena.plugins.cli.plan import plan

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def text_of(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str | Path, language: str) -> list[str]:
    """The fenced blocks of one language in a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def test_the_first_example_is_short() -> None:
    """Twelve lines, imports and all."""
    code = blocks("README.md", "python")[0].splitlines()
    assert len([line for line in code if line.strip()]) <= 12


def test_the_readme_gives_two_commands() -> None:
    """One installs and runs the main job, one installs what the tests need and runs them; both use the pins."""
    commands = [line for line in blocks("README.md", "sh")[0].splitlines() if line]

    assert len(commands) == 2
    assert all(command.startswith("pip install '.[hf") and "-c constraints.txt &&" in command for command in commands)
    assert commands[0].endswith("kvarena run examples/quickstart.toml")
    assert commands[1].endswith("python -m pytest -n 2 --dist worksteal")


def test_the_first_screen_fits_a_screen_and_says_the_sentence() -> None:
    """Sentence, picture and commands come before anything else, without a badge."""
    top = text_of("README.md").splitlines()
    commands = next(number for number, line in enumerate(top) if line == "```sh")

    assert "any band may take any free byte" in top[2]
    assert commands < 30
    assert not any("badge" in line or "shields.io" in line for line in top)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    """A relative link names a file that is there."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(page))
    lost = [link for link in links if "://" not in link and not (ROOT / page.parent / link).exists()]
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_has_a_place_that_waits_to_be_filled(page: Path) -> None:
    """What is not known is not there; braces that wait for a value are code, or were forgotten."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    waits = r"\b(?:TO" r"DO|TBD|FIX" r"ME|XX" r"X+)\b|\?\?\?|\{\w*\}|\.\.\. ?figures?|not (?:yet measured|measured yet)"
    assert not re.findall(waits, prose, re.IGNORECASE)


@pytest.mark.parametrize(
    "section",
    [
        config.StorageConfig, config.ArenaConfig, config.PoliciesConfig, config.PrefixConfig, config.ChecksConfig,
        config.PluginsConfig, config.LogsConfig,
    ],
)  # fmt: skip
def test_every_setting_is_documented(section: type) -> None:
    """Each field of a config class is a row of a table in docs/config.md."""
    page = text_of("docs/config.md")
    missing = [
        field.name
        for field in attrs.fields(section)
        if f"| `{field.name}` |" not in page and f"`[{field.name}]`" not in page and f"`[[{field.name}]]`" not in page
    ]
    assert not missing


def test_every_option_of_plan_is_documented() -> None:
    """Each option of the command stands in docs/plan.md."""
    page = text_of("docs/plan.md")
    options = [name for option in plan.params if isinstance(option, click.Option) for name in option.opts]
    assert not [option for option in options if f"`{option}`" not in page and f"{option} " not in page]


def test_every_kind_of_plugin_is_documented() -> None:
    """Each kind and its entry-point group are a row of a table in docs/plugins.md."""
    page = text_of("docs/plugins.md")
    assert not [kind for kind, word in KINDS.items() if f"| {word} | `kvarena.{kind}` |" not in page]


def lacks(page: str, title: str) -> list[str]:
    """The parts that a hook's section of a page has not: its heading, when it is called, what it may do, an example."""
    section = page.partition(f"\n### `{title}`\n")[2]
    section = re.split(r"^##+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    parts = {"heading": r"\S", "called": r"^Called .+\.$", "may": r"^\*May\* ", "example": r"^```python$"}
    return [part for part, looks in parts.items() if not re.search(looks, section, re.MULTILINE)]


def hooks() -> dict[str, str]:
    """Each hook with its signature."""
    found = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("kvarena_")}
    return {name: f"{name}({', '.join(inspect.signature(hook).parameters)})" for name, hook in found.items()}


def test_every_hook_is_documented_in_full_and_tested() -> None:
    """One whose section does not say when it is called and what it may do, or that no test asks, does not ship."""
    page, tests = text_of("docs/hooks.md"), text_of("tests/core/assembly/test_hooks.py")

    assert hooks()
    for name, title in hooks().items():
        assert lacks(page, title) == [], name
        assert f"    def {name}(self" in tests
        assert f'"{name}": 1' in tests


@pytest.mark.parametrize("title", hooks().values())
def test_a_part_that_a_hooks_section_lacks_is_found(title: str) -> None:
    """Also where the next section has it."""
    page = text_of("docs/hooks.md")
    before, heading, section = page.partition(f"### `{title}`\n")
    for part, words in (("called", "\nCalled "), ("may", "\n*May* "), ("example", "\n```python\n")):
        assert lacks(before + heading + section.replace(words, "\nx", 1), title) == [part]
    assert "heading" in lacks(before + section, title)


def test_design_notes_are_numbered_once_and_listed() -> None:
    """A number names one note, and the list leads to every note."""
    notes = sorted(path.name for path in (ROOT / "docs" / "notes").glob("[0-9]*.md"))
    numbers = [name[:4] for name in notes]

    assert numbers == [f"{number:04}" for number in range(1, len(notes) + 1)]
    assert re.findall(r"\]\((\d{4}-[^)]+)\)", text_of("docs/notes/README.md")) == notes


def in_nav() -> list[str]:
    """The pages that mkdocs.yml names, without reading YAML."""
    return re.findall(r"^ +- (?:.*: )?([\w./-]+\.md)$", text_of("mkdocs.yml").partition("\nnav:\n")[2], re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    """Each page of docs/ once, and beside them those that lie elsewhere."""
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]

    assert sorted(in_nav()) == sorted([*pages, "contributing.md", "changes.md", "benchmarks.md"])


def documented() -> list[str]:
    """What the reference pages take from docstrings, as dotted names."""
    return re.findall(
        r"^::: ([\w.]+)$", "\n".join(text_of(path) for path in sorted(ROOT.glob("docs/reference/*.md"))), re.M
    )


def test_every_name_of_the_face_has_its_place_in_the_reference() -> None:
    """Each name of ``kvarena.__all__``, at its home, once; and whatever the reference names is there."""
    face = [node for node in ast.walk(ast.parse(text_of("core/__init__.py"))) if isinstance(node, ast.ImportFrom)]
    homes = {
        alias.name: f"{node.module}.{alias.name}" for node in face for alias in node.names if node.module != "typing"
    }
    listed = documented()

    assert set(homes) == set(kvarena.__all__)
    assert len(listed) == len(set(listed))
    assert not sorted(set(homes.values()) - set(listed))
    for name in listed:
        module, _, inner = name.rpartition(".")
        assert hasattr(importlib.import_module(module), inner) or importlib.util.find_spec(name), name


def test_every_port_is_in_the_reference() -> None:
    """Every public class of ``kvarena.terms.ports``, and the hooks."""
    ports = ast.parse(text_of("core/terms/ports.py"))
    names = {f"kvarena.terms.ports.{node.name}" for node in ports.body if isinstance(node, ast.ClassDef)}

    assert not sorted((names | {"kvarena.assembly.hookspecs"}) - set(documented()))


def test_the_map_of_rooms_is_the_list_of_floors() -> None:
    """docs/map.md has the rooms that there are, on the floors where the test of imports has them, from the top down."""
    block = blocks("docs/map.md", "text")[0]
    floors: list[set[str]] = []
    for number, room in re.findall(r"^(\d\w?)? +((?:core|plugins)/\w+) +\w", block, re.MULTILINE):
        if number:
            floors.append(set())
        floors[-1].add(room)
    there = [{room for room in floor if (ROOT / room / "__init__.py").is_file()} for floor in FLOORS]
    numbers = re.findall(r"^(\d\w?) ", block, re.MULTILINE)
    wings = re.search(r"^wings: ([a-z/ ]+?)  ", block, re.MULTILINE)

    assert floors[::-1] == [floor for floor in there if floor]
    assert numbers == sorted(numbers, reverse=True)
    assert wings is not None
    assert set(wings[1].replace("/", "").split()) == WINGS


def test_every_fragment_of_news_is_one() -> None:
    """A file of changelog.d/ is named after what it is about and its kind, and holds sentences without a bullet."""
    for path in (ROOT / "changelog.d").iterdir():
        if path.name in ("README.md", "template.md.jinja"):
            continue
        text = path.read_text(encoding="utf-8").strip()
        assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed)\.md", path.name), path.name
        assert text.endswith("."), f"{path.name}: a sentence ends with a point"
        assert not text.startswith(("-", "*", "#")), f"{path.name}: the release makes the list"
        assert "\n\n" not in text, f"{path.name}: one paragraph"


def test_the_news_can_be_collected() -> None:
    """towncrier finds each fragment under its kind."""
    pytest.importorskip("towncrier", reason="towncrier is not installed: pip install '.[dev]'")
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--date", "2026-01-01"]
    drafted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    fragments = [path for path in (ROOT / "changelog.d").glob("*.md") if path.name != "README.md"]

    assert "## 9.9.9 (2026-01-01)" in drafted
    for path in fragments:
        assert " ".join(path.read_text(encoding="utf-8").split()) in " ".join(drafted.split()), path.name


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing(tmp_path: Path) -> None:
    """``mkdocs build --strict``: links, anchors and names are there; a page fetches nothing but from its own site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False, timeout=240)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path / "site").as_posix(): path for path in (tmp_path / "site").rglob("*.html")}
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?https?://[^>]*>")
    fetched = {name: loads.findall(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    styles = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.css"))

    assert {"index.html", "contributing.html", "reference/ports.html"} <= set(pages)
    assert 'id="kvarena.storage.storage.Storage.step"' in pages["reference/storage.html"].read_text(encoding="utf-8")
    assert not {name: found for name, found in fetched.items() if found}
    assert not re.findall(r"url\([\"']?https?://|@import", styles)
