"""The memory clip of an arriving request: the price that admission asks, to the exact token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import FULL, SHORT, STATE, rows_of, storage_of

from kvarena.admission.admission import Admission
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never, Refused
from kvarena.terms.errors import KvarenaError

pytestmark = [pytest.mark.req("DEM-2"), pytest.mark.req("ADM-7")]


def admission_of(storage: Storage, chunk: int = 512) -> Admission:
    return Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=chunk)


def test_a_request_longer_than_the_pool_is_clipped_or_refused_to_the_token() -> None:
    """12 usable pages of 16 tokens: 190 and 64 more become 3; 193 and 208 with one each never fit (H07)."""
    storage = storage_of((FULL,), memory=13 * 16 * 6, page_tokens=16, context=208, running=2)
    admission = admission_of(storage)
    assert admission.clip(180, 12) == 12
    assert admission.clip(190, 64) == 3
    assert admission.clip(192, 64) == 1
    assert admission.clip(193, 1) == admission.clip(208, 1) == 0
    for prompt in (193, 208):
        never = admission.never(prompt, 1)
        assert isinstance(never, Never)
        assert never.largest_prompt == 192
        assert "asked" in never.reason
    assert admission.never(190, 3) is None
    assert admission.never(190, 4) is not None


def test_the_row_clips_too() -> None:
    """An arena that would hold more than a request row does."""
    admission = admission_of(storage_of((FULL,), memory=40_000, page_tokens=16, context=200, running=2))
    assert admission.clip(150, 10**6) == 51
    assert admission.clip(200, 9) == 1
    assert admission.clip(201, 9) == 0
    assert admission.clip(150, 0) == 0


@given(st.integers(1, 60), st.integers(1, 60), st.integers(300, 1200), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_what_is_clipped_is_served_and_a_token_more_is_not(prompt: int, output: int, memory: int, chunk: int) -> None:
    """Alone in an empty arena it runs to its end, in whatever chunks admission says."""
    storage = storage_of((STATE, SHORT, FULL), memory=memory, running=1)
    admission = admission_of(storage, chunk)
    clipped = admission.clip(prompt, output)
    assert 0 <= clipped <= output
    if clipped < output:
        assert admission.never(prompt, clipped + 1) is not None
    if not clipped:
        assert isinstance(admission.ask(prompt, 1), Never)
        return
    answer = admission.ask(prompt, clipped)
    assert isinstance(answer, Admit)
    row, length, limit = storage.open(), 0, answer.chunk_tokens or chunk
    assert isinstance(row, int)
    while length < prompt + clipped - 1:
        length = min(length + limit, prompt) if length < prompt else length + 1
        assert not isinstance(storage.step(rows_of(row), rows_of(length)), Refused)


@pytest.mark.parametrize("wrong", [(0, 1), (-1, 1), (4, -1), (True, 1), (4, 1.5), ("4", 1)], ids=str)
def test_a_request_that_is_none_is_named_at_arrival(wrong: tuple[int, int]) -> None:
    """Whichever question it is; nothing is remembered of it, nor is it taken for what equals it."""
    admission = admission_of(storage_of((FULL,)))
    assert isinstance(admission.ask(1, 1), Admit)
    for question in (admission.clip, admission.never, admission.ask):
        with pytest.raises(KvarenaError, match=r"a request's (prompt|output)_tokens is"):
            question(*wrong)


@pytest.mark.parametrize("wrong", [3, 8, 12, -4, True, 4.0], ids=str)
def test_a_cached_part_that_is_none_is_named(wrong: int) -> None:
    """Whole pages, fewer than the prompt has."""
    admission = admission_of(storage_of((FULL,)))
    assert admission.ask(8, 1, cached_tokens=4) == Admit((1,))
    with pytest.raises(KvarenaError, match=r"cached_tokens (is|are)"):
        admission.ask(8, 1, cached_tokens=wrong)


@pytest.mark.parametrize("chunk", [0, -8], ids=str)
def test_chunks_of_nothing_are_refused(chunk: int) -> None:
    """Before anything is asked."""
    with pytest.raises(KvarenaError, match=f"chunk_tokens is {chunk}"):
        admission_of(storage_of((FULL,)), chunk)
