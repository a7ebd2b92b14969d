"""Readers of models with linear attention: gated delta rule, Kimi delta attention, lightning attention."""

from kvarena.plugins.models.attention import attention_layer
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.latent import mla_layer
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece
from kvarena.plugins.models.patterns import cut_list, every, indexed, layer_count, listed_words, outline, words_at
from kvarena.plugins.models.states import GatedDeltaState, KdaState, LightningState, conv_dtype, state_dtype
from kvarena.plugins.models.tokens import heads_of
from kvarena.terms.lifetimes import Full, State


def gated_delta_of(config: Fields) -> GatedDeltaState:
    """The state of one gated-delta layer."""
    return GatedDeltaState(
        key_heads=config.whole("linear_num_key_heads"),
        value_heads=config.whole("linear_num_value_heads"),
        key_dim=config.whole("linear_key_head_dim"),
        value_dim=config.whole("linear_value_head_dim"),
        columns=config.whole("linear_conv_kernel_dim") - 1,
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _delta_words(config: Fields) -> tuple[list[str], list[str]]:
    words, notes = listed_words(config)
    if words is None:
        count = layer_count(config)
        words = words_at(count, every(count, config.whole("full_attention_interval", default=4), offset=-1))
    return words, notes


def read_gated_delta(config: Fields) -> Outline:
    """Qwen3-Next and Qwen 3.5: gated delta layers, every ``full_attention_interval``-th with gated attention."""
    words, notes = _delta_words(config)
    return outline(config, words, _gated_layer, notes=notes, family="gated_delta_net")


def _gated_layer(config: Fields, word: str) -> LayerOutline:
    if word == "state":
        return _delta_layer(config)
    if word == "full":
        return LayerOutline("full", (Piece(heads_of(config, config.cache_dtype, gated=True), Full()),))
    return attention_layer(config, word)


def _delta_layer(config: Fields) -> LayerOutline:
    return LayerOutline("state:gated_delta_net", (Piece(gated_delta_of(config), State(), "state"),))


def read_olmo_hybrid(config: Fields) -> Outline:
    """OLMo Hybrid: gated delta layers, every fourth with plain attention."""
    words, notes = _delta_words(config)

    def layer(at: Fields, word: str) -> LayerOutline:
        return _delta_layer(at) if word == "state" else attention_layer(at, word)

    return outline(config, words, layer, notes=notes, family="gated_delta_net")


def read_kimi_linear(config: Fields) -> Outline:
    """Kimi Linear: KDA layers and MLA layers, named by 1-based lists; the top-level ``head_dim`` is a decoy."""
    count = layer_count(config)
    nested = config.group("linear_attn_config")
    words, notes = listed_words(config)
    if words is None:
        words = _kimi_words(config, nested, count)

    def layer(at: Fields, word: str) -> LayerOutline:
        if word == "full":
            return mla_layer(at, word)
        if word != "state":
            raise config.error("layer_types", f"{word!r} layers are not known in Kimi Linear")
        return LayerOutline("state:kda", (Piece(_kda_of(at, nested), State(), "state"),))

    return outline(config, words, layer, notes=notes, family="kda")


def _kimi_words(config: Fields, nested: Fields | None, count: int) -> list[str]:
    full = indexed(nested, "full_attn_layers", count, first=1) if nested else None
    states = indexed(nested, "kda_layers", count, first=1) if nested else None
    if nested is None or full is None or states is None:
        raise config.error("linear_attn_config", "missing; full_attn_layers and kda_layers must be given")
    for index in range(count):
        if full[index] == states[index]:
            where = "both full_attn_layers and kda_layers" if full[index] else "neither full_attn_layers nor kda_layers"
            raise nested.error("full_attn_layers", f"layer {index + 1} (counted from 1) is in {where}")
    return words_at(count, full)


def _kda_of(config: Fields, nested: Fields | None) -> KdaState:
    sizes = nested if nested is not None and nested.get("num_heads") is not None else config
    return KdaState(
        heads=sizes.whole("linear_num_heads", "num_heads"),
        head_dim=sizes.whole("linear_head_dim", "head_dim"),
        columns=sizes.whole("linear_conv_kernel_dim", "short_conv_kernel_size") - 1,
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def read_minimax(config: Fields) -> Outline:
    """MiniMax Text 01 and M1: lightning attention, with softmax attention where ``attn_type_list`` is 1."""
    count = layer_count(config)
    words, notes = listed_words(config)
    if words is None:
        kinds = config.wholes("attn_type_list")
        if kinds is None:
            raise config.error("attn_type_list", "missing (or layer_types); each layer's kind must be given")
        kinds, notes = cut_list(config, "attn_type_list", kinds, count)
        if set(kinds) - {0, 1}:
            raise config.error("attn_type_list", "only 0 (lightning) and 1 (softmax) are known")
        words = words_at(count, [kind == 1 for kind in kinds])
    return outline(config, words, _minimax_layer, notes=notes, family="lightning_attention")


def _minimax_layer(config: Fields, word: str) -> LayerOutline:
    if word != "state":
        return attention_layer(config, word)
    heads = heads_of(config, config.cache_dtype)
    state = LightningState(heads.query_heads, heads.head_dim, state_dtype(config))
    return LayerOutline("state:lightning_attention", (Piece(state, State(), "state"),))
