"""What the site needs beside docs/: the package as one folder, pages from elsewhere, links that hold in both places.

The pages are written to be read as files of the repository. Here a link from one file to another becomes a link from
one page to another, and a link to a file that the site does not have becomes its own words.
"""

import posixpath
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files outside of docs/ that are pages of the site, and where."""

PACKAGE = {"": "core", "layouts": "layouts", "backends": "backends", "policies": "policies", "plugins": "plugins"}
"""The folders of pyproject.toml's ``package-dir``, by the subpackage of ``kvarena`` that each is."""

_made: list[str] = []


@event_priority(100)
def on_config(config: Any) -> Any:
    """Lay the package out as it is installed, so that names are found as ``kvarena...`` in any checkout."""
    folder = tempfile.mkdtemp(prefix="kvarena-site-")
    _made.append(folder)
    for inner, source in PACKAGE.items():
        target = Path(folder) / "kvarena" / inner
        shutil.copytree(
            ROOT / source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "build")
        )
    python = config.plugins["mkdocstrings"].config.handlers.setdefault("python", {})
    python["paths"] = [folder]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Pages that lie outside of docs/."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Every link outside of code, from this page to where its file is on the site."""
    here = page.file.src_uri
    source = next((name for name, uri in ELSEWHERE.items() if uri == here), f"docs/{here}")
    uris = {f"docs/{file.src_uri}": file.src_uri for file in files} | ELSEWHERE | {"README.md": "index.md"}

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if "://" in target or not target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in uris:
            return f"[{words}]({posixpath.relpath(uris[path], posixpath.dirname(here) or '.')}{anchor})"
        return words if (ROOT / path).exists() else link[0]

    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    linked = re.compile(r"\[([^\[\]]*)\]\(([^()#\s]*)((?:#[^()\s]*)?)\)")
    return "".join(part if part.lstrip().startswith("```") else linked.sub(moved, part) for part in parts)


def on_post_build(**_: Any) -> None:
    """The laid out copy has served."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
