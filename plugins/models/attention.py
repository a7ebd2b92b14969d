"""Readers of models with keys and values per head in every layer: full, windowed, chunked, interleaved."""

from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece
from kvarena.plugins.models.patterns import cut_list, every, layer_count, lifetime_of, listed_words, outline, words_at
from kvarena.plugins.models.tokens import heads_of

_PATTERNS = {
    "afmoe": "global_attn_every_n_layers",
    "gemma3_text": "_sliding_window_pattern",
}
_PERIODS = {
    "afmoe": 4,
    "cohere2": 4,
    "cohere2_moe": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gpt_oss": 2,
    "olmo3": 4,
}
"""Every how many layers one is full attention, by the model class, where its config does not say."""


def attention_layer(config: Fields, word: str) -> LayerOutline:
    """One layer with keys and values of the lifetime that the word stands for; nothing for ``none``."""
    if word == "none":
        return LayerOutline("none")
    if word not in ("full", "window", "chunk"):
        raise config.error("layer_types", f"{config.model_type!r} has no recurrent layers, and one is listed")
    return LayerOutline(word, (Piece(heads_of(config, config.cache_dtype), lifetime_of(config, word)),))


def read_full(config: Fields) -> Outline:
    """Full attention everywhere, unless ``layer_types`` says otherwise (Llama, Qwen-MoE, Granite, GLM-4, ...)."""
    words, notes = listed_words(config)
    return outline(config, words or ["full"] * layer_count(config), attention_layer, notes=notes)


def read_windowed(config: Fields) -> Outline:
    """One window in every layer where ``sliding_window`` is set, else full (Mistral, Mixtral, Phi-3, StarCoder2)."""
    words, notes = listed_words(config)
    word = "window" if config.get("sliding_window") is not None else "full"
    return outline(config, words or [word] * layer_count(config), attention_layer, notes=notes)


def read_qwen(config: Fields) -> Outline:
    """Windows from layer ``max_window_layers`` on, and only where ``use_sliding_window`` is true (Qwen 2, 3)."""
    words, notes = listed_words(config)
    if words is None:
        count = layer_count(config)
        first = config.whole("max_window_layers", default=28, least=0) if config.flag("use_sliding_window") else count
        words = words_at(count, [index >= first for index in range(count)], yes="window", no="full")
    return outline(config, words, attention_layer, notes=notes)


def read_interleaved(config: Fields) -> Outline:
    """Windows with a full layer at the end of each period (Gemma 2 and 3, Command R7B, gpt-oss, OLMo 3, EXAONE 4).

    The layers come from ``layer_types``, else from the pattern that the config gives, else from the model
    class. Attention sinks (gpt-oss) are learned logits: they keep no rows.
    """
    words, notes = listed_words(config)
    if words is None:
        words = _from_pattern(config, layer_count(config))
    return outline(config, words, attention_layer, notes=notes)


def _from_pattern(config: Fields, count: int) -> list[str]:
    name = _PATTERNS.get(config.model_type, "sliding_window_pattern")
    pattern = config.get("sliding_window_pattern", name)
    if config.get("sliding_window") is None:
        return ["full"] * count
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise config.error("sliding_window_pattern", f"{pattern!r} is not made of L (window) and G (full)")
        words = ["full" if pattern[index % len(pattern)] == "G" else "window" for index in range(count)]
        return [*words[:-1], "full"]
    period = config.whole("sliding_window_pattern", name, default=_PERIODS.get(config.model_type))
    return words_at(count, every(count, period, offset=-1), no="window")


def read_gemma3(config: Fields) -> Outline:
    """Gemma 3: as interleaved; its published text config leaves out head counts and pattern."""
    known = {"num_attention_heads": 8, "sliding_window": 4096}
    absent = {name: value for name, value in known.items() if name not in config.data}
    return read_interleaved(config.having(absent))


def read_llama4(config: Fields) -> Outline:
    """Llama 4: layers without rotary positions attend to everything, the rest inside chunks of tokens.

    ``no_rope_layers`` is 1 where a layer *has* rotary positions; without it every fourth layer has none.
    """
    words, notes = listed_words(config)
    count = layer_count(config)
    rotary = config.wholes("no_rope_layers")
    if words is None and rotary:
        rotary, notes = cut_list(config, "no_rope_layers", rotary, count)
        words = words_at(count, [not has for has in rotary], no="chunk")
    if words is None:
        interval = config.whole("no_rope_layer_interval", default=4)
        words = words_at(count, every(count, interval, offset=-1), no="chunk")
    if config.get("attention_chunk_size") is None:
        words = ["full" if word == "chunk" else word for word in words]
    return outline(config, words, attention_layer, notes=notes)


