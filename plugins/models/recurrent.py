"""Readers of Mamba, Griffin and short-convolution models, alone or beside attention."""

from collections.abc import Callable

from kvarena.plugins.models.attention import attention_layer
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece
from kvarena.plugins.models.patterns import (
    LETTERS,
    cut_list,
    every,
    indexed,
    layer_count,
    listed_words,
    outline,
    window_of,
    words_at,
)
from kvarena.plugins.models.states import (
    Mamba1State,
    Mamba2State,
    RgLruState,
    ShortConvState,
    conv_dtype,
    state_dtype,
)
from kvarena.plugins.models.tokens import heads_of
from kvarena.terms.lifetimes import Full, State

StateOf = Callable[[Fields], Mamba1State | Mamba2State | RgLruState | ShortConvState]


def mixed_layer(config: Fields, word: str, state_of: StateOf) -> LayerOutline:
    """One layer with a state, with attention, with both (``hybrid``), or with nothing."""
    if word not in ("state", "hybrid"):
        return attention_layer(config, word)
    state = state_of(config)
    kept = Piece(state, State(), "state")
    if word == "state":
        return LayerOutline(f"state:{state.family}", (kept,))
    heads = heads_of(config, config.cache_dtype)
    return LayerOutline(f"full+state:{state.family}", (Piece(heads, Full()), kept))


