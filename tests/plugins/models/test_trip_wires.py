"""What planners trip over: each trap, sprung on purpose, gives the right answer or a refusal that names it."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.planning.plan import plan_storage
from kvarena.plugins.models import read_model
from kvarena.terms.errors import ConfigError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}


def kinds(spec: Any) -> str:
    """One letter a layer: the first of each word of its kind."""
    return "".join(kind[0] for kind in spec.layer_kinds)


def layouts(spec: Any) -> list[Any]:
    return [part.layout for layer in spec.layers for part in layer.parts]


def test_head_dim_is_not_hidden_over_heads(published: Any, read: Any) -> None:
    """A head size that the config gives wins over the division, whatever it would give (Gemma 3: 256, not 320)."""
    assert {layout.head_dim for layout in layouts(read(published("gemma-3-4b-it")))} == {256}
    assert layouts(read({**LLAMA, "head_dim": 96}))[0].head_dim == 96
    assert layouts(read({**LLAMA, "head_dim": None}))[0].head_dim == 128


def test_a_decoy_head_dim_is_not_read(published: Any, read: Any) -> None:
    """Kimi Linear's top-level head_dim and DeepSeek's KV head count have no say in what is kept."""
    assert read(published("kimi-linear-48b-a3b", head_dim=7)).layers == read(published("kimi-linear-48b-a3b")).layers
    assert (
        read(published("deepseek-v3", num_key_value_heads=1, head_dim=64)).layers
        == read(published("deepseek-v3")).layers
    )
    assert (
        read(published("nemotron-3-nano-30b-a3b", expand=9)).layers == read(published("nemotron-3-nano-30b-a3b")).layers
    )


@pytest.mark.req("DEC-4")
def test_keys_and_values_of_different_widths(read: Any) -> None:
    """MiMo-V2 keeps keys of 192 and values of 128, and its windows have more heads than its full layers."""
    spec = read(
        {
            "model_type": "mimo_v2_flash",
            "num_hidden_layers": 3,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "hidden_size": 4096,
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_num_key_value_heads": 8,
            "sliding_window_size": 128,
            "hybrid_layer_pattern": [0, 1, 1],
        }
    )

    plan = plan_storage(spec.layers)
    assert plan["full"].entry_bytes == 4 * (192 + 128) * 2
    assert plan["window-129"].entry_bytes == 2 * 8 * (192 + 128) * 2


def test_a_one_based_list_that_disagrees_is_refused(published: Any, read: Any) -> None:
    """Kimi Linear counts layers from 1: a layer in neither list, in both, or numbered 0 is refused."""
    groups = published("kimi-linear-48b-a3b")["linear_attn_config"]
    for kda, place in (
        ([1, 2], "neither"),
        ([*groups["kda_layers"], 4], "both"),
        ([0], r"kda_layers\[0\]: layer 0 is outside 1..27"),
    ):
        with pytest.raises(ConfigError, match=place):
            read(published("kimi-linear-48b-a3b", linear_attn_config={**groups, "kda_layers": kda}))


def test_a_zero_based_list_outside_the_layers_is_refused(published: Any, read: Any) -> None:
    """Bamba and LFM 2 count layers from 0: the last index is one below the count."""
    with pytest.raises(ConfigError, match=r"attn_layer_indices\[1\]: layer 32 is outside 0..31"):
        read(published("bamba-9b", attn_layer_indices=[9, 32]))
    with pytest.raises(ConfigError, match=r"full_attn_idxs\[0\]: layer 16 is outside 0..15"):
        read(published("lfm2-1.2b", full_attn_idxs=[16]))
    with pytest.raises(ConfigError, match="attn_layer_indices: missing"):
        read(published("bamba-9b", attn_layer_indices=None))


@given(count=st.integers(1, 40), period=st.integers(1, 12), data=st.data())
def test_periods_and_offsets(count: int, period: int, data: st.DataObject, catalog: Any) -> None:
    """Jamba's attention is where index % period == offset, for any of them."""
    offset = data.draw(st.integers(0, period - 1))
    config = {
        **LLAMA,
        "model_type": "jamba",
        "num_hidden_layers": count,
        "attn_layer_period": period,
        "attn_layer_offset": offset,
        "mamba_expand": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
    }

    spec = read_model(config, catalog=catalog)
    assert kinds(spec) == "".join("f" if index % period == offset else "s" for index in range(count))


