"""The rows of one batch in a storage: what the layers of a cache read and write, at the ids of the present step.

``RowMemory`` serves rows that somebody else advances (the loop's scheduler); ``OwnedRows`` opens and
advances rows of its own. Pages and slots may move at every step, so nothing physical outlives one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import torch

from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.routed import PartView
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.invariants import invariant
from kvarena.terms.ports import IntArray

PIECE_PAGES = 16
"""Rows that are copied in are brought in so many pages at a time, so that windows retire as they fill."""


class ArenaFullError(KvarenaError):
    """The arena cannot take the next tokens; ``refused`` has the sum, or is None where it was never asked."""

    def __init__(self, message: str, refused: Refused | None = None) -> None:
        super().__init__(message)
        self.refused = refused


@attrs.frozen
class Place:
    """Where one field of one layer lives: its sub-pool, and its key among the sub-pool's views."""

    pool: str
    layer: int
    role: str
    field: str

    def __str__(self) -> str:
        return f"layer {self.layer}'s {self.field!r} ({self.pool})"


Views = Mapping[int, Mapping[str, PartView]]


class RowIds(Protocol):
    """The physical ids of some rows: page tables (rows, pages) by sub-pool, and slots (rows, slots per row)."""

    @property
    def tables(self) -> Mapping[str, IntArray]: ...

    @property
    def slots(self) -> IntArray | None: ...


@attrs.frozen(eq=False)
class KeptIds:
    """The ids of one step, all translated: what a forward needs whose turn comes when the step is over."""

    tables: Mapping[str, IntArray]
    slots: IntArray | None

    @classmethod
    def of(cls, ids: IterationIds) -> "KeptIds":
        """Read them now, while they are valid."""
        return cls({name: ids.tables[name] for name in ids.tables}, ids.slots)


def views_of(storage: Storage) -> Views:
    """The typed views of the storage, by layer and role."""
    # an inference tensor could not be written outside of inference mode later on
    with torch.inference_mode(False):
        return storage.routed()


