"""``kvarena plan`` says what a model's memory costs and what a budget gives, without torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import StorageConfig, read_toml, structure
from kvarena.planning.demand import decode_demand
from kvarena.planning.packing import packs
from kvarena.planning.plan import plan_storage
from kvarena.planning.sizing import size_plan
from kvarena.plugins.cli.compare import compare
from kvarena.plugins.cli.main import run
from kvarena.plugins.cli.plan_report import picture
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Lifetime, State, Window

Capture = pytest.CaptureFixture[str]


class Row:
    """A layout of so many bytes an entry."""

    name = "row"

    def __init__(self, size: int) -> None:
        self.size = size

    def fields(self) -> tuple[Field, ...]:
        return (Field("row", "int8", (self.size,)),)


def layers(*kinds: tuple[int, Lifetime, int]) -> list[Layer]:
    """So many layers of a lifetime and an entry size each."""
    flat = [(lifetime, size) for count, lifetime, size in kinds for _ in range(count)]
    return [Layer(i, (Part(Row(size), lifetime),)) for i, (lifetime, size) in enumerate(flat)]


def answer(capsys: Capture, *arguments: Any) -> dict[str, Any]:
    assert run(["plan", *map(str, arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: Capture, *arguments: Any) -> str:
    assert run(["plan", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.req("PLN-1")
def test_the_json_carries_the_figures_of_a_model(config: Callable[..., Path], capsys: Capture) -> None:
    """The names that scripts compare, and the sizing beside them, all for one rank."""
    found = answer(capsys, config(), "--memory", "64MiB", "--context", "1024")

    assert found["model_type"] == "qwen3_next"
    assert found["num_layers"] == 4
    assert len(found["layer_kinds"]) == 4
    assert found["full_bytes_per_token"] == 2 * 2 * 16 * 2
    assert found["window_lengths"] == []
    assert found["state"]["bytes_per_request"] > 0
    assert found["one_request_bytes"]["1000"] == found["state"]["bytes_per_request"] + 1000 * 128
    assert found["per_rank_token_bytes_by_tp"]["2"]["full_bytes_per_token"] == 64
    assert [pool["name"] for pool in found["sub_pools"]] == ["state", "full"]
    assert [pool["band"] for pool in found["sub_pools"]] == ["low", "high"]
    sizing = found["sizing"]
    assert sizing["arena_bytes"] + sum(sizing["fixed_bytes"].values()) <= 64 << 20
    assert sizing["context_tokens"] == 1024
    assert found["compare"] is None


PUBLISHED = Path(__file__).parents[2] / "data" / "models"
EXPECTED = json.loads((PUBLISHED / "expected.json").read_text(encoding="utf-8"))
FIGURES = (
    "model_type",
    "num_layers",
    "layer_kinds",
    "full_bytes_per_token",
    "window_lengths",
    "window_bytes_per_token",
    "one_request_bytes",
    "per_rank_token_bytes_by_tp",
)


@pytest.mark.req("PLN-1")
@pytest.mark.parametrize("model", EXPECTED)
def test_a_published_model_is_planned_right_to_the_byte(model: str, capsys: Capture) -> None:
    """Every figure of the command's JSON is the one that was derived by hand."""
    found = answer(capsys, PUBLISHED / f"{model}.json", "--memory", "80GiB")
    wanted = EXPECTED[model]

    assert {name: found[name] for name in FIGURES} == {name: wanted[name] for name in FIGURES}
    state = wanted["state"] and wanted["state"]["bytes_per_request"]
    assert (found["state"] and found["state"]["bytes_per_request"]) == state
    assert found["sizing"]["concurrency"] > 0


def test_pages_are_raised_to_what_rates_divide_and_the_output_says_so(capsys: Capture) -> None:
    """DeepSeek-V4 keeps one entry per 4 and per 128 tokens: pages of 128, and a page of 16 is refused by layer."""
    path = PUBLISHED / "deepseek-v4-flash.json"
    found = answer(capsys, path, "--memory", "80GiB")

    assert found["page_tokens"] == 128
    assert any("pages hold 128 tokens" in note for note in found["notes"])
    message = refused(capsys, path, "--memory", "80GiB", "--page-size", 16)
    assert "page size 16 is no multiple of the tokens per entry of layers 3" in message


