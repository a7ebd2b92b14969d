"""Each built-in layout keeps what its paper or its kernels say, to the byte."""

import math
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvarena.layouts
from kvarena.assembly.catalog import Catalog
from kvarena.layouts.index_key import IndexKey
from kvarena.layouts.latent import Latent
from kvarena.layouts.mha import Mha
from kvarena.layouts.mla import Mla
from kvarena.layouts.state import GatedDelta, Kda, Lightning, Mamba1, Mamba2, RgLru, ShortConv, Tensors
from kvarena.terms.fields import DTYPE_BYTES, Field, Layout, zeroes_on_take

SIZES = st.integers(min_value=1, max_value=64)
DTYPES = st.sampled_from(sorted(DTYPE_BYTES))
EXAMPLES = {
    "mha": Mha(8, 128),
    "mla": Mla(512, 64),
    "latent": Latent(656),
    "index-key": IndexKey(128),
    "mamba1": Mamba1(channels=8192, columns=3, state_size=16),
    "mamba2": Mamba2(channels=8448, columns=3, heads=128, head_dim=64, state_size=128),
    "gated-delta": GatedDelta(channels=8192, columns=3, heads=32, key_dim=128, value_dim=128),
    "kda": Kda(columns=3, heads=32, head_dim=128),
    "lightning": Lightning(heads=64, head_dim=128),
    "rg-lru": RgLru(channels=2560, columns=3),
    "short-conv": ShortConv(channels=2048, columns=2),
    "tensors": Tensors({"a": ("float32", (3,)), "b": ("int8", ())}),
}
BYTES = {
    "mha": 4096,
    "mla": 1152,
    "latent": 656,
    "index-key": 132,
    "mamba1": 573440,
    "mamba2": 4244992,
    "gated-delta": 2146304,
    "kda": 2170880,
    "lightning": 4194304,
    "rg-lru": 25600,
    "short-conv": 8192,
    "tensors": 13,
}


def size(layout: Layout) -> int:
    return sum(field.bytes for field in layout.fields())


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_entry_takes_the_published_bytes(name: str) -> None:
    """An entry of each layout is as large as the model that it comes from says."""
    assert size(EXAMPLES[name]) == BYTES[name]


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize("name", EXAMPLES)
def test_comes_in_by_the_front_door(name: str) -> None:
    """Each layout is found under its own name through its entry point."""
    assert Catalog.installed().load("layouts", name) is type(EXAMPLES[name])
    assert EXAMPLES[name].name == name


@pytest.mark.parametrize("name", EXAMPLES)
def test_is_a_frozen_hashable_layout_that_answers_alike(name: str) -> None:
    """A layout is a value: hashable, equal to its copy, unchangeable, and its fields never change."""
    layout = EXAMPLES[name]
    copy = attrs.evolve(layout)

    assert isinstance(layout, Layout)
    assert (copy, hash(copy)) == (layout, hash(layout))
    assert layout.fields() == layout.fields()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        layout.head_dim = 3  # type: ignore[attr-defined]


@pytest.mark.req("ALC-5")
@pytest.mark.parametrize("name", EXAMPLES)
def test_is_zeroed_on_take(name: str) -> None:
    """No built-in layout lets stale bytes through: a state starts at zero, and no NaN reaches attention."""
    assert zeroes_on_take(EXAMPLES[name])


@pytest.mark.req("DEC-4")
@given(SIZES, SIZES, SIZES, SIZES, DTYPES, DTYPES)
def test_keys_and_values_may_differ_in_heads_size_and_dtype(
    heads: int, k_dim: int, v_heads: int, v_dim: int, k_dtype: str, v_dtype: str
) -> None:
    """K and V are two fields of their own: nothing of one is taken from the other when both are said."""
    mha = Mha(heads, k_dim, v_head_dim=v_dim, dtype=k_dtype, v_dtype=v_dtype, v_kv_heads=v_heads)

    k, v = mha.fields()

    assert k == Field("k", k_dtype, (heads, k_dim))
    assert v == Field("v", v_dtype, (v_heads, v_dim))


def test_values_follow_keys_where_nothing_is_said() -> None:
    """An unsaid value size, dtype or head count is that of the keys."""
    k, v = Mha(2, 16, dtype="fp8").fields()

    assert (k.dtype, k.shape) == (v.dtype, v.shape) == ("float8_e4m3fn", (2, 16))


@given(st.integers(1, 4096), st.integers(1, 512))
def test_an_index_key_has_a_scale_per_block(head_dim: int, block: int) -> None:
    """A key of any size has one float32 scale for each begun block of items."""
    key, scale = IndexKey(head_dim, block).fields()

    assert key.bytes == head_dim
    assert scale.bytes == 4 * math.ceil(head_dim / block)


def test_tensors_read_python_and_toml_alike() -> None:
    """Pairs, tables and fields declare the same state."""
    fields = (Field("conv", "bfloat16", (64, 3)), Field("state", "float32", (4, 16, 16)))
    toml = {"conv": {"dtype": "bf16", "shape": [64, 3]}, "state": {"dtype": "float32", "shape": [4, 16, 16]}}
    pairs = {"conv": ("bfloat16", (64, 3)), "state": ("float32", (4, 16, 16))}

    assert Tensors(toml).fields() == Tensors(pairs).fields() == Tensors(fields).fields() == fields


def test_tensors_refuse_a_name_twice() -> None:
    """Two tensors of one name could not be told apart by a runner."""
    with pytest.raises(ValueError, match="repeat"):
        Tensors((Field("a", "int8", ()), Field("a", "int8", ())))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mha(0, 128),
        lambda: Mha(8, 0),
        lambda: Mla(0, 64),
        lambda: Mla(512, -1),
        lambda: Latent(0),
        lambda: IndexKey(0),
        lambda: IndexKey(128, 0),
        lambda: ShortConv(channels=-1, columns=2),
        lambda: Mha(8, 128, dtype="float7"),
    ],
)
def test_sizes_that_make_no_entry_are_refused(make: object) -> None:
    """A size of zero heads, or a dtype that there is not, is refused when the layout is made."""
    with pytest.raises(ValueError, match=r"must be|unknown dtype"):
        make()  # type: ignore[operator]


def test_layouts_need_no_torch() -> None:
    """Declaring layouts and reading their bytes imports neither torch nor transformers."""
    sources = Path(kvarena.layouts.__file__).parent.glob("*.py")

    assert not [path for path in sources if "import torch" in path.read_text(encoding="utf-8")]
    assert "kvarena.layouts.mha" in sys.modules
