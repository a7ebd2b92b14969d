"""The reader of a model type that nobody knows: by its fields where they suffice, refused where they don't."""

from kvarena.plugins.models.attention import attention_layer
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.latent import mla_layer
from kvarena.plugins.models.outline import Outline
from kvarena.plugins.models.patterns import layer_count, listed_words, outline
from kvarena.plugins.models.tokens import heads_of

_RECURRENT = ("mamba", "ssm", "linear_", "conv_L", "conv_kernel", "lru_", "state_size", "rwkv", "kda", "recurrent")
"""Beginnings and parts of field names that speak of recurrent layers."""

_SIZES = ("kv_channels", "d_kv", "key_length", "head_size", "attention_hidden_size", "attention_head_size")
"""Other words for the size of a head: where ``head_dim`` is absent and one of these is there, none is chosen."""

_UNREAD = (
    "attn_type_list",
    "attn_layer_indices",
    "attn_layer_period",
    "block_types",
    "compress_ratios",
    "cross_attention_layers",
    "full_attention_interval",
    "full_attn_idxs",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_head_dim",
    "no_rope_layers",
    "num_kv_shared_layers",
)
"""Fields that change what layers keep, in a way that depends on the family."""


def read_unknown(config: Fields) -> Outline:
    """Attention or latent layers by the usual names of fields, with a note; nothing is guessed.

    Raises:
        ConfigError: naming the field that is missing, or that a reader of the family would have to explain.
    """
    name = config.model_type or "(none)"
    _refuse_what_depends_on_the_family(config)
    notes = [f"model type {name!r} is not known; its layers are read from its fields"]
    config.whole("num_hidden_layers")
    if config.get("kv_lora_rank") is not None:
        return outline(config, ["full"] * layer_count(config), mla_layer, notes=notes)
    words, cut = listed_words(config)
    if words is None:
        words = _words(config)
    config.whole("num_key_value_heads")
    if config.get("head_dim", "attention_head_dim") is None:
        other = next((name for name in _SIZES if config.get(name) is not None), None)
        if other is not None:
            raise config.error("head_dim", f"missing, and {other} may mean it or not; add the field")
        size = heads_of(config, config.cache_dtype).head_dim
        notes.append(f"head_dim is absent: {size}, hidden_size / num_attention_heads")
    return outline(config, words, attention_layer, notes=[*notes, *cut])


def _refuse_what_depends_on_the_family(config: Fields) -> None:
    """A field that only the family's reader can explain stops an unknown model."""
    why = f"model type {config.model_type!r} is not known, and what this means depends on the family; install a reader"
    for name in _UNREAD:
        value = config.get(name)
        if value not in (None, 0, False, []):
            raise config.error(name, why)
    listed, _ = listed_words(config)
    if listed is not None and not {"state", "hybrid"} & set(listed):
        return
    for name, value in config.data.items():
        if value is not None and any(name.startswith(part) for part in _RECURRENT):
            raise config.error(name, why)
    if listed is not None:
        raise config.error("layer_types", why)


def _words(config: Fields) -> list[str]:
    """One kind for every layer, where no list tells them apart."""
    count = layer_count(config)
    if config.get("sliding_window") is None or config.data.get("use_sliding_window") is False:
        return ["full"] * count
    raise config.error("layer_types", "missing, and sliding_window is set: which layers have the window must be given")