def test_a_person_sees_bands_budget_and_what_binds(config: Callable[..., Path], capsys: Capture) -> None:
    """One line a band in chain order, then what the budget gives; plain text where there is no terminal."""
    assert run(["plan", str(config()), "--memory", "64MiB", "--compare"]) == 0
    out = capsys.readouterr().out

    assert "[state →      ]   [      ← full]" in out
    for word in ("128 B a token", "a slot", "budget", "64.00 MiB", "tokens", "state slots", "concurrency", "binds"):
        assert word in out
    for way in ("one arena", "static split", "one page size"):
        assert way in out
    assert "\x1b" not in out


def test_the_context_is_the_models_own_when_that_is_shorter(config: Callable[..., Path], capsys: Capture) -> None:
    """32,768 tokens unless the config says less, or the command line says otherwise."""
    path, budget = config(), ("--memory", "64MiB")

    assert answer(capsys, path, *budget)["sizing"]["context_tokens"] == 4096
    assert answer(capsys, path, *budget, "--context", 100)["sizing"]["context_tokens"] == 100
    long = config("long.json", max_position_embeddings=1 << 20)
    assert answer(capsys, long, *budget)["sizing"]["context_tokens"] == 32768


def test_the_card_s_budget_is_what_the_weights_leave(config: Callable[..., Path], capsys: Capture) -> None:
    """Card times utilization less weights; the weights as given, or estimated and cut over the ranks."""
    card = ("--gpu-memory", "1GiB", "--utilization", "0.5")
    given = answer(capsys, config(), *card, "--weights", "12MiB")["budget"]
    one, two = (answer(capsys, config(), *card, "--tp", ranks)["budget"] for ranks in (1, 2))

    assert given["bytes"] == (512 << 20) - (12 << 20)
    assert one["bytes"] == (512 << 20) - one["weights_bytes"]
    assert 0 < two["weights_bytes"] == -(-one["weights_bytes"] // 2)


def test_the_page_size_is_taken_or_refused(config: Callable[..., Path], capsys: Capture) -> None:
    """A page of 64 tokens is one; a page of none is not."""
    assert answer(capsys, config(), "--memory", "64MiB", "--page-size", 64)["page_tokens"] == 64
    assert "--page-size must be a whole number >= 1, not 0" in refused(
        capsys, config(), "--memory", "64MiB", "--page-size", 0
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no budget is given: --memory 80GiB"),
        (("--memory", "80GG"), "'80GG' is not an amount of bytes"),
        (("--memory", "1GiB", "--gpu-memory", "1GiB"), "are two budgets; give one of them"),
        (("--memory", "1KiB"), "cannot hold one request"),
        (("--memory", "1GiB", "--context", "0"), "0 is not in the range"),
        (("--memory", "1GiB", "--tp", "0"), "0 is not in the range"),
        (("--memory", "1GiB", "--tp", "3"), "3"),
        (("--memory", "1GiB", "--dtype", "float7"), "unknown dtype 'float7'"),
        (("--memory", "1GiB", "--state-share", "1.5"), "between 0 and 1"),
        (("--gpu-memory", "1GiB", "--utilization", "1.5"), "above 0 and at most 1"),
        (("--gpu-memory", "1GiB", "--weights", "many"), "--weights: 'many' is not an amount of bytes"),
        (
            ("--gpu-memory", "1GiB", "--weights", "2GiB"),
            "leave nothing of the card: 1.00 GiB x 0.9 - 2.00 GiB",
        ),
    ],
)
def test_each_impossible_option_is_one_clear_message(
    config: Callable[..., Path], capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    """Exit code 2, the finding on stderr, nothing on stdout."""
    assert message in refused(capsys, config(), *arguments)


def test_a_budget_below_the_floor_lists_each_term(config: Callable[..., Path], capsys: Capture) -> None:
    """The terms and their bytes, so that one sees which to change."""
    message = refused(capsys, config(), "--memory", "8KiB")

    assert "state: 1 x" in message
    assert "token sink" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1, 2]", "a list instead of an object"), ('{"model_type": ', "line 1, column 16"), ("", "the file is empty")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, capsys: Capture, text: str, message: str) -> None:
    """A list, a cut-off file and an empty one each say so."""
    path = tmp_path / "config.json"
    path.write_text(text)

    assert message in refused(capsys, path, "--memory", "1GiB")
    assert "no such file" in refused(capsys, tmp_path / "absent.json", "--memory", "1GiB")


DECLARED = """
[arena]
memory = "1MiB"
page_tokens = 8
context_tokens = 256

[[layers]]
index = [0, 2]
layout = "mha"
kv_heads = 2
head_dim = 16
lifetime = "window"
window = 32

[[layers]]
index = 1
layout = "mha"
kv_heads = 2
head_dim = 16

[[layers]]
index = 3
shares = 1
"""


