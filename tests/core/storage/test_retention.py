"""What windows keep for a cache's checkpoints: no request ever holds more than it was priced for, taken or skipped."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from storages import CHAINS, FULL, STATE, Tagged, assert_quiet, nothing_changes, opened, rows_of, stepped, storage_of
from toys import SinksAndWindow

from kvarena.assembly.config import PrefixConfig
from kvarena.planning.demand import Purpose, RequestShape, chunk_stop, request_demand
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Chunk, Window
from kvarena.terms.ports import IntArray

W8 = Window(8)


def sharing(*kinds: object, grid: int = 16, **settings: object) -> Storage:
    """A storage of which a cache keeps checkpoints every ``grid`` tokens."""
    prefix = PrefixConfig(share=True, checkpoint_tokens=grid)
    return storage_of(kinds, prefix=prefix, **{"memory": 20_000, **settings})  # type: ignore[arg-type]


class Keeper:
    """The least cache: one entry a checkpoint, with the window rows behind it and its state, and a path of KV."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.path: list[int] = []
        self.states: dict[int, int] = {}
        self.windows = [pool for pool in storage.plan.token_pools if pool.name != storage.plan.owner]

    def keep(self, row: int, tokens: int) -> None:
        """A row's first tokens, all of which it has computed, and the state in its spare place."""
        storage, count = self.storage, tokens // self.storage.plan.page_tokens
        storage.ownership.hand_over(row, tokens)
        self.path = storage.requests.pages[row, :count].tolist()
        if storage.plan.slots is not None and storage.requests.slots.shape[1] > 1:
            self.states[tokens] = storage.sharing.hand_over_slot(row, 1)
            assert not isinstance(storage.sharing.take_slot(row, 1), Refused)

    def drop(self, *kept: int) -> None:
        """Window rows that none of these checkpoints needs come back, and the states of the others."""
        size = self.storage.plan.page_tokens
        for pool in self.windows:
            needed = {
                at for tokens in kept for at in range((tokens - pool.lifetime.retained(tokens)) // size, tokens // size)
            }
            spare = rows_of(*(id_ for at, id_ in enumerate(self.path) if id_ >= 0 and at not in needed))
            there = spare[self.storage.sharing.bound(pool.name, spare)]
            self.storage.sharing.free_in(pool.name, there)
        for tokens in self.states.keys() - set(kept):
            self.storage.sharing.free_slots(rows_of(self.states.pop(tokens)))

    def clear(self) -> None:
        """Nothing is kept any more."""
        self.storage.ownership.free_pages(self.storage.ownership.handed_over())
        self.storage.sharing.free_slots(rows_of(*self.states.values()))
        self.path, self.states = [], {}


def live(storage: Storage, name: str) -> int:
    """The units of a sub-pool that somebody holds."""
    return storage.chain.bands[name].live


@pytest.mark.req("CKP-1")
@pytest.mark.req("WIN-1")
def test_window_rows_behind_the_last_checkpoint_outlive_the_window() -> None:
    """H20: request and entries hold 3, 4, 6, 6 window pages, then 4 and 5; 2 and 3 once the older entry is gone."""
    storage = sharing(STATE, W8, FULL)
    keeper, row = Keeper(storage), opened(storage)
    stepped(storage, (row, 16))
    keeper.keep(row, 16)
    keeper.drop(16)
    held = {}
    for length in range(17, 33):
        stepped(storage, (row, length))
        held[length] = live(storage, "window-8")
        storage.verify()
        if length == 30:
            reader = opened(storage)
            storage.sharing.start(reader, rows_of(*keeper.path), 16)
            sink = storage.chain.bands["window-8"].grid.sink_page
            pages = storage.translate(rows_of(reader)).tables["window-8"][0]
            assert [page != sink for page in pages.tolist()] == [False, False, True, True]  # rows 9 to 15 lie in two
            storage.close(reader)
    assert [held[length] for length in (17, 24, 30, 32)] == [3, 4, 6, 6]
    keeper.keep(row, 32)
    keeper.drop(16, 32)
    assert live(storage, "window-8") == 4
    stepped(storage, (row, 33))
    assert live(storage, "window-8") == 5
    keeper.drop(32)
    assert live(storage, "window-8") == 3
    assert request_demand(storage.plan, RequestShape(16, 40), chunk_tokens=16, grid=16)[1] == 6
    keeper.clear()
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("CKP-1")
@pytest.mark.parametrize("strategy", [None, "no_buffer"])
def test_without_a_grid_windows_are_those_of_the_request(strategy: str | None) -> None:
    """Sharing off, or states kept only at a request's end: 3, 2, 3, 2 pages at the same lengths."""
    prefix = PrefixConfig(share=True, strategy=strategy) if strategy else PrefixConfig()
    storage = storage_of((STATE, W8, FULL), prefix=prefix)
    assert storage.sizing.limits.grid is None
    row, held = opened(storage), {}
    stepped(storage, (row, 16))
    for length in range(17, 34):
        stepped(storage, (row, length))
        stepped(storage, (row, length))  # a step to where it is retires at its end
        held[length] = live(storage, "window-8")
    assert [held[length] for length in (17, 24, 30, 32)] == [3, 2, 3, 2]


def charged(storage: Storage, row: int) -> IntArray:
    """What the row has taken of its charge."""
    return storage.ownership.charged()[:, row]


@pytest.mark.req("DEM-3")
@pytest.mark.req("CKP-1")
@pytest.mark.req("CKP-2")
@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(CHAINS)),
    page_tokens=st.sampled_from((1, 3, 4)),
    intervals=st.integers(1, 4),
    chunk=st.integers(1, 40),
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 30)),
    data=st.data(),
)
def test_no_request_holds_more_than_it_was_priced_for(
    name: str, page_tokens: int, intervals: int, chunk: int, lengths: tuple[int, int, int], data: st.DataObject
) -> None:
    """Whichever checkpoints are taken and whichever stall; and where none is taken, it comes to hold exactly that."""
    grid = page_tokens * intervals
    storage = sharing(*CHAINS[name], grid=grid, page_tokens=page_tokens, running=2)
    grid = storage.sizing.limits.grid or 0
    keeper, step = Keeper(storage), grid or page_tokens
    cached, prompt, output = lengths[2] // step * step, lengths[0], lengths[1]
    assume(cached + prompt + output <= 60)
    if cached:
        donor = opened(storage)
        length = 0
        while length < cached:
            length = chunk_stop(length, cached, chunk, grid or None)
            stepped(storage, (donor, length))
        keeper.keep(donor, cached)
        storage.close(donor)
    row, shape = opened(storage), RequestShape(cached + prompt, output, cached)
    storage.sharing.start(row, rows_of(*keeper.path), cached if storage.plan.owner else 0)
    slots = storage.sizing.limits.slots_per_request
    priced = request_demand(storage.plan, shape, chunk_tokens=chunk, slots_per_request=slots, grid=grid or None)
    length, most, taken = cached, np.zeros(len(priced), dtype=np.int64), False
    while length < shape.rows:
        prefills = length < shape.prompt_tokens
        length = chunk_stop(length, shape.prompt_tokens, chunk, grid or None) if prefills else length + 1
        stepped(storage, (row, length))
        held = storage.ownership.held()[:, row]
        most = np.maximum(most, held)
        assert (held <= priced).all()
        assert (charged(storage, row) <= priced).all()
        if grid and not length % grid and data.draw(st.booleans(), f"a checkpoint at {length}"):
            taken = True
            keeper.keep(row, length)
            keeper.drop(*(tokens for tokens in keeper.states if data.draw(st.booleans(), f"{tokens} stays")))
            assert (charged(storage, row) <= priced).all()
        storage.verify()
    if not taken:
        assert most.tolist() == list(priced)
    keeper.clear()
    storage.close(row)
    assert_quiet(storage)


