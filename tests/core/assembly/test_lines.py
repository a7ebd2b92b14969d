"""The line of a setting: found for every key of a file, and told with every mistake in one."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvarena.assembly.config import StorageConfig, read_toml, structure
from kvarena.assembly.lines import positions, spelt, steps_of
from kvarena.assembly.places import Places
from kvarena.terms.errors import ConfigError

TEXT = '''# a file with all that TOML has
version = 1

[arena]
memory = "1GiB"   # memory = "2GiB"
caps = { state = 3, "window-128" = 4 }
policies.holes.name = "nearest"

[[layers]]
index = [
    0,
    1,
]
layout = "mha"

[[layers]]
index = 2
note = """
[arena]
memory = 3
"""

[layers.inner]
deep = [{ first = 1 }, { second = 2 }]

[[layers.inner.list]]
at = 1
[[layers.inner.list]]
at = 2
"odd key" = 1
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("version", 2), ("arena", 4), ("arena.memory", 5), ("arena.caps", 6), ("arena.caps.state", 6),
        ('arena.caps."window-128"', 6), ("arena.policies.holes.name", 7), ("layers[0]", 9), ("layers[0].index", 10),
        ("layers[0].layout", 14), ("layers[1]", 16), ("layers[1].index", 17), ("layers[1].note", 18),
        ("layers[1].inner", 23), ("layers[1].inner.deep[1].second", 24), ("layers[1].inner.list[0].at", 27),
        ("layers[1].inner.list[1].at", 29), ('layers[1].inner.list[1]."odd key"', 30),
    ],
)  # fmt: skip
def test_a_key_has_its_line(key: str, line: int) -> None:
    """Tables, arrays of them, dotted keys, inline tables, and values of several lines."""
    assert positions(TEXT)[steps_of(key)] == line
    assert steps_of(spelt(steps_of(key))) == steps_of(key)


def test_every_key_of_a_file_has_a_line() -> None:
    """Whatever tomllib reads is found."""

    def paths(value: Any, at: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return {at}.union(*(paths(inner, (*at, step)) for step, inner in items))

    for path in (Path(__file__).parents[3] / "examples").rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for steps, line in positions(text).items():
            assert 1 <= line <= len(lines)
            assert str(steps[-1]) in lines[line - 1] or isinstance(steps[-1], int)
        assert paths(tomllib.loads(text)) - {()} <= set(positions(text)) | {
            steps[:count] for steps in positions(text) for count in range(len(steps))
        }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[arena]\nmemory = "1GiB"\nmemroy = 2', "serve.toml:3: arena.memroy: unknown key; did you mean 'memory'?"),
        ("[arena]\nmemory = 1\npage_tokens = 0", "serve.toml:3: arena.page_tokens: must be a whole number >= 1, not 0"),
        ("# nothing\n[arena]\nunit_align = 8", "serve.toml:2: arena.memory: is missing, and has no default"),
        ('[arena]\nmemory = "1GiB"\n[checks]\nlevel = 7', "serve.toml:4: checks.level: there is no level 7"),
        ('backend = 3\n[arena]\nmemory = "1GiB"', "serve.toml:1: backend: must be a name or a table"),
        ("version = 1", "serve.toml: arena: is missing"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    """That of the key, or of the table that lacks it; none where there is neither."""
    path = tmp_path / "serve.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="^" + re.escape(says)):
        structure(StorageConfig, read_toml(path), Places.in_file(path, name=path.name))


def test_an_option_that_stands_for_a_key_has_no_line(tmp_path: Path) -> None:
    """What a person wrote is what a message names, also for a setting inside it."""
    path = tmp_path / "serve.toml"
    path.write_text('[prefix]\neviction = "lru"\n', encoding="utf-8")
    places = Places.in_file(path, {"prefix.eviction": "--eviction"})

    assert places.place("prefix.eviction") == "--eviction"
    assert places.place("prefix.eviction.most") == "--eviction: most"
    assert places.place("prefix.share") == f"{path}:1: prefix.share"


def test_a_file_that_has_gone_has_no_lines(tmp_path: Path) -> None:
    """A message is told all the same."""
    assert Places.in_file(tmp_path / "gone.toml", name="gone.toml").place("arena.memory") == "gone.toml: arena.memory"
