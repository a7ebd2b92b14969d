"""Fields know their bytes; dtypes are read in every spelling that people use."""

import math
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms.answers import Admit, Never, Refused, Shortage, Wait
from kvarena.terms.errors import InvariantError, KvarenaError, MissingExtraError, nearest
from kvarena.terms.fields import DTYPE_BYTES, Field, dtype_name, zeroes_on_take
from kvarena.terms.invariants import invariant
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full


@pytest.mark.req("DEC-4")
@given(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 9), max_size=4))
def test_bytes_are_items_times_their_width(dtype: str, shape: list[int]) -> None:
    """A field of any type and shape, the empty shape being one item."""
    field = Field("x", dtype, shape)

    assert field.bytes == math.prod(shape) * DTYPE_BYTES[dtype]
    assert field.shape == tuple(shape)


@pytest.mark.parametrize("name", [name for name in DTYPE_BYTES if not name.startswith(("bfloat", "float8"))])
def test_widths_are_those_of_numpy(name: str) -> None:
    """Every dtype that numpy has too is as wide here as there."""
    assert DTYPE_BYTES[name] == np.dtype(name).itemsize


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("fp8", "float8_e4m3fn"),
        ("half", "float16"),
        ("fp32", "float32"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    """Short names and torch's names are the same dtypes."""
    assert dtype_name(spelling) == name


@pytest.mark.parametrize("spelling", ["bf17", "", "float", "torch.", None, "FP8"])
def test_an_unknown_dtype_lists_the_known(spelling: Any) -> None:
    """What is no dtype is answered with those that are."""
    if spelling == "float":
        assert dtype_name(spelling) == "float32"
        return
    with pytest.raises(ValueError, match=r"known are float64, .*uint8"):
        dtype_name(spelling)


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (1.5,), ("4",)])
def test_a_shape_is_made_of_whole_numbers(shape: Any) -> None:
    """Half an item, or less than none, is refused under the field's name."""
    with pytest.raises(ValueError, match="field 'x': a shape is made of whole numbers"):
        Field("x", "int8", shape)


def test_zeroing_is_the_default() -> None:
    """A layout is zeroed on take unless it declines."""

    @attrs.frozen
    class Plain:
        name = "plain"

    @attrs.frozen
    class Lax:
        name = "lax"
        zero_on_take = False

    assert zeroes_on_take(Plain())  # type: ignore[arg-type]
    assert not zeroes_on_take(Lax())  # type: ignore[arg-type]


@pytest.mark.req("DEC-1")
def test_parts_are_found_by_role() -> None:
    """A layer with several parts tells them apart by their role."""
    kv, index = Part("layout", Full()), Part("layout", Full(), "index")  # type: ignore[arg-type]
    layer = Layer(0, (kv, index))

    assert layer.part("index") is index
    assert layer.part("state") is None


@pytest.mark.parametrize(("index", "rate"), [(-1, 1), (0, 0)])
def test_a_layer_index_and_a_rate_are_checked(index: int, rate: int) -> None:
    """No layer comes before the first, and no part keeps an entry per no tokens."""
    with pytest.raises(ValueError, match="must be >="):
        Layer(index, (Part("layout", Full(), tokens_per_entry=rate),))  # type: ignore[arg-type]


def test_refusals_are_false_and_say_the_sum() -> None:
    """A refusal reads as no, and prints what was asked and what there is."""
    refused = Refused({"full": 96}, (Shortage("full", 96, 812, 6, 4096),), 44 * 4096, "96 pages do not fit")

    assert not refused
    assert not Wait(("full",), (96,), (0,))
    assert not Never("too long", 100)
    assert Admit((1, 2))
    assert str(refused) == "96 pages do not fit (full: asked 96, live 812, holes 6; 180,224 bytes free)"


def test_a_broken_promise_is_named_with_what_was_found() -> None:
    """The check's name and the values that broke it, and no error where it holds."""
    invariant("band.free_of_bound_page", True, page=3)
    with pytest.raises(InvariantError, match=r"^band\.free_of_bound_page: page=3 owner='r1'$"):
        invariant("band.free_of_bound_page", False, page=3, owner="r1")
    assert not issubclass(InvariantError, KvarenaError)


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("memry", ["memory", "page"], "did you mean 'memory'?"),
        ("warp", ["memory", "page"], "choose one of: memory, page"),
        ("warp", [], "none is installed"),
    ],
)
def test_the_nearest_choice_ends_an_error(name: str, known: list[str], end: str) -> None:
    """A misspelling is answered with the nearest name, a stranger with all of them."""
    assert nearest(name, known) == end


def test_a_missing_extra_says_what_to_run() -> None:
    """The message has the command that mends it."""
    assert "pip install 'kvarena[hf]'" in str(MissingExtraError("transformers", "hf"))
