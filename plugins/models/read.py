"""Read a config.json from disk, and a model from a config: the front door of this room."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.kv_layout import REPLACED, KvLayout
from kvarena.plugins.models.outline import Outline, rank_layers
from kvarena.plugins.models.parameters import estimate
from kvarena.plugins.models.spec import ModelSpec
from kvarena.plugins.models.unknown import read_unknown
from kvarena.terms.errors import ConfigError, PluginError
from kvarena.terms.fields import dtype_name

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where multimodal configs keep their language model."""

_INHERITED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config", "quantization")
"""What a nested language model takes from the config around it where it says nothing itself."""


TP_MAX = 1 << 14
"""More ranks than any model is cut over; KV heads beyond their count are copies, so no count would be refused."""


class Plugins(Protocol):
    """What is asked of the catalog here."""

    def names(self, kind: str) -> tuple[str, ...]: ...

    def load(self, kind: str, name: str) -> Any: ...


def read_config(path: str | Path) -> dict[str, Any]:
    """The object in a config.json; a folder means the config.json in it.

    The bare literals ``Infinity`` and ``NaN`` are read, since published configs have them.

    Raises:
        ConfigError: there is no such file, or it holds no JSON object; with line and column where it breaks.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give a config.json, or a model folder with one in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}; give a config.json") from error
    if not text.strip():
        raise ConfigError(f"{file}: the file is empty; a model's config.json is a JSON object")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}: line {error.lineno}, column {error.colno}: {error.msg}; is it whole?") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply to be a model's config.json") from None
    if not isinstance(data, dict):
        word = "a list" if isinstance(data, list) else f"the value {str(data)[:40]!r}"
        raise ConfigError(f"{file}: {word} instead of an object; a model's config.json is a JSON object")
    return data


def read_model(
    config: Mapping[str, Any],
    *,
    tp: int = 1,
    dtype: str | None = None,
    source: str = "config.json",
    catalog: Plugins | None = None,
    kv_layout: KvLayout | None = None,
) -> ModelSpec:
    """A model's layers and figures, from the object in its config.json or from ``config.to_dict()`` of transformers.

    ``tp`` is the number of tensor-parallel ranks; the layers are those of one. ``dtype`` is that of keys
    and values, None for the config's own. ``source`` names the config in messages and notes. ``catalog``
    is where readers and layouts are found; None for all that is installed. ``kv_layout`` keeps keys and values
    per head in place of ``mha``.

    Raises:
        ConfigError: a field is missing or wrong, a layer's kind is unknown, ranks do not divide a head count, or
            ``kv_layout`` cannot keep what the model has.
        PluginError: the reader of this model type is broken, or two plugins offer one.
    """
    plugins = catalog if catalog is not None else Catalog.installed()
    fields = _fields(config, source, dtype)
    if not isinstance(tp, int) or isinstance(tp, bool) or not 1 <= tp <= TP_MAX:
        raise ConfigError(f"tp: a whole number from 1 to {TP_MAX:,} is needed here, not {tp!r}")
    outline = _outline(fields, plugins)
    names = {piece.geometry.layout for layer in outline.layers for piece in layer.pieces}
    if kv_layout is not None and REPLACED not in names:
        raise ConfigError(f"{kv_layout.place}: {fields.source} has no keys and values per head; leave it out")
    layouts = {name: kv_layout if kv_layout and name == REPLACED else plugins.load("layouts", name) for name in names}
    try:
        layers = rank_layers(outline.layers, tp, layouts.__getitem__)
    except ConfigError as error:
        raise ConfigError(f"{fields.source}: {error}") from error
    size = estimate(fields, outline)
    return ModelSpec(
        model_type=fields.model_type,
        num_layers=len(outline.layers),
        layers=layers,
        layer_kinds=tuple(layer.kind for layer in outline.layers),
        dtype=fields.cache_dtype,
        tp=tp,
        context_max=_context(fields),
        parameters=size.total if size else None,
        active_parameters=size.active if size else None,
        state_family=outline.state_family,
        notes=outline.notes,
        outlines=outline.layers,
        layouts=layouts,
        kv_layout=kv_layout.name if kv_layout else None,
        weight_bytes_per_parameter=size.bytes_per_parameter if size else 2.0,
    )


def _fields(config: Mapping[str, Any], source: str, dtype: str | None) -> Fields:
    if not isinstance(config, Mapping):
        raise ConfigError(f"{source}: an object is needed here, not {type(config).__name__}")
    try:
        asked = None if dtype is None else dtype_name(dtype)
    except ValueError as error:
        raise ConfigError(f"dtype: {error}") from error
    return _language_model(Fields(config, source, asked))


def _language_model(config: Fields) -> Fields:
    """The values of the language model: those of the config, or those nested in a multimodal one."""
    for name in _NESTED:
        nested = config.group(name)
        if nested is None or not (nested.model_type or nested.get("num_hidden_layers", "hidden_size")):
            continue
        outer = {key: config.data[key] for key in _INHERITED if config.get(key) is not None}
        said = {key for key, value in nested.data.items() if value is not None}
        return _language_model(nested.having({key: value for key, value in outer.items() if key not in said}))
    return config


def _outline(fields: Fields, plugins: Plugins) -> Outline:
    """What the reader of this model type answers; the reader by fields where no plugin has the type."""
    known = fields.model_type in plugins.names("models")
    reader = plugins.load("models", fields.model_type) if known else read_unknown
    outline = reader(fields)
    if not isinstance(outline, Outline):
        raise PluginError(f"the reader of {fields.model_type!r} gave a {type(outline).__name__} instead of an Outline")
    return outline


def _context(fields: Fields) -> int | None:
    names = ("max_position_embeddings", "model_max_length", "max_sequence_length", "seq_length")
    return fields.whole(*names) if fields.get(*names) is not None else None