@given(count=st.integers(1, 40), period=st.integers(1, 8))
def test_sliding_patterns(count: int, period: int, catalog: Any) -> None:
    """The last layer of each period is full, the others have the window, for any period."""
    config = {**LLAMA, "model_type": "cohere2", "num_hidden_layers": count, "sliding_window": 64}

    spec = read_model({**config, "sliding_window_pattern": period}, catalog=catalog)
    assert kinds(spec) == "".join("f" if (index + 1) % period == 0 else "w" for index in range(count))


def test_a_pattern_of_letters(read: Any) -> None:
    """EXAONE 4 writes its period as letters, and its last layer is always full."""
    config = {**LLAMA, "model_type": "exaone4", "num_hidden_layers": 6, "sliding_window": 64}

    assert kinds(read({**config, "sliding_window_pattern": "LLLG"})) == "wwwfwf"
    with pytest.raises(ConfigError, match="is not made of L"):
        read({**config, "sliding_window_pattern": "LLX"})


def test_nemotron_layers_either_way(published: Any, read: Any) -> None:
    """A string of letters and a list of words, old or new, say the same."""
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    new = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    config = published("nemotron-3-nano-30b-a3b")
    pattern = config.pop("hybrid_override_pattern")

    by_letters = read(published("nemotron-3-nano-30b-a3b"))
    for names in (words, new):
        listed = {**config, "layers_block_type": [names[letter] for letter in pattern]}
        assert read(listed) == by_letters
        del listed["num_hidden_layers"]
        assert read(listed) == by_letters
    with pytest.raises(ConfigError, match=r"hybrid_override_pattern\[2\]: 'X'"):
        read({**config, "hybrid_override_pattern": "MEX" + pattern[3:]})
    with pytest.raises(ConfigError, match="51 entries for 52 layers"):
        read({**config, "hybrid_override_pattern": pattern[1:]})
    with pytest.raises(ConfigError, match="hybrid_override_pattern: missing"):
        read(config)


def test_a_list_longer_than_the_layers_is_cut_and_said(published: Any, read: Any) -> None:
    """Entries behind the last layer are those of draft layers: not planned, and noted."""
    config = published("step-3.7-flash")
    longer = read({**config, "layer_types": [*config["layer_types"], "full_attention", "full_attention"]})

    assert longer.layers == read(config).layers
    assert longer.notes == ("layer_types has 47 entries for 45 layers; the first 45 are read",)


def test_attention_types_are_numbers(published: Any, read: Any) -> None:
    """MiniMax writes 0 for lightning and 1 for softmax; another number is refused."""
    with pytest.raises(ConfigError, match="only 0 "):
        read(published("minimax-m1-80k", attn_type_list=[2] * 80))
    with pytest.raises(ConfigError, match="attn_type_list: missing"):
        read(published("minimax-m1-80k", attn_type_list=None))


def test_compression_ratios(published: Any, read: Any) -> None:
    """A compression that DeepSeek-V4 does not have is refused; the words of transformers say the same as numbers."""
    config = published("deepseek-v4-flash")
    words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    listed = {**config, "layer_types": [words[ratio] for ratio in config.pop("compress_ratios")[:43]]}
    del listed["compress_ratios"]

    assert read(listed).layers == read(published("deepseek-v4-flash")).layers
    with pytest.raises(ConfigError, match=r"compress_ratios\[2\]: 5 is not one of"):
        read(published("deepseek-v4-flash", compress_ratios=[0, 0, 5] + [4] * 40))
    with pytest.raises(ConfigError, match="compress_ratios: missing"):
        read(config)


def test_no_rope_means_full_attention(published: Any, read: Any) -> None:
    """Llama 4 lists 1 where a layer has rotary positions, that is where it attends inside chunks."""
    config = published("llama-4-scout")
    text = {**config["text_config"], "num_hidden_layers": 4}

    assert kinds(read({**config, "text_config": {**text, "no_rope_layers": [1, 0, 1, 1]}})) == "cfcc"
    assert kinds(read({**config, "text_config": {**text, "no_rope_layers": []}})) == "cccf"
    assert kinds(read({**config, "text_config": {**text, "attention_chunk_size": None}})) == "ffff"


def test_nested_text_configs(published: Any, read: Any) -> None:
    """A multimodal config is its language model; what it says for all holds inside unless said again."""
    config = published("gemma-3-4b-it")
    half = {**config, "torch_dtype": "float16", "text_config": {**config["text_config"], "torch_dtype": None}}

    assert read(config).model_type == "gemma3_text"
    assert read(config).layers == read(config["text_config"]).layers
    assert layouts(read(half))[0].dtype == "float16"
    with pytest.raises(ConfigError, match=r"config\.json: text_config: num_hidden_layers: missing"):
        read({**config, "text_config": {"model_type": "gemma3_text"}})
    with pytest.raises(ConfigError, match="text_config: an object is needed"):
        read({**config, "text_config": ["gemma3_text"]})