@pytest.mark.req("DEC-1")
def test_layers_declared_in_toml_are_planned(tmp_path: Path, capsys: Capture) -> None:
    """No config.json: the file declares layers and its arena, and the command line may say otherwise."""
    path = tmp_path / "layers.toml"
    path.write_text(DECLARED)
    found = answer(capsys, path)

    assert [(pool["name"], pool["layers"]) for pool in found["sub_pools"]] == [("window-32", [0, 2]), ("full", [1])]
    assert found["page_tokens"] == 8
    assert (found["sizing"]["budget_bytes"], found["sizing"]["context_tokens"]) == (1 << 20, 256)
    assert answer(capsys, path, "--page-size", 4, "--memory", "2MiB")["page_tokens"] == 4
    path.write_text(DECLARED.replace("head_dim = 16", "head_dimm = 16"))
    assert "layers.toml:11: layers[0].head_dimm: unknown key; did you mean 'head_dim'?" in refused(capsys, path)


def test_a_declared_context_is_planned_as_its_storage_would_be(tmp_path: Path, capsys: Capture) -> None:
    """Longer than the usual one too: ``context_tokens`` is what the request rows will be made for."""
    path = tmp_path / "layers.toml"
    path.write_text(DECLARED.replace("context_tokens = 256", "context_tokens = 65536").replace('"1MiB"', '"64MiB"'))
    config = structure(StorageConfig, read_toml(path), str(path))
    storage = build_storage((), attrs.evolve(config, backend="host"))

    assert answer(capsys, path)["sizing"]["context_tokens"] == storage.sizing.context_tokens == 65536


def test_the_weights_are_those_of_the_files_beside_the_config(config: Callable[..., Path], capsys: Capture) -> None:
    """A model folder is weighed, not estimated, and says so."""
    path = config()
    (path.parent / "model.safetensors").write_bytes(b"x" * 1000)
    found = answer(capsys, path, "--gpu-memory", "1GiB")["budget"]

    assert found["weights_bytes"] == 1000
    assert "1 safetensors files" in found["terms"]


def test_whole_entries_and_whole_pages_are_told_beside_the_average(tmp_path: Path, capsys: Capture) -> None:
    """A part with one entry per 4 tokens has 2 entries at 11 tokens, and pages of 16 tokens for them."""
    path = tmp_path / "layers.toml"
    path.write_text(
        '[arena]\nmemory = "1MiB"\ncontext_tokens = 64\n[[layers]]\nindex = 0\nlayout = "mha"\n'
        "kv_heads = 1\nhead_dim = 8\ntokens_per_entry = 4\n"
    )
    found = answer(capsys, path)

    assert found["one_request_whole_entry_bytes"]["1000"] == 250 * 32
    assert found["one_request_whole_entry_bytes"]["1"] == 0
    assert found["one_request_allocated_bytes"]["1"] == 4 * 32
    assert found["sub_pools"][0]["unpadded_bytes_per_entry"] == 8


def test_a_static_split_is_cut_for_one_length_and_fails_at_others() -> None:
    """Equal at the context it was cut for; with short requests the state pool binds, and the arena does not."""
    plan = plan_storage(layers((3, State(), 4096), (1, Full(), 32)))
    sizing = size_plan(plan, 8 << 20)
    arena, split, _ = compare(plan, sizing, (4096, 64))

    assert split.concurrency[4096] <= arena.concurrency[4096] <= split.concurrency[4096] + 1
    assert split.concurrency[64] == split.concurrency[4096]
    assert arena.concurrency[64] > 3 * split.concurrency[64]
    for length, count in arena.concurrency.items():
        units = decode_demand(plan, length)
        assert packs(plan, sizing.arena_bytes, tuple(count * unit for unit in units))
        assert not packs(plan, sizing.arena_bytes, tuple((count + 1) * unit for unit in units))


def test_one_page_size_pads_every_kind_to_the_largest() -> None:
    """Two state layers of 1,000 B beside four of 10 B a token: a page of 112 tokens, in groups of two layers."""
    plan = plan_storage(layers((2, State(), 1000), (4, Full(), 10)))
    sizing = size_plan(plan, 1 << 20)
    way = compare(plan, sizing, (224,))[2]
    page = 112 * 10 * 2

    assert way.concurrency[224] == sizing.arena_bytes // page // (1 + 2 * 2)
    assert f"a page is {page:,} B, 2 layers: full 112 tokens" in way.note


def test_one_page_size_costs_nothing_where_all_kinds_are_alike() -> None:
    """Windows beside full attention of the same rows, in equal counts: pages need no padding."""
    plan = plan_storage(layers((2, Window(32), 64), (2, Full(), 64)))
    arena, _, way = compare(plan, size_plan(plan, 1 << 20), (256,))

    assert abs(arena.concurrency[256] - way.concurrency[256]) <= 1


