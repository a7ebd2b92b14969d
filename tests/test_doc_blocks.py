"""Every fenced block of the documents runs, and prints what its page says."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import PAGES, ROOT, RUN, SHOWN, Block, Reader, blocks_of

ELSEWHERE = {("README.md", "pip install")}
"""Page and first words of a block that .ci/run runs, in a fresh environment: the two commands of the first screen."""

NOT_RUN_MAX = 6
"""So many blocks may say ``# not run``: what needs a network, a GPU, gigabytes of weights, or this checkout."""

SLOW = {
    "README.md",
    "docs/kit.md",
    "docs/new.md",
    "docs/plugins.md",
    "docs/run.md",
    "docs/tour.md",
    "docs/traces.md",
    "docs/transformers.md",
    "docs/tutorial-kind.md",
    "docs/tutorial-layout.md",
    "docs/tutorial-policy.md",
}
"""Pages that load a model, serve a trace, or run a kit."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def to_run(page: Path) -> list[Block]:
    """The blocks of a page that run here."""
    return [
        block
        for block in blocks_of(page)
        if block.language in RUN
        and not block.not_run
        and not any(name_of(page) == other and block.text.startswith(words) for other, words in ELSEWHERE)
    ]


def given(page: Path) -> dict[str, Any]:
    """What a page's code starts from, where it says so in words: the README's second example has a model."""
    if name_of(page) != "README.md":
        return {}
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tiny = pytest.importorskip("kvarena.plugins.transformers.tiny")
    inputs = {"input_ids": torch.arange(3, 43)[None], "max_new_tokens": 8, "do_sample": False}
    return {"model": tiny.build_tiny("lfm3", seed=0), "inputs": inputs}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if name_of(page) in SLOW else [])
        for page in PAGES
        if to_run(page)
    ],
)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """Whoever does what a page says, in its order, gets what the page shows."""
    names = given(page)
    reader = Reader(tmp_path, names)
    reader.read(to_run(page), name_of(page))

    if names:
        answer = vars(reader.module)["output"].tolist()
        assert answer == names["model"].generate(**names["inputs"]).tolist()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A fence names its language, and is closed; a command that a reader would copy is in a fence, so that it runs."""
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(page)
    loose = re.findall(r"^(?:    |\t)(?:kvarena|pip|python|pytest|mkdocs|\.ci/run)\b.*$", text, re.MULTILINE)
    in_fences = [line for block in blocks for line in block.text.splitlines()]

    assert {block.language for block in blocks} <= RUN | SHOWN
    assert 2 * len(blocks) == len(re.findall(r"^ *```", text, re.MULTILINE))
    assert not [line for line in loose if line.strip() not in map(str.strip, in_fences)]


def test_every_page_of_the_site_is_read() -> None:
    """Those of docs/, and those that the site takes from elsewhere."""
    hooks = ast.parse((ROOT / ".ci" / "mkdocs_hooks.py").read_text(encoding="utf-8"))
    named = {ast.unparse(node.targets[0]): node.value for node in hooks.body if isinstance(node, ast.Assign)}
    elsewhere = {ROOT / page for page in ast.literal_eval(named["ELSEWHERE"])}

    assert elsewhere | set(ROOT.glob("docs/**/*.md")) <= set(PAGES)


def test_few_blocks_are_left_out() -> None:
    """Each says why, and there are few."""
    left = [
        f"{name_of(page)}:{block.line}: {block.not_run}" for page in PAGES for block in blocks_of(page) if block.not_run
    ]

    assert len(left) <= NOT_RUN_MAX, "\n".join(left)


LIBRARY = "```python\n# lib.py\nx = 1\n```\n\n"


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the page says"),
        ("```python\nprint(lost)\n```\n", "NameError"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "AssertionError"),
        ("```toml\n[arena]\nmemry = 1\n```\n", "unknown key"),
        ('```toml\n[[layers]]\nindex = 0\nlayout = "lost"\n```\n', "lost"),
        ('```toml\nname = "x"\n```\n', "neither the config"),
        ("```toml\n# a.toml\n[arena\n```\n", "no TOML"),
        ("```sh\nfalse\n```\n", "exit code 1"),
        ("```sh\nkvarena plan lost.json --memory 1GiB\n```\n", "exit code 2"),
        ("```sh\necho 3 | cat\n```\n\n```text\n4\n```\n", "the page says"),
        ("```python\n# lib.py\nimport lost_module\n```\n", "lost_module"),
        (f"{LIBRARY}```python\n# test_lib.py\nimport lib\n\n\ndef test_x():\n    assert lib.x == 2\n```\n", "1 failed"),
    ],
)  # fmt: skip
def test_a_block_that_does_not_hold_is_found(page: str, says: str, tmp_path: Path) -> None:
    """The runner itself: wrong output, an error, an unknown key, a failing command, a failing test of a page."""
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(AssertionError, match=f"page.md:.*(?s:.*){re.escape(says)}"):
        Reader(folder, {}).read(blocks_of(path), "page.md")


GOOD = """\
```toml
# here/serve.toml
[arena]
memory = "1GiB"
```

```sh
cd here
echo "took 3.1 s"; ls
```

```text
took ... s
serve.toml
```

```python
# mine.py
x = 1
```

```python
# mine.py, continued
y = x + 1
```

```python
from mine import y

print(y)
```

```text
2
```
"""


def test_a_page_goes_on_where_its_last_block_stopped(tmp_path: Path) -> None:
    """Files, the folder and what Python has defined stay until the page's end; three dots stand for any figure."""
    path = tmp_path / "page.md"
    path.write_text(GOOD, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    Reader(folder, {}).read(blocks_of(path), "page.md")

    assert (folder / "here" / "mine.py").read_text(encoding="utf-8").endswith("x = 1\ny = x + 1\n")
