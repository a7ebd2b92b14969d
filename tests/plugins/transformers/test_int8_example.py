"""The example package of a layout with a codec, and the page that grows it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "examples" / "kvarena-int8"
PAGE = (ROOT / "docs" / "tutorial-layout.md").read_text(encoding="utf-8")


def files_in(text: str) -> dict[str, list[str]]:
    """What a page writes into each file, version by version, without the line that names the file."""
    found: dict[str, list[str]] = {}
    for name, body in re.findall(r"```\w+\n# ([\w.]+)\n(.*?)```", text, re.DOTALL):
        found.setdefault(name, []).append(body)
    return found


@pytest.mark.req("PLG-1")
def test_the_page_ends_with_the_package() -> None:
    """Whoever follows the page has the module of the repository's package."""
    assert files_in(PAGE)["kvarena_int8.py"][-1] == (PACKAGE / "kvarena_int8.py").read_text(encoding="utf-8")


def test_the_page_counts_what_an_author_writes() -> None:
    """The steps and lines to the first green run of the kit are those that stand above it."""
    before = PAGE.partition("That is the first green run.")[0]
    lines = {
        name: sum(bool(line.strip()) for line in versions[0].splitlines())
        for name, versions in files_in(before).items()
    }
    commands = [line for block in re.findall(r"```sh\n(.*?)```", before, re.DOTALL) for line in block.splitlines()]

    assert list(lines) == ["pyproject.toml", "kvarena_int8.py", "test_kvarena_int8.py"]
    assert len(commands) == 4
    counted = " ".join(PAGE.partition("## Counted")[2].split())
    assert (
        f"and {sum(lines.values())} lines that are not blank: "
        + ", ".join(
            f"{count} of {what}"
            for count, what in zip(lines.values(), ("`pyproject.toml`", "the layout", "its test"), strict=True)
        )
        in counted
    )
