"""Requests over one arena, beside a model that knows nothing but lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toys import Bytes, SinksAndWindow

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, StorageConfig
from kvarena.planning.demand import whole_pages
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError, PlanError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, State, Window

CATALOG = Catalog.installed()
STATE, FULL, SHORT, LONG = State(), Full(), Window(6), Window(17)
CHAINS = {
    "state, window, full": (STATE, SHORT, FULL),
    "full alone": (FULL,),
    "state alone": (STATE,),
    "window alone": (SHORT,),
    "two windows": (SHORT, LONG),
    "state, three floats, full": (STATE, SHORT, LONG, Chunk(10), FULL),
    "window and chunk, byte-less owner": (Chunk(8), SHORT),
    "sinks and a window, full": (SinksAndWindow(5, 4), FULL),
    "sinks alone with a state": (STATE, SinksAndWindow(5, 4)),
}
SIZES = {STATE: 40, FULL: 6, SHORT: 10, LONG: 4}


def storage_of(lifetimes, *, memory=4000, page_tokens=4, running=4, context=60, **arena):
    """A host storage with one layer per lifetime."""
    layers = [
        Layer(index, (Part(Bytes(SIZES.get(lifetime, 5)), lifetime, lifetime.name),))
        for index, lifetime in enumerate(lifetimes)
    ]
    config = StorageConfig(
        arena=ArenaConfig(
            memory=memory, page_tokens=page_tokens, context_tokens=context, max_running=running, mirrors=False, **arena
        ),
        backend="host",
    )
    return build_storage(layers, config, CATALOG)


def rows_of(*rows):
    return np.array(rows, dtype=np.int64)


class StorageMachine(RuleBasedStateMachine):
    """Opens, steps and closes in any order; every count and every translation is checked after each."""

    @initialize(
        name=st.sampled_from(sorted(CHAINS)), page_tokens=st.sampled_from([1, 3, 4]), memory=st.integers(900, 4000)
    )
    def build(self, name, page_tokens, memory):
        self.storage = storage_of(CHAINS[name], page_tokens=page_tokens, memory=memory)
        self.seen = {}  # row: (length when last looked at, length)

    @rule()
    def open(self):
        before = self.storage.chain.snapshot()
        row = self.storage.open()
        if isinstance(row, Refused):
            assert self.storage.chain.snapshot() == before
        else:
            assert row not in self.seen
            self.seen[row] = (0, 0)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def step(self, data):
        rows = data.draw(st.lists(st.sampled_from(sorted(self.seen)), min_size=1, unique=True))
        more = [data.draw(st.integers(0, 9)) for _ in rows]
        lengths = [min(self.seen[row][1] + count, 60) for row, count in zip(rows, more, strict=True)]
        live = {row: self.seen[row][1] for row in rows}
        ids = self.storage.step(rows_of(*rows), rows_of(*lengths))
        for row, length in zip(rows, lengths, strict=True):
            grown = live[row] if isinstance(ids, Refused) else length
            self.seen[row] = (live[row], grown)
        if not isinstance(ids, Refused):
            assert ids.starts.tolist() == list(live.values())
            assert ids.lengths.tolist() == lengths

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def close(self, data):
        row = data.draw(st.sampled_from(sorted(self.seen)))
        self.storage.close(row)
        del self.seen[row]

    @rule()
    def flush(self):
        self.storage.flush()

    def kept(self, pool, row):
        """The page positions that a sub-pool must hold for a row; those that it may have let go already."""
        looked, length = self.seen[row]
        tokens = self.storage.plan.page_tokens
        there = set(range(-(-length // tokens)))
        gone = {page for pages in whole_pages(pool.lifetime.retired(0, looked), tokens) for page in pages}
        return there - gone

    @invariant()
    def counts_and_ids_agree(self):
        if not hasattr(self, "storage"):
            return
        storage, table = self.storage, self.storage.requests
        storage.verify()
        for column, pool in enumerate(storage.plan.sub_pools):
            held = {row: 1 if pool.is_slots else len(self.kept(pool, row)) for row in self.seen}
            assert {row: int(table.held[row, column]) for row in self.seen} == held
            assert storage.chain.snapshot().bands[column].live == sum(held.values())
        if self.seen:
            self.translations_agree(storage.translate(rows_of(*sorted(self.seen))))

    def translations_agree(self, ids):
        storage = self.storage
        for pool in storage.plan.token_pools:
            sink = storage.chain.pages(pool.name, rows_of(-1))[0]
            tables = ids.tables[pool.name]
            owned = []
            for index, row in enumerate(sorted(self.seen)):
                bound = {place for place, page in enumerate(tables[index].tolist()) if page != sink}
                assert bound == self.kept(pool, row)
                owned += [page for page in tables[index].tolist() if page != sink]
            assert len(owned) == len(set(owned))
        if ids.slots is not None:
            slots = ids.slots.ravel().tolist()
            assert 0 not in slots
            assert len(slots) == len(set(slots))

    def teardown(self):
        if hasattr(self, "storage"):
            self.storage.close(self.storage.requests.open_rows())
            assert all(shot.live == shot.holes == 0 for shot in self.storage.chain.snapshot().bands)
            self.storage.chain.verify()
            self.storage.release()


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStorageMachine.pytestmark = [pytest.mark.req(row) for row in ("DEC-3", "IDS-1", "IDS-4", "WIN-1", "LIF-7")]


@pytest.mark.req("WIN-1")
def test_a_window_of_a_page_holds_one_or_two_as_it_slides():
    """Pages live after retiring at each length, with pages of 4 and a window of 4."""
    storage = storage_of((Window(4), FULL), page_tokens=4)
    row, live = storage.open(), []
    for length in range(1, 13):
        assert storage.step(rows_of(row), rows_of(length))
        storage.step(rows_of(row), rows_of(length))
        live.append(storage.chain.snapshot().bands[0].live)
    assert live == [1, 1, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1]


@pytest.mark.req("ALC-2")
def test_a_refused_step_retires_but_takes_nothing():
    """The batch is all or nothing: after a refusal no row has grown and the counts are as before."""
    storage = storage_of((FULL,), memory=24 * 6)
    one, two = storage.open(), storage.open()
    assert storage.step(rows_of(one, two), rows_of(8, 4))
    before = storage.chain.snapshot()
    refused = storage.step(rows_of(one, two), rows_of(16, 12))
    assert isinstance(refused, Refused)
    assert not refused
    assert refused.asked == {"full": 4}
    assert "full" in str(refused)
    assert storage.chain.snapshot() == before
    assert storage.requests.lengths[rows_of(one, two)].tolist() == [8, 4]
    assert every_free_id_can_be_minted(storage, "full")
    assert storage.step(rows_of(one), rows_of(12))


def every_free_id_can_be_minted(storage, name):
    """Nobody lost an id: all that no unit is bound to are there to be taken."""
    free = next(shot.ids_free for shot in storage.chain.snapshot().bands if shot.name == name)
    ids = storage.chain.minters[name].mint(free)
    if ids is not None:
        storage.chain.minters[name].give_back(ids)
    return ids is not None


@pytest.mark.req("ALC-2")
def test_a_refused_step_or_open_keeps_no_id():
    """With every byte under the rows of one request, nothing stays behind of what it and the next one asked."""
    storage = storage_of((STATE, FULL), memory=440)
    row, length = storage.open(), 1
    while storage.step(rows_of(row), rows_of(length)):
        length += 1
    assert every_free_id_can_be_minted(storage, "full")
    before, rows = storage.chain.snapshot(), storage.requests.free_count
    refused = storage.open()
    assert isinstance(refused, Refused)
    assert refused.asked == {"state": 1}
    assert (storage.chain.snapshot(), storage.requests.free_count) == (before, rows)
    assert every_free_id_can_be_minted(storage, "state")
    storage.close(row)
    assert not isinstance(storage.open(), Refused)


@pytest.mark.req("IDS-2")
@pytest.mark.req("IDS-3")
def test_pages_move_while_request_rows_stay():
    """Compaction changes physical pages; the virtual ids in the table do not change, and translation follows."""
    storage = storage_of((FULL,), page_tokens=1, memory=600)
    rows = [storage.open() for _ in range(3)]
    for length in range(1, 9):
        storage.step(rows_of(*rows), rows_of(length, length, length))
    storage.close(rows[0])
    virtual = storage.requests.pages[rows_of(*rows[1:])].copy()
    before = storage.translate(rows_of(*rows[1:])).tables["full"].copy()
    assert storage.flush() > 0
    after = storage.translate(rows_of(*rows[1:])).tables["full"]
    assert (storage.requests.pages[rows_of(*rows[1:])] == virtual).all()
    assert (before != after).any()
    assert len(set(after.ravel().tolist())) == 16


def test_write_ids_name_the_page_and_place_of_each_new_token():
    """Row-major, one entry per new token, in every sub-pool of the plan."""
    storage = storage_of((SHORT, FULL), page_tokens=4)
    one, two = storage.open(), storage.open()
    storage.step(rows_of(one, two), rows_of(3, 1))
    ids = storage.step(rows_of(one, two), rows_of(6, 2))
    assert ids.write_offsets().tolist() == [3, 0, 1, 1]
    for name in ("window-6", "full"):
        tables = ids.tables[name]
        assert ids.write_pages(name).tolist() == [tables[0, 0], tables[0, 1], tables[0, 1], tables[1, 0]]


def test_ids_of_a_step_are_not_read_after_a_later_one():
    """A table that is looked at first after another take would be of another moment: it is refused, not given."""
    storage = storage_of((SHORT, FULL), page_tokens=4)
    row = storage.open()
    ids = storage.step(rows_of(row), rows_of(4))
    known = ids.tables["full"]
    storage.step(rows_of(row), rows_of(5))
    assert ids.tables["full"] is known
    with pytest.raises(InvariantError, match=r"storage\.ids_outlived_their_step: sub_pool='window-6'"):
        ids.tables["window-6"]


def test_a_step_of_a_row_that_nobody_opened_is_caught():
    """Before anything changes."""
    storage = storage_of((FULL,))
    with pytest.raises(InvariantError, match=r"storage\.step_of_free_row"):
        storage.step(rows_of(storage.open() + 1), rows_of(4))
    storage.verify()


@pytest.mark.parametrize("harm", ["held", "ids", "rows"])
def test_verify_finds_a_table_that_disagrees_with_the_bands(harm):
    """A count that is off by one, an id that was forgotten, a row that is lost: each is found by name."""
    storage = storage_of((SHORT, FULL), page_tokens=4)
    row = storage.open()
    storage.step(rows_of(row), rows_of(9))
    storage.verify()
    if harm == "held":
        storage.requests.held[row, 1] += 1
    elif harm == "ids":
        storage.requests.pages[row, 2] = -1
    else:
        storage.requests._free.pop()
    name = "requests.rows_add_up" if harm == "rows" else "storage.held_is_what_is_bound"
    with pytest.raises(InvariantError, match=name.replace(".", r"\.")):
        storage.verify()


@pytest.mark.req("PLN-2+")
@pytest.mark.parametrize(("lifetimes", "owner"), [((SHORT,), "window-6"), ((Chunk(8), SHORT), "ids")])
def test_an_owner_without_full_attention_recycles_its_ids(lifetimes, owner):
    """A sequence far beyond the id count: an id comes back when the last band has let it go, with bytes or without."""
    storage = storage_of(lifetimes, memory=400, context=4000)
    row = storage.open()
    assert (storage.plan.owner, storage.sizing.id_count < 1000 / 4) == (owner, True)
    for length in range(1, 1001):
        assert storage.step(rows_of(row), rows_of(length))
    held = storage.requests.held[row].tolist()
    assert held == [shot.live for shot in storage.chain.snapshot().bands]
    assert max(held) <= 3
    storage.close(row)
    assert storage.chain.minters[owner].mint(storage.sizing.id_count) is not None


@pytest.mark.req("SIZ-5")
def test_a_resize_solves_again_and_everything_agrees():
    """Maps, rows and arena follow the new budget; with a request open it is refused and nothing changes."""
    storage = storage_of((STATE, SHORT, FULL), memory=4000)
    row = storage.open()
    with pytest.raises(KvarenaError, match="1 requests are open"):
        storage.resize(3000)
    storage.close(row)
    with pytest.raises(PlanError):
        storage.resize(10)
    assert storage.sizing.arena_bytes == 4000
    storage.resize(2000)
    assert storage.sizing.arena_bytes == 2000 == storage.device.arena_bytes
    row = storage.open()
    assert storage.step(rows_of(row), rows_of(40))
    storage.chain.verify()
    assert storage.chain.snapshot().top <= 2000


def test_too_long_a_sequence_and_misuse_are_told_apart():
    """A row has a length limit that the user can raise; stepping back or closing twice is a bug of the caller."""
    storage = storage_of((FULL,), context=8)
    row = storage.open()
    with pytest.raises(KvarenaError, match="raise context_tokens"):
        storage.step(rows_of(row), rows_of(9))
    storage.step(rows_of(row), rows_of(4))
    with pytest.raises(InvariantError, match=r"storage\.step_backwards"):
        storage.step(rows_of(row), rows_of(3))
    with pytest.raises(InvariantError, match=r"storage\.step_repeats_a_row"):
        storage.step(rows_of(row, row), rows_of(5, 6))
    assert storage.requests.lengths[row] == 4
    storage.close(row)
    with pytest.raises(InvariantError, match=r"storage\.close_of_free_row"):
        storage.close(row)
    storage.release()
    with pytest.raises(InvariantError, match=r"storage\.used_after_release"):
        storage.open()


@pytest.mark.req("CAP-5")
@given(st.integers(900, 4000), st.lists(st.integers(1, 20), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_yes_is_a_successful_step(memory, lengths):
    """What ``feasible`` says of the pages that a step takes is what the step does."""
    storage = storage_of((SHORT, FULL), memory=memory)
    rows = rows_of(*(storage.open() for _ in lengths))
    for growth in (1, 2, 3):
        wanted = rows_of(*lengths) * growth
        pages = int((-(-wanted // 4) - storage.requests.page_counts[rows]).sum())
        storage.step(rows, storage.requests.lengths[rows])
        answer = storage.chain.feasible((pages, pages))
        assert answer == (not isinstance(storage.step(rows, wanted), Refused))
        if not answer:
            break


def test_views_of_an_unknown_sub_pool_or_without_bytes_are_refused():
    """The error names what there is."""
    storage = storage_of((FULL,))
    with pytest.raises(KvarenaError, match="there are full"):
        storage.views("window-9")
    with pytest.raises(KvarenaError, match="host"):
        storage.views("full")


def built(*parts, backend="cpu", **arena):
    """A storage with one layer per part, on real bytes."""
    layers = [Layer(index, (part,)) for index, part in enumerate(parts)]
    config = {"memory": 4000, "page_tokens": 4, "context_tokens": 60, "mirrors": False, **arena}
    return build_storage(layers, StorageConfig(arena=ArenaConfig(**config), backend=backend), CATALOG)


@pytest.mark.req("SIZ-5")
def test_a_refused_resize_changes_nothing():
    """A device that cannot grow without moving its base says no before any book is made anew."""
    storage = built(Part(Bytes(40), STATE, "state"), Part(Bytes(6), FULL))
    before = (storage.sizing, storage.chain, storage.requests, storage.device.arena_bytes)
    with pytest.raises(KvarenaError, match="without moving the base"):
        storage.resize(5000)
    assert (storage.sizing, storage.chain, storage.requests, storage.device.arena_bytes) == before
    storage.release()


@pytest.mark.req("SIZ-5")
@pytest.mark.req("BLD-2")
def test_a_resize_keeps_the_base_and_gives_clean_sinks():
    """Captured addresses hold, and no unbound read sees what once lay where the top, and its sinks, are now."""
    storage = built(Part(Bytes(40), STATE, "state"), Part(Bytes(6), FULL), Part(Bytes(10), SHORT))
    at = {name: next(iter(storage.views(name).values())).data_ptr() for name in storage.plan.names}
    next(iter(storage.views("full").values()))[:] = 255
    for budget in (2000, 1500, 4000):
        storage.resize(budget)
        for name in storage.plan.names:
            view = next(iter(storage.views(name).values()))
            assert view.data_ptr() == at[name]
            assert not view[storage.chain.pages(name, rows_of(-1))].any()
    storage.release()


@pytest.mark.req("SIZ-3")
@pytest.mark.parametrize("name", ["state", "window-6", "full"])
def test_any_sub_pool_takes_any_free_bytes(name):
    """Boot targets bind nobody: with the others empty, each takes what the whole arena holds."""
    storage = storage_of((STATE, SHORT, FULL), state_slots=2)
    shots, chain = {shot.name: shot for shot in storage.chain.snapshot().bands}, storage.chain
    units = (chain.usable.stop - chain.usable.start) // shots[name].unit_bytes - 1  # one is lost to alignment
    assert units > storage.sizing.units[name]
    ids = chain.mint("state" if name == "state" else "full", units)
    assert not isinstance(chain.take({name: ids}), Refused)
    chain.verify()


@pytest.mark.req("IDS-3")
def test_each_sub_pool_is_translated_once_a_step(monkeypatch):
    """However often writes and reads ask, the maps are gathered once per sub-pool, for all rows together."""
    storage = storage_of((STATE, SHORT, FULL))
    rows, asked = rows_of(storage.open(), storage.open()), []
    written = [(0, at) for at in range(5)] + [(1, at) for at in range(9)]
    pages = storage.chain.pages
    monkeypatch.setattr(storage.chain, "pages", lambda name, ids: asked.append(name) or pages(name, ids))
    ids = storage.step(rows, rows_of(5, 9))
    for _layer in range(3):
        for name in ids.tables:
            assert ids.write_pages(name).tolist() == [ids.tables[name][row, at // 4] for row, at in written]
    assert sorted(asked) == ["full", "state", "window-6"]


class Coded(Bytes):
    """A layout that names a codec, which only a runner may touch."""

    @property
    def codec(self):
        raise AssertionError("core asked for a codec")


@pytest.mark.req("DEC-4")
def test_core_never_touches_a_codec():
    """A request of a coded layout is planned, served, moved and closed without its codec."""
    storage = built(Part(Coded(6), FULL), Part(Coded(9), SHORT), page_tokens=1)
    rows = rows_of(storage.open(), storage.open())
    storage.step(rows, rows_of(9, 9))
    storage.close(rows[0])
    assert storage.flush() > 0
    assert storage.routed()[0]["kv"].pool == "full"
    storage.release()


def test_a_call_that_fails_at_release_keeps_neither_the_others_nor_the_memory():
    """A plugin that raises when a storage closes loses nothing of anybody else."""
    storage = storage_of(CHAINS["full alone"])
    told = []

    def fail():
        raise RuntimeError("boom")

    storage.at_release.append(lambda: told.append("first"))
    storage.at_release.append(fail)
    with pytest.raises(RuntimeError):
        storage.release()

    assert told == ["first"]
    assert storage.device.arena_bytes == 0
