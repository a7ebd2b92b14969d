"""The largest chunk limit that fits: found as by trying every one, in far fewer prices."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Bytes, SinksAndWindow

from kvarena.planning.chunk_limits import largest_chunk
from kvarena.planning.demand import Demand, RequestShape, request_demand
from kvarena.planning.plan import Plan, plan_storage
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window


def plan_of(*lifetimes: Lifetime, page_tokens: int = 4) -> Plan:
    layers = [Layer(index, (Part(Bytes(4), lifetime),)) for index, lifetime in enumerate(lifetimes)]
    return plan_storage(layers, page_tokens=page_tokens)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Plan, RequestShape, int | None]:
    """A plan with a state, two kinds that retire and full attention; a request on it; a grid."""
    size = draw(st.integers(1, 5))
    kinds = st.one_of(
        st.builds(Window, st.integers(1, 30)),
        st.builds(Chunk, st.integers(1, 30)),
        st.builds(SinksAndWindow, st.integers(0, 9), st.integers(1, 9)),
    )
    pair = draw(st.lists(kinds, min_size=1, max_size=2, unique_by=lambda lifetime: lifetime.name))
    grid = draw(st.none() | st.sampled_from([size * count for count in (1, 2, 3, 7)]))
    prompt = draw(st.integers(1, 120))
    cached = draw(st.just(0) | st.integers(0, (prompt - 1) // size)) * size
    return (
        plan_of(State(), *pair, Full(), page_tokens=size),
        RequestShape(prompt, draw(st.integers(0, 30)), cached),
        grid,
    )


@pytest.mark.req("ADM-4")
@given(requests(), st.integers(1, 40), st.data())
@settings(max_examples=200, deadline=None)
def test_the_largest_limit_is_the_one_that_trying_all_finds(
    case: tuple[Plan, RequestShape, int | None], limit: int, data: st.DataObject
) -> None:
    """The need is not monotone in the limit: whatever room there is, no larger one fits, and none is missed."""
    plan, shape, grid = case

    def price(chunk: int) -> Demand:
        return request_demand(plan, shape, chunk_tokens=chunk, grid=grid)

    prices = {chunk: price(chunk) for chunk in range(1, limit + 1)}
    most = tuple(map(max, zip(*prices.values(), strict=True)))
    room = tuple(data.draw(st.integers(max(0, units - 6), units)) for units in most)

    def fits(demand: Demand) -> bool:
        return all(units <= free for units, free in zip(demand, room, strict=True))

    best = max((chunk for chunk, demand in prices.items() if fits(demand)), default=None)
    found = largest_chunk(plan, shape, range(1, limit + 1), price, fits, grid=grid)

    assert found == (None if best is None else (best, prices[best]))


@pytest.mark.req("ADM-4")
@given(requests())
@settings(max_examples=60, deadline=None)
def test_chunks_of_one_token_need_the_least(case: tuple[Plan, RequestShape, int | None]) -> None:
    """What fits with any limit fits with that one, so it alone decides what can be served at all."""
    plan, shape, grid = case
    least = request_demand(plan, shape, chunk_tokens=1, grid=grid)
    for chunk in range(2, 50):
        demand = request_demand(plan, shape, chunk_tokens=chunk, grid=grid)
        assert all(units >= fewest for units, fewest in zip(demand, least, strict=True))


@pytest.mark.req("ADM-4")
def test_no_limit_is_no_answer() -> None:
    """Where nothing below the configured limit is left to try."""
    plan = plan_of(Window(8), Full())
    shape = RequestShape(1, 1)
    price = request_demand(plan, shape, chunk_tokens=1)
    assert largest_chunk(plan, shape, range(1, 1), lambda chunk: price, lambda demand: True, grid=None) is None


@pytest.mark.req("ADM-4")
@pytest.mark.parametrize("grid", [None, 64])
@pytest.mark.parametrize("cached", [0, 16 * 1001])
def test_a_million_tokens_are_searched_at_once(grid: int | None, cached: int) -> None:
    """A prompt of a million tokens, a limit of 8192, three windows: no loop over its steps."""
    plan = plan_of(State(), Window(128), Window(1024), Window(4096), Full(), page_tokens=16)
    shape = RequestShape(1_000_000, 1000, cached)
    asked = 0

    def price(chunk: int) -> Demand:
        return request_demand(plan, shape, chunk_tokens=chunk, grid=grid)

    def fits(demand: Demand) -> bool:
        nonlocal asked
        asked += 1
        return demand[1] <= 400

    began = time.thread_time()
    found = largest_chunk(plan, shape, range(1, 8192), price, fits, grid=grid)
    seconds = time.thread_time() - began

    assert found is not None
    chunk, demand = found
    assert demand == price(chunk)
    assert demand[1] <= 400 < max(price(above)[1] for above in range(chunk + 1, chunk + 66))
    assert asked < 1000
    assert seconds < 1
