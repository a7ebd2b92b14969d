"""What the documents promise: every example runs, every table is complete, every link leads somewhere."""

import contextlib
import inspect
import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from kvarena.assembly import config, hookspecs
from kvarena.assembly.catalog import KINDS, Catalog
from kvarena.assembly.config import read_toml, structure
from kvarena.assembly.loader import declared_layers
from kvarena.plugins.cli.plan import plan
from kvarena.terms.fields import Layout

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def text_of(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str | Path, language: str) -> list[str]:
    """The fenced blocks of one language in a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def printed(code: str, **names: Any) -> str:
    """Run a block of a page and return what it prints."""
    module = types.ModuleType("page")
    vars(module).update(names)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), vars(module))
    return out.getvalue()


@pytest.mark.parametrize("page", ["README.md", "docs/config.md", "docs/embed.md", "docs/overlap.md"])
def test_an_example_prints_what_the_page_says(page: str) -> None:
    """The block of output after a block of Python is what it prints, to the letter."""
    pairs = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)

    assert pairs
    for code, output in pairs:
        assert printed(code) == output


def test_the_first_example_is_short() -> None:
    """Twelve lines, imports and all."""
    code = blocks("README.md", "python")[0].splitlines()
    assert len([line for line in code if line.strip()]) <= 12


@pytest.mark.slow
def test_the_drop_in_works_as_written() -> None:
    """The README's second example, given a model and inputs, answers what transformers' own cache answers."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tiny = pytest.importorskip("kvarena.plugins.transformers.tiny")
    model = tiny.build_tiny("lfm3", seed=0)
    asked = {"input_ids": torch.arange(3, 43)[None], "max_new_tokens": 8, "do_sample": False}
    example = blocks("README.md", "python")[1] + "\nanswer = output.tolist()\nprint(answer)"

    assert printed(example, model=model, inputs=asked) == f"{model.generate(**asked).tolist()}\n"


def test_the_readme_gives_two_commands() -> None:
    """One installs and runs the main job, one installs what the tests need and runs them; both use the pins."""
    commands = [line for line in blocks("README.md", "sh")[0].splitlines() if line]

    assert len(commands) == 2
    assert all(command.startswith("pip install '.[hf") and "-c constraints.txt &&" in command for command in commands)
    assert commands[0].endswith("kvarena run examples/quickstart.toml")
    assert commands[1].endswith("python -m pytest")


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
        config.PluginsConfig,
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


def test_every_hook_is_documented_with_its_signature_and_tested() -> None:
    """A hook that nobody explains, or that no test calls, does not ship."""
    page, tests = text_of("docs/plugins.md"), text_of("tests/core/assembly/test_loader.py")
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("kvarena_")}

    assert hooks
    for name, hook in hooks.items():
        arguments = ", ".join(inspect.signature(hook).parameters)
        assert f"`{name}({arguments})`" in page
        assert f".{name}(" in tests


def test_the_layout_of_the_tutorial_is_a_layout() -> None:
    """The thirty lines of docs/plugins.md declare four fields, and are thirty lines."""
    code = blocks("docs/plugins.md", "python")[0]
    module = types.ModuleType("kvarena_rowscale")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, "docs/plugins.md", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    layout = module.RowScaledLayout(heads=8, head_dim=128)

    assert isinstance(layout, Layout)
    assert sum(field.bytes for field in layout.fields()) == 2 * 8 * 128 + 2 * 8 * 2
    assert len(code.splitlines()) <= 30


def test_the_layers_of_the_config_page_are_declared_as_written(tmp_path: Path) -> None:
    """The TOML of docs/config.md is read, and declares six layers."""
    path = tmp_path / "layers.toml"
    path.write_text(blocks("docs/config.md", "toml")[0])
    layers = declared_layers(structure(config.StorageConfig, read_toml(path), "layers.toml"), Catalog.installed())

    assert [layer.index for layer in layers] == [0, 1, 2, 3, 4, 5]
    assert layers[5].shares == 3


def test_design_notes_are_numbered_once_and_listed() -> None:
    """A number names one note, and the list leads to every note."""
    notes = sorted(path.name for path in (ROOT / "docs" / "notes").glob("[0-9]*.md"))
    numbers = [name[:4] for name in notes]

    assert numbers == [f"{number:04}" for number in range(1, len(notes) + 1)]
    assert re.findall(r"\]\((\d{4}-[^)]+)\)", text_of("docs/notes/README.md")) == notes
