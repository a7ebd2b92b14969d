"""What each layer is: from lists of words, patterns, intervals, offsets and index lists to one word a layer.

The words: ``full``, ``window``, ``chunk``, ``state``, ``hybrid`` (full attention and a state together) and
``none`` (an MLP or experts alone).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window

WORDS: Mapping[str, str] = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "global": "full",
    "global_attention": "full",
    "sliding_attention": "window",
    "sliding_window_attention": "window",
    "sliding_window": "window",
    "sliding": "window",
    "local": "window",
    "local_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "short_conv": "state",
    "recurrent": "state",
    "hybrid": "hybrid",
    "mlp": "none",
    "moe": "none",
}
"""Words seen in published configs and in transformers, old and new, and what a layer of that word keeps."""

LETTERS: Mapping[str, str] = {"M": "state", "*": "full", "-": "none", "E": "none"}
"""The letters of Nemotron-H's ``hybrid_override_pattern``: Mamba-2, attention, MLP, experts."""

LAYERS_MAX = 10_000
"""More layers than any model has: a larger count is a mistake, and would take minutes to plan."""

Item = TypeVar("Item")


def layer_count(config: Fields) -> int:
    """How many layers the model has, draft (MTP) layers not counted.

    Raises:
        ConfigError: it is not given, or no model can have so many.
    """
    count = config.whole("num_hidden_layers", "num_layers", "n_layers")
    if count > LAYERS_MAX:
        raise config.error("num_hidden_layers", f"{count} layers are more than {LAYERS_MAX}; is it the right field?")
    return count


def listed_words(config: Fields, *names: str) -> tuple[list[str] | None, list[str]]:
    """One word per layer from a list in the config, None where there is no list; and notes.

    A list longer than the layer count is cut: what follows belongs to draft (MTP) layers.

    Raises:
        ConfigError: the list is shorter than the layer count, or has a word that nobody knows.
    """
    names = names or ("layer_types", "layers_block_type")
    items = config.items(*names)
    if items is None:
        return None, []
    name = next(name for name in names if config.get(name) is not None)
    counted = config.get("num_hidden_layers", "num_layers", "n_layers") is not None
    count = layer_count(config) if counted else len(items)
    kept, notes = cut_list(config, name, items, count)
    for index, word in enumerate(kept):
        if not isinstance(word, str) or word not in WORDS:
            finding = f"{word!r} is no kind of layer that is known; known are {', '.join(sorted(WORDS))}"
            raise config.error(f"{name}[{index}]", finding)
    return [WORDS[word] for word in kept], notes


def cut_list(config: Fields, name: str, items: Sequence[Item], count: int) -> tuple[list[Item], list[str]]:
    """The first ``count`` items, and a note where there are more.

    Raises:
        ConfigError: there are fewer.
    """
    if len(items) < count:
        raise config.error(name, f"{len(items)} entries for {count} layers; one per layer is needed")
    if len(items) == count:
        return list(items), []
    return list(items[:count]), [f"{name} has {len(items)} entries for {count} layers; the first {count} are read"]


def every(count: int, period: int, *, offset: int) -> list[bool]:
    """Which of ``count`` layers satisfy ``index % period == offset``."""
    return [index % period == offset % period for index in range(count)]


def words_at(count: int, chosen: Sequence[bool], *, yes: str = "full", no: str = "state") -> list[str]:
    """One word per layer by a truth value per layer."""
    return [yes if chosen[index] else no for index in range(count)]


def indexed(config: Fields, name: str, count: int, *, first: int = 0) -> list[bool] | None:
    """Which layers a list of indices names, None where there is no list; ``first`` is the first layer's index.

    Raises:
        ConfigError: an index outside the layers.
    """
    indices = config.wholes(name)
    if indices is None:
        return None
    for at, index in enumerate(indices):
        if not first <= index < count + first:
            raise config.error(f"{name}[{at}]", f"layer {index} is outside {first}..{count + first - 1}")
    return [index + first in set(indices) for index in range(count)]


def window_of(config: Fields) -> Window:
    """The lifetime of a sliding-window layer.

    Raises:
        ConfigError: no window length.
    """
    return Window(config.whole("sliding_window", "sliding_window_size", "attention_window_size"))


def lifetime_of(config: Fields, word: str) -> Lifetime:
    """The lifetime that a word stands for."""
    if word == "window":
        return window_of(config)
    if word == "chunk":
        return Chunk(config.whole("attention_chunk_size"))
    return State() if word == "state" else Full()


def outline(
    config: Fields,
    words: Sequence[str],
    make: Callable[[Fields, str], LayerOutline],
    *,
    notes: Sequence[str] = (),
    family: str | None = None,
    feed_forward: Sequence[str] = (),
) -> Outline:
    """An outline with ``make(config at the layer, word)`` for each layer."""
    layers = tuple(make(config.at_layer(index), word) for index, word in enumerate(words))
    return Outline(layers, family if "state" in words or "hybrid" in words else None, tuple(notes), tuple(feed_forward))
