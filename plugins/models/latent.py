"""Readers of models that keep one latent row per token for all heads (DeepSeek V2 to V4)."""

import attrs

from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece
from kvarena.plugins.models.patterns import cut_list, layer_count, outline, window_of
from kvarena.plugins.models.tokens import IndexKeys, LatentHeads, SharedRow
from kvarena.terms.fields import DTYPE_BYTES
from kvarena.terms.lifetimes import Full
from kvarena.terms.units import align_up, ceil_div

_FULL = Full()
_SCALE_BLOCK = 128
_V4_RATIOS = (0, 4, 128)
_INDEXED_RATIO = 4
_V4_WORDS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def latent_heads(config: Fields, *, packed: bool = False) -> LatentHeads:
    """The latent row of a config: kv_lora_rank + qk_rope_head_dim, whatever ``num_key_value_heads`` says.

    ``packed`` asks for the sparse kernels' 8-bit row where the cache's dtype has one byte: codes, a float32
    scale per 128 of them, and the rotated items in bfloat16.
    """
    rank = config.whole("kv_lora_rank")
    rope = config.whole("qk_rope_head_dim", least=0)
    dtype = config.cache_dtype
    one_byte = packed and DTYPE_BYTES[dtype] == 1
    return LatentHeads(
        query_heads=config.whole("num_attention_heads"),
        kv_lora_rank=rank,
        rope_dim=rope,
        nope_dim=config.whole("qk_nope_head_dim", default=128),
        v_head_dim=config.whole("v_head_dim", default=128),
        q_lora_rank=config.whole("q_lora_rank", default=0, least=0),
        dtype=dtype,
        packed_bytes=rank + 4 * ceil_div(rank, _SCALE_BLOCK) + 2 * rope if one_byte else 0,
    )


def mla_layer(config: Fields, word: str) -> LayerOutline:
    """One layer with a latent row per token."""
    return LayerOutline("mla", (Piece(latent_heads(config), _FULL),))


def read_mla(config: Fields) -> Outline:
    """Latent rows in every layer (DeepSeek V2, V3, R1, Kimi K2)."""
    return outline(config, ["full"] * layer_count(config), mla_layer)


def read_longcat(config: Fields) -> Outline:
    """LongCat-Flash: two attention blocks in every one of ``num_layers``, so twice as many latent rows."""
    count = layer_count(config)
    return outline(config, ["full"] * (2 * count), mla_layer, feed_forward=["sparse", "dense"] * count)


def read_mla_sparse(config: Fields) -> Outline:
    """Latent rows and indexer keys in every layer (DeepSeek V3.2). A query reads ``index_topk`` latent rows."""
    count = layer_count(config)
    packed = DTYPE_BYTES[config.cache_dtype] == 1
    notes = ["8-bit latent rows are packed with their scales, as the sparse kernels need them"] if packed else []
    return outline(config, ["full"] * count, _sparse_layer, notes=notes)


def _sparse_layer(config: Fields, word: str) -> LayerOutline:
    heads = latent_heads(config, packed=True)
    topk = config.whole("index_topk") if config.get("index_topk") is not None else None
    return LayerOutline("mla+index", (Piece(heads, _FULL, rows_max=topk), Piece(index_keys(config), _FULL, "index")))


def index_keys(config: Fields) -> IndexKeys:
    """The indexer's key per token."""
    return IndexKeys(
        heads=config.whole("index_n_heads", default=64),
        head_dim=config.whole("index_head_dim"),
        q_lora_rank=config.whole("q_lora_rank", default=0, least=0),
    )


def read_deepseek_v4(config: Fields) -> Outline:
    """DeepSeek V4: a window of packed rows in every layer, and compressed rows beside it in most.

    A layer of ratio 4 also keeps one row and one indexer key per 4 tokens, one of ratio 128 a row per 128.
    The compressor's few rows in progress are per request and are not counted.
    """
    count = layer_count(config)
    ratios, notes = _ratios(config, count)
    layers = tuple(_v4_layer(config, ratio, indexed=indexed) for ratio, indexed in ratios)
    return Outline(layers, notes=notes)


def _ratios(config: Fields, count: int) -> tuple[list[tuple[int, bool]], list[str]]:
    """Per layer its tokens per compressed row (0 for none) and whether it has indexer keys; and notes."""
    ratios = config.wholes("compress_ratios")
    if ratios is not None:
        kept, notes = cut_list(config, "compress_ratios", ratios, count)
        for index, ratio in enumerate(kept):
            if ratio not in _V4_RATIOS:
                raise config.error(f"compress_ratios[{index}]", f"{ratio} is not one of {_V4_RATIOS}")
        return [(ratio, ratio == _INDEXED_RATIO) for ratio in kept], notes
    words = config.items("layer_types")
    if words is None:
        raise config.error("compress_ratios", "missing; each layer's compression must be given")
    words, notes = cut_list(config, "layer_types", words, count)
    rates = config.group("compress_rates")
    found = []
    for index, word in enumerate(words):
        if word not in _V4_WORDS:
            raise config.error(f"layer_types[{index}]", f"{word!r} is not one of {', '.join(_V4_WORDS)}")
        rate = rates.whole(word, default=_V4_WORDS[word]) if rates and _V4_WORDS[word] else _V4_WORDS[word]
        found.append((rate, _V4_WORDS[word] == _INDEXED_RATIO))
    return found, notes


def _v4_layer(config: Fields, ratio: int, *, indexed: bool) -> LayerOutline:
    head_dim, rope = config.whole("head_dim"), config.whole("qk_rope_head_dim")
    row = SharedRow(
        query_heads=config.whole("num_attention_heads"),
        head_dim=head_dim,
        row_bytes=head_dim - rope + 2 * rope + align_up(ceil_div(head_dim - rope, 64), 8),
        q_lora_rank=config.whole("q_lora_rank"),
        o_groups=config.whole("o_groups", default=1),
        o_lora_rank=config.whole("o_lora_rank"),
    )
    pieces = [Piece(row, window_of(config))]
    kind = "window_latent"
    if ratio:
        topk = config.whole("index_topk") if indexed and config.get("index_topk") is not None else None
        pieces.append(Piece(attrs.evolve(row, projections=False), _FULL, "compressed", ratio, topk))
        kind += f"+compressed{ratio}"
        if indexed:
            pieces.append(Piece(index_keys(config), _FULL, "index", ratio))
            kind += "+index"
    return LayerOutline(kind, tuple(pieces))
