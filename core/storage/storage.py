"""The storage: what a scheduler, a runner and a cache hold. One arena, one chain, one request table."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

import numpy as np

from kvarena.chain import describe as descriptions
from kvarena.chain.chain import Chain
from kvarena.planning.mirroring import mirror_shape
from kvarena.planning.plan import Plan
from kvarena.planning.sizing import Sizing, size_plan
from kvarena.storage.advance import retirements
from kvarena.storage.checks import check_lengths
from kvarena.storage.copies import Copies
from kvarena.storage.drafts import Drafts
from kvarena.storage.forwards import Forwards, Reset
from kvarena.storage.growth import Growth
from kvarena.storage.iteration_ids import IterationIds, Maps
from kvarena.storage.lanes import Lanes
from kvarena.storage.mirrors import Mirrors
from kvarena.storage.ownership import Ownership
from kvarena.storage.requests import RequestTable, own_slots
from kvarena.storage.routed import Routed, views_of
from kvarena.storage.sharing import Sharing
from kvarena.storage.transfers import Transfers
from kvarena.terms.answers import Refused
from kvarena.terms.doors import line, whole
from kvarena.terms.errors import KvarenaError
from kvarena.terms.events import event_log, tells_debug
from kvarena.terms.invariants import STRICT, fail, invariant
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import Device, IntArray
from kvarena.terms.units import format_bytes, parse_bytes

_log = event_log()

MakeBooks = Callable[[Sizing], tuple[Chain, RequestTable]]
"""Makes what follows the sizing: the chain's maps and the request table."""


class Prefix(Protocol):
    """What a config says of sharing prefixes: ``[prefix]``. The grid of checkpoints is ``sizing.limits.grid``."""

    @property
    def share(self) -> bool:
        """Whether requests share prefixes at all."""
        ...

    @property
    def strategy(self) -> str:
        """Which states are kept: ``no_buffer``, ``extra_buffer`` or ``extra_buffer_lazy``."""
        ...

    @property
    def cache_outputs(self) -> bool:
        """Whether what a request generated is kept too."""
        ...


