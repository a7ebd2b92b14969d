"""Lists of pages: where runs begin, and which copies may be made at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.backends.page_lists import are_inside, last_writes, rounds_of, run_sizes, run_starts
from kvarena.terms.ports import IntArray

PAGES = 12
PAIRS = st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(0, PAGES - 1)), max_size=25)


def as_lists(pairs: list[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    sources, targets = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return sources, targets


@given(PAIRS, st.randoms(use_true_random=False))
def test_rounds_in_any_order_are_one_copy_after_another(pairs: list[tuple[int, int]], rng: st.DataObject) -> None:
    """In a round nothing is both read and written, or written twice; round by round the bytes are a plain loop's."""
    written: set[int] = set()
    legal = []
    for source, target in pairs:  # no target is a later source
        if source not in written or source == target:
            legal.append((source, target))
            if source != target:
                written.add(target)
    legal = [pair for pair in legal if pair[0] != pair[1] or pair[0] not in written]
    expected, found = list(range(PAGES)), list(range(PAGES))
    for source, target in legal:
        expected[target] = expected[source]
    for sources, targets in rounds_of(*as_lists(legal)) if legal else []:
        assert len(set(targets.tolist())) == len(targets)
        assert not set(targets.tolist()) & set(sources.tolist())
        copies = list(zip(sources.tolist(), targets.tolist(), strict=True))
        rng.shuffle(copies)  # type: ignore[attr-defined]
        for source, target in copies:
            found[target] = found[source]
    assert found == expected


def test_moves_to_where_nobody_reads_are_one_round() -> None:
    """What compaction makes; a block that slides by three pages makes one for each three."""
    ((sources, targets),) = rounds_of(np.array([9, 7, 5]), np.array([1, 2, 0]))
    assert (sources.tolist(), targets.tolist()) == ([9, 7, 5], [1, 2, 0])
    assert [len(read) for read, _ in rounds_of(np.arange(3, 11), np.arange(8))] == [3, 3, 2]
    assert rounds_of(np.array([4, 2]), np.array([4, 2])) == []


def test_the_last_write_to_a_page_stays() -> None:
    """In the order of the call."""
    read, written = last_writes(np.array([0, 1, 2, 3]), np.array([7, 8, 7, 9]))
    assert (read.tolist(), written.tolist()) == ([1, 2, 3], [8, 7, 9])


def test_runs_are_found_in_all_lists_at_once() -> None:
    """A run ends where any list does not go on."""
    first = run_starts(np.array([1, 2, 3, 7, 8]), np.array([4, 5, 9, 10, 11]))
    assert first.tolist() == [0, 2, 3]
    assert run_sizes(first, 5).tolist() == [2, 1, 2]


@pytest.mark.parametrize("length", [1, 16, 17, 300])
@pytest.mark.parametrize("wrong", [-1, 400, -(2**63), 2**63 - 1])
def test_one_page_outside_is_found_in_any_list(length: int, wrong: int) -> None:
    """Short lists and long ones, below and beyond."""
    pages = np.arange(length)
    assert are_inside(pages, 400)
    pages[length // 2] = wrong
    assert not are_inside(pages, 400)