def read_smollm3(config: Fields) -> Outline:
    """SmolLM 3: full attention; windows only where asked for, on the layers without rotary positions."""
    words, notes = listed_words(config)
    count = layer_count(config)
    if words is None and not config.flag("use_sliding_window"):
        words = ["full"] * count
    if words is None:
        rotary = config.wholes("no_rope_layers")
        interval = config.whole("no_rope_layer_interval", default=4)
        bare = [not has for has in rotary[:count]] if rotary else every(count, interval, offset=-1)
        words = words_at(count, bare, yes="window", no="full")
    return outline(config, words, attention_layer, notes=notes)


def read_gemma3n(config: Fields) -> Outline:
    """Gemma 3n and 4: the last ``num_kv_shared_layers`` own no rows and read the last layer of their kind below.

    Gemma 4's full layers have heads of their own size (``global_head_dim``) where no ``per_layer_config`` says so.
    """
    count = layer_count(config)
    words, notes = listed_words(config)
    if words is None:
        period = 5 if config.model_type.startswith("gemma3n") else 6
        words = words_at(count, every(count, period, offset=-1), no="window")
    owners = count - config.whole("num_kv_shared_layers", default=0, least=0)
    if owners < 0:
        raise config.error("num_kv_shared_layers", f"{count - owners} of {count} layers cannot share")
    layers = list(outline(config, words, _gemma4_layer).layers)
    for index in range(owners, count):
        source = next((owner for owner in reversed(range(owners)) if words[owner] == words[index]), None)
        if source is None:
            raise config.error(
                "num_kv_shared_layers", f"layer {index} would share a {words[index]} layer, and none owns rows"
            )
        layers[index] = LayerOutline("shared", (), source)
    return Outline(tuple(layers), notes=notes)


def _gemma4_layer(config: Fields, word: str) -> LayerOutline:
    wide = config.get("global_head_dim")
    if word == "full" and wide is not None and "per_layer_config" not in config.data:
        few = config.get("num_global_key_value_heads") if config.flag("attention_k_eq_v") else None
        own = {"head_dim": wide, "num_key_value_heads": few or config.get("num_key_value_heads")}
        config = config.having(own)
    return attention_layer(config, word)


def read_mimo_v2(config: Fields) -> Outline:
    """MiMo-V2: keys of 192 beside values of 128, and windows with heads of their own.

    ``hybrid_layer_pattern`` is 1 for a window; ``swa_*`` are the window layers' sizes. A
    ``sliding_window_size`` counts the tokens before the current one.
    """
    words, notes = listed_words(config)
    count = layer_count(config)
    pattern = config.wholes("hybrid_layer_pattern")
    if words is None and pattern is not None:
        pattern, notes = cut_list(config, "hybrid_layer_pattern", pattern, count)
        words = words_at(count, [bool(flag) for flag in pattern], yes="window", no="full")
    if words is None:
        full = [index == 0 or (index + 1) % 6 == 0 for index in range(count)]
        words = words_at(count, full, no="window")
    return outline(config, words, _mimo_layer, notes=notes)


def _mimo_layer(config: Fields, word: str) -> LayerOutline:
    own: dict[str, int] = {}
    if word == "window":
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"):
            if config.get(f"swa_{name}") is not None:
                own[name] = config.whole(f"swa_{name}")
        if config.get("sliding_window_size") is not None:
            own["sliding_window"] = config.whole("sliding_window_size") + 1
    return attention_layer(config.having(own), word)


def read_step3(config: Fields) -> Outline:
    """Step 3.5 and 3.7: ``layer_types`` with draft layers behind.

    Published under names of its own: ``num_attention_groups`` are KV heads, ``attention_other_setting``
    the sizes of the window layers.
    """
    if config.get("num_key_value_heads") is None and config.get("num_attention_groups") is not None:
        config = config.having({"num_key_value_heads": config.whole("num_attention_groups")})
    words, notes = listed_words(config)
    return outline(config, words or ["full"] * layer_count(config), _step3_layer, notes=notes)


def _step3_layer(config: Fields, word: str) -> LayerOutline:
    other = config.group("attention_other_setting")
    if word == "window" and other is not None:
        names = {
            "num_attention_heads": "num_attention_heads",
            "num_attention_groups": "num_key_value_heads",
            "head_dim": "head_dim",
        }
        config = config.having({ours: other.whole(name) for name, ours in names.items() if other.get(name) is not None})
    return attention_layer(config, word)