def mamba2_of(config: Fields) -> Mamba2State:
    """Mamba-2 with the ``mamba_*`` names of Bamba, Granite 4 and Falcon-H1, or those of Zamba 2.

    The inner width is heads * head size: ``mamba_d_ssm`` where given, ``mamba_expand`` times hidden else.
    """
    heads = config.whole("mamba_n_heads", "n_mamba_heads")
    width = config.whole("mamba_d_ssm", default=config.whole("mamba_expand", default=2) * config.whole("hidden_size"))
    size = config.get("mamba_d_head", "mamba_headdim")
    if size in (None, "auto") and width % heads:
        raise config.error("mamba_n_heads", f"an inner width of {width} over {heads} heads is not whole")
    return Mamba2State(
        heads=heads,
        head_dim=width // heads if size in (None, "auto") else config.whole("mamba_d_head", "mamba_headdim"),
        groups=config.whole("mamba_n_groups", "mamba_ngroups", default=1),
        state_size=config.whole("mamba_d_state"),
        columns=config.whole("mamba_d_conv") - 1,
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _nemotron_state(config: Fields) -> Mamba2State:
    """``mamba_num_heads * mamba_head_dim`` is the inner width; ``expand`` is a decoy."""
    return Mamba2State(
        heads=config.whole("mamba_num_heads"),
        head_dim=config.whole("mamba_head_dim"),
        groups=config.whole("n_groups"),
        state_size=config.whole("ssm_state_size"),
        columns=config.whole("conv_kernel") - 1,
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _plain_mamba2(config: Fields) -> Mamba2State:
    """A pure Mamba-2: ``head_dim`` is the state's head, ``num_heads`` its heads."""
    return Mamba2State(
        heads=config.whole("num_heads"),
        head_dim=config.whole("head_dim"),
        groups=config.whole("n_groups"),
        state_size=config.whole("state_size"),
        columns=config.whole("conv_kernel") - 1,
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _mamba1_of(config: Fields) -> Mamba1State:
    hidden = config.whole("hidden_size")
    return Mamba1State(
        width=config.whole("mamba_expand") * hidden,
        columns=config.whole("mamba_d_conv") - 1,
        state_size=config.whole("mamba_d_state"),
        dt_rank=_dt_rank(config, "mamba_dt_rank", hidden),
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _plain_mamba1(config: Fields) -> Mamba1State:
    hidden = config.whole("hidden_size")
    return Mamba1State(
        width=config.whole("intermediate_size", default=config.whole("expand", default=2) * hidden),
        columns=config.whole("conv_kernel") - 1,
        state_size=config.whole("state_size"),
        dt_rank=_dt_rank(config, "time_step_rank", hidden),
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _dt_rank(config: Fields, name: str, hidden: int) -> int:
    return -(-hidden // 16) if config.get(name) in (None, "auto") else config.whole(name)


def _rg_lru_of(config: Fields) -> RgLruState:
    return RgLruState(
        width=config.whole("lru_width", default=config.whole("hidden_size")),
        columns=config.whole("conv1d_width", default=4) - 1,
        blocks=config.whole("num_attention_heads"),
        conv_dtype=conv_dtype(config),
        state_dtype=state_dtype(config),
    )


def _short_conv_of(config: Fields) -> ShortConvState:
    return ShortConvState(
        width=config.whole("hidden_size"), columns=config.whole("conv_L_cache") - 1, conv_dtype=conv_dtype(config)
    )


def read_jamba(config: Fields) -> Outline:
    """Jamba: Mamba 1, with attention where ``index % attn_layer_period == attn_layer_offset``."""
    count = layer_count(config)
    words, notes = listed_words(config)
    if words is None:
        period, offset = config.whole("attn_layer_period"), config.whole("attn_layer_offset", least=0)
        words = words_at(count, every(count, period, offset=offset))
    experts = every(
        count,
        config.whole("expert_layer_period", default=1),
        offset=config.whole("expert_layer_offset", default=0, least=0),
    )
    sparse = config.whole("num_experts", default=1) > 1
    feed_forward = ["sparse" if sparse and chosen else "dense" for chosen in experts]
    return outline(
        config,
        words,
        lambda at, word: mixed_layer(at, word, _mamba1_of),
        notes=notes,
        family="mamba1",
        feed_forward=feed_forward,
    )


def read_bamba(config: Fields) -> Outline:
    """Bamba: Mamba 2, with attention at ``attn_layer_indices``."""
    count = layer_count(config)
    words, notes = listed_words(config)
    if words is None:
        chosen = indexed(config, "attn_layer_indices", count)
        if chosen is None and "attn_layer_indices" not in config.data:
            raise config.error("attn_layer_indices", "missing; the attention layers must be named")
        words = words_at(count, chosen or [False] * count)
    return outline(config, words, lambda at, word: mixed_layer(at, word, mamba2_of), notes=notes, family="mamba2")


def read_granite_hybrid(config: Fields) -> Outline:
    """Granite 4: Mamba 2 and attention by ``layer_types``, in the words ``mamba`` and ``attention``."""
    words, notes = listed_words(config)
    if words is None:
        raise config.error("layer_types", "missing; each layer's kind must be given")
    return outline(config, words, lambda at, word: mixed_layer(at, word, mamba2_of), notes=notes, family="mamba2")


def read_falcon_h1(config: Fields) -> Outline:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    words = ["hybrid"] * layer_count(config)
    return outline(config, words, lambda at, word: mixed_layer(at, word, mamba2_of), family="mamba2")


def read_zamba2(config: Fields) -> Outline:
    """Zamba 2: Mamba 2 in every layer; a ``hybrid`` one also has attention, with shared weights and rows of its own."""
    words, notes = listed_words(config, "layers_block_type", "layer_types")
    if words is None:
        chosen = indexed(config, "hybrid_layer_ids", layer_count(config))
        if chosen is None:
            raise config.error("layers_block_type", "missing; the layers with attention must be named")
        words = words_at(layer_count(config), chosen, yes="hybrid")
    return outline(config, words, lambda at, word: mixed_layer(at, word, mamba2_of), notes=notes, family="mamba2")


def read_nemotron_h(config: Fields) -> Outline:
    """Nemotron-H and 3: one mixer a layer, by ``layers_block_type`` or by a pattern of letters.

    M is Mamba 2, ``*`` attention, ``-`` an MLP, E experts.
    """
    words, notes = listed_words(config, "layers_block_type", "layer_types")
    if words is not None:
        listed = config.items("layers_block_type", "layer_types") or []
        feed_forward = [{"mlp": "dense", "moe": "sparse"}.get(word, "none") for word in listed]
    else:
        pattern = config.get("hybrid_override_pattern")
        if not isinstance(pattern, str):
            raise config.error("hybrid_override_pattern", "missing; each layer's kind must be given")
        letters, notes = cut_list(config, "hybrid_override_pattern", list(pattern), layer_count(config))
        for index, letter in enumerate(letters):
            if letter not in LETTERS:
                raise config.error(f"hybrid_override_pattern[{index}]", f"{letter!r} is not one of {' '.join(LETTERS)}")
        words = [LETTERS[letter] for letter in letters]
        feed_forward = [{"-": "dense", "E": "sparse"}.get(letter, "none") for letter in letters]
    return outline(
        config,
        words,
        lambda at, word: mixed_layer(at, word, _nemotron_state),
        notes=notes,
        family="mamba2",
        feed_forward=feed_forward,
    )


def read_mamba2(config: Fields) -> Outline:
    """A pure Mamba 2: no rows per token at all."""
    words = ["state"] * layer_count(config)
    return outline(
        config,
        words,
        lambda at, word: mixed_layer(at, word, _plain_mamba2),
        family="mamba2",
        feed_forward=["none"] * len(words),
    )


def read_mamba(config: Fields) -> Outline:
    """A pure Mamba 1 (Mamba, Falcon-Mamba): no rows per token at all."""
    words = ["state"] * layer_count(config)
    return outline(
        config,
        words,
        lambda at, word: mixed_layer(at, word, _plain_mamba1),
        family="mamba1",
        feed_forward=["none"] * len(words),
    )


def read_lfm2(config: Fields) -> Outline:
    """LFM 2 and 3: gated short convolutions, with attention by ``layer_types`` or ``full_attn_idxs``."""
    count = layer_count(config)
    words, notes = listed_words(config)
    if words is None:
        chosen = indexed(config, "full_attn_idxs", count)
        if chosen is None:
            raise config.error("layer_types", "missing (or full_attn_idxs); each layer's kind must be given")
        words = words_at(count, chosen)
    return outline(
        config, words, lambda at, word: mixed_layer(at, word, _short_conv_of), notes=notes, family="short_conv"
    )


def read_recurrent_gemma(config: Fields) -> Outline:
    """RecurrentGemma: a pattern of blocks that repeats to the layer count; its attention is windowed."""
    count = layer_count(config)
    blocks = config.items("block_types", "_block_types") or ["recurrent", "recurrent", "attention"]
    for index, block in enumerate(blocks):
        if block not in ("recurrent", "attention"):
            raise config.error(f"block_types[{index}]", f"{block!r} is neither recurrent nor attention")
    words = ["state" if blocks[index % len(blocks)] == "recurrent" else "window" for index in range(count)]
    window_of(config)
    return outline(config, words, lambda at, word: mixed_layer(at, word, _rg_lru_of), family="rg_lru")
