"""What a tree holds and has done, as plain numbers."""

from typing import NamedTuple


class TreeStats(NamedTuple):
    """Counts since the tree was opened; units per sub-pool, in chain order. May be read from any thread.

    ``entries`` nodes hold ``tokens``, in so many ``units``, of which so many are ``evictable`` now. Of ``lookups``,
    ``hits`` landed, ``hit_tokens`` from the beginning. ``evictions`` are pieces that went, and ``evicted_units`` what
    came back.
    """

    entries: int
    tokens: int
    units: tuple[int, ...]
    evictable: tuple[int, ...]
    lookups: int
    hits: int
    hit_tokens: int
    evictions: int
    evicted_units: tuple[int, ...]
