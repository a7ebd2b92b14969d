"""What a request holds while checkpoints are taken or skipped, on a small model: never more than its price."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Bytes

from kvarena.planning.demand import RequestShape, chunk_stop, request_demand
from kvarena.planning.plan import plan_storage
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Union, Window, on_grid


@dataclass
class Holder:
    """One request in one window: its own pages, by page number; ``given``: those that are a cached checkpoint's."""

    lifetime: Lifetime
    size: int
    grid: int
    length: int
    own: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    peak: int = 0

    def step(self, stop: int) -> None:
        """Retire at the present length, then take up to ``stop``."""
        gone = {row for piece in self.lifetime.retired(0, self.length) for row in piece}
        self.own = {page for page in self.own if not self.rows(page) <= gone}
        self.own |= set(range(-(-self.length // self.size), -(-stop // self.size)))
        self.length = stop
        self.peak = max(self.peak, len(self.own))

    def checkpoint(self) -> None:
        """The whole pages up to here are a cache entry's from now on; the request reads them still."""
        whole = {page for page in self.own if (page + 1) * self.size <= self.length}
        self.own -= whole
        self.given |= whole

    def rows(self, page: int) -> set[int]:
        return set(range(page * self.size, (page + 1) * self.size))

    def reads(self) -> bool:
        """Whether every row that the query at the present length needs is there."""
        needed = set(range(self.length)) - {row for piece in self.lifetime.retired(0, self.length) for row in piece}
        return needed <= {row for page in self.own | self.given for row in self.rows(page)}


WINDOWS = st.one_of(
    st.builds(Window, st.integers(1, 40)),
    st.builds(Chunk, st.integers(1, 40)),
    st.builds(lambda a, b: Union((Window(a), Chunk(b))), st.integers(1, 20), st.integers(1, 20)),
)


@pytest.mark.req("DEM-3")
@given(st.data(), WINDOWS, st.integers(1, 5), st.integers(1, 6), st.integers(1, 90), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_a_request_never_holds_more_than_its_price_however_checkpoints_go(
    data: st.DataObject, window: Lifetime, size: int, pages: int, prompt: int, chunk: int
) -> None:
    """At each grid point a checkpoint is taken or skipped, at the launch of the step that completes it.

    Skipped throughout, the price is reached; taken, the request owns less. Either way a query finds its rows, and a
    checkpoint that is taken has the whole window behind it.
    """
    grid = size * pages
    output = data.draw(st.integers(0, 60))
    cached = data.draw(st.just(0) | st.integers(0, (prompt - 1) // grid)) * grid
    kinds = (State(), window, Full())
    layers = [Layer(index, (Part(Bytes(4), lifetime),)) for index, lifetime in enumerate(kinds)]
    plan = plan_storage(layers, page_tokens=size)
    shape = RequestShape(prompt, output, cached)
    price = dict(zip(plan.names, request_demand(plan, shape, chunk_tokens=chunk, grid=grid), strict=True))
    holder = Holder(on_grid(window, grid), size, grid, cached, given=set(range(cached // size)))
    skips = Holder(on_grid(window, grid), size, grid, cached, given=set(range(cached // size)))

    while holder.length < shape.rows:
        at = holder.length
        stop = chunk_stop(at, prompt, chunk, grid) if at < prompt else at + 1
        holder.step(stop)
        skips.step(stop)
        if stop % grid == 0 and data.draw(st.booleans()):
            kept = set(range(stop)) - {row for piece in window.retired(0, stop) for row in piece}
            assert kept <= {row for page in holder.own | holder.given for row in holder.rows(page)}
            holder.checkpoint()
        assert holder.reads()

    assert skips.peak == price[window.name]
    assert holder.peak <= price[window.name]


@pytest.mark.req("DEM-3")
@pytest.mark.req("CKP-1")
def test_the_pages_of_h20_are_held() -> None:
    """P=4, W=8, grid 16: at 17, 24, 30, 32 a request that skips its checkpoint holds 3, 4, 6, 6; at 33 it holds 3."""
    holder = Holder(on_grid(Window(8), 16), 4, 16, 0)
    held = {}
    for length in range(16, 34):
        holder.step(length)
        held[length] = len(holder.own)
    assert [held[length] for length in (17, 24, 30, 32, 33)] == [3, 4, 6, 6, 3]
