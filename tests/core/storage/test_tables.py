"""Page tables for kernels: what the host would translate, filled by whichever device, at addresses that stay."""

from typing import Any

import gpu_toys
import numpy as np
import pytest
import storages
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import CHAINS, FULL, SHORT, STATE, opened, overlapped, process, rows_of, simulated, stepped, storage_of

from kvarena.assembly.config import Choice
from kvarena.storage.mirrors import Mirrors
from kvarena.storage.storage import Storage
from kvarena.storage.tables import BatchTables
from kvarena.terms.errors import InvariantError, KvarenaError

BACKENDS = {
    "simulated": simulated("late"),
    "cpu": Choice("cpu"),
    "torch": Choice("toy-gpu", {"kernels": "torch", "lag": 3}),
}
TRITON = Choice("toy-gpu", {"kernels": "triton"})


@pytest.fixture(autouse=True, scope="module")
def toys() -> Any:
    with gpu_toys.toys_in(storages):
        yield


def mirrors_of(storage: Storage) -> Mirrors:
    assert storage.mirrors is not None
    return storage.mirrors


def host_says(storage: Storage, rows: list[int], places: int) -> dict[str, Any]:
    """What the tables should read for these rows, by the host's maps as they are; padding up to ``places``."""
    table, chain = storage.requests, storage.chain
    ids = np.full((places, table.pages_per_row), -1)
    ids[: len(rows)] = table.pages[rows]
    found = {pool.name: chain.pages(pool.name, ids) for pool in storage.plan.token_pools}
    if storage.plan.slots is not None:
        slots = np.full((places, table.slots.shape[1]), -1)
        slots[: len(rows)] = table.slots[rows]
        found["slots"] = chain.pages(storage.plan.slots.name, slots)
    return found


def launched(storage: Storage, tables: BatchTables, rows: list[int], seen: list[Any]) -> Any:
    """A forward over these rows, whose work fills the tables; what they should be is noted beside a copy of them."""
    tables.batch(rows_of(*rows))
    forward = storage.forwards.launch()
    expected = host_says(storage, rows, tables.rows)

    def work() -> None:
        tables.translate()
        found = {name: np.asarray(tables[name]).copy() for name in tables}
        if tables.slots is not None:
            found["slots"] = np.asarray(tables.slots).copy()
        seen.append((expected, found))

    storage.forwards.run(forward, work)
    storage.forwards.record(forward)
    return forward


VERBS = st.lists(
    st.tuples(
        st.sampled_from(["open", "step", "step", "close", "flush", "launch"]), st.integers(0, 3), st.integers(0, 20)
    ),
    min_size=5,
    max_size=25,
)


@pytest.mark.req("LIF-8")
@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("triton", marks=gpu_toys.NEEDS_TRITON)])
@given(name=st.sampled_from(sorted(CHAINS)), in_flight=st.integers(0, 2), verbs=VERBS)
@settings(max_examples=15)
def test_tables_read_what_the_host_would_translate(
    backend: str, name: str, in_flight: int, verbs: list[tuple[str, int, int]]
) -> None:
    """After random operations and moves, in every sub-pool and for the slots, batches of any rows in any order."""
    storage = storage_of(
        CHAINS[name], memory=4000, backend=BACKENDS.get(backend, TRITON), mirrors=True, forwards_in_flight=in_flight
    )
    tables = mirrors_of(storage).tables(3)
    seen: list[Any] = []
    flying: list[Any] = []
    for verb, which, amount in [*verbs, ("launch", 0, 3)]:
        rows = storage.requests.open_rows().tolist()
        if verb == "launch":
            if flying and len(flying) >= in_flight:
                process(storage, flying.pop(0))
            flying.append(launched(storage, tables, (rows[which % 4 :] + rows)[: amount % 4], seen))
        elif verb == "open":
            storage.open()
        elif verb == "flush":
            storage.flush()
        elif rows and verb == "close":
            storage.close(rows[which % len(rows)])
        elif rows:
            row = rows[which % len(rows)]
            storage.step(rows_of(row), rows_of(min(60, int(storage.requests.lengths[row]) + amount)))
    process(storage, *flying)
    assert seen
    for expected, found in seen:
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
            assert found[key].dtype == np.int32
    storage.release()


