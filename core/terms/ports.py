"""What core asks of the wings: a device that holds the bytes and orders the work on them, and the policies that choose.

Pages are numbered on a sub-pool's own grid over the whole arena: page p of a sub-pool with units of
u bytes is bytes [p*u, (p+1)*u).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

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


class Stream(Protocol):
    """Work in order: each piece begins after the one before it has ended."""

    name: str


class Event(Protocol):
    """A place in a stream's work."""

    def done(self) -> bool:
        """Whether all work before it has ended: for checks, and to skip a wait. Nothing decides by it."""
        ...


class Touch(NamedTuple):
    """Pages that work on a stream reads or writes: on the grid of units of ``unit_bytes``, as data of ``kind``.

    ``kind`` is the name of the sub-pool whose data it is.
    """

    unit_bytes: int
    pages: IntArray
    kind: str


class Mirror(Protocol):
    """A device's copy of host integers: int32, written by one packed update after another, read by kernels."""

    size: int

    def apply(self, stream: Stream, slot: int, positions: IntArray, values: IntArray) -> None:
        """Write ``values`` at ``positions`` (none named twice) through staging slot ``slot``, on the stream.

        The slot is filled at once: it may not be in use by an update that has not ended.
        """
        ...

    def read(self, positions: IntArray) -> IntArray:
        """What stands at these positions, any shape, as int64: for work that runs on the stream."""
        ...


@attrs.frozen
class Lookup:
    """A table read from a mirror: the first ``width`` ids of each row, through a map.

    Row r has its ids from place ``rows_at + r * row_entries`` on. What id i stands for is at ``map_at + i``; what an
    unbound one (-1) does, at ``unbound_at``.
    """

    width: int
    rows_at: int
    row_entries: int
    map_at: int
    unbound_at: int


class DeviceTables(Protocol):
    """Tables that kernels read, one of shape (rows, width) for each lookup, int32, at addresses that never change."""

    arrays: Sequence[Any]

    def translate(self, rows: int, width: int) -> None:
        """Fill the first rows, up to this width, on the caller's stream: for work that runs on a stream."""
        ...


@runtime_checkable
class TableMirror(Protocol):
    """A mirror that fills tables by itself, all of them in one go. One that cannot is read, place by place."""

    def tables(self, rows: int, batch_at: int, lookups: Sequence[Lookup]) -> DeviceTables:
        """Tables of so many rows: the numbers of their rows stand in the mirror from place ``batch_at`` on."""
        ...


