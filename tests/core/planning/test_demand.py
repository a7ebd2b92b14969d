"""The price of one request: exact peaks, against a walk through its life row by row."""

import re
from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Bytes, SinksAndWindow

from kvarena.planning.demand import (
    DEMAND_RULES,
    Purpose,
    RequestShape,
    chunk_stop,
    chunk_stops,
    decode_peak_pages,
    peak_pages,
    request_demand,
    whole_pages,
)
from kvarena.planning.plan import plan_storage
from kvarena.terms.errors import KvarenaError, PlanError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Union, Window, on_grid


def walked_peak(lifetime, page_tokens, prompt, rows, chunk, *, cached=0, grid=None):
    """Count the pages that are not wholly retired, step by step; ``chunk`` None: the prompt arrives at once."""
    lifetime, steps, start = on_grid(lifetime, grid), [], cached
    if chunk is None:
        steps.append((prompt, prompt))
        start = prompt
    while start < rows:
        stop = chunk_stop(start, prompt, chunk, grid) if start < prompt else start + 1
        steps.append((start, stop))
        start = stop
    peak = 0
    for start, stop in steps:
        gone = {row for piece in lifetime.retired(0, start) for row in piece}
        pages = range(cached // page_tokens, -(-stop // page_tokens))
        of = [set(range(page * page_tokens, (page + 1) * page_tokens)) for page in pages]
        peak = max(peak, sum(not page <= gone for page in of))
    return peak


LIFETIMES = st.one_of(
    st.just(Full()),
    st.builds(Window, st.integers(1, 20)),
    st.builds(Chunk, st.integers(1, 20)),
    st.builds(SinksAndWindow, st.integers(0, 9), st.integers(1, 9)),
    st.builds(lambda w, c: Union((Window(w), Chunk(c))), st.integers(1, 12), st.integers(1, 12)),
)


@pytest.mark.req("DEM-1")
@given(LIFETIMES, st.integers(1, 9), st.integers(1, 50), st.integers(0, 20), st.integers(1, 12))
def test_a_peak_is_what_a_walk_through_the_request_counts(lifetime, page_tokens, prompt, more, chunk):
    """For any lifetime, page, prompt, output and chunk, the price is the most pages held at one moment."""
    rows = prompt + more
    assert peak_pages(lifetime, page_tokens, prompt, rows, chunk) == walked_peak(
        lifetime, page_tokens, prompt, rows, chunk
    )


@pytest.mark.parametrize(
    ("window", "page_tokens", "peak"),
    [
        *((1, 4, 1), (2, 4, 2), (4, 4, 2), (5, 4, 2), (6, 4, 3), (8, 4, 3), (9, 4, 3)),
        *((11, 8, 3), (11, 128, 2), (128, 32, 5), (1024, 16, 65)),
    ],
)
@pytest.mark.req("DEM-2")
def test_a_window_straddles_a_page_edge_as_it_slides(window, page_tokens, peak):
    """A window no longer than a page still needs two: ceil((W - 1) / P) + 1."""
    assert decode_peak_pages(Window(window), page_tokens, 4 * window + 4 * page_tokens) == peak
    assert peak == -(-(window - 1) // page_tokens) + 1


def test_the_need_is_not_monotone_in_the_chunk():
    """Chunks of 7 need more window pages than chunks of 8: no search may assume otherwise."""
    peaks = {chunk: peak_pages(Window(8), 4, 60, 63, chunk) for chunk in range(1, 9)}
    assert peaks == {1: 3, 2: 3, 3: 4, 4: 3, 5: 4, 6: 4, 7: 5, 8: 4}


def test_a_request_is_priced_in_every_sub_pool():
    """Slots in full, full attention for all rows but the last sampled one, windows by their peak."""
    layers = [
        Layer(0, (Part(Bytes(4), State(), "state"),)),
        Layer(1, (Part(Bytes(4), Window(8)),)),
        Layer(2, (Part(Bytes(4), Full()),)),
    ]
    plan = plan_storage(layers, page_tokens=4)
    demand = request_demand(plan, RequestShape(60, 4), chunk_tokens=8, slots_per_request=2)
    assert dict(zip(plan.names, demand, strict=True)) == {"state": 2, "window-8": 4, "full": 16}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=4), st.integers(1, 7))
def test_whole_pages_are_those_with_every_row_inside(pieces, page_tokens):
    """A page counts only when none of its rows is missing."""
    rows = tuple(range(start, start + size) for start, size in pieces)
    inside = {row for piece in rows for row in piece}
    found = {page for pages in whole_pages(rows, page_tokens) for page in pages}
    assert found == {
        page for page in range(60) if all(page * page_tokens + row in inside for row in range(page_tokens))
    }