class Storage:
    """Requests over one arena.

    A request's life:  1. open   a row and its state slots are taken.
                       2. step   rows that fell out of a window are freed, then pages for the new length taken.
                       3. close  everything it still owns comes back. ``ownership`` has what may change hands.
    Opens, steps and closes are batched: retirement always applies; the takes of a batch succeed or change nothing.
    Work on the pages has rooms of its own: ``forwards``, ``drafts``, ``copies``, ``transfers``, ``sharing``;
    ``mirrors`` is what kernels read of the maps, None where there is none. ``prefix`` is what the config says of
    sharing prefixes, for whoever opens a cache.
    Always:  what the rows own of a sub-pool + what was handed over == what is live in its band (``verify``)
    """

    def __init__(
        self, plan: Plan, sizing: Sizing, device: Device, books: MakeBooks, *, prefix: Prefix | None = None
    ) -> None:
        self.plan = plan
        self.sizing = sizing
        self.device = device
        self.prefix = prefix
        self._books = books
        self._resets: list[Reset] = []
        self._furnish(sizing, *books(sizing))
        self.at_release: list[Callable[[], object]] = []
        """Called when the storage is released, the last first (plugins that follow its life)."""
        self._released = False

    # -- a request's life

    def open(self) -> int | Refused:
        """A row for a new request, with its state slots; zero length.

        Returns:
            The row, or a ``Refused`` after which nothing has changed. Row 0 is falsy too: ask for the type.
        """
        rows = self.open_batch(1)
        return rows if isinstance(rows, Refused) else int(rows[0])

    def open_batch(self, count: int) -> IntArray | Refused:
        """Rows for so many new requests, int64 (count,): all of them or none."""
        if self._released:
            fail("storage.used_after_release")
        table, count = self.requests, whole(count, "storage.open_batch: count")
        if count < 0:
            fail("storage.negative_open", count=count)
        if count > table.free_count:
            free = f"{table.free_count} of {len(table)}" if table.free_count else f"none of {len(table)}"
            return Refused({}, (), self.chain.estimates.free_bytes, f"{count} request rows asked for, {free} free")
        if self._maps.slots_name is None:
            return table.open(count)
        slots = self.chain.take_new(self._maps.slots_name, count * table.slots_per_row)
        if isinstance(slots, Refused):
            return slots
        rows = table.open(count)
        table.give_slots(rows, slots.ids.reshape(count, table.slots_per_row))
        return rows

    def step(self, rows: IntArray, lengths: IntArray) -> IterationIds | Refused:
        """Advance open rows to new lengths, in tokens, and get the physical ids of this step.

        Rows that no query from the present length on needs retire first and always; then the pages up to
        the new lengths are taken, all or nothing. After a refusal the lengths are as before. A step to the
        present length only retires.

        Args:
            rows: int64 (n,), distinct. lengths: int64 (n,), none below the row's present length.

        Raises:
            KvarenaError: a length is beyond what a row can hold; nothing has changed.
        """
        table, checks = self.requests, self.chain.checks
        rows, lengths = line(rows, "storage.step: rows").copy(), line(lengths, "storage.step: lengths").copy()
        if len(rows) != len(lengths):
            fail("storage.step_has_a_length_for_each_row", rows=len(rows), lengths=len(lengths))
        if checks:
            invariant("storage.used_after_release", not self._released)
            invariant("storage.step_of_free_row", table.is_open(rows), rows=rows)
            invariant("storage.step_repeats_a_row", table.are_distinct(rows), rows=rows)
        if table.away.count:
            table.away.check_none(rows, asked_by="storage.step")
        starts = table.lengths[rows]
        crossing = ((lengths > table.due[rows]) | (lengths <= starts)).nonzero()[0]
        if len(crossing):
            refused = self._growth.advance(rows[crossing], starts[crossing], lengths[crossing])
            if refused is not None:
                return refused
        table.lengths[rows] = lengths
        if checks >= STRICT and self._retirements:
            check_lengths(table, self._maps.paging.tokens)
        return IterationIds(self._maps, rows, starts, lengths)

    def close(self, rows: int | IntArray) -> None:
        """Give back everything that one or more requests own; their rows are free again."""
        rows = np.array([rows], dtype=np.int64) if isinstance(rows, int | np.integer) else rows
        table, rows = self.requests, line(rows, "storage.close: rows")
        if self._released:
            fail("storage.used_after_release")
        if not len(rows):
            return
        if self.chain.checks:
            invariant("storage.close_of_free_row", table.is_open(rows), rows=rows)
            invariant("storage.close_repeats_a_row", table.are_distinct(rows), rows=rows)
        frees: dict[str, IntArray] = {}
        places = table.places(rows, own=True)
        if self.plan.owner is not None:
            ids = table.flat[places]
            frees[self.plan.owner] = ids[ids != UNBOUND] if self._growth.owner_retires else ids
        if self._maps.slots_name is not None:
            frees[self._maps.slots_name] = own_slots(table, rows)
        self.chain.free_all(frees)
        table.close(rows, None if table.any_handed else places)

    # -- what a runner reads

    def translate(self, rows: IntArray, starts: IntArray | None = None) -> IterationIds:
        """The physical ids of rows as they are, to be read; the tokens from ``starts`` on are to be written again."""
        rows = line(rows, "storage.translate: rows").copy()
        invariant("storage.used_after_release", not self._released)
        invariant("storage.translate_of_free_row", self.requests.is_open(rows), rows=rows)
        lengths = self.requests.lengths[rows]
        if starts is None:
            return IterationIds(self._maps, rows, lengths, lengths)
        starts = line(starts, "storage.translate: starts").copy()
        inside = len(starts) == len(rows) and ((starts >= 0) & (starts <= lengths)).all()
        invariant("storage.translate_beyond_the_row", inside, rows=rows, starts=starts, lengths=lengths)
        return IterationIds(self._maps, rows, starts, lengths, to_the_end=False)

    def routed(self) -> Routed:
        """The views of every sub-pool, by layer and role; shared layers lead to the memory they read.

        Raises:
            KvarenaError: the device holds no bytes.
        """
        return Routed(self.plan, lambda name: views_of(self, name))

    def flush(self) -> int:
        """Close holes as far as the compaction policy says; once per iteration. Returns the pages moved."""
        if not tells_debug():
            return self.chain.flush()
        before = dict(self.chain.counters.moved_by)
        moved = self.chain.flush()
        if moved:
            by = {name: pages - before.get(name, 0) for name, pages in self.chain.counters.moved_by.items()}
            _log.debug("storage.flushed", moved={name: pages for name, pages in by.items() if pages})
        return moved

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Exact counts per sub-pool, in units: live, holes, pending, vacated, fixed, span, moves, refusals and more."""
        return descriptions.stats(self.chain)

    def describe(self) -> str:
        """The arena as text: a picture in proportion, one line per band, what is free and what has happened."""
        table = self.requests
        return f"{descriptions.describe(self.chain)}\nrequests {len(table) - table.free_count:,} of {len(table):,} open"

    def verify(self) -> None:
        """Check every sum and map, from the bands to the rows; raises InvariantError. Slow: for tests."""
        self.chain.verify()
        self.requests.verify()
        self.ownership.verify()

    # -- the arena's own life

    def resize(self, budget_bytes: int | str) -> None:
        """Solve the plan again for another budget, after captured graphs took memory, say.

        Base address and units stay, so that captured addresses hold; only the top of the arena moves, and
        everything whose size follows it is made anew.

        Raises:
            KvarenaError: a request is open, or the device cannot reach that size; nothing has changed.
            PlanError: the budget is below the floor; nothing has changed.
        """
        invariant("storage.used_after_release", not self._released)
        try:
            budget = parse_bytes(budget_bytes if isinstance(budget_bytes, int) else str(budget_bytes))
        except ValueError as error:
            raise KvarenaError(f"storage.resize: {error}") from None
        self._check_unused()
        sizing = size_plan(self.plan, budget, self.sizing.limits)
        chain, requests = self._books(sizing)
        self._lanes.drain()
        self.device.resize(sizing.arena_bytes)
        _log.info("storage.resized", arena_bytes=sizing.arena_bytes, rows=sizing.running, **sizing.units)
        self.chain.epoch += 1  # ids of steps before the resize are worth nothing
        self._maps.is_current = False  # and so is what was taken from this storage by then
        chain.usage.waiter = self.chain.usage.waiter
        self._furnish(sizing, chain, requests)
        for band in self.chain.bands.values():  # the new top holds whatever lay there; unbound ids read it
            self.chain.ledger.timeline.zero_pages(band.grid.unit_bytes, np.array([band.grid.sink_page]))

    def release(self) -> None:
        """Give the arena back; nothing of this storage may be used afterwards. A second call does nothing."""
        if self._released:
            return
        self._released = self._maps.is_released = True
        with ExitStack() as ends:  # one that fails keeps neither the others nor the memory
            ends.callback(self._give_back)
            for call in self.at_release:
                ends.callback(call)
            self.at_release = []

    # -- inside

    def _give_back(self) -> None:
        self.device.close()
        _log.info("storage.closed", backend=self.device.name)

    def _furnish(self, sizing: Sizing, chain: Chain, table: RequestTable) -> None:
        """All that follows the sizing, made around a chain and a table."""
        self.sizing, self.chain, self.requests = sizing, chain, table
        maps = self._maps = Maps(chain, table)
        self._retirements = retirements(
            self.plan, sizing.limits.grid, pages=table.pages_per_row, checks=self.chain.checks
        )
        self._growth = Growth(maps, self._retirements)
        self._lanes = Lanes(chain.ledger)
        self.ownership = Ownership(maps, self._retirements)
        self.sharing = Sharing(maps, self._growth, self.ownership, self._retirements)
        self.mirrors = self._open_mirrors()
        self.forwards = Forwards(maps, self.mirrors, self._resets)
        self.copies = Copies(maps, self._growth, self.forwards, self._lanes)
        self.transfers = Transfers(maps, self._growth, self.forwards, self._lanes)
        self.drafts = Drafts(maps, self._growth)

    def _open_mirrors(self) -> Mirrors | None:
        """The device's copies of maps and rows, where they are charged and there is a device to hold them."""
        limits = self.sizing.limits
        if not (limits.mirrors and self.device.holds_bytes):
            return None
        shape = mirror_shape(
            self.plan, arena_bytes=self.sizing.arena_bytes, running=len(self.requests),
            row_pages=self.requests.pages_per_row, slots_per_request=limits.slot_places,
            in_flight=limits.in_flight,
        )  # fmt: skip
        return Mirrors(self._maps, shape)

    def _check_unused(self) -> None:
        """Nothing runs and nothing is held, so that the arena may be made anew.

        Raises:
            KvarenaError: something does; with the cure.
        """
        steps = self.chain.ledger.steps
        for count, what in (
            (len(self.requests.open_rows()), "requests are open: close them"),
            (len(self.ownership.handed_over()), "pages are handed over: free them"),
            (len(self.ownership.slots.ids()), "state slots are handed over: free them"),
            (steps.launched - steps.processed, "forwards are in flight: process them"),
            (len(self.copies), "host copies are under way: end them"),
            (len(self.transfers), "transfers are under way: release them"),
            (len(self.chain.ledger.uses), "uses of pages are open: end them"),
        ):
            if count:
                raise KvarenaError(f"{count} {what} before the arena is resized")

    def __repr__(self) -> str:
        pools = ", ".join(f"{name} {count}" for name, count in self.sizing.units.items())
        return f"<Storage {format_bytes(self.sizing.arena_bytes)} on {self.device.name}: {pools}>"