def test_the_picture_has_each_band_at_its_end() -> None:
    """The first grows up, the last down, the rest float; a lone band has its own end; ids have no bytes."""
    three = plan_storage(layers((1, Full(), 8), (1, Window(64), 8), (1, State(), 8)))

    assert picture(three) == "[state →      ]   [← window-64 →]   [      ← full]"
    assert picture(plan_storage(layers((1, Full(), 8)))) == "[      ← full]"
    assert picture(plan_storage(layers((1, State(), 8)))) == "[state →      ]"


def test_planning_imports_no_torch(config: Callable[..., Path]) -> None:
    """Neither torch nor rich nor a backend: the command answers before they would be loaded."""
    code = (
        "import sys; from kvarena.plugins.cli.main import run; "
        f"assert run(['plan', {str(config())!r}, '--memory', '1GiB', '--compare']) == 0; "
        "far = ('torch', 'transformers', 'rich', 'structlog', 'kvarena.backends'); "
        "bad = sorted({m for m in sys.modules if m.split('.')[0] in far or m.startswith(far[-1])}); "
        "sys.exit(', '.join(bad) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("section", "finding"),
    [
        ('[plugins]\nenable = ["nobody"]', "plugins.enable: no installed plugin is named 'nobody'"),
        ('[plugins]\ndisable = ["mha"]', "[plugins] disable leaves it out"),
        ('[policies]\nholes = "nearst"', "policies.holes: no policy is named 'nearst'; did you mean 'nearest'?"),
        ('backend = "cup"', "backend: no backend is named 'cup'; did you mean 'cpu'?"),
    ],
)
def test_what_a_plan_does_not_use_is_still_checked(tmp_path: Path, capsys: Capture, section: str, finding: str) -> None:
    """A file that would fail when its storage is built fails when it is planned."""
    file = tmp_path / "layers.toml"
    layers = '[arena]\nmemory = "1GiB"\n[[layers]]\nindex = 0\nlayout = "mha"\nkv_heads = 1\nhead_dim = 64\n'
    file.write_text(f"{section}\n{layers}")

    assert run(["plan", str(file)]) == 2
    assert finding in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--page-size", str(10**21)], ["--page-size", str((1 << 20) + 1)], ["--tp", str(10**9)]]
)
def test_an_absurd_count_is_refused(config: Callable[..., Path], capsys: Capture, wrong: list[str]) -> None:
    """Before it overflows, or plans a model cut over a billion ranks."""
    assert run(["plan", str(config()), "--memory", "1GiB", *wrong]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.req("DEM-1")
def test_a_plan_is_that_of_the_storage_with_prefixes_shared(tmp_path: Path, capsys: Capture) -> None:
    """The grid, the second slot and the caps of a file are in every figure: the sizing is that which is built."""
    file = tmp_path / "serve.toml"
    file.write_text(
        'backend = "host"\n[arena]\nmemory = "32MiB"\ncontext_tokens = 4096\ncaps = { full = 900 }\n'
        "[prefix]\nshare = true\ncheckpoint_tokens = 512\n"
        '[[layers]]\nindex = 0\nlayout = "short-conv"\nchannels = 512\ncolumns = 3\nlifetime = "state"\n'
        '[[layers]]\nindex = 1\nlayout = "mha"\nkv_heads = 2\nhead_dim = 64\nlifetime = "window"\nwindow = 256\n'
        '[[layers]]\nindex = 2\nlayout = "mha"\nkv_heads = 2\nhead_dim = 64\n'
    )
    assert run(["plan", str(file), "--compare", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    storage = build_storage([], structure(StorageConfig, read_toml(file), "serve.toml"))
    sizing, plan, held = storage.sizing, storage.plan, (256 + 512) // 16

    assert found["sizing"]["concurrency"] == sizing.concurrency == found["compare"][0]["concurrency"]["4096"]
    assert {pool["name"]: pool["target_units"] for pool in found["sub_pools"]} == sizing.units
    assert sizing.units["full"] <= 900
    units = {"state": 2, "window-256": held, "full": 4096 // 16}  # the window back to the latest grid point
    bytes_held = sum(plan[name].unit_bytes * count for name, count in units.items())
    assert found["one_request_allocated_bytes"]["4096"] == bytes_held
    for way, length in ((found["compare"][1], "4096"), (found["compare"][2], "512")):
        assert way["concurrency"][length] > 0
    storage.release()
