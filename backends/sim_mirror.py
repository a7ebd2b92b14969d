"""A mirror of a simulated device, and its staging ring in the host's memory."""

import numpy as np
import numpy.typing as npt

from kvarena.backends.sim_order import Order
from kvarena.backends.sim_queues import Work
from kvarena.backends.sim_shadow import OVERLAP, STAGING, Access, Findings, Violation
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray, Stream

ENTRY_BYTES = 4
INT32_MAX = (1 << 31) - 1


class SimMirror:
    """int32 entries. To the checks it is one piece of memory: a write of any entry conflicts with a read of any other.

    Reads happen inside work that lands, so this memory is judged when work lands; whichever of two lands second finds
    the other.
    """

    def __init__(self, order: Order, findings: Findings, size: int, slots: int, slot_entries: int) -> None:
        self.size = size
        self.entries: npt.NDArray[np.int32] = np.zeros(size, dtype=np.int32)
        """What stands there now: to look at, nobody's access."""
        self._order, self._findings = order, findings
        self._staging = np.zeros((slots, 2, slot_entries), dtype=np.int64)
        self._in_use: list[Work | None] = [None] * slots
        self._readers: dict[int, Work] = {}
        self._writers: dict[int, Work] = {}

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        """Write ``values`` at ``positions`` through staging slot ``slot``: filled now, read when the work lands.

        Raises:
            InvariantError: no such slot or position, more than a slot holds, or a position named twice.
        """
        count, room = len(positions), self._staging.shape[2]
        places, numbers = positions.tolist(), values.tolist()
        inside = not count or (min(places) >= 0 and max(places) < self.size)
        invariant("mirror.update_fits_slot", count <= room, entries=count, slot_entries=room)
        invariant("mirror.slot", 0 <= slot < len(self._in_use), slot=slot, slots=len(self._in_use))
        invariant("mirror.update_pairs", count == len(values), positions=count, values=len(values))
        invariant("mirror.positions_inside", inside, size=self.size)
        fits = not count or (min(numbers) >= -INT32_MAX - 1 and max(numbers) <= INT32_MAX)
        invariant("mirror.values_fit", fits, values=numbers)
        invariant("mirror.positions_once", len(set(places)) == count, positions=places)
        work = self._order.begin(self._order.own(stream), f"update of {count} mirror entries", 0, 0, self._nothing)
        self._fill(work, slot, positions, values)
        work.act = lambda: self._scatter(work, slot, count)
        self._order.placed(work)

    def read(self, positions: IntArray) -> IntArray:
        """What stands at these positions: read by the work that is landing, or by the host."""
        work = self._order.queues.landing or self._order.by_host("read of a mirror", 0, 0)
        self._judge(work, self._writers, "reads", "writes", positions)
        self._readers[work.actor] = work
        self._log(work, False, positions)
        return self.entries[positions].astype(np.int64)

    @staticmethod
    def _nothing() -> None:
        """What work does before its staging is filled."""

    def _fill(self, work: Work, slot: int, positions: IntArray, values: IntArray) -> None:
        """The host writes the slot: every earlier update from it must have ended before."""
        before = self._in_use[slot]
        if before is not None and not self._order.host_follows(before):
            words = f"the host fills staging slot {slot} for {work.words}, and has not waited for {before.words}"
            self._findings.found(Violation(STAGING, "the host", before.words, ENTRY_BYTES, slot, words))
        self._staging[slot, 0, : len(positions)] = positions
        self._staging[slot, 1, : len(values)] = values
        self._in_use[slot] = work

    def _scatter(self, work: Work, slot: int, count: int) -> None:
        positions, values = self._staging[slot, :, :count]
        self._judge(work, self._writers, "writes", "writes", positions)
        self._judge(work, self._readers, "writes", "reads", positions)
        self._writers[work.actor] = work
        self.entries[positions] = values
        self._log(work, True, positions)

    def _judge(self, work: Work, others: dict[int, Work], verb: str, its_verb: str, positions: IntArray) -> None:
        """The others come before the work, or after it."""
        for other in others.values():
            if other.actor != work.actor and not work.follows(other):
                first = int(positions.flat[0]) if positions.size else -1
                words = (
                    f"{work.words} {verb} a mirror that {other.words} {its_verb}, and neither comes before the other"
                )
                self._findings.found(Violation(OVERLAP, work.words, other.words, ENTRY_BYTES, first, words))

    def _log(self, work: Work, writes: bool, positions: IntArray) -> None:
        if self._findings.log is not None:
            for position in positions.reshape(-1).tolist():
                start = position * ENTRY_BYTES
                words = (work.stream.label, work.words, "", writes, "a mirror")
                self._findings.log.append(Access(*words, start, start + ENTRY_BYTES))