def test_what_a_saved_config_leaves_out_is_its_class_default(published: Any, read: Any) -> None:
    """Google's Gemma 3 file has no head counts, no head size and no pattern: the class has them."""
    text = published("gemma-3-4b-it")["text_config"]
    bare = {name: text[name] for name in ("model_type", "hidden_size", "num_hidden_layers", "sliding_window")}

    assert read({"model_type": "gemma3", "text_config": bare}).layers == read(text).layers


def test_window_switches(read: Any) -> None:
    """Qwen's window counts only where it is switched on; Mistral's where it is not null."""
    qwen = {**LLAMA, "model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 64, "max_window_layers": 3}
    mistral = {**LLAMA, "model_type": "mistral", "num_hidden_layers": 2}

    assert kinds(read({**qwen, "use_sliding_window": False})) == "ffff"
    assert kinds(read({**qwen, "use_sliding_window": True})) == "fffw"
    assert kinds(read({**mistral, "sliding_window": None})) == "ff"
    assert kinds(read({**mistral, "sliding_window": 4096})) == "ww"
    with pytest.raises(ConfigError, match="use_sliding_window: true or false"):
        read({**qwen, "use_sliding_window": "no"})


def test_repeating_blocks(published: Any, read: Any) -> None:
    """RecurrentGemma repeats its block pattern to the layer count; another word in it is refused."""
    assert kinds(read(published("recurrentgemma-2b", num_hidden_layers=5))) == "sswss"
    with pytest.raises(ConfigError, match=r"block_types\[0\]: 'warp'"):
        read(published("recurrentgemma-2b", _block_types=["warp"]))


def test_sharing_needs_an_owner(published: Any, read: Any) -> None:
    """Gemma 3n cannot share a kind of layer of which none owns rows, nor more layers than it has."""
    with pytest.raises(ConfigError, match=r"num_kv_shared_layers: layer .* would share a full layer"):
        read(published("gemma-3n-e4b", num_kv_shared_layers=32))
    with pytest.raises(ConfigError, match="num_kv_shared_layers: 36 of 35"):
        read(published("gemma-3n-e4b", num_kv_shared_layers=36))


def test_layers_of_their_own_sizes(read: Any) -> None:
    """Gemma 4's full layers have wider heads, said for the model or layer by layer."""
    config = {
        **LLAMA,
        "model_type": "gemma4_text",
        "num_hidden_layers": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"],
    }

    for said in ({"global_head_dim": 512}, {"per_layer_config": {"01": {"head_dim": 512}}}):
        assert [layout.head_dim for layout in layouts(read({**config, **said}))] == [256, 512]


def test_state_dtype_beside_a_convolution_in_the_models(published: Any, read: Any) -> None:
    """Matrices are float32 unless the config says otherwise; convolutions follow the model, never a quantised cache."""
    nano = published("nemotron-3-nano-30b-a3b")
    state = read(nano, dtype="fp8").layers[0].part("state").layout
    half = read({**nano, "mamba_ssm_cache_dtype": "bfloat16"}, dtype="float16").layers[0].part("state").layout

    assert (state.conv_dtype, state.state_dtype) == ("bfloat16", "float32")
    assert (half.conv_dtype, half.state_dtype) == ("float16", "bfloat16")


def test_a_one_byte_cache(published: Any, read: Any) -> None:
    """In 8 bits a plain latent row is 576 bytes; the sparse kernels pack codes, scales and rotations in 656."""
    plain = plan_storage(read(published("deepseek-v3"), dtype="fp8").layers)
    sparse = read(published("deepseek-v3.2"), dtype="fp8")

    assert plain["full"].entry_bytes == Fraction(61 * 576)
    assert plan_storage(sparse.layers)["full"].entry_bytes == 61 * (656 + 132)
    assert "packed" in sparse.notes[0]


def test_two_attention_blocks_in_a_layer(read: Any) -> None:
    """LongCat-Flash runs attention twice in each of its layers, and keeps rows for both."""
    config = {"num_layers": 28, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}

    assert read({"model_type": "longcat_flash", **config}).num_layers == 56


def test_one_geometry_is_one_value(published: Any, read: Any) -> None:
    """Layers of equal size share one layout value, so that planning a deep model costs no more than it must."""
    assert len({id(layout) for layout in layouts(read(published("llama-3.1-70b")))}) == 1
