"""``--kv-layout``: the layout of keys and values in a plan, and what cannot be kept in one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarena.plugins.cli import main as cli_main

TRACE = Path(__file__).parents[2] / "data" / "traces" / "mooncake.jsonl"
Capture = pytest.CaptureFixture[str]
WIDE = '{ name = "mha", dtype = "float32" }'


def planned(capsys: Capture, path: Path, *words: str) -> dict[str, Any]:
    """The JSON of a plan that must succeed."""
    assert cli_main.run(["plan", str(path), "--memory", "64MiB", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_takes_the_layout_and_its_settings(capsys: Capture, config: Callable[..., Path]) -> None:
    """Keys and values cost what the layout says, on each rank; states are as they were."""
    path = config()
    own, same, wide = (
        planned(capsys, path, *words) for words in ((), ("--kv-layout", "mha"), ("--kv-layout", WIDE, "--tp", "2"))
    )

    assert (own["kv_layout"], same["kv_layout"], wide["kv_layout"]) == (None, "mha", "mha")
    assert own["full_bytes_per_token"] == same["full_bytes_per_token"] == wide["full_bytes_per_token"] == 128
    assert own["per_rank_token_bytes_by_tp"]["1"]["full_bytes_per_token"] == 128
    assert wide["per_rank_token_bytes_by_tp"]["1"]["full_bytes_per_token"] == 256
    assert own["state"] == same["state"]
    assert cli_main.run(["plan", str(path), "--memory", "64MiB", "--kv-layout", "mha"]) == 0
    assert "bfloat16 kept as mha" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("mhaa", "--kv-layout: no layout is named 'mhaa'; did you mean 'mha'?"),
        ("latent", "--kv-layout: layout 'latent' needs row_bytes, which a model does not tell"),
        ('{ name = "mha", dtype = "int8" }', "has no codec and keeps k (2, 16) of int8, v (2, 16) of int8; the model"),
        ('{ name = "mha", head_dim = 8 }', "--kv-layout: head_dim is 8, and a layer of this model has 16; leave it"),
        ('{ name = "mha", dtpe = "int8" }', "--kv-layout: dtpe: unknown key; did you mean 'dtype'?"),
        ("{ name = ", "Invalid value for '--kv-layout'"),
        ("{ dtype = 3 }", "--kv-layout: must be a name or a table with a name"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_told(
    capsys: Capture, config: Callable[..., Path], value: str, says: str
) -> None:
    """One line, exit code 2."""
    assert cli_main.run(["plan", str(config()), "--memory", "64MiB", "--kv-layout", value]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_declared_layers_name_their_own(capsys: Capture, tmp_path: Path) -> None:
    """A TOML file says of each layer what keeps it; the option has nothing to stand in for."""
    path = tmp_path / "layers.toml"
    path.write_text('[arena]\nmemory = "1MiB"\n[[layers]]\nindex = 0\nlayout = "mha"\nkv_heads = 2\nhead_dim = 16\n')
    assert cli_main.run(["plan", str(path), "--kv-layout", "mha"]) == 2
    assert "layers.toml: --kv-layout is for a model's config; declared layers name" in capsys.readouterr().err


def test_a_replay_counts_its_bytes(capsys: Capture, config: Callable[..., Path]) -> None:
    """Wider keys and values make the full band's pages twice as large, and a step that reads them slower."""
    words = ["replay", "--model", str(config()), "--memory", "64MiB", "--trace", str(TRACE), "--limit", "4", "--json"]
    found = []
    for more in ([], ["--kv-layout", WIDE]):
        assert cli_main.run([*words, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    own, wide = found

    assert (own["model"]["kv_layout"], wide["model"]["kv_layout"]) == (None, "mha")
    units = [next(band["unit_bytes"] for band in one["bands"] if band["name"] == "full") for one in found]
    assert units[1] == 2 * units[0]
    assert wide["throughput"]["seconds"] > own["throughput"]["seconds"]


def test_a_run_takes_it_from_its_file_or_the_option(capsys: Capture, tmp_path: Path) -> None:
    """Served by the name in the file and judged by transformers' cache; the option stands in for the file."""
    pytest.importorskip("transformers")
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,20,4\n")
    path = tmp_path / "run.toml"
    path.write_text(
        'model = "llama"\nmemory_requests = 2\nkv_layout = { name = "mha", dtype = "float64" }\n'
        '[trace]\nfile = "trace.csv"\n'
    )
    assert cli_main.run(["run", str(path)]) == 0
    page = capsys.readouterr().out
    assert "mha: 2,048 B a token in all layers, 1,024 B as the model writes it" in " ".join(page.split())
    assert "equal: 4 greedy tokens of 1 requests against transformers' own cache (" in " ".join(page.split())

    for words in ([str(path)], ["--model", str(tmp_path), "--prompt", "hello"]):
        assert cli_main.run(["run", *words, "--kv-layout", "mhaa"]) == 2
        assert capsys.readouterr().err == "kvarena: --kv-layout: no layout is named 'mhaa'; did you mean 'mha'?\n"
    path.write_text(path.read_text().replace("float64", "float16"))
    assert cli_main.run(["run", str(path)]) == 2
    assert "kvarena: run.toml:3: kv_layout: layout 'mha' (kvarena 0.1.0) has no codec and" in capsys.readouterr().err
