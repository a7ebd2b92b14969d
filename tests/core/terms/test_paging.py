"""Positions and pages: for any size of a page, what plain division says."""

import numpy as np
import pytest

from kvarena.terms.paging import Paging

SIZES = (1, 2, 3, 4, 5, 6, 7, 16, 24, 64)


@pytest.mark.parametrize("tokens", SIZES)
def test_pages_and_places_are_those_of_division(tokens: int) -> None:
    """A position lies in one page, at one place; a page begins at its first position. Any shape will do."""
    paging, positions = Paging(tokens), np.arange(200)
    assert paging.pages(positions).tolist() == [at // tokens for at in range(200)]
    assert paging.offsets(positions).tolist() == [at % tokens for at in range(200)]
    assert paging.starts(positions).tolist() == [at * tokens for at in range(200)]
    table = positions.reshape(2, 4, 25)
    for answer in (paging.pages(table), paging.offsets(table), paging.covering(table), paging.starts(table)):
        assert (answer.shape, answer.dtype) == (table.shape, np.int64)


@pytest.mark.parametrize("tokens", SIZES)
def test_a_length_is_covered_by_no_page_too_many(tokens: int) -> None:
    """None for nothing, and none more for a length that ends with a page."""
    lengths = np.arange(200)
    covering = Paging(tokens).covering(lengths)
    assert covering.tolist() == [len(range(0, length, tokens)) for length in range(200)]


@pytest.mark.parametrize("tokens", SIZES)
def test_a_physical_token_is_a_page_and_a_place(tokens: int) -> None:
    """The way back from positions to themselves; what was given is not written over."""
    paging, positions = Paging(tokens), np.arange(200)
    pages, places = paging.pages(positions), paging.offsets(positions)
    kept = pages.copy()
    assert paging.physical(pages, places).tolist() == positions.tolist()
    assert pages.tolist() == kept.tolist()