class Memory(Protocol):
    """The arena's bytes."""

    def reserve(self, arena_bytes: int) -> None:
        """Get the arena, zeroed. Called once, before anything else."""
        ...

    def resize(self, arena_bytes: int) -> None:
        """Move the top of the arena, keeping its base address; new bytes are zero. No work is under way.

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

    def close(self) -> None:
        """Give the memory back, after all work has ended; views are invalid from here on."""
        ...


class Streams(Protocol):
    """The order of the work on them."""

    def current(self) -> Stream:
        """The stream of the caller: for a device on the host, what it is given is done when the call returns."""
        ...

    def stream(self, name: str) -> Stream:
        """The stream of this name, made when it is first asked for; the current one where ``has_streams`` is false."""
        ...

    def record(self, stream: Stream) -> Event:
        """The place after all work that is on the stream now."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Work that the stream is given from now on begins after the event; the caller does not wait."""
        ...

    def synchronize(self, event: Event) -> None:
        """The caller waits until the event has come."""
        ...

    def run(self, stream: Stream, work: Callable[[], None], reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Put a forward, or a part of one, on the stream. ``reads`` and ``writes`` are told for devices that check."""
        ...


class Pages(Protocol):
    """Work on whole units of the arena."""

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Copy whole units; no target is also a later source of the same call."""
        ...

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        """Write zeros over whole units."""
        ...

    def warm(self, units_bytes: Sequence[int]) -> None:
        """Make ready what copies of units of these sizes need, so that no later one compiles or allocates."""
        ...


class Beside(Protocol):
    """What lies beside the arena: mirrors on the device, memory of the host, and the copies between."""

    def mirror(self, size: int, slots: int, slot_entries: int) -> Mirror:
        """A mirror of ``size`` integers, all 0, with a staging ring of ``slots`` updates of ``slot_entries`` each."""
        ...

    def host_memory(self, unit_bytes: int, count: int) -> Any:
        """Memory of the host that copies reach: uint8 of shape (count, unit_bytes), zero."""
        ...

    def save(self, stream: Stream, pages: Touch, host: Any, places: IntArray) -> None:
        """Copy pages of the arena to ``host[places]``."""
        ...

    def load(self, stream: Stream, host: Any, places: IntArray, pages: Touch) -> None:
        """Copy ``host[places]`` to pages of the arena."""
        ...


@runtime_checkable
class Device(Memory, Streams, Pages, Beside, Protocol):
    """Where the arena's bytes live, and the streams that touch them. All page lists are int64 arrays on the host.

    ``has_streams``: whether ``stream`` gives one that runs beside the caller. Work is queued in the order of the calls;
    what a call names (page lists, staging) is read when it is called, the arena's bytes when the work's turn comes.
    """

    name: str
    holds_bytes: bool
    has_streams: bool


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

    Which entry goes first is the cache's to decide, by an ``Eviction`` policy say; units are per sub-pool, in chain
    order. A question may lock an entry for as long as it lasts, so a lock alone is no use of it.
    """

    def evictable(self) -> Sequence[int]:
        """The units that come back if everything that is not locked is evicted. Exact, and read at once."""
        ...

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        """Choose pieces, one at a time, until ``enough(units)`` says so after one of them, or none is left to evict.

        ``units``: those per sub-pool that this call has chosen and not given back yet; zeros where each piece is given
        back at once. All of them have come back when it returns, or raises.
        """
        ...

    def lock(self, entry: Any) -> None:
        """A request is about to read this entry: it may not be evicted. Locks count."""
        ...

    def unlock(self, entry: Any) -> None:
        """The request reads it no more."""
        ...


class Piece(NamedTuple):
    """What a cache knows of one piece that it may let go of, for a policy to weigh.

    ``bytes`` come back; ``tokens`` can be resumed now and could not without it; so many requests, ``hits``, started
    from it; ``priority`` is the highest of those who brought it; ``used`` is when it was last used, as a count that
    rises with every use in the cache.
    """

    bytes: int
    tokens: int
    hits: int
    priority: float
    used: int


class Victims(Protocol):
    """The pieces of one cache that may go. Made by an ``Eviction`` policy. Each call is O(log n) or better."""

    def __len__(self) -> int: ...

    def add(self, key: int, piece: Piece) -> None:
        """This piece may go from here on; its key is not among them."""
        ...

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        """What is known of a piece has changed; ``used``: because it was used again."""
        ...

    def remove(self, key: int) -> None:
        """This piece may not go, or has gone with another."""
        ...

    def pop(self, look: Callable[[int], Piece] | None) -> int | None:
        """Remove and return the piece that goes first; None where there is none.

        ``look`` tells what is known of a piece now: what changed far from it was not told by ``touch``. Without it all
        that changed was told.
        """
        ...


class Eviction(Protocol):
    """Policy: which piece of a cache goes first.

    ``splits``: whether the states and window rows of a prefix may go without its other pages. They are what other
    kinds need to resume there, so a policy that splits weighs kinds apart; one that does not sees whole entries.
    ``weighs``, where it has it, is false if it looks at no ``bytes`` and ``tokens``: both are 0 then, since to find
    them costs more than all the rest, and all else that changes is told by ``touch``.
    """

    name: str
    splits: bool

    def open(self) -> Victims:
        """The victims of a new cache."""
        ...


class Codec(Protocol):
    """What a runner calls to write and read entries with side data; core never does."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        """Keys and values, (..., heads, dim), as one tensor per field of the layout, in order: (..., *field.shape).

        Row by row: what a row becomes does not depend on the rows beside it.
        """
        ...

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]:
        """The keys and values that such tensors stand for, (..., heads, dim), in a floating type."""
        ...
