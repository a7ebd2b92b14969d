"""Every lifetime agrees with what its attention really reads, counted row by row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarena.terms import ranges
from kvarena.terms.lifetimes import (
    NEVER,
    Chunk,
    Full,
    Lifetime,
    OnGrid,
    State,
    Union,
    Window,
    common_multiple,
    floor_reaches,
    on_grid,
    outlives,
    prefix_floor,
    repeats,
)

SIZE = st.integers(1, 12)
LENGTH = st.integers(0, 60)
READS: dict[type, Callable[[Any, int, int], bool]] = {
    Full: lambda lifetime, row, query: True,
    Window: lambda lifetime, row, query: query - row < lifetime.window,
    Chunk: lambda lifetime, row, query: query // lifetime.chunk == row // lifetime.chunk,
    Union: lambda lifetime, row, query: any(reads(member, row, query) for member in lifetime.members),
}
BUILT_IN = st.one_of(st.just(Full()), st.builds(Window, SIZE), st.builds(Chunk, SIZE))
ROWS = st.one_of(BUILT_IN, st.builds(Union, st.lists(BUILT_IN, min_size=1, max_size=3).map(tuple)))


def reads(lifetime: Lifetime, row: int, query: int) -> bool:
    """Whether the query at this position attends to this earlier row."""
    return READS[type(lifetime)](lifetime, row, query)


def rows_of(pieces: tuple[range, ...]) -> set[int]:
    return {row for piece in pieces for row in piece}


def needed(lifetime: Lifetime, length: int, horizon: int = 80) -> set[int]:
    """The rows below ``length`` that some query from position ``length`` on still reads."""
    return {row for row in range(length) if any(reads(lifetime, row, query) for query in range(length, horizon))}


@given(ROWS, LENGTH)
def test_what_is_retired_is_what_no_later_query_reads(lifetime: Lifetime, length: int) -> None:
    """From length 0 on, exactly the rows that nobody reads any more are retired: not one more, not one less."""
    assert rows_of(lifetime.retired(0, length)) == set(range(length)) - needed(lifetime, length)


@given(ROWS, LENGTH, LENGTH, LENGTH)
def test_retiring_in_steps_is_retiring_at_once(lifetime: Lifetime, a: int, b: int, c: int) -> None:
    """However the length grows, each row retires in one step, and the steps add up."""
    a, b, c = sorted((a, b, c))
    first, second = rows_of(lifetime.retired(a, b)), rows_of(lifetime.retired(b, c))

    assert not first & second
    assert first | second == rows_of(lifetime.retired(a, c))
    assert first | rows_of(lifetime.retired(0, a)) == rows_of(lifetime.retired(0, b))


@given(BUILT_IN, LENGTH)
def test_retained_is_what_the_next_query_reads(lifetime: Lifetime, length: int) -> None:
    """``retained`` counts the rows before a position that the query there attends to."""
    assert lifetime.retained(length) == sum(reads(lifetime, row, length) for row in range(length))


@given(BUILT_IN, st.integers(1, 60))
def test_entries_are_the_rows_alive_between_two_steps(lifetime: Lifetime, length: int) -> None:
    """``entries`` counts the rows that the last query written attends to, itself included."""
    assert lifetime.entries(length) == sum(reads(lifetime, row, length - 1) for row in range(length))
    assert lifetime.entries(0) == 0


@given(ROWS, st.lists(LENGTH, min_size=1, max_size=8))
def test_floors_are_the_first_rows_still_needed(lifetime: Lifetime, lengths: list[int]) -> None:
    """Where what retires is a prefix, its end for many lengths at once is the same as one by one."""
    floors = prefix_floor(lifetime, np.array(lengths, dtype=np.int64))

    if floors is not None:
        for length, floor in zip(lengths, floors.tolist(), strict=True):
            assert rows_of(lifetime.retired(0, length)) == set(range(floor))


@given(ROWS, st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_a_floor_reaches_a_row_at_the_least_length_that_says_so(lifetime: Lifetime, rows: list[int]) -> None:
    """The closed form of the inverse is what trying every length finds."""
    found = floor_reaches(lifetime, np.array(rows, dtype=np.int64))
    floors = prefix_floor(lifetime, np.arange(400, dtype=np.int64))

    if found is not None and floors is not None:
        for row, length in zip(rows, found.tolist(), strict=True):
            there = np.flatnonzero(floors >= row)
            assert length == (there[0] if len(there) else NEVER)


def survives(longer: Lifetime, shorter: Lifetime, horizon: int) -> bool:
    """Whether no length finds a row that the longer one retired and the shorter one needs."""
    lengths = range(horizon)
    return all(not ranges.subtract(longer.retired(0, at), shorter.retired(0, at)) for at in lengths)


@given(BUILT_IN, BUILT_IN)
def test_outliving_is_never_retiring_first(longer: Lifetime, shorter: Lifetime) -> None:
    """One built-in lifetime outlives another exactly when it never retires a row that the other needs."""
    assert outlives(longer, shorter) == survives(longer, shorter, 200)


@given(ROWS, ROWS)
def test_outliving_is_tried_out_for_any_other(longer: Lifetime, shorter: Lifetime) -> None:
    """A yes about lifetimes that are not built in was seen at every length that was tried."""
    if outlives(longer, shorter, horizon=100):
        assert survives(longer, shorter, 100)


def test_outliving_beyond_what_was_tried_is_not_claimed() -> None:
    """A lifetime that retired nothing yet may retire a row later that another still needs: no, to be sure."""
    slow = Union((Window(50),))

    assert outlives(slow, Window(40), horizon=100)
    assert not outlives(slow, Window(40), horizon=10)
    assert not outlives(slow, Window(60), horizon=100)


@given(SIZE)
def test_names_and_ranks(size: int) -> None:
    """State, the longest window, shorter ones, full, byte-less owner: in that order, each under its own name."""
    chain = [State(), Window(size + 1), Window(size), Full(), Union((Full(),))]

    assert [lifetime.rank for lifetime in chain] == sorted(lifetime.rank for lifetime in chain)
    assert [lifetime.name for lifetime in chain] == ["state", f"window-{size + 1}", f"window-{size}", "full", "ids"]
    assert Chunk(size).rank == Window(size).rank
    assert Chunk(size).name == f"chunk-{size}"


def test_a_state_has_one_entry_at_any_length() -> None:
    """A slot is rewritten in place: nothing retires, nothing grows."""
    state = State(256)

    assert {state.entries(length) for length in (0, 1, 10**6)} == {1}
    assert state.retired(0, 10**6) == ()
    assert (state.own_ids, Full.own_ids, Window(1).own_ids) == (True, False, False)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8", None])
@pytest.mark.parametrize("kind", [Window, Chunk])
def test_a_length_is_a_whole_number(kind: Any, size: Any) -> None:
    """A window of no tokens, or of half a token, is refused when it is made."""
    with pytest.raises(ValueError, match="must be a whole number >= 1"):
        kind(size)


@pytest.mark.parametrize("interval", [0, -1, True, 1.5])
def test_a_checkpoint_grid_is_a_whole_number(interval: Any) -> None:
    """A grid of no tokens has no points; None is how one says so."""
    with pytest.raises(ValueError, match="checkpoint_interval must be a whole number >= 1"):
        State(interval)
    assert State(None).checkpoint_interval is None


@given(st.lists(st.integers(1, 64), max_size=5))
def test_the_common_multiple_is_the_least(rates: list[int]) -> None:
    """Every rate divides it, and nothing smaller is divided by all."""
    multiple = common_multiple(rates)

    assert all(multiple % rate == 0 for rate in rates)
    assert not any(all(less % rate == 0 for rate in rates) for less in range(1, min(multiple, 300)))


@pytest.mark.parametrize("make", [Window, Chunk])
def test_an_absurd_length_is_refused(make: type) -> None:
    """Lengths are added up in 64 bits."""
    with pytest.raises(ValueError, match="absurd"):
        make(1 << 41)


@pytest.mark.req("CKP-1")
@given(ROWS, LENGTH, st.integers(1, 12))
def test_on_a_grid_only_whole_intervals_retire(lifetime: Lifetime, length: int, grid: int) -> None:
    """What is needed at the latest grid point is kept until the next one is complete; never less than without."""
    kept = on_grid(lifetime, grid)
    gone = rows_of(kept.retired(0, length))
    assert gone == rows_of(lifetime.retired(0, length // grid * grid))
    assert gone <= rows_of(lifetime.retired(0, length))
    assert kept.retained(length) == length - len(gone)
    floor = prefix_floor(kept, np.array([length]))
    assert floor is not None
    assert floor.tolist() == [len(gone)]


@pytest.mark.req("CKP-1")
@given(ROWS, st.integers(1, 40), st.integers(1, 12))
def test_on_a_grid_the_floor_reaches_a_row_at_a_grid_point(lifetime: Lifetime, row: int, grid: int) -> None:
    """The least length at which it does, as by trying each."""
    kept = on_grid(lifetime, grid)
    reached = floor_reaches(kept, np.array([row]))
    assert reached is not None
    lengths = np.arange(200)
    floors = prefix_floor(kept, lengths)
    assert floors is not None
    found = lengths[floors >= row]
    assert int(reached[0]) == (found[0] if len(found) else int(reached[0]))
    assert len(found) or int(reached[0]) > lengths[-1]


@given(ROWS, st.integers(1, 12), st.integers(0, 150))
def test_what_is_needed_repeats_as_it_says(lifetime: Lifetime, grid: int, beyond: int) -> None:
    """From there on, one period later, as many rows are needed: on a grid as without."""
    for kept in (lifetime, on_grid(lifetime, grid)):
        found = repeats(kept)
        assert found is not None
        start, period = found
        at = start + beyond
        later = prefix_floor(kept, np.array([at, at + period]))
        assert later is not None
        assert later[1] - later[0] in (period, 0)
        if later[1] == later[0]:
            assert prefix_floor(kept, np.array([at + 40 * period]))[0] == 0  # type: ignore[index]


@pytest.mark.req("CKP-1")
def test_what_a_grid_does_not_move() -> None:
    """Full attention, a slot, and everything where there is no grid; a union is one of its members on the grid."""
    for lifetime in (Full(), State()):
        assert on_grid(lifetime, 16) is lifetime
    assert on_grid(Window(8), None) == Window(8)
    assert on_grid(Union((Window(8), Full())), 16) == Union((OnGrid(Window(8), 16), Full()))
    kept = on_grid(Window(8), 16)
    assert (kept.name, kept.rank, kept.own_ids) == ("window-8", Window(8).rank, False)
    assert kept == OnGrid(Window(8), 16)
    assert len({kept, OnGrid(Window(8), 16), OnGrid(Window(8), 32)}) == 2


@pytest.mark.req("CKP-1")
@given(BUILT_IN, st.integers(1, 12), st.integers(1, 60))
def test_on_a_grid_the_most_rows_alive_between_steps(lifetime: Lifetime, grid: int, length: int) -> None:
    """What is left after retiring at the length before, and the row that the last step wrote."""
    kept = on_grid(lifetime, grid)
    assert kept.entries(length) == length - len(rows_of(kept.retired(0, length - 1)))


def test_an_interval_is_a_whole_number() -> None:
    """At least one token."""
    for wrong in (0, -4, 2.5, True):
        with pytest.raises(ValueError, match="interval must be a whole number"):
            OnGrid(Window(8), wrong)  # type: ignore[arg-type]
