"""Model readers that break one promise each: four layers of attention, and one thing that is nearly right."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from sabotage import saboteur

from kvarena.plugins.conformance import ReaderConformance
from kvarena.plugins.models.fields import Fields
from kvarena.plugins.models.outline import LayerOutline, Outline, Piece, cut_or_repeat
from kvarena.terms.lifetimes import Full, Lifetime, Window

NOT_INSTALLED = ("installed",)
CONFIG = {
    "model_type": "four-layers", "num_hidden_layers": 4, "num_attention_heads": 4, "window": 6, "hidden_size": 64,
    "vocab_size": 256, "intermediate_size": 128,
}  # fmt: skip
CALLS = itertools.count()


@attrs.frozen
class Heads:
    """Keys and values of so many heads."""

    heads: int
    dtype: str
    rounds_down: bool = False
    layout = "mha"

    def share(self, tp: int) -> Mapping[str, Any]:
        heads = max(1, self.heads // tp) if self.rounds_down else cut_or_repeat(self.heads, tp, "heads")
        return {"kv_heads": heads, "head_dim": 8, "dtype": self.dtype}

    def flops_per_row(self) -> float:
        return 0.0

    def weights(self, hidden_size: int) -> float:
        return 0.0


@attrs.frozen
class OtherWindow(Window):
    """A window of another width, under the same name."""

    @property
    def name(self) -> str:
        return "window-6"


class NoLifetime:
    """All that planning asks of a lifetime, and no more."""

    name = "no-lifetime"
    rank = (1, -6)
    own_ids = False

    def retained(self, length: int) -> int:
        return length

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return 1


def layers_of(
    config: Fields,
    *,
    heads: Callable[[Fields], Heads] | None = None,
    lifetimes: Callable[[int], Any] = lambda index: Full(),
    count: int | None = None,
) -> list[LayerOutline]:
    """Layers of keys and values."""
    counted = config.whole("num_hidden_layers")
    if counted > 100:
        raise config.error("num_hidden_layers", f"{counted} is absurd")
    geometry = heads(config) if heads else sound(config)
    return [LayerOutline("full", (Piece(geometry, lifetimes(index)),)) for index in range(count or counted)]


def sound(config: Fields) -> Heads:
    """The heads as the config has them."""
    heads = config.whole("num_attention_heads")
    if heads > 100:
        raise config.error("num_attention_heads", f"{heads} is absurd")
    return Heads(heads, config.cache_dtype)


def forgets_a_layer(config: Fields) -> Outline:
    """The last layer is not told of."""
    layers = layers_of(config)
    return Outline(layers[:-1] if len(layers) == 4 else layers)


def wavers(config: Fields) -> Outline:
    """Another window every time."""
    width = 6 + next(CALLS) % 2
    return Outline(layers_of(config, lifetimes=lambda index: Window(width)))


def shares_and_owns(config: Fields) -> Outline:
    """A layer reads another's memory, and has some."""
    first, *others = layers_of(config)
    return Outline([first, *(attrs.evolve(other, shares=0) for other in others)])


def two_of_a_role(config: Fields) -> Outline:
    """Keys and values twice, under one role."""
    return Outline([attrs.evolve(layer, pieces=layer.pieces * 2) for layer in layers_of(config)])


def no_lifetime(config: Fields) -> Outline:
    """What it gives for a lifetime is none."""
    return Outline(layers_of(config, lifetimes=lambda index: NoLifetime()))


def one_name_for_two(config: Fields) -> Outline:
    """Two windows of one name."""
    kinds: list[Lifetime] = [Window(6), OtherWindow(7)]
    return Outline(layers_of(config, lifetimes=lambda index: kinds[index % 2]))


def rounds_down(config: Fields) -> Outline:
    """Heads that do not divide are lost."""
    return Outline(layers_of(config, heads=lambda fields: attrs.evolve(sound(fields), rounds_down=True)))


def knows_better(config: Fields) -> Outline:
    """Always in bfloat16."""
    return Outline(layers_of(config, heads=lambda fields: attrs.evolve(sound(fields), dtype="bfloat16")))


def takes_for_granted(config: Fields) -> Outline:
    """A field that is not there is a KeyError."""
    config.data["window"]
    width = min(config.whole("window"), 100)
    return Outline(layers_of(config, lifetimes=lambda index: Window(width)))


def believes(config: Fields) -> Outline:
    """A field that is no number is a ValueError."""
    window = config.get("window")
    width = max(1, min(100, int(window))) if isinstance(window, (int, float, str)) else 4
    return Outline(layers_of(config, lifetimes=lambda index: Window(width)))


def well(config: Fields) -> Outline:
    """Nothing is wrong with this one; but nobody installed it."""
    return Outline(layers_of(config))


def _of(reader: Callable[[Fields], Outline], breaks: str, declines: tuple[str, ...] = NOT_INSTALLED) -> Any:
    return saboteur(ReaderConformance, breaks, declines, reader=lambda: reader, config=lambda: dict(CONFIG))


TestForgetsALayer = _of(forgets_a_layer, "test_gives_layers_that_keep_something")
TestWavers = _of(wavers, "test_reads_alike_every_time")
TestSharesAndOwns = _of(shares_and_owns, "test_says_whose_memory_is_shared")
TestTwoOfARole = _of(two_of_a_role, "test_names_the_parts_of_a_layer_apart")
TestNoLifetime = _of(no_lifetime, "test_gives_lifetimes")
TestOneNameForTwo = _of(one_name_for_two, "test_gives_layers_that_can_be_planned")
TestRoundsDown = _of(rounds_down, "test_shares_of_ranks_add_up")
TestKnowsBetter = _of(knows_better, "test_stores_keys_and_values_as_asked")
TestTakesForGranted = _of(takes_for_granted, "test_a_missing_field_is_done_without_or_named")
TestBelieves = _of(believes, "test_an_absurd_field_is_read_or_refused")
TestWell = _of(well, "test_is_found_by_its_model_type", ())
