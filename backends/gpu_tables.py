"""Page tables on a device: where they are read from, and where they stand, at addresses that never change."""

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from kvarena.backends.gpu_platform import Platform
from kvarena.terms.ports import Lookup

TABLE_NUMBERS = 6
"""What a kernel is told of a table."""


@attrs.frozen(eq=False)
class TablePlan:
    """What a kernel that translates needs, all of it on the device.

    ``numbers``, int64, has six for each lookup: its width, where rows begin in the mirror, the entries of one, where
    its map begins, the place that unbound ids read, and where its table begins in ``out``, which is int32. The batch's
    rows stand in the mirror from ``batch_at`` on.
    """

    lookups: tuple[Lookup, ...]
    numbers: torch.Tensor
    out: torch.Tensor
    batch_at: int
    rows: int

    @classmethod
    def open(cls, platform: Platform, rows: int, batch_at: int, lookups: Sequence[Lookup]) -> "TablePlan":
        """Tables of so many rows, all 0."""
        numbers, total = [], 0
        for one in lookups:
            numbers += [one.width, one.rows_at, one.row_entries, one.map_at, one.unbound_at, total]
            total += rows * one.width
        staged = platform.pinned(max(1, len(numbers)), torch.int64)
        staged[: len(numbers)] = torch.from_numpy(np.array(numbers, dtype=np.int64))
        uploaded = platform.zeros(len(staged), torch.int64)
        out = platform.zeros(max(1, total), torch.int32)
        platform.put(platform.current(), platform.upload, uploaded, staged)
        platform.synchronize()
        return cls(tuple(lookups), uploaded, out, batch_at, rows)

    def arrays(self) -> list[torch.Tensor]:
        """The tables, each of shape (rows, its width)."""
        first, found = 0, []
        for one in self.lookups:
            found.append(self.out[first : first + self.rows * one.width].view(self.rows, one.width))
            first += self.rows * one.width
        return found