class RowMemory:
    """A batch of rows of equal length, at the ids of one step.

    A row-shaped tensor is (batch, tokens, *field); a state is (batch, *field). States of a batch are
    *lent*: the layer changes a copy in place, and ``commit`` writes it back before the ids change.
    """

    def __init__(self, views: Views, page_tokens: int) -> None:
        self.length = 0
        self._views = views
        self.page_tokens = page_tokens
        self._ids: RowIds | None = None
        self._index = np.empty(0, dtype=np.int64)
        self._tables: dict[str, torch.Tensor] = {}
        self._spans: dict[tuple[str, int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._lent: dict[Place, torch.Tensor] = {}

    def bind(self, ids: RowIds, index: Sequence[int], length: int) -> None:
        """Use these ids from here on: the rows at ``index`` of a step that brought them to ``length``."""
        self.commit()
        self._ids = ids
        self._index = np.asarray(index, dtype=np.int64)
        self._tables, self._spans = {}, {}
        self.length = length

    def reach(self, length: int, batch: int) -> None:
        """Rows up to ``length`` are about to be written by a batch of this size."""
        self.reach_batch(batch)
        invariant("memory.reach_beyond_step", length == self.length, asked=length, step=self.length)

    def reach_batch(self, batch: int) -> None:
        """A batch of this size is about to write states."""
        invariant("memory.batch", batch == len(self._index), asked=batch, rows=len(self._index))

    def write(self, place: Place, start: int, rows: torch.Tensor) -> None:
        """Store the rows from position ``start`` on.

        Raises:
            KvarenaError: their type or shape is not what the layer wrote at first.
        """
        view = self._view(place, rows.dtype, rows.shape[2:])
        pages, offsets = self._pages(place.pool, start, start + rows.shape[1])
        view[pages, offsets] = rows.detach()

    def read(self, place: Place, start: int, stop: int) -> torch.Tensor:
        """A copy of the rows at positions ``[start, stop)``."""
        view = self._field(place)
        first, last = start // self.page_tokens, -(-stop // self.page_tokens)
        pages = self._table(place.pool)[:, first:last]
        rows = view[pages].flatten(1, 2)
        skip = first * self.page_tokens
        return rows[:, start - skip : stop - skip]

    def state(self, place: Place) -> torch.Tensor:
        """The states of the batch, to be changed in place: the arena's own bytes for one row, else lent."""
        view = self._field(place)
        slots = self._slots()
        if len(slots) == 1:
            return view[int(slots[0])].detach()
        lent = self._lent.pop(place, None)
        if lent is not None:
            view[slots, 0] = lent.detach()
        self._lent[place] = view[slots, 0]
        return self._lent[place]

    def set_state(self, place: Place, states: torch.Tensor) -> torch.Tensor:
        """Replace the states of the batch; returns them as they are stored."""
        stored = self.state(place)
        if stored.shape != states.shape:
            raise _changed(place, tuple(stored.shape[1:]), stored.dtype, tuple(states.shape[1:]), states.dtype)
        return stored.copy_(states.detach())

    def commit(self) -> None:
        """Write lent states back, at the ids they were lent with."""
        for place, lent in self._lent.items():
            self._field(place)[self._slots(), 0] = lent.detach()
        self._lent.clear()

    def _field(self, place: Place) -> torch.Tensor:
        """The whole arena as entries of one field of one layer."""
        view: torch.Tensor = self._views[place.layer][place.role].fields[place.field]
        return view

    def _view(self, place: Place, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        view = self._field(place)
        if view.dtype != dtype or view.shape[2:] != tuple(shape):
            raise _changed(place, tuple(view.shape[2:]), view.dtype, tuple(shape), dtype)
        return view

    def _pages(self, pool: str, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The page and the offset in it of each position, for every row; the same for all layers of a step."""
        span = self._spans.get((pool, start, stop))
        if span is None:
            positions = torch.arange(start, stop)
            span = self._table(pool)[:, positions // self.page_tokens], positions % self.page_tokens
            self._spans[pool, start, stop] = span
        return span

    def _table(self, pool: str) -> torch.Tensor:
        if pool not in self._tables:
            self._tables[pool] = torch.from_numpy(self._present().tables[pool][self._index])
        return self._tables[pool]

    def _slots(self) -> torch.Tensor:
        slots = self._present().slots
        invariant("memory.slots", slots is not None)
        chosen = np.asarray(slots)[self._index]
        return torch.from_numpy(np.ascontiguousarray(chosen.reshape(len(chosen), -1)[:, 0]))

    def _present(self) -> RowIds:
        """The ids of the present step; nothing can be read or written before the first."""
        if self._ids is None:
            raise InvariantError("memory.used_before_step")
        return self._ids


class OwnedRows(RowMemory):
    """Rows that this object opens, advances, reorders and closes, in a storage of its own."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(views_of(storage), storage.plan.page_tokens)
        self.rows: list[int] = []
        self._storage = storage
        self._piece = PIECE_PAGES * storage.plan.page_tokens

    def reach(self, length: int, batch: int) -> None:
        """Advance the rows when the first layer of a forward gets here.

        Raises:
            ArenaFullError: with the sum; a forward that met it cannot be resumed.
            KvarenaError: the batch has another size than the rows in use.
        """
        self.reach_batch(batch)
        if length > self.length:
            self._step(self.rows, length)

    def reach_batch(self, batch: int) -> None:
        """Open the rows at the first call, and hold every later batch to their number."""
        if not self.rows:
            self._open(batch)
        if batch != len(self.rows):
            raise KvarenaError(
                f"a batch of {batch} meets a cache that holds {len(self.rows)} sequences; call reset() between batches"
            )

    def pieces(self, length: int) -> list[range]:
        """The pieces in which rows should be brought to ``length`` by a caller who holds them all already."""
        return [range(at, min(at + self._piece, length)) for at in range(self.length, length, self._piece)]

    def select(self, indices: Sequence[int]) -> None:
        """The batch becomes its rows at ``indices``, some dropped, some several times.

        Raises:
            ArenaFullError: there is no room for the copies; the batch is lost, and only ``close`` may follow.
        """
        self.commit()
        before = self.rows
        for at in sorted(set(range(len(before))) - set(indices)):
            self._storage.close(before[at])
        self.rows = [before[at] for at in dict.fromkeys(indices)]
        unused = set(self.rows)
        chosen: list[int] = []
        copies: list[tuple[int, int]] = []
        for place, at in enumerate(indices):
            row = before[at]
            if row in unused:
                unused.remove(row)
            else:
                copies.append((row, place))
                row = self._open_row()
                self.rows.append(row)
                self._advance_alone(row)
            chosen.append(row)
        self.rows = chosen
        self._translate()
        for source, place in copies:
            self._copy(chosen.index(source), place)

    def close(self) -> None:
        """Give every page and slot back; the next batch starts anew."""
        self._lent.clear()
        self._storage.close(self._storage.requests.open_rows())
        self.rows, self.length, self._ids = [], 0, None

    def _open(self, batch: int) -> None:
        try:
            for _ in range(batch):
                self.rows.append(self._open_row())
        except ArenaFullError:
            self.close()
            raise
        self._translate()

    def _open_row(self) -> int:
        row = self._storage.open()
        if isinstance(row, Refused):
            raise _full(f"no room for a sequence more beside {len(self.rows)}", row)
        return int(row)

    def _step(self, rows: Sequence[int], length: int) -> None:
        self.commit()
        ids = self._storage.step(np.asarray(rows, dtype=np.int64), np.full(len(rows), length, dtype=np.int64))
        if isinstance(ids, Refused):
            raise _full(f"{len(rows)} sequences cannot grow from {self.length} to {length} tokens", ids)
        self.bind(ids, range(len(rows)), length)

    def _advance_alone(self, row: int) -> None:
        """Bring a new row to the batch's length without writing it."""
        for stop in [*range(self._piece, self.length, self._piece), self.length]:
            ids = self._storage.step(np.asarray([row], dtype=np.int64), np.asarray([stop], dtype=np.int64))
            if isinstance(ids, Refused):
                raise _full(f"no room for a copy of a sequence of {self.length} tokens", ids)

    def _translate(self) -> None:
        self.bind(self._storage.translate(np.asarray(self.rows, dtype=np.int64)), range(len(self.rows)), self.length)

    def _copy(self, source: int, target: int) -> None:
        """Copy what a sequence still needs, page by page, and its states."""
        for pool in self._storage.plan.sub_pools:
            parts = [part for roles in self._views.values() for part in roles.values() if part.pool == pool.name]
            if pool.is_slots:
                slots = self._slots()
                ids = [int(slots[source])], [int(slots[target])]
            elif self.length:
                first = (self.length - pool.lifetime.retained(self.length)) // self.page_tokens
                last = -(-self.length // self.page_tokens)
                table = self._table(pool.name)[:, first:last]
                ids = table[source], table[target]
            else:
                continue
            for view in (view for part in parts for view in part.fields.values()):
                view[ids[1]] = view[ids[0]]


def _full(what: str, refused: Refused) -> ArenaFullError:
    cure = "give ArenaCache more memory, or for more sequences a larger max_running"
    return ArenaFullError(f"the arena is full: {what}: {refused}; {cure}", refused)


def _changed(place: Place, shape: Any, dtype: Any, new_shape: Any, new_dtype: Any) -> KvarenaError:
    return KvarenaError(
        f"{place} was written as {tuple(shape)} of {dtype} at first and now comes as {tuple(new_shape)} of "
        f"{new_dtype}; use a new ArenaCache after changing a model"
    )
