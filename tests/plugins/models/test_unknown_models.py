"""A model type that nobody knows is read by its fields where they suffice, and refused where they don't."""

from typing import Any

import pytest

from kvarena.plugins.models import Fields, LayerOutline, Outline, read_model
from kvarena.terms.errors import ConfigError, PluginError

NEW = {
    "model_type": "newcomer",
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
}


def test_attention_is_read_with_a_note(read: Any) -> None:
    """Head counts, head size and layer count are enough for full attention, and a note says what was done."""
    spec = read(NEW)

    assert spec.layer_kinds == ("full",) * 4
    assert spec.layers[0].parts[0].layout.kv_heads == 8
    assert spec.notes == ("model type 'newcomer' is not known; its layers are read from its fields",)


def test_layer_types_are_followed(read: Any) -> None:
    """Words that everybody uses alike are enough to tell windows from full layers."""
    words = ["sliding_attention", "full_attention"] * 2

    assert read({**NEW, "layer_types": words, "sliding_window": 64}).layer_kinds == ("window", "full") * 2


def test_latent_rows_are_read(read: Any) -> None:
    """A latent rank and a rotated width make a row, whatever the KV head count says."""
    assert read({**NEW, "kv_lora_rank": 512, "qk_rope_head_dim": 64}).layer_kinds == ("mla",) * 4


def test_a_derived_head_size_is_said(read: Any) -> None:
    """Where head_dim is absent the division is used, and a note says so."""
    spec = read({**NEW, "head_dim": None})

    assert spec.layers[0].parts[0].layout.head_dim == 128
    assert spec.notes[1] == "head_dim is absent: 128, hidden_size / num_attention_heads"


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads"])
def test_a_missing_field_is_named(read: Any, name: str) -> None:
    """Nothing stands in for a count that is not there, not even a common default."""
    with pytest.raises(ConfigError, match=f"config.json: {name}: missing.*'newcomer'"):
        read({key: value for key, value in NEW.items() if key != name})


def test_a_config_without_a_type_is_read_the_same_way(read: Any) -> None:
    """No model_type at all is as unknown as a new one."""
    bare = {key: value for key, value in NEW.items() if key != "model_type"}

    assert read(bare).layers == read(NEW).layers
    with pytest.raises(ConfigError, match="a config without model_type"):
        read({})


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"sliding_window": 64}, "layer_types: missing, and sliding_window is set"),
        ({"layer_types": ["warp"] * 4}, r"layer_types\[0\]: 'warp'"),
        ({"layer_types": ["full_attention", "mamba"] * 2}, "layer_types: model type 'newcomer' is not known"),
        ({"layer_types": ["full_attention", "mamba"] * 2, "mamba_d_state": 16}, "mamba_d_state: model type 'newcomer'"),
        ({"layer_types": ["hybrid"] * 4}, "layer_types: model type"),
        ({"mamba_d_state": 16}, "mamba_d_state: model type"),
        ({"linear_num_value_heads": 16}, "linear_num_value_heads: model type"),
        ({"conv_L_cache": 3}, "conv_L_cache: model type"),
        ({"ssm_state_size": 16}, "ssm_state_size: model type"),
        ({"lru_width": 16}, "lru_width: model type"),
        ({"hybrid_override_pattern": "M*M*"}, "hybrid_override_pattern: model type"),
        ({"attn_layer_indices": [1]}, "attn_layer_indices: model type"),
        ({"full_attention_interval": 4}, "full_attention_interval: model type"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers: model type"),
        ({"compress_ratios": [4] * 4}, "compress_ratios: model type"),
        ({"index_head_dim": 128}, "index_head_dim: model type"),
        ({"head_dim": None, "kv_channels": 64}, "head_dim: missing, and kv_channels may mean it or not"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim: missing"),
    ],
)
def test_what_depends_on_the_family_is_refused(read: Any, fields: dict[str, Any], place: str) -> None:
    """A field whose meaning only the family's reader knows stops the reading, and is named."""
    with pytest.raises(ConfigError, match=place):
        read({**NEW, **fields})


@pytest.mark.parametrize("fields", [{"num_kv_shared_layers": 0}, {"attn_layer_indices": None}, {"mamba_d_state": None}])
def test_a_field_that_says_nothing_does_no_harm(read: Any, fields: dict[str, Any]) -> None:
    """Null, zero and empty values of such fields change nothing."""
    assert read({**NEW, **fields}).layers == read(NEW).layers


class Stranger:
    """A catalog with one more reader than this environment has."""

    def __init__(self, catalog: Any, reader: Any) -> None:
        self.catalog, self.reader = catalog, reader

    def names(self, kind: str) -> tuple[str, ...]:
        return (*self.catalog.names(kind), "newcomer") if kind == "models" else self.catalog.names(kind)

    def load(self, kind: str, name: str) -> Any:
        return self.reader if (kind, name) == ("models", "newcomer") else self.catalog.load(kind, name)


@pytest.mark.req("PLG-1")
def test_a_strangers_reader_is_found_by_its_type(catalog: Any) -> None:
    """A reader is a function from fields to an outline, and a plugin's is asked like ours."""

    def reader(config: Fields) -> Outline:
        return Outline((LayerOutline("none"),) * config.whole("num_hidden_layers"))

    spec = read_model(NEW, catalog=Stranger(catalog, reader))

    assert spec.layer_kinds == ("none",) * 4
    assert spec.notes == ()


@pytest.mark.req("PLG-1")
def test_a_reader_that_gives_something_else_is_named(catalog: Any) -> None:
    """A reader's wrong answer is its fault, not the config's."""
    with pytest.raises(PluginError, match="reader of 'newcomer' gave a list"):
        read_model(NEW, catalog=Stranger(catalog, lambda config: []))
