"""What core asks of the wings: a device that holds the bytes, and the policies that choose.

Pages are numbered on a sub-pool's own grid over the whole arena: page p of a sub-pool with units of
u bytes is bytes [p*u, (p+1)*u).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@attrs.frozen
class End:
    """Which end of the arena a band is anchored to: ``LOW`` grows up, ``HIGH`` grows down."""

    name: str


LOW = End("low")
HIGH = End("high")


@attrs.frozen
class FieldView:
    """Where one field of a sub-pool lies in every unit, for a backend to turn into a typed view.

    The view has shape ``(pages, rows, *shape)``: ``rows`` entries a page (1 for a slot), page stride
    ``unit_bytes``, first item at ``offset_bytes`` of the page, rows contiguous.
    """

    dtype: str
    shape: tuple[int, ...]
    rows: int
    offset_bytes: int
    unit_bytes: int
    pages: int


@runtime_checkable
class Device(Protocol):
    """Where the arena's bytes live. All page lists are int64 arrays on the host."""

    name: str
    holds_bytes: bool

    def reserve(self, arena_bytes: int) -> None:
        """Get the arena, zeroed. Called once, before anything else."""
        ...

    def resize(self, arena_bytes: int) -> None:
        """Move the top of the arena, keeping its base address; new bytes are zero.

        Raises:
            KvarenaError: the device cannot reach that size without moving the base.
        """
        ...

    def view(self, field: FieldView) -> Any:
        """A typed view of the arena for kernels: reads and writes go to the arena, no copies.

        Raises:
            KvarenaError: the device holds no bytes, or cannot represent the dtype.
        """
        ...

    def copy_pages(self, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units; no target is also a later source of the same call."""
        ...

    def zero_pages(self, unit_bytes: int, pages: IntArray) -> None: ...

    def close(self) -> None:
        """Give the memory back; views are invalid from here on."""
        ...


class Holes(Protocol):
    """The free pages inside one band's span. Made by a ``HoleOrder`` policy, owned by one band."""

    def __len__(self) -> int: ...

    def add(self, pages: IntArray) -> None:
        """Pages were freed; none is a hole already."""
        ...

    def take(self, count: int) -> IntArray:
        """Remove and return ``count`` holes, in the order of the policy."""
        ...

    def remove(self, pages: IntArray) -> None:
        """These holes were filled by moves."""
        ...

    def inside(self, count: int, start: int, stop: int) -> IntArray:
        """``count`` holes in pages ``[start, stop)``, or all there are; which comes cheapest. Nothing is removed."""
        ...

    def drop_below(self, stop: int) -> int:
        """Remove the holes directly below page ``stop``, as far as there is no gap; returns how many."""
        ...

    def drop_above(self, start: int) -> int:
        """Remove the holes from page ``start`` upwards, as far as there is no gap; returns how many."""
        ...


class HoleOrder(Protocol):
    """Policy: which hole is handed out first."""

    name: str

    def open(self, page_count: int, end: End) -> Holes:
        """The holes of a new band of a grid of ``page_count`` pages, anchored to ``end``."""
        ...


class Compaction(Protocol):
    """Policy: how many pages an end may move to close its holes, when nobody is short of memory."""

    name: str

    def moves(self, live: int, holes: int) -> int:
        """The most pages to move in this pass; 0 for none. Called once per band and pass."""
        ...


class Placement(Protocol):
    """Policy: where a float that holds nothing is put."""

    name: str

    def start(self, lowest: int, highest: int) -> int:
        """The first page of the float, between the lowest and the highest that serve every band."""
        ...


@attrs.frozen
class Policies:
    """The choices a chain leaves to config: which hole first, how much to compact, where an empty float goes."""

    hole_order: HoleOrder
    compaction: Compaction
    placement: Placement


class Cache(Protocol):
    """Pages that nobody runs on and that may be had again: a prefix cache, as admission sees it.

    Which entry goes first is the cache's to decide; units are per sub-pool, in chain order.
    """

    def evictable(self) -> Sequence[int]:
        """The units that come back if everything that is not locked is evicted."""
        ...

    def evict(self, enough: Callable[[], bool]) -> None:
        """Free entries, one at a time, until ``enough()`` says so after one of them, or none is left to evict."""
        ...

    def lock(self, entry: Any) -> None:
        """A request is about to read this entry: it may not be evicted. Locks count."""
        ...

    def unlock(self, entry: Any) -> None:
        """The request reads it no more."""
        ...


class Codec(Protocol):
    """What a runner calls to write and read entries with side data; core never does."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]: ...

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]: ...
