"""How many parameters a model has and how many a token's forward multiplies by: estimates from its config.

Counted: embeddings (once where tied), the projections around each part, MLPs, experts, routers. Not
counted: norms, biases, multipliers, vision towers, draft (MTP) layers. Against published totals the
estimates are within a few per cent; exact weights come from the files (``weights``).
"""

import math

import attrs

from kvarena.plugins.models.classes import TIED
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import Outline
from kvarena.terms.fields import DTYPE_BYTES

_FP4_BYTES = 0.5 + 1 / 32
"""A 4-bit code and its share of an 8-bit scale per 32 codes (OCP MX)."""

_UNGATED = ("relu2", "relu_squared", "gelu_new_ungated")
"""Activations whose MLPs have two matrices instead of three."""


@attrs.frozen
class Size:
    """Parameters of the whole model, those active per token, and the mean bytes of a stored parameter."""

    total: int
    active: int
    bytes_per_parameter: float


@attrs.frozen
class _Experts:
    """The experts of one sparse layer: ``each`` is the parameters of one, ``always`` those every token uses."""

    count: int
    per_token: int
    each: float
    always: float

    @property
    def total(self) -> float:
        return self.count * self.each + self.always

    @property
    def active(self) -> float:
        return self.per_token * self.each + self.always


def estimate(config: Fields, outline: Outline) -> Size | None:
    """The size of a model; None where the config lacks a field that the estimate needs.

    ``active`` leaves out the embedding table, which is looked up, not multiplied, and keeps the output head.
    """
    hidden, vocabulary = _number(config, "hidden_size"), _number(config, "vocab_size")
    if hidden is None or vocabulary is None:
        return None
    table = float(hidden * vocabulary)
    looked_up = (0.0 if _tied(config) else table) + _layer_tables(config, len(outline.layers))
    mixers = sum(piece.geometry.weights(hidden) for layer in outline.layers for piece in layer.pieces)
    mixers += _shared_queries(outline, hidden)
    experts = _experts(config, hidden)
    kinds = _feed_forward(config, outline, experts)
    dense = sum(_dense(config, index, hidden) for index, kind in enumerate(kinds) if kind == "dense")
    sparse = kinds.count("sparse")
    total = mixers + dense + table + looked_up
    active = mixers + dense + table
    if experts is not None:
        total += sparse * experts.total
        active += sparse * experts.active
    routed = sparse * experts.count * experts.each if experts else 0.0
    return Size(int(total), int(active), _mean_bytes(config, total, routed))


def _tied(config: Fields) -> bool:
    """Whether the output head is the embedding table; where unsaid, by the model class."""
    by_class = config.model_type.startswith(TIED) or config.model_type == "mamba"
    return config.flag("tie_word_embeddings", default=by_class)


def _number(config: Fields, *names: str) -> int | None:
    return _count(config.get(*names))


def _count(value: object) -> int | None:
    """A positive finite number as a whole one, None for anything else: an estimate never stops the reading."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return int(value) if value > 0 else None


def _layer_tables(config: Fields, layers: int) -> float:
    """Embedding tables of the layers' own (Gemma 3n)."""
    width = _number(config, "hidden_size_per_layer_input") or 0
    return float(layers * width * (_number(config, "vocab_size_per_layer_input") or 0))


def _shared_queries(outline: Outline, hidden: int) -> float:
    """Layers that read another's rows still have queries and an output projection."""
    extra = 0.0
    for layer in outline.layers:
        if layer.shares is not None:
            geometry = outline.layers[layer.shares].pieces[0].geometry
            extra += geometry.weights(hidden)
    return extra


def _matrices(config: Fields) -> int:
    activation = config.get("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function")
    plain = activation in _UNGATED or config.model_type in ("starcoder2", "nemotron", "phi", "gpt_neox", "falcon")
    return 2 if plain else 3


def _dense(config: Fields, index: int, hidden: int) -> float:
    stated = config.get("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size")
    if isinstance(stated, list):
        stated = stated[index] if index < len(stated) else None
    width = _count(stated) or _number(config, "shared_intermediate_size", "block_ff_dim") or 0
    if config.model_type.startswith("recurrent_gemma"):
        width = width // 2
    if config.model_type.startswith("lfm") and config.get("block_auto_adjust_ff_dim"):
        width = int(2 * width / 3)
    return float(_matrices(config) * hidden * width)


def _experts(config: Fields, hidden: int) -> _Experts | None:
    """The experts of a sparse layer, or None for a dense model."""
    count = _number(config, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if count is None or count < 2:
        return None
    width = _number(config, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size") or 0
    per_token = _number(config, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk") or 1
    matrices = _matrices(config)
    inner = _number(config, "moe_latent_size") or hidden
    shared = _shared_width(config, width)
    always = float(matrices * hidden * shared + hidden * count)
    if inner != hidden:
        always += 2.0 * hidden * inner
    return _Experts(count, per_token, float(matrices * inner * width), always)


def _shared_width(config: Fields, width: int) -> int:
    """The width of what every token passes beside its experts."""
    whole = _number(
        config,
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    )
    if whole is not None:
        return whole
    if config.model_type.startswith("llama4"):
        return width
    return width * (_number(config, "n_shared_experts", "num_shared_experts") or 0)


def _feed_forward(config: Fields, outline: Outline, experts: _Experts | None) -> list[str]:
    """``dense``, ``sparse`` or ``none`` per layer."""
    if outline.feed_forward:
        return list(outline.feed_forward)
    count = len(outline.layers)
    listed = config.get("mlp_layer_types")
    if isinstance(listed, list) and len(listed) >= count:
        return ["dense" if word == "dense" else "sparse" for word in listed[:count]]
    if experts is None:
        return ["dense"] * count
    first = _number(config, "first_k_dense_replace", "num_dense_layers") or 0
    step = _number(config, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    plain = config.get("mlp_only_layers")
    bare = {index for index in plain if isinstance(index, int)} if isinstance(plain, list) else set()
    return ["dense" if index < first or (index + 1) % step or index in bare else "sparse" for index in range(count)]


def _mean_bytes(config: Fields, total: float, routed: float) -> float:
    """Bytes per stored parameter by ``quantization_config``; 4-bit formats apply to the experts, or to all.

    Embeddings and norms that a format leaves in 16 bits are not told apart: a few per cent at most.
    """
    plain = float(DTYPE_BYTES[config.dtype("dtype", "torch_dtype", default="bfloat16")])
    quantised = config.get("quantization_config", "quantization")
    method = str(quantised.get("quant_method", "")) if isinstance(quantised, dict) else ""
    four = _FP4_BYTES if config.get("expert_dtype") == "fp4" or method in ("mxfp4", "nvfp4") else None
    eight = 1.0 if method in ("fp8", "compressed-tensors", "modelopt", "fbgemm_fp8") else plain
    bits = quantised.get("bits") if isinstance(quantised, dict) else None
    if isinstance(bits, int) and 2 <= bits <= 8:
        eight = bits / 8
    if four is not None and total:
        return (routed * four + (total - routed) * eight) / total
    return eight
