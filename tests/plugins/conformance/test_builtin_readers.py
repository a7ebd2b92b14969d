"""The built-in model readers join the kit as a stranger's would, each with a config as it was published."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from entry_points import own_names

from kvarena.plugins.conformance import ReaderConformance

transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[2] / "data" / "models"
NESTED = ("text_config", "language_config", "llm_config")
LIKE = {"kimi_k2": "deepseek_v3", "minimax_text_01": "minimax_m1"}
"""Model types of which neither a config is here nor transformers has one, and those of the same fields."""

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 16},
}


@functools.cache
def published() -> dict[str, dict[str, Any]]:
    """The language models of the configs that are here, by model type."""
    found = {}
    for path in sorted(DATA.glob("*.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        outer = {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
        for part in (config, *(config[name] for name in NESTED if isinstance(config.get(name), dict))):
            if part.get("model_type") and "num_hidden_layers" in part:
                found.setdefault(part["model_type"], {**outer, **part})
    return found


def config_of(name: str) -> dict[str, Any]:
    """A config of a model type."""
    known = published()
    if name in LIKE:
        return {**known[LIKE[name]], "model_type": name}
    if name in known:
        return known[name]
    config = transformers.AutoConfig.for_model(name, **{**SMALL, **OWN.get(name, {})}).to_dict()
    return {**config.get("text_config", config), "model_type": name}


NAMES = sorted(own_names("models"))


@pytest.mark.req("PLG-1")
class TestBuiltInReaders(ReaderConformance):
    """Each of them."""

    @pytest.fixture(scope="class", params=NAMES)
    @classmethod
    def reader(cls, request: pytest.FixtureRequest) -> str:
        """Its model type."""
        return str(request.param)

    @pytest.fixture
    def config(self, reader: str) -> dict[str, Any]:
        """Of one of its models."""
        return config_of(reader)
