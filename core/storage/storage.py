"""The storage: what a scheduler, a runner and a cache hold. One arena, one chain, one request table."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvarena.chain.chain import Chain
from kvarena.planning.plan import Plan, SubPool
from kvarena.planning.sizing import Sizing, size_plan
from kvarena.storage.advance import next_crossings, retiring_pages
from kvarena.storage.iteration_ids import IterationIds, Tables
from kvarena.storage.requests import UNBOUND, RequestTable
from kvarena.storage.routed import Routed
from kvarena.terms.answers import Refused
from kvarena.terms.errors import KvarenaError
from kvarena.terms.events import event_log
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Device, IntArray
from kvarena.terms.units import format_bytes

_log = event_log()

Books = Callable[[Sizing], tuple[Chain, RequestTable]]
"""Makes what follows the sizing: the chain's maps and the request table."""


class Storage:
    """Requests over one arena.

    A request's life:  1. open     a row and its state slots are taken.
                       2. step     rows that fell out of a window are freed, then pages for the new length taken.
                       3. close    everything it holds comes back.
    A step is batched: retirement always applies; the takes of the whole batch succeed or change nothing.
    Always:  what the rows hold of a sub-pool == what is live in its band     (checked by ``verify``)
    """

    def __init__(self, plan: Plan, sizing: Sizing, device: Device, books: Books) -> None:
        self.plan = plan
        self.sizing = sizing
        self.device = device
        self.chain, self.requests = books(sizing)
        self._books = books
        self._slots = plan.slots
        # the owner comes last: its page ids return when nobody else is bound to them
        self._token_pools = tuple(sorted(plan.token_pools, key=lambda pool: pool.name == plan.owner))
        self._columns = {name: index for index, name in enumerate(plan.names)}
        self._closing: list[Callable[[], None]] = []
        self._released = False

    # -- a request's life

    def open(self) -> int | Refused:
        """A row for a new request, with its state slots; zero length.

        Returns:
            The row, or a ``Refused`` after which nothing has changed. Row 0 is falsy too: ask for the type.
        """
        invariant("storage.used_after_release", not self._released)
        if not self.requests.free_count:
            return Refused({}, (), self.chain.free_bytes, f"all {len(self.requests)} request rows are in use")
        slots = None
        if self._slots is not None:
            slots = self.chain.mint(self._slots.name, self.requests.slots.shape[1])
            if slots is None:
                wanted = self.requests.slots.shape[1]
                return self.chain.refusal([wanted if pool.is_slots else 0 for pool in self.plan.sub_pools])
            taken = self.chain.take({self._slots.name: slots})
            if isinstance(taken, Refused):
                self.chain.give_back(self._slots.name, slots)
                return taken
        row = self.requests.open()
        if slots is not None and self._slots is not None:
            self.requests.slots[row] = slots
            self.requests.held[row, self._columns[self._slots.name]] = len(slots)
        return row

    def step(self, rows: IntArray, lengths: IntArray) -> IterationIds | Refused:
        """Advance open rows to new lengths, in tokens, and get the physical ids of this step.

        Rows that no query from the present length on needs retire first and always; then the pages up to
        the new lengths are taken, all or nothing. After a refusal the lengths are as before. A step to the
        present length only retires.

        Args:
            rows: int64 (n,), distinct. lengths: int64 (n,), none below the row's present length.
        """
        table = self.requests
        starts = table.lengths[rows]
        invariant("storage.used_after_release", not self._released)
        invariant("storage.step_of_free_row", table.is_open(rows), rows=rows)
        invariant("storage.step_repeats_a_row", table.are_distinct(rows), rows=rows)
        invariant("storage.step_backwards", (lengths >= starts).all(), rows=rows, lengths=lengths)
        if (lengths > table.pages.shape[1] * self.plan.page_tokens).any() and self._token_pools:
            raise KvarenaError(
                f"a sequence of {int(lengths.max()):,} tokens is longer than the "
                f"{table.pages.shape[1] * self.plan.page_tokens:,} that a request row can hold; raise context_tokens"
            )
        crossing = (lengths >= table.next_crossing[rows]) | (lengths == starts)
        if crossing.any():
            refused = self._cross(rows[crossing], lengths[crossing])
            if refused is not None:
                return refused
        table.lengths[rows] = lengths
        return self._ids(rows, starts, lengths)

    def close(self, row: int) -> None:
        """Give back everything a request holds; its row is free again."""
        invariant("storage.close_of_free_row", self.requests.is_open(np.array([row])), row=row)
        table = self.requests
        positions = np.arange(table.page_counts[row])
        rows = np.full(len(positions), row)
        for pool in self._token_pools:
            self._free(pool, rows, positions)
        if self._slots is not None:
            slots = table.slots[row]
            self.chain.free(self._slots.name, slots)
            self.chain.give_back(self._slots.name, slots)
            table.held[row, self._columns[self._slots.name]] = 0
        table.close(row)

    def close_all(self) -> None:
        """Close every open row."""
        for row in self.requests.open_rows().tolist():
            self.close(row)

    # -- what a runner reads

    def translate(self, rows: IntArray) -> IterationIds:
        """The physical ids of rows as they are: everything written can be read, nothing is to be written."""
        lengths = self.requests.lengths[rows]
        return self._ids(rows, lengths, lengths)

    def views(self, name: str) -> Mapping[tuple[int, str, str], Any]:
        """Typed views of a sub-pool over the whole arena, by (layer, role, field).

        Each has shape (pages, entries per page, *field shape) and is indexed with physical pages.

        Raises:
            KvarenaError: no such sub-pool, or the device holds no bytes.
        """
        if name not in self._columns:
            raise KvarenaError(f"there is no sub-pool {name!r}; there are {', '.join(self.plan.names)}")
        pool = self.plan[name]
        pages = self.sizing.arena_bytes // pool.unit_bytes if pool.unit_bytes else 0
        return {key: self.device.view(field) for key, field in pool.views(pages).items()}

    def routed(self) -> Routed:
        """The views of every sub-pool, by layer and role; shared layers lead to the memory they read.

        Raises:
            KvarenaError: the device holds no bytes.
        """
        return Routed(self.plan, self.views)

    def flush(self) -> int:
        """Close holes as far as the compaction policy says; once per iteration. Returns the pages moved."""
        return self.chain.flush()

    def verify(self) -> None:
        """Check every sum and map, from the bands to the rows; raises InvariantError. Slow: for tests."""
        self.chain.verify()
        table = self.requests
        table.verify()
        for name, column in self._columns.items():
            ids = table.slots if self._slots is not None and name == self._slots.name else table.pages
            known = np.where(ids == UNBOUND, 0, ids)
            bound = (ids != UNBOUND) & self.chain.is_bound(name, known)
            held = table.held[:, column]
            invariant("storage.held_is_what_is_bound", np.array_equal(bound.sum(axis=1), held), sub_pool=name)
            live = self.chain.bands[name].live
            invariant("storage.rows_hold_all_that_lives", held.sum() == live, sub_pool=name, live=live)

    # -- the arena's own life

    def resize(self, budget_bytes: int) -> None:
        """Solve the plan again for another budget, after captured graphs took memory, say.

        Base address and units stay, so that captured addresses hold; only the top of the arena moves, and
        everything whose size follows it is made anew.

        Raises:
            KvarenaError: a request is open, or the device cannot reach that size; nothing has changed.
            PlanError: the budget is below the floor; nothing has changed.
        """
        held = len(self.requests.open_rows())
        if held:
            raise KvarenaError(f"{held} requests are open: close them before the arena is resized")
        sizing = size_plan(self.plan, budget_bytes, self.sizing.limits)
        self.device.resize(sizing.arena_bytes)
        _log.info("storage_resized", arena_bytes=sizing.arena_bytes, rows=sizing.running, **sizing.units)
        self.sizing = sizing
        self.chain, self.requests = self._books(sizing)
        for band in self.chain.bands.values():  # the new top holds whatever lay there; unbound ids read it
            self.device.zero_pages(band.grid.unit_bytes, np.array([band.grid.sink_page]))

    def on_release(self, call: Callable[[], None]) -> None:
        """Call this when the storage is released (plugins that follow its life)."""
        self._closing.append(call)

    def release(self) -> None:
        """Give the arena back; nothing of this storage may be used afterwards. A second call does nothing."""
        self._released = True
        if not self._closing:
            self.device.close()
            return
        try:
            self._closing.pop()()
        finally:  # one that fails keeps neither the others nor the memory
            self.release()

    # -- inside

    def _cross(self, rows: IntArray, lengths: IntArray) -> Refused | None:
        """Retire and take for the rows that reach a boundary in this step."""
        table = self.requests
        for pool in self._token_pools:
            self._free(pool, *retiring_pages(pool, table, rows, table.looked_at[rows]))
        table.looked_at[rows] = table.lengths[rows]
        if self._token_pools:
            refused = self._take(rows, lengths)
            if refused is not None:
                return refused
            table.next_crossing[rows] = next_crossings(self._token_pools, table, rows, lengths)
        return None

    def _take(self, rows: IntArray, lengths: IntArray) -> Refused | None:
        """Append the pages that the new lengths need: one virtual id each, bound in every token sub-pool."""
        table = self.requests
        counts = table.page_counts[rows]
        wanted = np.maximum(-(-lengths // self.plan.page_tokens) - counts, 0)
        total = int(wanted.sum())
        if not total:
            return None
        owner = self._token_pools[-1]
        ids = self.chain.mint(owner.name, total)
        if ids is None:
            return self.chain.refusal([0 if pool.is_slots else total for pool in self.plan.sub_pools])
        taken = self.chain.take({pool.name: ids for pool in self._token_pools})
        if isinstance(taken, Refused):
            self.chain.give_back(owner.name, ids)
            return taken
        owners = np.repeat(rows, wanted)
        places = np.arange(total) + np.repeat(counts - (np.cumsum(wanted) - wanted), wanted)
        table.pages[owners, places] = ids
        table.page_counts[rows] += wanted
        for pool in self._token_pools:
            table.held[rows, self._columns[pool.name]] += wanted
        return None

    def _free(self, pool: SubPool, rows: IntArray, positions: IntArray) -> None:
        """Free those of these pages that the sub-pool still holds; with the owner's, the ids return."""
        if not len(rows):
            return
        table = self.requests
        ids = table.pages[rows, positions]
        bound = ids != UNBOUND
        bound[bound] = self.chain.is_bound(pool.name, ids[bound])
        if not bound.any():
            return
        ids, rows, positions = ids[bound], rows[bound], positions[bound]
        self.chain.free(pool.name, ids)
        np.subtract.at(table.held[:, self._columns[pool.name]], rows, 1)
        if pool.name == self.plan.owner:
            table.pages[rows, positions] = UNBOUND
            self.chain.give_back(pool.name, ids)

    def _ids(self, rows: IntArray, starts: IntArray, lengths: IntArray) -> IterationIds:
        table, width = self.requests, int(-(-lengths.max(initial=0) // self.plan.page_tokens))
        slots = self.chain.pages(self._slots.name, table.slots[rows]) if self._slots is not None else None
        chain, epoch = self.chain, self.chain.epoch

        def translate(name: str) -> IntArray:
            invariant("storage.ids_outlived_their_step", self.chain is chain and chain.epoch == epoch, sub_pool=name)
            return chain.pages(name, table.pages[rows, :width])

        tables = Tables(tuple(pool.name for pool in self._token_pools), translate)
        return IterationIds(rows, starts, lengths, self.plan.page_tokens, tables, slots)

    def __repr__(self) -> str:
        pools = ", ".join(f"{name} {count}" for name, count in self.sizing.units.items())
        return f"<Storage {format_bytes(self.sizing.arena_bytes)} on {self.device.name}: {pools}>"
