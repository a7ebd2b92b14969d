"""Checkpoints of states: the live state of a row is copied where its step completes a grid point.

1. ``due``       which rows of a step complete a grid point, from lengths alone.
2. ``prepare``   before the step: each of them has a slot in its spare place, if one can be had.
3. ``copy``      behind the forward's kernels, on its stream: the live state goes into that slot.
4. ``hand_over`` once the forward is recorded: the slot is nobody's row's; it waits for the result.
5. the cache gets it when the forward is processed; if its request is gone by then, it is freed.
"""

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.ledger.steps import Forward
from kvarena.planning.demand import Demand
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.job import Job, Pending
from kvarena.plugins.serving.running import Running
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.events import event_log, tells_debug
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray

_log = event_log()

LIVE, SPARE = 0, -1
"""A row's places for state slots: what its forwards read and write, and where a checkpoint is copied to."""


class Checkpoints:
    """Checkpoints of one loop, on a grid of tokens.

    A checkpoint for which there is no slot is skipped, and its row goes on as if it had been taken.
    """

    def __init__(self, storage: Storage, admission: Admission, running: Running, counts: Counts, grid: int) -> None:
        self.grid = grid
        self._storage = storage
        self._admission = admission
        self._running = running
        self._counts = counts
        self._is_promised = storage.sizing.limits.spare_slots == 0
        self._spare = storage.requests.slots.shape[1] + SPARE
        self._one_slot: Demand = tuple(int(pool.is_slots) for pool in storage.plan.sub_pools)

    def due(self, rows: IntArray, stops: IntArray, kept_max: IntArray) -> IntArray:
        """The rows that complete a grid point whose tokens may be cached, as places in ``rows``."""
        due: IntArray = ((stops % self.grid == 0) & (stops <= kept_max[rows])).nonzero()[0]
        return due

    def prepare(self, rows: IntArray) -> None:
        """A slot for each of these rows' spare places, as far as there is room; the cache may have to evict."""
        table, sharing = self._storage.requests, self._storage.sharing
        empty = rows[table.slot_columns[SPARE][rows] == UNBOUND]
        room = self._admission.free_for if self._is_promised else self._admission.room_for
        together = len(empty) > 1 and room(tuple([units * len(empty) for units in self._one_slot]))
        if together and not isinstance(sharing.take_slots(empty, self._spare), Refused):
            return
        for row in empty.tolist():
            if not room(self._one_slot) or isinstance(sharing.take_slot(row, self._spare), Refused):
                return

    def copy(self, rows: IntArray, forward: Forward) -> IntArray:
        """Copy these rows' live states behind the forward's kernels. Returns the rows that had a slot for it."""
        columns = self._storage.requests.slot_columns
        ready: IntArray = rows[columns[SPARE][rows] != UNBOUND]
        if len(ready):
            self._storage.copies.copy_state(columns[LIVE][ready], columns[SPARE][ready], forward)
        return ready

    def hand_over(self, rows: IntArray, tokens: IntArray, ready: IntArray) -> list[tuple[Job, Pending]]:
        """The recorded forward's checkpoints, each with its job; what was skipped is counted and told."""
        taken = []
        slots = self._storage.sharing.hand_over_slots(ready, self._spare) if len(ready) else ready
        slot_of = dict(zip(ready.tolist(), slots.tolist(), strict=True))
        for row, at in zip(rows.tolist(), tokens.tolist(), strict=True):
            job = self._running.jobs[row]
            if row not in slot_of:
                free = self._storage.chain.estimates.free_bytes if tells_debug() else 0
                self.skipped(job, at, f"no state slot can be had; {free:,} bytes free")
                continue
            pending = Pending(at, slot_of[row])
            job.pending.append(pending)
            taken.append((job, pending))
        return taken

    def give_up(self) -> bool:
        """The slots in spare places come back, for rows that need their bytes more. Whether there were any."""
        table, sharing = self._storage.requests, self._storage.sharing
        rows = self._running.rows()
        spare = rows[table.slot_columns[SPARE][rows] != UNBOUND]
        if len(spare):
            sharing.free_slots(sharing.hand_over_slots(spare, self._spare))
        return len(spare) > 0

    def drop(self, job: Job) -> None:
        """The job leaves its row: checkpoints whose forward is in flight are nobody's, and freed."""
        if job.pending:
            self._storage.sharing.free_slots(np.array([pending.slot for pending in job.pending]))
            job.pending.clear()

    def skipped(self, job: Job, at: int, reason: str) -> None:
        """A checkpoint was not taken, or cannot be used."""
        self._counts.checkpoints_skipped += 1
        if tells_debug():
            _log.debug("checkpoint.skipped", request=job.request.id, at=at, reason=reason)
