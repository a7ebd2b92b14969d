"""Shadow memory of a simulated device: for each cell, which work of each actor touched it last, and as what data.

The check is that of a happens-before race detector: an access is compared with the last one of every actor; what the
same actor did earlier comes before that one.
"""

from typing import NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.backends.sim_order import Order
from kvarena.backends.sim_queues import Work
from kvarena.terms.ports import IntArray

Rows = npt.NDArray[np.int32]
"""Per cell, per actor: a work of that actor."""

OVERLAP = "unordered_overlap"
CROSS_DTYPE = "cross_dtype_bytes"
HOST_READ = "host_read_after_wait"
STAGING = "staging_overwritten"
UNDECLARED = "undeclared_write"


@attrs.frozen
class Violation:
    """A promise that was broken: by whom, against whom, on which page of a grid of ``unit_bytes`` (-1: on none)."""

    check: str
    actor: str
    other: str
    unit_bytes: int
    page: int
    words: str

    def __str__(self) -> str:
        return f"{self.check}: {self.words}"


class Access(NamedTuple):
    """One access to bytes ``start`` to ``stop`` of a memory, by a piece of work."""

    actor: str
    words: str
    kind: str
    writes: bool
    memory: str
    start: int
    stop: int


class Findings:
    """What was found, the first first; and, where ``log`` is a list, every access."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.log: list[Access] | None = None
        self._codes = {"": 0}
        self._others: dict[str, npt.NDArray[np.bool_]] = {}

    def code(self, kind: str) -> int:
        """The number of a kind of data; 0 is zeroed memory."""
        return self._codes.setdefault(kind, len(self._codes))

    def others(self, kind: str) -> npt.NDArray[np.bool_]:
        """By code: whether it is another kind of data than this, and no zeroed memory."""
        known = self._others.get(kind)
        if known is None or len(known) < len(self._codes):
            code = self.code(kind)
            known = self._others[kind] = np.ones(len(self._codes), dtype=np.bool_)
            known[[0, code]] = False
        return known

    def kind(self, code: int) -> str:
        """The kind that has this number."""
        return next(kind for kind, number in self._codes.items() if number == code)

    def found(self, violation: Violation) -> None:
        """One more."""
        self.violations.append(violation)

    def access(self, work: Work, kind: str, writes: bool, where: "Where") -> None:
        """Log an access, page by page."""
        if self.log is not None:
            for page in where.pages.tolist():
                start = page * where.unit_bytes
                words = (work.stream.label, work.words, kind, writes, where.memory)
                self.log.append(Access(*words, start, start + where.unit_bytes))


class Where(NamedTuple):
    """Whole pages of a memory, and their cells in the order of the pages."""

    memory: str
    unit_bytes: int
    pages: IntArray
    cells: IntArray

    def said(self, cell_index: int, cell_bytes: int) -> tuple[int, str]:
        """The page that the cell with this index is on, and the words for its bytes there."""
        page = int(self.pages[cell_index * len(self.pages) // len(self.cells)])
        start = int(self.cells[cell_index]) * cell_bytes
        return page, f"bytes {start}..{start + cell_bytes - 1} of {self.memory} (page {page} of {self.unit_bytes} B)"


class Shadow:
    """The shadow of one memory of so many cells of ``cell_bytes``.

    Each access of a work is judged, then marked; all that it reads comes first, so that it is judged as it was before.
    """

    def __init__(self, order: Order, findings: Findings, cells: int, cell_bytes: int) -> None:
        self.cell_bytes = cell_bytes
        self.kinds: npt.NDArray[np.int16] = np.zeros(cells, dtype=np.int16)
        self._order, self._findings = order, findings
        self._touched = np.zeros((cells, order.width), dtype=np.int32)
        self._written = np.zeros_like(self._touched)
        self._columns = self._actors_columns()
        order.widened.append(self._widen)

    def reads(self, work: Work, where: Where) -> None:
        """The work is about to read: every write of these cells must come before it."""
        if work.vector is not None and len(where.cells):
            unordered = self._written.take(where.cells, 0) > work.vector
            if np.count_nonzero(unordered):
                self._overlap(work, where, "reads", unordered, self._written)

    def writes(self, work: Work, where: Where) -> None:
        """The work is about to write: every access to these cells must come before it."""
        if work.vector is not None and len(where.cells):
            unordered = self._touched.take(where.cells, 0) > work.vector
            if np.count_nonzero(unordered):
                self._overlap(work, where, "writes", unordered, self._touched)

    def is_kind(self, work: Work, where: Where, kind: str) -> None:
        """The work reads data of this kind: nothing here was last written as another."""
        other = self._findings.others(kind).take(self.kinds.take(where.cells))
        if np.count_nonzero(other):
            self._cross(work, where, kind, int(other.argmax()))

    def mark_read(self, work: Work, where: Where) -> None:
        """It is among those who read these cells."""
        self._columns[work.actor][0][where.cells] = work.seq

    def mark_written(self, work: Work, where: Where) -> None:
        """It is the last that wrote these cells."""
        touched, written = self._columns[work.actor]
        touched[where.cells] = work.seq
        written[where.cells] = work.seq

    def last_writes(self, where: Where) -> list[int]:
        """Per actor its last work that wrote any of these cells."""
        return self._written.take(where.cells, 0).max(axis=0, initial=0).tolist()  # type: ignore[no-any-return]

    def _widen(self) -> None:
        """There are more actors."""
        cells, width = self._touched.shape
        more = np.zeros((cells, self._order.width - width), dtype=np.int32)
        self._touched = np.concatenate((self._touched, more), axis=1)
        self._written = np.concatenate((self._written, more), axis=1)
        self._columns = self._actors_columns()

    def _actors_columns(self) -> list[tuple[Rows, Rows]]:
        """Per actor, what it touched and what it wrote."""
        return list(zip(self._touched.T, self._written.T, strict=True))

    def _overlap(self, work: Work, where: Where, verb: str, unordered: npt.NDArray[np.bool_], last: Rows) -> None:
        """One violation for each actor that is in the way."""
        for actor in np.flatnonzero(unordered.any(axis=0)).tolist():
            index = int(unordered[:, actor].argmax())
            cell = int(where.cells[index])
            seq = int(last[cell, actor])
            its_verb = "writes" if self._written[cell, actor] == seq else "reads"
            page, spot = where.said(index, self.cell_bytes)
            other = self._order.told(actor, seq)
            words = f"{work.words} {verb} {spot}, which {other} {its_verb}, and neither comes before the other"
            self._findings.found(Violation(OVERLAP, work.words, other, where.unit_bytes, page, words))

    def _cross(self, work: Work, where: Where, kind: str, index: int) -> None:
        cell = int(where.cells[index])
        seqs = enumerate(self._written[cell].tolist())
        writers = [found for actor, seq in seqs if seq and (found := self._order.find(actor, seq))]
        other = max(writers, key=lambda one: one.number).words if writers else "an earlier work"
        page, spot = where.said(index, self.cell_bytes)
        was = self._findings.kind(int(self.kinds[cell]))
        words = f"{work.words} reads {spot} as {kind!r}, last written as {was!r} by {other}"
        self._findings.found(Violation(CROSS_DTYPE, work.words, other, where.unit_bytes, page, words))
