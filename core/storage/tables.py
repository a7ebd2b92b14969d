"""Page tables for kernels: filled on the device from the mirrors, all sub-pools at once, at addresses that stay."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvarena.storage.iteration_ids import Maps
from kvarena.terms.doors import line
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import DeviceTables, IntArray, Lookup, Mirror


class ReadTables:
    """Tables of a mirror that cannot fill them by itself: arrays of the host, read place by place."""

    def __init__(self, mirror: Mirror, rows: int, batch_at: int, lookups: Sequence[Lookup]) -> None:
        self._mirror = mirror
        self._batch_at = batch_at
        self._lookups = lookups
        self.arrays: Sequence[Any] = [np.zeros((rows, one.width), dtype=np.int32) for one in lookups]

    def translate(self, rows: int, width: int) -> None:
        """Fill the first rows, up to this width."""
        if not rows:
            return
        numbers = self._mirror.read(self._batch_at + np.arange(rows))
        for one, table in zip(self._lookups, self.arrays, strict=True):
            columns = np.arange(min(width, one.width))
            ids = self._mirror.read(one.rows_at + numbers[:, None] * one.row_entries + columns)
            places = np.where(ids == UNBOUND, one.unbound_at, one.map_at + ids)
            table[:rows, : len(columns)] = self._mirror.read(places)


class BatchTables(Mapping[str, Any]):
    """The page tables of one batch, by sub-pool, and its state slots: int32, on the device, at addresses that stay.

    ``tables["full"]`` has shape (rows, width): the physical page at each page position of each row of the batch, the
    sink's where none is bound. ``slots``, shape (rows, places of a row), are the state slots; None without a state.

    A batch's life:  1. batch      its rows, in order; places beyond them are padding, which reads the sink.
                     2. launched   the next launch writes them to the device with everything else that changed.
                     3. translate  in work of that forward: the tables read as the host's maps did at the launch.
    """

    def __init__(
        self,
        names: Sequence[str],
        device: DeviceTables,
        batch: "Batch",
        *,
        width: int,
        maps: Maps,
    ) -> None:
        """``names``: those of the tables, in their order; what is left over are the slots.

        ``maps``: those that the tables were opened for; after a resize they are not the storage's any more.
        """
        self._names = tuple(names)
        self._maps = maps
        self._device = device
        self._batch = batch
        self.rows, self.width = len(batch.rows), width
        self.slots: Any = device.arrays[len(names)] if len(device.arrays) > len(names) else None

    def batch(self, rows: IntArray) -> None:
        """The rows of the next forward, in order, at most ``self.rows``; told before it is launched.

        Raises:
            KvarenaError: too many, or one that is none; nothing has changed.
            InvariantError: the storage was resized since, which made mirrors anew: open tables there, capture again.
        """
        self._maps.check_current()
        self._batch.set(line(rows, "tables.batch: rows"))

    def translate(self, rows: int | None = None, width: int | None = None) -> None:
        """Fill the first rows of the tables, up to this width; all by default. For work of the launched forward.

        On a GPU that is one kernel, and nothing else: it may be captured in a graph.

        Raises:
            KvarenaError: more than there is.
            InvariantError: the storage was resized since; a graph that captured this reads what was there before.
        """
        self._maps.check_arena()
        rows, width = self.rows if rows is None else rows, self.width if width is None else width
        if not (0 <= rows <= self.rows and 0 <= width <= self.width):
            raise KvarenaError(f"tables.translate: {rows} rows of {width} pages; there are {self.rows} of {self.width}")
        self._device.translate(rows, max(width, 0 if self.slots is None else self.slots.shape[1]))

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(f"no token sub-pool {name!r}; {nearest(name, self._names)}")
        return self._device.arrays[self._names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Batch:
    """Which row stands at each place of a batch; the padding row where none does."""

    def __init__(self, size: int, padding: int) -> None:
        self.rows = np.full(size, padding, dtype=np.int64)
        self.padding = padding
        self.changed: list[IntArray] = []
        """The places that have another row than at the last launch, and maybe others."""

    def set(self, rows: IntArray) -> None:
        """These rows, and the padding row beyond them.

        Raises:
            KvarenaError: too many, or one that is none; nothing has changed.
        """
        if len(rows) > len(self.rows):
            raise KvarenaError(f"tables.batch: {len(rows)} rows, and the tables were opened for {len(self.rows)}")
        if len(rows) and not 0 <= rows.min() <= rows.max() <= self.padding:
            raise KvarenaError(f"tables.batch: rows are from 0 to {self.padding}, the padding row, not {rows.tolist()}")
        before = self.rows.copy()
        self.rows[: len(rows)], self.rows[len(rows) :] = rows, self.padding
        places = (self.rows != before).nonzero()[0]
        if len(places):
            self.changed.append(places)

    def at(self, places: IntArray) -> IntArray:
        """The rows at these places."""
        return self.rows[places]
