"""How long a token's row is needed. Lifetimes are values with behaviour, counted in tokens.

A sequence *has length L* when rows 0..L-1 are written and the next query is at position L.
"""

import math
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import attrs
import numpy as np

from kvarena.terms import ranges
from kvarena.terms.ports import IntArray
from kvarena.terms.units import TOKENS_MAX, align_down, align_up

Rank = tuple[int, int]
"""Orders the chain: state (0, 0) first, windows from the longest, full attention (2, 0) last."""

WINDOW_RANK = 1

NEVER = 1 << 62
"""A length that no sequence has."""


@runtime_checkable
class Lifetime(Protocol):
    """What a plugin writes to say which rows a layer still needs. A frozen, hashable value.

    ``own_ids`` is True for a slot per request (a state), False for rows that share the owner's ids.
    A lifetime whose retired rows are always the first ones may add ``floor(lengths)``: for an array of
    lengths, the first row that the query there still needs; and its inverse ``reaches(rows)``, the least
    length at which the floor is at least that row, ``NEVER`` where there is none.

    One whose needs repeat may add ``repeats()``, a pair ``(start, period)``: from length ``start`` on, the rows needed
    at a length are, ``period`` tokens later, the same ones moved on by ``period``, beside rows that stay for good.
    For chunks of 8 tokens it is ``(0, 8)``: rows 8-12 at length 13, rows 16-20 at 21. For the first 4 rows and a
    window of 6 it is ``(10, 1)``: rows 0-3 and 5-9 at length 10, rows 0-3 and 6-10 at 11.

    These make prices quick to find and never change them; what they say is compared with ``retired`` when a storage is
    planned.
    """

    @property
    def name(self) -> str:
        """Names the sub-pool that holds all parts of this lifetime, such as ``window-4096``."""
        ...

    @property
    def rank(self) -> Rank: ...

    @property
    def own_ids(self) -> bool: ...

    def entries(self, length: int) -> int:
        """The most rows alive between two steps of a sequence of this length; 1 for a slot."""
        ...

    def retained(self, length: int) -> int:
        """How many rows before position ``length`` the query there still needs."""
        ...

    def __hash__(self) -> int:
        """Equal lifetimes are one lifetime: they name one sub-pool, and their prices are remembered."""
        ...

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        """The rows that nobody needs any more once the length went from ``start`` to ``stop``."""
        ...


