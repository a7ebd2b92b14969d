"""The built-in layouts join the kit as a stranger's would."""

from typing import ClassVar

import pytest
from entry_points import own_names

from kvarena.layouts.index_key import IndexKey
from kvarena.layouts.latent import Latent
from kvarena.layouts.mha import Mha
from kvarena.layouts.mla import Mla
from kvarena.layouts.state import GatedDelta, Kda, Lightning, Mamba1, Mamba2, RgLru, ShortConv, Tensors
from kvarena.plugins.conformance import LayoutConformance
from kvarena.terms.fields import Layout

LAYOUTS: dict[str, Layout] = {
    "mha": Mha(2, 4, v_head_dim=3, v_dtype="float8_e4m3fn"),
    "mla": Mla(12, 4),
    "latent": Latent(21),
    "index-key": IndexKey(10, 4),
    "mamba1": Mamba1(channels=6, columns=3, state_size=4),
    "mamba2": Mamba2(channels=8, columns=3, heads=2, head_dim=4, state_size=3),
    "gated-delta": GatedDelta(channels=8, columns=3, heads=2, key_dim=3, value_dim=4),
    "kda": Kda(columns=3, heads=2, head_dim=4),
    "lightning": Lightning(heads=2, head_dim=4),
    "rg-lru": RgLru(channels=5, columns=3),
    "short-conv": ShortConv(channels=5, columns=2),
    "tensors": Tensors({"a": ("float32", (3,)), "b": ("int8", ()), "c": ("float64", (2,))}),
}


@pytest.mark.req("PLG-1")
class TestBuiltInLayouts(LayoutConformance):
    """Each of them, none with a codec: their kernels read them as they are."""

    declines: ClassVar = ("codec",)

    @pytest.fixture(params=LAYOUTS)
    def layout(self, request: pytest.FixtureRequest) -> Layout:
        """One of them, small."""
        return LAYOUTS[request.param]


def test_every_layout_is_tested() -> None:
    """There is an example of each entry point, under its own name."""
    assert set(LAYOUTS) == own_names("layouts")
    assert {name: layout.name for name, layout in LAYOUTS.items()} == {name: name for name in LAYOUTS}
