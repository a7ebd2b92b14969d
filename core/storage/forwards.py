"""Forwards: what each must wait for before it begins, what it writes, and when it is over."""

from collections.abc import Callable
from functools import partial

import numpy as np

from kvarena.ledger.clearance import FORWARD, FORWARD_READ, Answer
from kvarena.ledger.steps import PREBUILT, Forward
from kvarena.storage.iteration_ids import IterationIds, Maps
from kvarena.storage.mirrors import Mirrors
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import Event, IntArray, Stream, Touch

Reset = Callable[[IntArray], None]
"""Clears what a plugin keeps on the device for these rows; called as work of the forward's stream."""


class Forwards:
    """The forwards of one storage, one stream of them.

    A forward's life:  1. launch   the mirrors are brought up to date; its stream waits for the copies that touch what
                                   it reads or writes, and for the allocator's; rows handed out since are reset.
                       2. run      its kernels; between launch and record no page is taken, freed or moved.
                       3. record   what it writes is known, until it is over.
                       4. process  the scheduler has its result: pages freed under it are holes.
    Always:  processed <= recorded <= launched <= recorded + 1     (``ForwardSteps.verify``)
    With no forward in flight by the config nothing is recorded: the same calls do the same on the caller's stream.
    """

    def __init__(self, maps: Maps, mirrors: Mirrors | None, resets: list[Reset]) -> None:
        self._maps = maps
        self._mirrors = mirrors
        self._resets = resets
        self._ledger = maps.chain.ledger
        self._timeline = self._ledger.timeline
        self._bands = [band for band in maps.chain.bands.values() if band.grid.unit_bytes]
        self._tokens = [(band.grid.name, band.grid.unit_bytes) for band in self._bands if band.grid.name in maps.names]
        self._every_name = frozenset(band.grid.name for band in self._bands)
        self._ids: IterationIds | None = None
        self._copied: list[IntArray] = []

    def launch(self, ids: IterationIds | None = None) -> Forward:
        """A forward begins, over these ids; its kernels may be put on the stream from here on.

        Raises:
            InvariantError: the one before it was not recorded, too many are in flight, pages changed since the ids were
                made, or a row is still to be loaded or received, or lacks its state slot; nothing has changed.
        """
        self._maps.check_current()
        ledger, steps, table = self._ledger, self._ledger.steps, self._maps.table
        if self._timeline.overlaps:
            steps.check_launch()
        if ids is not None:
            ids.check_present(self._maps)
            self._maps.check_states(ids.rows, asked_by="forwards.launch")
            if table.away.count:
                unfilled = ids.rows[table.away.holds[ids.rows] > 0]
                invariant("forwards.launch_before_submit", not len(unfilled), rows=unfilled)
        if self._mirrors is not None:
            self._mirrors.update(steps.launched + 1)
        if len(ledger.uses):
            self._clear(ids) if ids is not None else self._clear_all()
        self._timeline.hand(self._timeline.forward)
        self._reset()
        self._ids, self._copied = ids, []
        return steps.launch() if self._timeline.overlaps else Forward(PREBUILT)

    def run(self, forward: Forward, work: Callable[[], None], ids: IterationIds | None = None) -> None:
        """Put work of an open forward on its stream; a device that checks is told what it reads and writes."""
        self.check_open(forward)
        ids = ids or self._ids
        reads, writes = self._touches(ids) if ids is not None and self._timeline.device.holds_bytes else ([], [])
        self._timeline.device.run(self._timeline.forward, work, reads, writes)

    def record(
        self,
        forward: Forward,
        *,
        unknown: bool = False,
        may_write: IterationIds | None = None,
        event: Event | None = None,
    ) -> None:
        """All work of the forward is on its stream, before ``event``, where one is given that is its own.

        It writes the new tokens of the ids that it was launched over and the live slots of their rows; or those of
        ``may_write``, a reservation's, as a superset; and the slots that states were copied to within it. Nobody can
        say where it is ``unknown``, or launched over no ids.

        Raises:
            InvariantError: it was recorded before, or is not the one that was launched; nothing has changed.
        """
        if not forward.number:  # done, wherever its caller waits for it
            forward.event = event or self._timeline.device.record(self._timeline.device.current())
            return
        steps, ids = self._ledger.steps, may_write or self._ids
        if forward is steps.open and forward.event is None:
            if ids is not None:
                ids.check_present(self._maps)
            writes = {} if ids is None else self._written(ids)
            if self._copied and self._maps.slots_name is not None:
                known = [writes[self._maps.slots_name]] if self._maps.slots_name in writes else []
                writes[self._maps.slots_name] = np.concatenate([*known, *self._copied])
            names = self._every_name if unknown or ids is None else frozenset()
            if event is None:
                forward.device = self._timeline.device
                event = forward.device.record(self._timeline.forward)
            else:  # an engine's own, maybe of another stream: what comes after this forward comes after it
                self._timeline.device.wait(self._timeline.forward, event)
            steps.record(forward, event, writes, names)
            self._ids, self._copied = None, []
        else:  # says which promise is broken
            steps.record(forward, event or self._timeline.device.record(self._timeline.forward), {})

    def process(self, forward: Forward) -> None:
        """The scheduler has the result of the oldest forward in flight, and the host has waited for its end.

        Raises:
            InvariantError: it is not the oldest, was not recorded or, from check level 1 on, has not ended.
        """
        if forward.number:
            self._maps.chain.process(forward)

    def prebuilt(self) -> Forward:
        """A step without a forward of its own: recording and processing it does nothing, and nothing pends on it."""
        return Forward(PREBUILT)

    def barrier(self, stream: Stream, read_end: Event | None = None) -> None:
        """For an engine that writes tables from a stream of its own: it waits until the forwards have read theirs.

        ``read_end`` comes after the last shared read of the newest forward; without one, all of it is waited for.
        """
        device = self._timeline.device
        if stream is not self._timeline.forward:
            device.wait(stream, read_end or device.record(self._timeline.forward))

    def at_reuse(self, reset: Reset) -> None:
        """``reset`` is called with the rows handed out since, by the next forward, on its stream before its kernels."""
        self._resets.append(reset)

    def restored(self, row: int) -> None:
        """The row's memory on the device was written whole: it is not reset."""
        rows = np.array([row])
        invariant("requests.reset_of_free_row", self._maps.table.is_open(rows), row=row)
        self._maps.table.fresh.done(rows)

    # -- for copies

    def check_closed(self, what: str) -> None:
        """No forward is open: what one may write is known only once it is recorded."""
        steps = self._ledger.steps
        invariant("forwards.copy_before_record", not steps.is_open, asked_by=what, launched=steps.launched)

    def check_open(self, forward: Forward) -> None:
        """This forward is launched and not recorded."""
        steps = self._ledger.steps
        is_open = steps.is_open and forward is steps.open if self._timeline.overlaps else not forward.number
        invariant("forwards.work_of_closed_forward", is_open, forward=forward.number, launched=steps.launched)

    def also_writes(self, slots: IntArray) -> None:
        """The open forward writes these pages of the state sub-pool too."""
        self._copied.append(slots)

    # -- inside

    def _written(self, ids: IterationIds) -> dict[str, IntArray]:
        """The pages that a forward over these ids writes, by sub-pool."""
        writes = {name: ids.written_pages(name) for name, _ in self._tokens}
        slots = ids.live_slots
        if slots is not None and self._maps.slots_name is not None:
            writes[self._maps.slots_name] = slots.reshape(-1)
        return writes

    def _clear(self, ids: IterationIds) -> None:
        """The forwards' stream waits for the open uses that a forward over these ids must not run beside."""
        ledger, stream = self._ledger, self._timeline.forward
        due = ledger.clearance.answer
        reads = any(due((FORWARD_READ,), use.hazard) is not Answer.NONE for use in ledger.uses)
        for name, unit_bytes in self._tokens:
            if reads:
                ledger.clear(unit_bytes, ids.tables[name].reshape(-1), (FORWARD_READ,), stream)
            ledger.clear(unit_bytes, ids.written_pages(name), (FORWARD,), stream)
        slots = ids.live_slots
        if slots is not None and self._maps.slots_name is not None:
            unit_bytes = self._maps.chain.bands[self._maps.slots_name].grid.unit_bytes
            ledger.clear(unit_bytes, slots.reshape(-1), (FORWARD_READ, FORWARD), stream)

    def _clear_all(self) -> None:
        """Nobody says what the forward touches: its stream waits for every open use that a stream does."""
        for use in self._ledger.uses:
            due = self._ledger.clearance.answer((FORWARD_READ, FORWARD), use.hazard)
            if use.event is not None and due is Answer.STREAM_WAIT:
                self._timeline.device.wait(self._timeline.forward, use.event)

    def _touches(self, ids: IterationIds) -> tuple[list[Touch], list[Touch]]:
        writes = self._written(ids)
        reads = dict(writes)
        for name, _ in self._tokens:
            pages = ids.tables[name].reshape(-1)
            reads[name] = pages[pages != self._maps.chain.bands[name].grid.sink_page]
        unit = {band.grid.name: band.grid.unit_bytes for band in self._bands}
        return (
            [Touch(unit[name], pages, name) for name, pages in reads.items()],
            [Touch(unit[name], pages, name) for name, pages in writes.items()],
        )

    def _reset(self) -> None:
        """Rows handed out since the last launch are reset by this forward."""
        if not self._resets:
            return
        rows = self._maps.table.fresh.rows()
        if len(rows):
            for reset in self._resets:
                self._timeline.device.run(self._timeline.forward, partial(reset, rows), [], [])
            self._maps.table.fresh.done(rows)
