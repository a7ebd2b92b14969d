"""The price of one request: exact peaks, against a walk through its life row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import Bytes, SinksAndWindow

from kvarena.planning.demand import RequestShape, decode_peak_pages, peak_pages, request_demand, whole_pages
from kvarena.planning.plan import plan_storage
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Union, Window


def walked_peak(lifetime, page_tokens, prompt, rows, chunk):
    """Count the pages that hold a row still needed, step by step."""
    peak, start = 0, 0
    while start < rows:
        stop = min(start + chunk, prompt) if start < prompt else start + 1
        gone = {row for piece in lifetime.retired(0, start) for row in piece}
        peak = max(peak, len({row // page_tokens for row in range(stop) if row not in gone}))
        start = stop
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


def test_an_absurd_length_is_answered_at_once():
    """The longest request that a trace may have, or a context of 2**40 tokens, costs no walk through it."""
    assert peak_pages(Window(128), 16, 2**31, 2**32, 512) == peak_pages(Window(128), 16, 2**14, 2**15, 512)
    assert peak_pages(Window(128), 16, 1, 2**40, 1) == 9
