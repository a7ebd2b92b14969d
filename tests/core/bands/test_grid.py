"""Where grids, ends and sinks lie in an arena."""

import attrs
import pytest

from kvarena.bands.grid import chain_grids
from kvarena.planning.plan import Plan, plan_storage
from kvarena.terms.errors import PlanError
from kvarena.terms.fields import Field
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ports import HIGH, LOW


@attrs.frozen
class Raw:
    """An entry of so many bytes."""

    size: int
    name = "raw"

    def fields(self) -> tuple[Field, ...]:
        return (Field("bytes", "uint8", (self.size,)),)


def planned(**sizes: tuple[Lifetime, int]) -> Plan:
    layers = [Layer(index, (Part(Raw(size), lifetime),)) for index, (lifetime, size) in enumerate(sizes.values())]
    return plan_storage(layers, page_tokens=1)


@pytest.mark.req("PLN-3")
def test_first_is_low_last_is_high_the_rest_float() -> None:
    """In chain order: state, windows from the longest, full."""
    plan = planned(a=(Full(), 3), b=(Window(8), 3), c=(Window(64), 3), d=(State(), 3))
    grids = chain_grids(plan, 1000, 5)
    assert [(grid.name, grid.end) for grid in grids] == [
        ("state", LOW),
        ("window-64", None),
        ("window-8", None),
        ("full", HIGH),
    ]


def test_one_band_is_low_for_slots_and_high_for_tokens() -> None:
    """Slots have their sink at the bottom, tokens at the top."""
    assert chain_grids(planned(a=(State(), 3)), 100, 5)[0].end is LOW
    assert chain_grids(planned(a=(Full(), 3)), 100, 5)[0].end is HIGH


@pytest.mark.req("BLD-2")
def test_sinks_are_never_handed_out() -> None:
    """Slot 0, and the top page of each token grid; nothing usable reaches into any of them."""
    grids = {grid.name: grid for grid in chain_grids(planned(a=(State(), 7), b=(Window(8), 5), c=(Full(), 9)), 100, 5)}
    assert grids["state"].sink_page == 0
    assert grids["window-8"].sink_page == 100 // 5 - 1
    assert grids["full"].sink_page == 100 // 9 - 1
    base, top = 7, 90
    for grid in grids.values():
        assert grid.first * grid.unit_bytes >= base
        assert grid.stop * grid.unit_bytes <= top
        assert not grid.first <= grid.sink_page < grid.stop
    assert grids["full"].id_count == 100 // 9
    assert grids["state"].id_count == 5


def test_an_owner_without_bytes_has_neither_end_nor_pages() -> None:
    """The last band with bytes is the high end."""
    grids = chain_grids(planned(a=(Chunk(10), 3), b=(Window(8), 4)), 100, 0)
    assert [(grid.name, grid.end, grid.unit_bytes) for grid in grids] == [
        ("chunk-10", LOW, 3),
        ("window-8", HIGH, 4),
        ("ids", None, 0),
    ]
    assert grids[2].id_count == 100 // 3 + 100 // 4


def test_too_many_pages_are_refused_before_any_map_is_made() -> None:
    """Ids are int32 on the device: 2^31 - 1 pages at most, whatever the arena."""
    plan = planned(a=(Full(), 2))
    assert chain_grids(plan, 2 * (2**31 - 1), 0)[0].page_count == 2**31 - 1
    with pytest.raises(PlanError, match=r"'full' would have 2,147,483,648 pages of 2 B"):
        chain_grids(plan, 2 * 2**31, 0)


def test_an_arena_without_a_page_is_refused() -> None:
    """One page beside the sink is the least."""
    assert chain_grids(planned(a=(Full(), 10)), 20, 0)[0].stop == 1
    with pytest.raises(PlanError, match=r"holds no page of sub-pool 'full' \(10 B\)"):
        chain_grids(planned(a=(Full(), 10)), 19, 0)