def _positive(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{type(instance).__name__}: {attribute.name} must be a whole number >= 1, not {value!r}")
    if value > TOKENS_MAX:
        raise ValueError(f"{type(instance).__name__}: {attribute.name} is absurd; at most {TOKENS_MAX:,}")


_TOKENS = {"schema": {"minimum": 1, "maximum": TOKENS_MAX}}
"""The same for a schema of config files."""


@attrs.frozen
class Full:
    """Every row until the request ends."""

    name = "full"
    rank: Rank = attrs.field(default=(2, 0), init=False)
    own_ids = False

    def entries(self, length: int) -> int:
        return length

    def retained(self, length: int) -> int:
        return length

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return ()

    def floor(self, lengths: IntArray) -> IntArray:
        return np.zeros_like(lengths)

    def reaches(self, rows: IntArray) -> IntArray:
        return np.full_like(rows, NEVER)

    def repeats(self) -> tuple[int, int]:
        return 0, 1


@attrs.frozen
class Window:
    """The current token and the ``window - 1`` before it (sliding-window attention)."""

    window: int = attrs.field(validator=_positive, metadata=_TOKENS)
    own_ids = False

    @property
    def name(self) -> str:
        return f"window-{self.window}"

    @property
    def rank(self) -> Rank:
        return (WINDOW_RANK, -self.window)

    def entries(self, length: int) -> int:
        return min(length, self.window)

    def retained(self, length: int) -> int:
        return min(length, self.window - 1)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        gone, going = max(0, start - self.window + 1), max(0, stop - self.window + 1)
        return (range(gone, going),) if going > gone else ()

    def floor(self, lengths: IntArray) -> IntArray:
        return np.maximum(lengths - (self.window - 1), 0)

    def reaches(self, rows: IntArray) -> IntArray:
        return rows + (self.window - 1)

    def repeats(self) -> tuple[int, int]:
        return self.window, 1


@attrs.frozen
class Chunk:
    """The rows since the start of the current chunk of ``chunk`` tokens (chunked attention, Llama 4)."""

    chunk: int = attrs.field(validator=_positive, metadata=_TOKENS)
    own_ids = False

    @property
    def name(self) -> str:
        return f"chunk-{self.chunk}"

    @property
    def rank(self) -> Rank:
        return (WINDOW_RANK, -self.chunk)

    def entries(self, length: int) -> int:
        return length - (length - 1) // self.chunk * self.chunk if length else 0

    def retained(self, length: int) -> int:
        return length % self.chunk

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        gone, going = start // self.chunk * self.chunk, stop // self.chunk * self.chunk
        return (range(gone, going),) if going > gone else ()

    def floor(self, lengths: IntArray) -> IntArray:
        return lengths // self.chunk * self.chunk

    def reaches(self, rows: IntArray) -> IntArray:
        return -(-rows // self.chunk) * self.chunk

    def repeats(self) -> tuple[int, int]:
        return 0, self.chunk


@attrs.frozen
class State:
    """One slot per request, rewritten in place (Mamba, linear attention, short convolutions).

    ``checkpoint_interval`` is the grid in tokens on which a prefix cache may keep copies; None keeps none.
    """

    checkpoint_interval: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive), metadata=_TOKENS
    )
    name = "state"
    rank: Rank = attrs.field(default=(0, 0), init=False)
    own_ids = True

    def entries(self, length: int) -> int:
        return 1

    def retained(self, length: int) -> int:
        return 1

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return ()


@attrs.frozen
class Union:
    """As long as the longest of several: the lifetime of an owner of ids that has no bytes of its own."""

    members: tuple[Lifetime, ...]
    name = "ids"
    rank: Rank = attrs.field(default=(3, 0), init=False)
    own_ids = False

    def entries(self, length: int) -> int:
        return max((member.entries(length) for member in self.members), default=0)

    def retained(self, length: int) -> int:
        return max((member.retained(length) for member in self.members), default=0)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return ranges.subtract(self._gone(stop), self._gone(start))

    def _gone(self, length: int) -> tuple[range, ...]:
        """The rows below ``length`` that no member needs."""
        gone: ranges.Ranges = (range(length),) if length else ()
        for member in self.members:
            gone = ranges.intersect(gone, member.retired(0, length))
        return gone


@attrs.frozen
class OnGrid:
    """``inner``, as long as it is needed when only whole intervals of a length count.

    So the rows behind the latest grid point stay until the next one is complete: what a prefix cache that keeps
    checkpoints on that grid asks of a window. Made by ``on_grid``.
    """

    inner: Lifetime
    interval: int = attrs.field(validator=_positive, metadata=_TOKENS)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def rank(self) -> Rank:
        return self.inner.rank

    @property
    def own_ids(self) -> bool:
        return self.inner.own_ids

    def entries(self, length: int) -> int:
        return length - self._gone(max(0, length - 1))

    def retained(self, length: int) -> int:
        return length - self._gone(length)

    def retired(self, start: int, stop: int) -> tuple[range, ...]:
        return self.inner.retired(align_down(start, self.interval), align_down(stop, self.interval))

    def _gone(self, length: int) -> int:
        """How many rows nobody needs any more at this length."""
        return sum(map(len, ranges.merge(self.retired(0, length))))


def on_grid(lifetime: Lifetime, grid: int | None) -> Lifetime:
    """The lifetime where a cache keeps checkpoints every ``grid`` tokens; as it is where there is no grid.

    A slot and what never retires are not moved by it. A union is one of its members on the grid.
    """
    if grid is None or lifetime.own_ids or isinstance(lifetime, Full):
        return lifetime
    if isinstance(lifetime, Union):
        return Union(tuple(on_grid(member, grid) for member in lifetime.members))
    return OnGrid(lifetime, grid)