@pytest.mark.req("DEM-2")
@pytest.mark.parametrize("kind", [W8, Chunk(10), SinksAndWindow(5, 4)], ids=str)
def test_a_row_that_arrives_whole_keeps_what_the_grid_keeps(kind: object) -> None:
    """A load takes the pages behind the latest grid point, as many as it is priced for, and retires like any row."""
    storage, twin = sharing(STATE, kind, FULL), sharing(STATE, kind, FULL)
    for tokens in (15, 16, 30, 33):
        row, other = opened(storage), opened(twin)
        for length in range(1, tokens + 1):
            stepped(twin, (other, length))
        stepped(twin, (other, tokens))
        copy = storage.copies.load(row, tokens)
        assert not isinstance(copy, Refused)
        held, theirs = storage.ownership.held()[1, row], twin.ownership.held()[1, other]
        shape = RequestShape(tokens, 1)
        assert held == theirs
        assert held <= request_demand(storage.plan, shape, Purpose.LOAD_BACK, chunk_tokens=1, grid=16)[1]
        hosts = {
            name: (storage.device.host_memory(storage.plan[name].unit_bytes, len(ids)), np.arange(len(ids)))
            for name, ids in copy.ids.items()
        }
        storage.copies.submit(copy, hosts)
        storage.copies.end(copy)
        for length in range(tokens + 1, 60):
            stepped(storage, (row, length))
            stepped(twin, (other, length))
            assert storage.ownership.held()[:, row].tolist() == twin.ownership.held()[:, other].tolist()
        storage.close(row)
        twin.close(other)


@pytest.mark.req("WIN-1")
def test_a_row_may_go_back_behind_a_grid_point_as_far_as_its_window_reaches() -> None:
    """What the point let go stays gone, nothing goes twice, and every row that is needed reads its tag."""
    tagged = Tagged(sharing(STATE, W8, FULL, backend="cpu"))
    storage = tagged.storage
    row = opened(storage)
    for length in (*range(16, 33, 8), 33):  # the step from 32 lets go of what a query at 32 needs no more
        assert tagged.step((row, length))
    assert storage.ownership.held()[1, row] == 3  # rows 24 to 32
    with nothing_changes(storage), pytest.raises(InvariantError, match=r"storage\.free_below_what_retired"):
        storage.ownership.free_rows(row, [range(20, 33)])
    storage.ownership.free_rows(row, [range(31, 33)])
    other = opened(storage)
    for length in range(32, 60):
        assert tagged.step((row, length), (other, min(length - 20, 40)))
        storage.verify()
        assert tagged.reads("window-8", row, range(max(24, length - 8), length))
    storage.close(rows_of(row, other))
    tagged.release()
