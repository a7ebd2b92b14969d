"""Forwards in flight: launched, and their results not looked at yet.

A flight:  1. launch  the forward begins; the runner puts its work on the stream, and copies of states come behind it;
                      it is recorded, and what outlives it changes hands.
           2. land    the host waits for the oldest; its result counts for the jobs that are still in their rows.
"""

from collections import deque

import attrs
import numpy as np

from kvarena.ledger.steps import Forward
from kvarena.plugins.serving.job import Job, Pending
from kvarena.plugins.serving.port import Batch, Outcome, Runner, checked
from kvarena.plugins.serving.running import Flags
from kvarena.plugins.serving.seats import Seats
from kvarena.plugins.serving.use import UseMeter
from kvarena.storage.storage import Storage
from kvarena.terms.ports import IntArray


@attrs.frozen(eq=False)
class Flight:
    """One forward in flight. ``stamps``: of the jobs in its rows; ``held``: the units that lived then, per band."""

    batch: Batch
    forward: Forward
    stamps: IntArray
    held: list[int]
    checkpoints: list[tuple[Job, Pending]]
    error: BaseException | None = None


@attrs.frozen(eq=False)
class Landed:
    """A result that has come. ``valid``: which rows still have the jobs that the batch was launched for.

    ``error``: what the runner raised in its stead.
    """

    batch: Batch
    outcome: Outcome
    valid: Flags
    held: list[int]
    checkpoints: list[tuple[Job, Pending]]
    error: BaseException | None = None

    def ended(self) -> Flags | None:
        """Which rows sampled a token that ends their answer, parallel to the batch; None where nobody says."""
        if self.outcome.ended is None:
            return None
        ended: Flags = np.asarray(self.outcome.ended, dtype=np.bool_) & self.batch.samples
        return ended


class Flights:
    """The forwards in flight of one loop, the oldest first.

    Always: so many as the storage allows at most; with none allowed to overlap, one is landed before the next
    """

    def __init__(self, storage: Storage, runner: Runner, seats: Seats, use: UseMeter) -> None:
        self.most = max(1, storage.chain.ledger.steps.in_flight)
        self._storage = storage
        self._runner = runner
        self._seats = seats
        self._use = use
        self._flying: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flying)

    def launch(self, batch: Batch, due: IntArray) -> None:
        """Launch a forward over the batch's ids and record it; ``due``: where in the batch it makes checkpoints.

        Nothing is waited for.

        Where the runner refuses the batch, the forward is one without work, and what was raised comes when it lands.
        """
        storage, seats = self._storage, self._seats
        stamps, held = seats.running.stamp[batch.rows], self._use.held()
        forward = storage.forwards.launch(batch.ids)
        try:
            with self._use.runner_time:
                self._runner.launch(batch, forward)
        except BaseException as error:
            storage.forwards.record(forward)
            self._flying.append(Flight(batch, forward, stamps, held, [], error))
            return
        made: list[tuple[Job, Pending]] = []
        if seats.checkpoints is None or not len(due):
            storage.forwards.record(forward)
        else:
            rows = batch.rows[due]
            ready = seats.checkpoints.copy(rows, forward)
            storage.forwards.record(forward)
            made = seats.checkpoints.hand_over(rows, batch.stops[due], ready)
        self._flying.append(Flight(batch, forward, stamps, held, made))

    def land(self) -> Landed:
        """Wait for the oldest forward, on the host; it is processed, also where its runner failed."""
        flight = self._flying.popleft()
        outcome, error = Outcome(0.0), flight.error
        with self._use.runner_time:
            if flight.forward.event is not None:
                self._storage.device.synchronize(flight.forward.event)
            if error is None:
                try:
                    outcome = checked(self._runner.result(flight.batch), len(flight.batch))
                except BaseException as failure:
                    error = failure
        self._storage.forwards.process(flight.forward)
        valid = self._seats.running.stamp[flight.batch.rows] == flight.stamps
        return Landed(flight.batch, outcome, valid, flight.held, flight.checkpoints, error)