def bare(lifetime: Lifetime) -> Lifetime:
    """The lifetime that a plugin wrote, without the grid around it."""
    return bare(lifetime.inner) if isinstance(lifetime, OnGrid) else lifetime


def prefix_floor(lifetime: Lifetime, lengths: IntArray) -> IntArray | None:
    """The first row still needed at each length, or None where what retires need not be a prefix."""
    if isinstance(lifetime, OnGrid):
        return prefix_floor(lifetime.inner, lengths // lifetime.interval * lifetime.interval)
    if isinstance(lifetime, Union):
        floors = [prefix_floor(member, lengths) for member in lifetime.members]
        known = [floor for floor in floors if floor is not None]
        return np.minimum.reduce(known) if known and len(known) == len(floors) else None
    floor = getattr(lifetime, "floor", None)
    return floor(lengths) if floor is not None else None


def floor_reaches(lifetime: Lifetime, rows: IntArray) -> IntArray | None:
    """The least length at which the first row still needed is at least each of these (all >= 1).

    None where the lifetime gives no closed form: then its floor can be searched.
    """
    if isinstance(lifetime, OnGrid):
        reached = floor_reaches(lifetime.inner, rows)
        return None if reached is None else -(-reached // lifetime.interval) * lifetime.interval
    if isinstance(lifetime, Union):
        each = [floor_reaches(member, rows) for member in lifetime.members]
        known = [lengths for lengths in each if lengths is not None]
        return np.maximum.reduce(known) if known and len(known) == len(each) else None
    reaches = getattr(lifetime, "reaches", None)
    return reaches(rows) if reaches is not None else None


def repeats(lifetime: Lifetime) -> tuple[int, int] | None:
    """The length from which on what is needed repeats, and the tokens after which it does; None where none is known.

    So the most that a sequence holds is found in its first rows, however long it is.
    """
    if isinstance(lifetime, OnGrid):
        inner = repeats(lifetime.inner)
        return inner and (align_up(inner[0], lifetime.interval), common_multiple((inner[1], lifetime.interval)))
    if isinstance(lifetime, Union):
        known = [found for found in map(repeats, lifetime.members) if found is not None]
        whole = len(known) == len(lifetime.members)
        return (max(start for start, _ in known), common_multiple(step for _, step in known)) if whole else None
    own = getattr(lifetime, "repeats", None)
    return None if own is None else tuple(own())


def outlives(longer: Lifetime, shorter: Lifetime, horizon: int = 1 << 12) -> bool:
    """Whether ``shorter`` never needs a row that ``longer`` has retired, at any length.

    Decided by the values themselves where both are built in, else by trying every length to ``horizon``:
    no where ``longer`` retires nothing up to there, since then nothing was seen.
    """
    if isinstance(longer, Full):
        return True
    if isinstance(shorter, Full):
        return False
    if isinstance(longer, Window) and isinstance(shorter, (Window, Chunk)):
        needs = shorter.window if isinstance(shorter, Window) else shorter.chunk
        return longer.window >= needs
    if isinstance(longer, Chunk) and isinstance(shorter, Chunk):
        return longer.chunk % shorter.chunk == 0
    if isinstance(longer, Chunk) and isinstance(shorter, Window):
        return shorter.window == 1
    gone: set[int] = set()
    seen = False
    for length in range(horizon):
        gone.update(row for rows in shorter.retired(length, length + 1) for row in rows)
        going = [row for rows in longer.retired(length, length + 1) for row in rows]
        seen = seen or bool(going)
        if any(row not in gone for row in going):
            return False
    return seen


def common_multiple(rates: Iterable[int]) -> int:
    """The least page size, in tokens, that every rate of one entry per k tokens divides."""
    return math.lcm(1, *rates)
