"""A config.json is read whole, or one clear error says where it breaks."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarena.plugins.models import read_config
from kvarena.terms.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "config.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_folder_means_its_config(tmp_path: Path) -> None:
    """A model folder is as good as the file in it."""
    file = write(tmp_path, '{"model_type": "llama"}')

    assert read_config(tmp_path) == read_config(file) == read_config(str(file)) == {"model_type": "llama"}


def test_the_bare_literals_of_published_configs_are_read(tmp_path: Path) -> None:
    """Infinity and NaN are no JSON, and Mamba's published configs have them."""
    config = read_config(write(tmp_path, '{"time_step_limit": [0.0, Infinity], "x": NaN, "y": -Infinity}'))

    assert config["time_step_limit"][1] == math.inf
    assert math.isnan(config["x"])
    assert config["y"] == -math.inf


def test_a_byte_order_mark_is_no_trouble(tmp_path: Path) -> None:
    """Files written on Windows are read like any other."""
    file = tmp_path / "config.json"
    file.write_bytes(b'\xef\xbb\xbf{"model_type": "llama"}')

    assert read_config(file) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("", "the file is empty"),
        (" \n\t", "the file is empty"),
        ('{"model_type": "llama",\n "hidden_size": ', r"line 2, column 17"),
        ('{"model_type": "llama"', r"line 1, column 23"),
        ("{'model_type': 'llama'}", r"line 1, column 2"),
        ("[1, 2]", "a list instead of an object"),
        ('"llama"', "instead of an object"),
        ("null", "instead of an object"),
        ("3", "instead of an object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_config_is_refused_with_its_place(tmp_path: Path, text: str, finding: str) -> None:
    """Empty, truncated, a list, a bare value: the file, the place in it, and what was found."""
    file = write(tmp_path, text)

    with pytest.raises(ConfigError, match=finding) as refusal:
        read_config(file)
    assert str(refusal.value).startswith(str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """No such file, and a folder without a config in it, are told with the path that was tried."""
    with pytest.raises(ConfigError, match=r"nowhere\.json: no such file"):
        read_config(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        read_config(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Weights given by mistake are no config."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\xff\xfe\x00\x81")

    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(file)


@settings(max_examples=60)
@given(cut=st.integers(min_value=0, max_value=800))
def test_a_truncated_config_never_passes(cut: int, tmp_path_factory: pytest.TempPathFactory, model_files: Path) -> None:
    """Wherever a download stopped, the file is refused, not half read."""
    text = (model_files / "llama-3.1-8b.json").read_text(encoding="utf-8").rstrip()
    file = write(tmp_path_factory.mktemp("cut"), text[: min(cut, len(text) - 1)])

    with pytest.raises(ConfigError):
        read_config(file)


@pytest.mark.parametrize("value", [[], "llama", None, 3])
def test_read_model_asks_for_an_object(value: Any, read: Any) -> None:
    """A list where the object of a config belongs is refused."""
    with pytest.raises(ConfigError, match="an object is needed"):
        read(value)


@pytest.mark.parametrize("tp", [0, -1, True, 1.5, "8", 10**9])
def test_ranks_are_a_whole_number(tp: Any, published: Any, read: Any) -> None:
    """No ranks, or half a rank, cannot share a model."""
    with pytest.raises(ConfigError, match="tp: a whole number from 1"):
        read(published("llama-3.1-8b"), tp=tp)


def test_an_unknown_dtype_lists_those_there_are(published: Any, read: Any) -> None:
    """A misspelt dtype, asked for or in the config, is answered with the choice."""
    with pytest.raises(ConfigError, match=r"dtype: unknown dtype 'bf17'; known are .*bfloat16"):
        read(published("llama-3.1-8b"), dtype="bf17")
    with pytest.raises(ConfigError, match=r"config\.json: dtype or torch_dtype: unknown dtype 'bf17'"):
        read(published("llama-3.1-8b", torch_dtype="bf17"))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers: a whole number >= 1 is needed here, not 0"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: a whole number >= 1 is needed here, not '32'"),
        ({"num_hidden_layers": 3.5}, "num_hidden_layers: a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers: a whole number"),
        ({"num_hidden_layers": None}, "num_hidden_layers: missing"),
        ({"num_attention_heads": None}, "num_attention_heads: missing"),
        ({"num_attention_heads": -8}, "num_attention_heads: a whole number"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: a whole number"),
        ({"num_key_value_heads": [8]}, "num_key_value_heads: a whole number"),
        ({"hidden_size": 4097}, "head_dim: missing, and 4097 hidden over 32 heads is not whole"),
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"layer_types": "full_attention"}, "layer_types: a list is needed here"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types: 31 entries for 32 layers"),
        ({"layer_types": ["full_attention"] * 31 + ["warp"]}, r"layer_types\[31\]: 'warp' is no kind of layer"),
        ({"layer_types": ["full_attention"] * 31 + [["full_attention"]]}, r"layer_types\[31\]: .* is no kind of layer"),
        ({"layer_types": ["full_attention"] * 31 + ["mamba"]}, "'llama' has no recurrent layers"),
        ({"layer_types": ["full_attention"] * 31 + ["sliding_attention"]}, "sliding_window: missing"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings: a whole number"),
        ({"per_layer_config": {"3": {"num_key_value_heads": "x"}}}, "layer 3: num_key_value_heads: a whole number"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(changes: dict[str, Any], place: str, published: Any, read: Any) -> None:
    """Each field of the wrong type, size or length is refused under its own name; nothing else is said."""
    with pytest.raises(ConfigError, match=place) as refusal:
        read(published("llama-3.1-8b", **changes))
    assert str(refusal.value).startswith("config.json: ")


def test_numbers_written_as_floats_are_whole(published: Any, read: Any) -> None:
    """Some tools write 32.0 where 32 is meant."""
    assert read(published("llama-3.1-8b", num_hidden_layers=32.0)) == read(published("llama-3.1-8b"))


@pytest.mark.parametrize("value", [3, [], {"a": 1}, True])
def test_a_model_type_is_a_text(value: Any, published: Any, read: Any) -> None:
    """A list or a number names no family, and is not planned as one without a name."""
    with pytest.raises(ConfigError, match="model_type: a text is needed here"):
        read({**published("llama-3.1-8b"), "model_type": value})


def test_a_number_of_5000_digits_is_refused(tmp_path: Any) -> None:
    """Python reads no such number, and says so in its own words otherwise."""
    file = tmp_path / "config.json"
    file.write_text('{"hidden_size": ' + "9" * 5000 + "}")
    with pytest.raises(ConfigError, match=r"config.json: cannot be read: .*digits"):
        read_config(file)
