"""Requests over one arena on real bytes, beside a model that knows which positions each of them owns."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storages import CHAINS, own_ids, rows_of, state_of, storage_of

from kvarena.planning.demand import whole_pages
from kvarena.planning.plan import SubPool
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.routed import views_of
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError
from kvarena.terms.lifetimes import Full, Lifetime, on_grid, prefix_floor

CONTEXT = 60
HARD = ("sinks and a window, full", "sinks alone with a state", "two windows", "state, three floats, full")


@attrs.define
class Row:
    """A running request: per sub-pool the page positions it owns, and the tag of each token it wrote."""

    length: int = 0
    own: dict[str, set[int]] = attrs.Factory(dict)
    tags: dict[str, dict[int, int]] = attrs.Factory(dict)
    slots: list[int | None] = attrs.Factory(list)
    """The tag of each place, None where it is empty."""
    lent: dict[int, int] = attrs.Factory(dict)
    """Page position -> id, for those that were handed over and not freed since."""
    lent_pages: int = 0
    let_go: set[int] = attrs.Factory(set)
    """Page positions whose ids retired."""


class StorageMachine(RuleBasedStateMachine):
    """Every token gets a tag where its step says it is written, and is read where the next steps say."""

    @initialize(
        name=st.sampled_from(sorted(CHAINS)) | st.sampled_from(HARD),
        page_tokens=st.sampled_from([1, 3, 4]),
        memory=st.integers(900, 4000) | st.just(4000),
    )
    def build(self, name: str, page_tokens: int, memory: int) -> None:
        slots = 2 if "state" in name and memory > 2000 else 1
        self.begin(
            storage_of(CHAINS[name], page_tokens=page_tokens, memory=memory, backend="cpu", slots_per_request=slots)
        )

    def begin(self, storage: Storage) -> None:
        """Nothing has happened in this storage yet."""
        self.storage = storage
        self.size = storage.plan.page_tokens
        self.grid = storage.sizing.limits.grid
        self.rows: dict[int, Row] = {}
        self.handed: dict[int, dict[str, list[int]]] = {}  # id: sub-pool: the tags of its tokens
        self.handed_slots: dict[int, int] = {}  # id: its tag
        self.serial = 0
        self.tokens = self.storage.plan.token_pools
        self.backed = [pool.name for pool in self.storage.plan.sub_pools if pool.unit_bytes]
        self.bytes = {name: next(iter(views_of(self.storage, name).values())).numpy() for name in self.backed}

    # -- a request's life

    @rule(count=st.none() | st.integers(0, 5))
    def open(self, count: int | None) -> None:
        """One or several at once, all or none; the slots are clean and are theirs alone."""
        before, slots = state_of(self.storage), self.storage.plan.slots
        asked = 1 if count is None else count
        opened = self.storage.open() if count is None else self.storage.open_batch(count)
        if isinstance(opened, Refused):
            assert state_of(self.storage) == before
            return
        numbers = [opened] if isinstance(opened, int) else opened.tolist()
        assert len(set(numbers)) == len(numbers) == asked
        assert not self.rows.keys() & set(numbers)
        for row in numbers:
            self.rows[row] = Row(
                own={pool.name: set() for pool in self.tokens}, tags={pool.name: {} for pool in self.tokens}
            )
            if slots is not None:
                for slot in self.storage.translate(rows_of(row)).slots[0].tolist():
                    self.rows[row].slots.append(self.write(slots.name, slot, 0) if slot else None)
                assert len(self.rows[row].slots) == self.storage.sizing.limits.slot_places

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), most=st.sampled_from((1, 9, 30)))
    def step(self, data: st.DataObject, most: int) -> None:
        """Decodes, prefills, or both in one batch; what is written is where it says, and what retired is gone."""
        batch = data.draw(st.lists(st.sampled_from(sorted(self.rows)), min_size=1, unique=True))
        more = [data.draw(st.integers(0 if most > 1 else 1, most)) for _ in batch]
        self.advance(batch, more, tables_first=data.draw(st.booleans()))

    @precondition(lambda self: self.rows)
    @rule(times=st.integers(1, 9), by=st.sampled_from((1, 1, 4)))
    def run_on(self, times: int, by: int) -> None:
        """All rows go on, step by step."""
        for _ in range(times):
            self.advance(sorted(self.rows), [by] * len(self.rows), tables_first=False)

    def advance(self, batch: list[int], more: list[int], *, tables_first: bool) -> None:
        starts = [self.rows[row].length for row in batch]
        lengths = [min(start + count, CONTEXT) for start, count in zip(starts, more, strict=True)]
        for row, start in zip(batch, starts, strict=True):
            self.retire(row, start)
        asked = self.asked(batch, lengths)
        ids = self.storage.step(rows_of(*batch), rows_of(*lengths))
        if isinstance(ids, Refused):
            assert not self.storage.chain.feasible(asked)
            return
        assert (ids.starts.tolist(), ids.lengths.tolist()) == (starts, lengths)
        for row, length in zip(batch, lengths, strict=True):
            for own in self.rows[row].own.values():
                own |= set(range(-(-self.rows[row].length // self.size), -(-length // self.size)))
            self.rows[row].length = length
        self.write_tokens(ids, batch, tables_first)

    def asked(self, batch: list[int], lengths: list[int]) -> tuple[int, ...]:
        """The units that the batch needs beyond what its rows have."""
        pages = sum(
            -(-length // self.size) - -(-self.rows[row].length // self.size)
            for row, length in zip(batch, lengths, strict=True)
        )
        return tuple(0 if pool.is_slots else pages for pool in self.storage.plan.sub_pools)

    def retire(self, row: int, start: int) -> None:
        """What no query from ``start`` on needs is let go, unless it was handed over."""
        for pool in self.tokens:
            gone, lent = self.gone(pool, start), self.rows[row].lent_pages
            self.rows[row].own[pool.name] -= {page for page in gone if page >= lent}
            if pool.name == self.storage.plan.owner:  # whoever has it now may give it back
                self.rows[row].let_go |= gone
                for page in gone & self.rows[row].lent.keys():
                    del self.rows[row].lent[page]

    def gone(self, pool: SubPool, length: int) -> set[int]:
        """What a row lets go of at a length: a grid keeps more than a query there needs."""
        return self.unneeded(on_grid(pool.lifetime, self.grid), length)

    def unneeded(self, lifetime: Lifetime, length: int) -> set[int]:
        return {page for pages in whole_pages(lifetime.retired(0, length), self.size) for page in pages}

    def write_tokens(self, ids: IterationIds, batch: list[int], tables_first: bool) -> None:
        """Physical tokens, pages and offsets, and page tables say the same of every new token."""
        rows, positions = (array.tolist() for array in ids.write_positions())
        expected = [
            (index, at) for index in range(len(batch)) for at in range(int(ids.starts[index]), int(ids.lengths[index]))
        ]
        assert list(zip(rows, positions, strict=True)) == expected
        for pool in self.tokens:
            if tables_first:
                ids.tables[pool.name]
            written = ids.write_ids(pool.name).tolist()
            pages, places = ids.write_pages(pool.name).tolist(), ids.write_offsets().tolist()
            assert written == [page * self.size + place for page, place in zip(pages, places, strict=True)]
            reads = ids.read_ids(pool.name)
            for (index, at), physical in zip(expected, written, strict=True):
                assert physical == reads[index, at]
                assert physical // self.size == ids.tables[pool.name][index, at // self.size]
                if pool.name in self.backed:
                    tag = self.write(pool.name, physical // self.size, physical % self.size)
                    self.rows[batch[index]].tags[pool.name][at] = tag

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """One or several; what was handed over stays."""
        self.close_all(data.draw(st.lists(st.sampled_from(sorted(self.rows)), min_size=1, unique=True)))

    def close_all(self, rows: list[int]) -> None:
        self.storage.close(rows[0] if len(rows) == 1 else rows_of(*rows))
        for row in rows:
            del self.rows[row]

    @rule()
    def flush(self) -> None:
        """Pages move, and nobody notices."""
        self.storage.flush()

    # -- pages that change hands

    @precondition(lambda self: self.tokens and any(row.length >= self.size for row in self.rows.values()))
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        """A row's first pages are a cache's; each id is told once."""
        number = data.draw(st.sampled_from([number for number, row in self.rows.items() if row.length >= self.size]))
        self.hand_over_of(number, data.draw(st.integers(0, self.rows[number].length // self.size)))

    def hand_over_of(self, number: int, stop: int) -> None:
        row, owner = self.rows[number], self.storage.plan.owner
        ids = self.storage.ownership.hand_over(number, stop * self.size).tolist()
        fresh = [page for page in sorted(row.own[owner]) if page < stop]
        assert len(ids) == len(fresh)
        assert not self.handed.keys() & set(ids)
        for id_, page in zip(ids, fresh, strict=True):
            row.lent[page] = id_
            self.handed[id_] = {name: self.tags_of(row, name, page) for name, own in row.own.items() if page in own}
        for own in row.own.values():
            own -= set(range(stop))
        row.lent_pages = max(row.lent_pages, stop)

    def tags_of(self, row: Row, name: str, page: int) -> list[int]:
        places = range(page * self.size, (page + 1) * self.size)
        return [row.tags[name][at] for at in places] if name in self.backed else []

    @precondition(lambda self: self.handed)
    @rule(data=st.data())
    def free_pages(self, data: st.DataObject) -> None:
        """The cache evicts: wherever the pages still are, they come back."""
        ids = data.draw(st.lists(st.sampled_from(sorted(self.handed)), min_size=1, unique=True))
        self.storage.ownership.free_pages(rows_of(*ids))
        for id_ in ids:
            del self.handed[id_]
        for row in self.rows.values():
            row.lent = {page: id_ for page, id_ in row.lent.items() if id_ not in ids}

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def free_rows(self, data: st.DataObject) -> None:
        """A request's last positions go, in any pieces: a page once, when none of its positions is left.

        Not so many that the next query would miss pages of its own: then none goes.
        """
        number = data.draw(st.sampled_from(sorted(self.rows)))
        row = self.rows[number]
        lent = row.lent_pages * self.size
        start = data.draw(st.integers(lent, max(row.length, lent)) | st.integers(lent, lent + 5))
        stop = -(-start // self.size)
        if start > row.length:
            return
        cuts = sorted({start, row.length, *data.draw(st.lists(st.integers(start, row.length), max_size=3))})
        pieces = [range(low, high) for low, high in pairwise(cuts)]
        if not all(self.is_whole(row, pool, start) for pool in self.tokens):
            with self.caught("storage.free_below_what_retired"):
                self.storage.ownership.free_rows(number, pieces)
            return
        self.storage.ownership.free_rows(number, data.draw(st.permutations(pieces)))
        row.length = start
        row.let_go = {page for page in row.let_go if page < stop}
        for name, own in row.own.items():
            row.own[name] = {page for page in own if page < stop}

    def is_whole(self, row: Row, pool: SubPool, length: int) -> bool:
        """Whether the row still has, or has lent, all that a query at this length reads.

        What retires in any order is looked at from the grid point before: all that the grid keeps must be there.
        """
        in_order = prefix_floor(pool.lifetime, rows_of(0)) is not None
        gone = self.unneeded(pool.lifetime, length) if in_order else self.gone(pool, length)
        left = -(-length // self.size)
        if pool.name == self.storage.plan.owner and (set(range(left)) - gone) & row.let_go:
            return False
        return set(range(row.lent_pages, left)) - gone <= row.own[pool.name]

    # -- mistakes

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), act=st.sampled_from(("backwards", "twice", "behind", "straddle", "split", "beyond", "page")))
    def misuse(self, data: st.DataObject, act: str) -> None:
        """Each by its name, and nothing has changed."""
        number = data.draw(st.sampled_from(sorted(self.rows)))
        row, size, owning = self.rows[number], self.size, self.storage.ownership
        lent = row.lent_pages * size
        possible = {"backwards": row.length, "behind": row.length > lent + 1, "straddle": lent, "split": size > 1}
        if not self.tokens or not possible.get(act, True):
            return
        wrong = data.draw(st.sampled_from((-1, 10**6, *self.handed, *own_ids(self.storage, number))))
        acts = {
            "backwards": lambda: self.storage.step(rows_of(number), rows_of(row.length - 1)),
            "twice": lambda: self.storage.close(rows_of(number, number)),
            "behind": lambda: owning.free_rows(number, [range(lent, row.length - 1)]),
            "straddle": lambda: owning.free_rows(number, [range(lent - 1, row.length)]),
            "split": lambda: owning.hand_over(number, 1),
            "beyond": lambda: owning.hand_over(number, (row.length // size + 1) * size),
            "page": lambda: owning.free_pages(rows_of(*self.handed, wrong)),
        }
        with self.caught():
            acts[act]()

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), act=st.sampled_from(("step", "close", "hand over", "free")))
    def name_a_row_that_is_none(self, data: st.DataObject, act: str) -> None:
        """Negative, free, beyond or absurd, beside rows that are open: nothing has changed."""
        good = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True))
        free = sorted(set(range(len(self.storage.requests))) - self.rows.keys())
        wrong = data.draw(st.sampled_from((-1, len(self.storage.requests), 10**6, *free)))
        rows = rows_of(*data.draw(st.permutations([*good, wrong])))
        acts = {
            "step": lambda: self.storage.step(rows, np.full(len(rows), CONTEXT)),
            "close": lambda: self.storage.close(rows),
            "hand over": lambda: self.storage.ownership.hand_over(wrong, 0),
            "free": lambda: self.storage.ownership.free_rows(wrong, [range(1)]),
        }
        with self.caught(rf"storage\.{act.replace(' ', '_')}_of_free_row"):
            acts[act]()

    @contextmanager
    def caught(self, name: str = "") -> Iterator[None]:
        before = state_of(self.storage)
        with pytest.raises(InvariantError, match=f"^{name}"):
            yield
        assert state_of(self.storage) == before

    # -- what must always hold

    @precondition(lambda self: hasattr(self, "storage"))
    @invariant()
    def counts_are_the_models(self) -> None:
        self.storage.verify()
        held = self.storage.ownership.held()
        assert self.storage.ownership.handed_over().tolist() == sorted(self.handed)
        assert self.storage.ownership.slots.ids().tolist() == sorted(self.handed_slots)
        for column, pool in enumerate(self.storage.plan.sub_pools):
            own = {
                number: sum(tag is not None for tag in row.slots) if pool.is_slots else len(row.own[pool.name])
                for number, row in self.rows.items()
            }
            assert {number: int(held[column, number]) for number in self.rows} == own
            assert held[column].sum() == sum(own.values())
            lent = len(self.handed_slots) if pool.is_slots else sum(pool.name in tags for tags in self.handed.values())
            assert self.storage.chain.snapshot().bands[column].live == sum(own.values()) + lent

    @precondition(lambda self: hasattr(self, "storage") and self.rows)
    @invariant()
    def every_tag_is_read(self) -> None:
        numbers = sorted(self.rows)
        ids = self.storage.translate(rows_of(*numbers))
        assert ids.lengths.tolist() == [self.rows[number].length for number in numbers]
        for pool in self.tokens:
            sink = self.storage.chain.bands[pool.name].grid.sink_page
            reads, tables, seen = ids.read_ids(pool.name), ids.tables[pool.name].tolist(), []
            for index, number in enumerate(numbers):
                row = self.rows[number]
                kept = {page for page in row.lent if pool.name in self.handed[row.lent[page]]}
                retires = not isinstance(self.storage.plan[self.storage.plan.owner].lifetime, Full)
                if retires or len(row.lent) == row.lent_pages:  # else an id that was freed may be another's by now
                    bound = {place for place, page in enumerate(tables[index]) if page != sink}
                    assert bound == row.own[pool.name] | kept
                seen += [tables[index][page] for page in row.own[pool.name]]
                if pool.name not in self.backed:
                    continue
                for page in row.own[pool.name] | kept:
                    tags = self.handed[row.lent[page]][pool.name] if page in kept else row.tags[pool.name]
                    for at in range(page * self.size, min(row.length, (page + 1) * self.size)):
                        tag = tags[at % self.size if page in kept else at]
                        self.read(pool.name, divmod(int(reads[index, at]), self.size), tag)
            assert len(seen) == len(set(seen))

    @precondition(lambda self: hasattr(self, "storage"))
    @invariant()
    def slots_and_handed_pages_are_read(self) -> None:
        for number, row in self.rows.items():
            slots = self.storage.translate(rows_of(number)).slots
            for slot, tag in zip([] if slots is None else slots[0].tolist(), row.slots, strict=True):
                assert (slot != 0) == (tag is not None)
                if tag is not None:
                    self.read(self.storage.plan.slots.name, (slot, 0), tag)
        for id_, tag in self.handed_slots.items():
            name = self.storage.plan.slots.name
            self.read(name, (int(self.storage.chain.pages(name, rows_of(id_))[0]), 0), tag)
        for id_, kept in self.handed.items():
            for name, tags in kept.items():
                page = int(self.storage.chain.pages(name, rows_of(id_))[0])
                for place, tag in enumerate(tags):
                    self.read(name, (page, place), tag)

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close(self.storage.requests.open_rows())
            self.storage.ownership.free_pages(rows_of(*self.handed))
            self.storage.sharing.free_slots(rows_of(*self.handed_slots))
            assert all(shot.live == shot.holes == 0 for shot in self.storage.chain.snapshot().bands)
            assert all(minter.pool.free == minter.pool.count for minter in self.storage.chain.minters.values())
            self.storage.verify()
            del self.bytes
            self.storage.release()

    # -- bytes

    def write(self, name: str, page: int, place: int) -> int:
        self.serial += 1
        self.bytes[name][page, place] = self.pattern(name, self.serial)
        return self.serial

    def read(self, name: str, where: tuple[int, int], tag: int) -> None:
        assert np.array_equal(self.bytes[name][where], self.pattern(name, tag)), (name, where, tag)

    def pattern(self, name: str, tag: int) -> np.ndarray:
        size = self.bytes[name].shape[-1]
        return np.resize(np.array([tag % 251 + 1, tag // 251 % 251 + 1], dtype=np.uint8), size)
