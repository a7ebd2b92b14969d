"""Every published model in tests/data/models is planned, and every figure is right to the byte."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvarena.planning.plan import plan_storage
from kvarena.plugins.models import read_config, read_model, summarize
from kvarena.terms.errors import ConfigError

DATA = Path(__file__).parents[2] / "data" / "models"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
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


@pytest.fixture(scope="module")
def summaries(catalog: Any) -> dict[str, Any]:
    """All models read and planned once."""
    from_name = {}
    for name in EXPECTED:
        spec = read_model(read_config(DATA / f"{name}.json"), source=f"{name}.json", catalog=catalog)
        from_name[name] = (spec, summarize(spec, plan_storage(spec.layers)))
    return from_name


def test_there_are_27_models() -> None:
    """No model is left out by accident."""
    assert len(EXPECTED) == 27
    assert {path.stem for path in DATA.glob("*.json")} - {"expected"} == set(EXPECTED)


@pytest.mark.req("DEC-1")
@pytest.mark.req("DEC-3")
@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_figure_is_right(summaries: dict[str, Any], name: str, figure: str) -> None:
    """Kinds, bytes per token, windows, whole requests and ranks: as derived by hand from the config."""
    _, summary = summaries[name]

    assert summary[figure] == EXPECTED[name][figure]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_state_is_right(summaries: dict[str, Any], name: str) -> None:
    """The state's family, layers and bytes, on one rank and on any number of them; none where there is none."""
    _, summary = summaries[name]
    state = EXPECTED[name]["state"]

    assert summary["state"] == state


@pytest.mark.parametrize("name", EXPECTED)
def test_a_summary_is_json(summaries: dict[str, Any], name: str) -> None:
    """What is printed with --json survives the trip, keys and all."""
    _, summary = summaries[name]

    assert json.loads(json.dumps(summary)) == summary


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_one_rank_of_many_has_the_same_figures(name: str, tp: int, catalog: Any) -> None:
    """Reading for several ranks gives the rank's own bytes, or refuses where the states do not divide."""
    expected = EXPECTED[name]
    config = read_config(DATA / f"{name}.json")
    if expected["state"] and expected["state"]["tp"][str(tp)] is None:
        with pytest.raises(ConfigError, match=f"tp = {tp}"):
            read_model(config, tp=tp, catalog=catalog)
        return
    spec = read_model(config, tp=tp, catalog=catalog)
    summary = summarize(spec, plan_storage(spec.layers))

    rank = expected["per_rank_token_bytes_by_tp"][str(tp)]
    assert summary["full_bytes_per_token"] == rank["full_bytes_per_token"]
    assert summary["window_bytes_per_token"] == rank["window_bytes_per_token"]
    if expected["state"]:
        assert summary["state"]["bytes_per_request"] == expected["state"]["tp"][str(tp)]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_context_is_what_the_config_names(summaries: dict[str, Any], name: str) -> None:
    """The longest context comes from the config; a model without one has none."""
    spec, _ = summaries[name]
    config = read_config(DATA / f"{name}.json")
    config = config.get("text_config", config)

    assert spec.context_max == config.get("max_position_embeddings", config.get("model_max_length"))


@pytest.mark.req("DEC-4")
def test_rates_set_the_page_size(summaries: dict[str, Any]) -> None:
    """DeepSeek-V4 keeps one entry per 4 and per 128 tokens, so its pages are of 128 tokens, others of 16."""
    assert plan_storage(summaries["deepseek-v4-flash"][0].layers).page_tokens == 128
    assert plan_storage(summaries["llama-3.1-8b"][0].layers).page_tokens == 16


def test_roles_tell_the_parts_of_a_layer_apart(summaries: dict[str, Any]) -> None:
    """A layer of DeepSeek-V4 keeps window rows, compressed rows and indexer keys, each under its own role."""
    layer = summaries["deepseek-v4-flash"][0].layers[2]

    assert [(part.role, part.tokens_per_entry, part.lifetime.name) for part in layer.parts] == [
        ("kv", 1, "window-128"),
        ("compressed", 4, "full"),
        ("index", 4, "full"),
    ]


@pytest.mark.req("DEC-2")
def test_a_layer_may_hold_attention_and_state_together(summaries: dict[str, Any]) -> None:
    """Every layer of Falcon-H1 keeps keys and values, and a state."""
    spec, _ = summaries["falcon-h1-0.5b"]

    assert all([part.role for part in layer.parts] == ["kv", "state"] for layer in spec.layers)


@pytest.mark.req("DEC-4")
def test_layers_that_share_rows_are_planned_once(summaries: dict[str, Any]) -> None:
    """Gemma 3n's last 15 layers own nothing and read the last layer of their kind below them."""
    spec, _ = summaries["gemma-3n-e4b"]
    sharers = {layer.index: layer.shares for layer in spec.layers if layer.shares is not None}

    assert sharers == {index: 19 if (index + 1) % 5 == 0 else 18 for index in range(20, 35)}
    assert plan_storage(spec.layers).shared_layers == tuple(sharers.items())


def test_reading_needs_no_torch() -> None:
    """Readers, layouts and planning import neither torch nor transformers."""
    code = (
        "import sys; from kvarena.plugins.models import read_config, read_model, summarize; "
        "from kvarena.planning.plan import plan_storage; "
        f"spec = read_model(read_config({str(DATA / 'qwen3-next-80b-a3b.json')!r})); "
        "summarize(spec, plan_storage(spec.layers)); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