def test_a_narrow_table_has_the_first_pages() -> None:
    """Width and rows are chosen once; fewer can be asked for, and more are refused."""
    storage = overlapped(STATE, SHORT, FULL, backend="cpu", mirrors=True, memory=6000)
    tables, seen = mirrors_of(storage).tables(2, 3), list[Any]()
    assert (tables.rows, tables.width, sorted(tables), len(tables)) == (2, 3, ["full", "window-6"], 2)
    row = opened(storage)
    stepped(storage, (row, 20))
    process(storage, launched(storage, tables, [row], seen))
    ((expected, found),) = seen
    assert found["full"].tolist() == expected["full"][:, :3].tolist()
    assert found["slots"].tolist() == expected["slots"].tolist()
    for rows, width in ((3, 3), (2, 4), (-1, 0)):
        with pytest.raises(KvarenaError, match="there are 2 of 3"):
            tables.translate(rows, width)
    with pytest.raises(KeyError, match="no token sub-pool 'fall'; did you mean 'full'"):
        tables["fall"]
    storage.release()


def test_a_batch_that_cannot_be_changes_nothing() -> None:
    """Too many rows, and a row that is none; the padding row may be named."""
    storage = overlapped(FULL, backend="cpu", mirrors=True)
    tables, seen = mirrors_of(storage).tables(2), list[Any]()
    row = opened(storage)
    stepped(storage, (row, 9))
    tables.batch(rows_of(row))
    with pytest.raises(KvarenaError, match="3 rows, and the tables were opened for 2"):
        tables.batch(rows_of(0, 1, 2))
    for wrong in (-1, len(storage.requests) + 1):
        with pytest.raises(KvarenaError, match="rows are from 0 to 4, the padding row"):
            tables.batch(rows_of(wrong))
    process(storage, launched(storage, tables, [row], seen))
    tables.batch(rows_of(len(storage.requests), row))
    process(storage, launched(storage, tables, [row], seen))
    for expected, found in seen:
        np.testing.assert_array_equal(found["full"], expected["full"])
    storage.release()


def test_tables_are_opened_once_and_before_anything_flies() -> None:
    """A second set, one under a forward, and one without rows are refused; a resize makes them anew."""
    storage = overlapped(FULL, backend="cpu", mirrors=True)
    with pytest.raises(KvarenaError, match="0 rows of 15 pages; a row has up to 15, and one is needed"):
        mirrors_of(storage).tables(0)
    forward = storage.forwards.launch()
    storage.forwards.record(forward)
    with pytest.raises(KvarenaError, match="1 forwards are in flight: process them"):
        mirrors_of(storage).tables(2)
    process(storage, forward)
    mirrors_of(storage).tables(2)
    with pytest.raises(KvarenaError, match="there are tables already; a resize makes mirrors, and tables, anew"):
        mirrors_of(storage).tables(2)
    storage.resize(3000)
    tables, seen = mirrors_of(storage).tables(2), list[Any]()
    row = opened(storage)
    stepped(storage, (row, 9))
    process(storage, launched(storage, tables, [row], seen))
    np.testing.assert_array_equal(seen[0][1]["full"], seen[0][0]["full"])
    storage.release()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_do_not_outlive_a_resize(backend: str) -> None:
    """A resize makes the mirrors anew: tables, and mirrors, of before are refused by name, and new ones are right."""
    storage = storage_of((FULL, SHORT), mirrors=True, backend=BACKENDS[backend], forwards_in_flight=2)
    mirrors, before = mirrors_of(storage), mirrors_of(storage).tables(2)
    storage.resize(3000)
    for use in (lambda: before.batch(rows_of(0)), before.translate, lambda: mirrors.pages("full", rows_of(0), 1)):
        with pytest.raises(InvariantError, match=r"^storage\.part_from_before_a_resize"):
            use()

    tables, seen = mirrors_of(storage).tables(2), list[Any]()
    row = opened(storage)
    stepped(storage, (row, 20))
    process(storage, launched(storage, tables, [row], seen))
    for found, expected in seen:
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert seen
    storage.close(row)
    storage.release()
    with pytest.raises(InvariantError, match=r"^storage\.used_after_release"):
        tables.batch(rows_of(0))