@given(
    lifetime=st.one_of(
        st.builds(Window, st.integers(1, 20)),
        st.builds(Chunk, st.integers(1, 20)),
        st.builds(lambda a, b: Union((Window(a), Chunk(b))), st.integers(1, 9), st.integers(1, 9)),
    ),
    page_tokens=st.integers(1, 9),
    prompt=st.integers(0, 200),
    output=st.integers(0, 200),
    chunk=st.integers(1, 20),
)
def test_what_repeats_is_left_out_and_the_peak_is_the_same(lifetime, page_tokens, prompt, output, chunk):
    """The short cut through a long life answers as walking through all of it does."""
    walked = walked_peak(lifetime, page_tokens, prompt, prompt + output, chunk)

    assert peak_pages(lifetime, page_tokens, prompt, prompt + output, chunk) == walked


@st.composite
def cases(draw):
    """Any lifetime on any grid; a prompt, of which whole pages may be cached, in any chunks or at once."""
    size = draw(st.integers(1, 6))
    grid = draw(st.none() | st.sampled_from([size * count for count in (1, 2, 3, 4, 7)]))
    prompt = draw(st.integers(1, 20) | st.integers(1, 300))
    cached = draw(st.just(0) | st.integers(0, (prompt - 1) // size)) * size
    chunk = draw(st.none() | st.integers(1, 40))
    return draw(LIFETIMES), size, prompt, prompt + draw(st.integers(0, 60)), chunk, cached, grid


@pytest.mark.req("DEM-1")
@pytest.mark.req("DEM-2")
@given(cases())
@settings(max_examples=400, deadline=None)
def test_a_peak_is_exact_with_a_grid_and_a_cached_prefix(case):
    """Whatever the window, page, chunk, grid and matched prefix: what a walk counts, of its own pages alone."""
    lifetime, size, prompt, rows, chunk, cached, grid = case
    walked = walked_peak(lifetime, size, prompt, rows, chunk, cached=cached, grid=grid)

    assert peak_pages(lifetime, size, prompt, rows, chunk, cached_tokens=cached, grid=grid) == walked


@pytest.mark.req("DEM-2")
@pytest.mark.req("CKP-2")
def test_a_window_on_a_grid_is_priced_to_the_next_checkpoint():
    """P=4, W=8, checkpoints every 16 tokens: 6 pages where 3 would do without sharing (H20)."""
    assert decode_peak_pages(Window(8), 4, 64, grid=16) == 6
    assert decode_peak_pages(Window(8), 4, 64) == 3
    assert peak_pages(Window(8), 4, 16, 63, 16, grid=16) == 6
    held = [peak_pages(Window(8), 4, length, length, None, grid=16) for length in (17, 24, 30)]
    assert held == [3, 4, 6]


@pytest.mark.req("CKP-2")
@given(st.integers(0, 30), st.integers(1, 200), st.integers(1, 40), st.none() | st.integers(1, 20))
def test_chunks_land_on_every_grid_point_that_they_can(start, prompt, chunk, grid):
    """A chunk that reaches a grid point ends at the last one that it reaches; a small one lands on each."""
    start %= prompt
    stops, at = [], start
    while at < prompt:
        stop = chunk_stop(at, prompt, chunk, grid)
        assert at < stop <= min(at + chunk, prompt)
        stops.append(stop)
        at = stop
    if grid is None:
        assert all(stop - before == chunk for before, stop in pairwise(stops[:-1]))
    else:
        assert all(stop % grid == 0 for before, stop in pairwise([start, *stops]) if stop // grid > before // grid)
        last = prompt // grid * grid
        assert last in stops or last <= start
        if chunk <= grid:
            assert {point for point in range(grid, prompt + 1, grid) if point > start} <= set(stops)
    starts = np.array([start, *stops[:-1]])
    assert chunk_stops(starts, prompt, chunk, grid).tolist() == stops


@pytest.mark.req("DEM-1")
def test_each_purpose_has_one_rule():
    """A ceiling counts the whole output, an arriving request what it is expected to use; a load has its next row."""
    assert set(DEMAND_RULES) == set(Purpose)
    plan = plan_storage([Layer(0, (Part(Bytes(4), Window(8)),)), Layer(1, (Part(Bytes(4), Full()),))], page_tokens=4)

    def price(purpose, prompt, output):
        return request_demand(plan, RequestShape(prompt, output), purpose, chunk_tokens=16, output_fraction=0.5)

    assert price(Purpose.CEILING, 32, 33) == (6, 16)
    assert price(Purpose.ADMIT, 32, 33) == (6, 12)
    assert price(Purpose.ADMIT, 32, 1) == (6, 8)
    assert price(Purpose.LOAD_BACK, 32, 0) == price(Purpose.LOAD_BACK, 32, 1) == (3, 9)
    assert price(Purpose.DECODE_PREALLOC, 32, 1) == (2, 8)
    assert price(Purpose.DECODE_PREALLOC, 32, 33) == (3, 12)


@pytest.mark.req("DEM-1")
def test_a_matched_prefix_is_not_the_requests_own():
    """Full attention from there on; a window has no pages before it; state slots are its own in full."""
    layers = [
        Layer(0, (Part(Bytes(4), State(), "state"),)),
        Layer(1, (Part(Bytes(4), Window(8)),)),
        Layer(2, (Part(Bytes(4), Full()),)),
    ]
    plan = plan_storage(layers, page_tokens=4)
    shape = RequestShape(60, 4, cached_tokens=48)
    assert request_demand(plan, shape, chunk_tokens=8, slots_per_request=2, grid=16) == (2, 4, 4)
    assert request_demand(plan, RequestShape(60, 4), chunk_tokens=8, slots_per_request=2, grid=16) == (2, 6, 16)


@pytest.mark.req("DEM-1")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((0, 1), "prompt_tokens is 0"),
        ((-4, 1), "prompt_tokens is -4"),
        ((4, -1), "output_tokens is -1"),
        ((2.5, 1), "prompt_tokens is 2.5"),
        ((True, 1), "prompt_tokens is True"),
        ((4, False), "output_tokens is False"),
        (("7", 1), "prompt_tokens is '7'"),
        ((4, float("nan")), "output_tokens is nan"),
        ((8, 1, -4), "cached_tokens is -4"),
        ((8, 1, 8), "cached_tokens are 8 of a prompt of 8"),
        ((8, 1, 12), "cached_tokens are 12 of a prompt of 8"),
        ((8, 1, 3), "cached_tokens are 3; they must be whole pages of 4"),
    ],
    ids=str,
)
def test_a_request_that_is_none_is_named(wrong, words):
    """One error, with the value that is wrong."""
    plan = plan_storage([Layer(0, (Part(Bytes(4), Full()),))], page_tokens=4)
    with pytest.raises(KvarenaError, match=re.escape(words)):
        request_demand(plan, RequestShape(*wrong), chunk_tokens=8)


def test_counts_of_few_bits_are_counted_in_many():
    """A numpy count does not overflow in the sums that follow."""
    shape = RequestShape(np.int8(120), np.uint8(250), np.int16(4))
    assert (shape.rows, type(shape.prompt_tokens)) == (369, int)


def test_a_grid_between_pages_is_refused():
    """Checkpoints lie at the ends of pages."""
    plan = plan_storage([Layer(0, (Part(Bytes(4), Full()),))], page_tokens=4)
    for grid in (0, 6, -4):
        with pytest.raises(PlanError, match=f"grid = {grid}"):
            request_demand(plan, RequestShape(8, 1), chunk_tokens=8, grid=grid)


def test_an_absurd_length_is_answered_at_once():
    """The longest request that a trace may have, or a context of 2**40 tokens, costs no walk through it."""
    assert peak_pages(Window(128), 16, 2**31, 2**32, 512) == peak_pages(Window(128), 16, 2**14, 2**15, 512)
    assert peak_pages(Window(128), 16, 1, 2**40, 1) == 9
    assert peak_pages(Window(2**39), 16, 2**39, 2**40, 1) == 2**35 + 1
    assert peak_pages(Window(4096), 16, 2**40, 2**40 + 9, 8191, cached_tokens=2**39 + 16, grid=64) == 764


@attrs.frozen
class Unhelpful:
    """Sinks and a window that say nothing of how their needs repeat."""

    inner: SinksAndWindow
    own_ids = False
    name = "unhelpful"
    rank = (1, -1)

    def entries(self, length: int) -> int:
        """As it says."""
        return self.inner.entries(length)

    def retained(self, length: int) -> int:
        """As it says."""
        return self.inner.retained(length)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        """As it says."""
        return self.inner.retired(start, stop)


@given(
    st.builds(SinksAndWindow, st.integers(0, 40), st.integers(1, 40)),
    st.sampled_from((1, 2, 3, 4, 8)),
    st.integers(1, 200),
    st.integers(0, 200),
    st.sampled_from((None, 1, 3, 5, 16, 40)),
    st.integers(0, 200),
    st.sampled_from((None, 1, 2, 5)),
)
def test_what_repeats_is_priced_quicker_and_no_other(
    lifetime: SinksAndWindow, page: int, prompt: int, output: int, chunk: int | None, cached: int, grid: int | None
) -> None:
    """A lifetime that says after how many tokens its needs repeat has the price that all steps of a request give."""
    how = {"cached_tokens": min(cached, prompt - 1) // page * page, "grid": None if grid is None else grid * page}
    quick = peak_pages(lifetime, page, prompt, prompt + output, chunk, **how)
    assert quick == peak_pages(Unhelpful(lifetime), page, prompt, prompt + output, chunk, **how)
