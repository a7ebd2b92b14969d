"""``kvarena replay --config FILE``: a storage's config says how a trace is replayed, and options go first."""

import json
from pathlib import Path

import pytest

from kvarena.plugins.cli.main import run

DATA = Path(__file__).parents[2] / "data"
WORDS = ["--model", DATA / "models" / "gpt-oss-20b.json", "--trace", DATA / "traces" / "mooncake.jsonl", "--limit", "3"]
SERVE = """
backend = "cpu"

[arena]
memory = "2GiB"
page_tokens = 32
forwards_in_flight = 1

[prefix]
share = true
eviction = { name = "lfu", splits = false }

[policies]
compaction = { name = "lazy", max_moves = 3 }
"""

Capture = pytest.CaptureFixture[str]


def written(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text, encoding="utf-8")
    return path


def replayed(*words: object) -> int:
    return run(["replay", *map(str, WORDS), *map(str, words), "--json"])


def test_what_the_config_says_holds_where_the_command_line_is_silent(tmp_path: Path, capsys: Capture) -> None:
    """Memory, pages, prefixes and policies with their settings are the file's; an option beside it goes first."""
    file = written(tmp_path, SERVE)
    assert replayed("--config", file, "--page-size", 16) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["arena"]["budget_bytes"] == 2 << 30
    assert document["arena"]["page_tokens"] == 16
    assert document["loop"]["forwards_in_flight"] == 1
    assert document["prefix"]["eviction"] == {"name": "lfu", "splits": False}
    assert replayed("--memory", "2GiB", "--page-size", 16, "--prefix-cache", "--forwards-in-flight", 1) == 0
    options = json.loads(capsys.readouterr().out)
    assert options["prefix"]["eviction"] == {"name": "lru"}
    assert options["arena"] == document["arena"]


def test_policies_are_those_of_the_config(tmp_path: Path, capsys: Capture) -> None:
    """A compaction that never moves leaves holes that another closes."""
    arena = '[arena]\nmemory = "1GiB"\n'
    assert replayed("--limit", 8, "--config", written(tmp_path, f'{arena}[policies]\ncompaction = "none"\n')) == 0
    none = json.loads(capsys.readouterr().out)
    assert replayed("--limit", 8, "--config", written(tmp_path, f'{arena}[policies]\ncompaction = "eager"\n')) == 0
    eager = json.loads(capsys.readouterr().out)
    assert sum(band["moves"] for band in none["bands"]) < sum(band["moves"] for band in eager["bands"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[arena]\nmemory = 1\nunit_align = 8\n", "serve.toml:3: arena.unit_align: a replay has no such setting, only"),
        ('[arena]\nmemory = "1GiB"\n\n[[layers]]\nindex = 0\n', "layers: a replay has the layers of --model; leave"),
        (
            '[arena]\nmemory = "1GiB"\n[policies]\ncompaction = "lru"\n',
            "serve.toml:4: policies.compaction: 'lru' is no",
        ),
        (
            '[arena]\nmemory = "1GiB"\n[prefix]\neviction = "nope"\n',
            "serve.toml:4: prefix.eviction: no policy is named",
        ),
        ('[arena]\nmemory = "1KiB"\n', "serve.toml:2: arena.memory: a budget of 1,024 B"),
        ('[arena]\nmemory = "1GiB"\n[plugins]\ndisable = ["nobody"]\n', "serve.toml:4: plugins.disable: no installed"),
        ("[prefix]\nshare = true\n", "arena"),
    ],
)
def test_a_config_that_says_something_impossible_is_refused(
    text: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    """By its file, line and key."""
    assert replayed("--config", written(tmp_path, text)) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


def test_somebody_says_how_much_memory_there_is(capsys: Capture) -> None:
    """The command line, or a config."""
    assert replayed() == 2
    assert "--memory is missing" in capsys.readouterr().err
