"""A stretch of cached tokens, and the places in it where requests start."""

from typing import Any, NamedTuple

import numpy as np

from kvarena.terms.numbers import UNBOUND

KV, ROWS, STATE = 1, 2, 4
"""What a node has: its pages in sub-pools that never retire, window rows, a state. Flags."""

WHOLE = 1
"""All that a node has, as one piece."""

RowNeeds = tuple[int, ...]
"""Which window rows a reader needs: per sub-pool that retires rows, one number, its *need*, which rises as it moves on.

Where rows retire in order the need is the first page that is needed; else the length in tokens whose query needs them.
"""

Counts = tuple[int, ...]
"""Per sub-pool that retires rows, so many of a node's pages."""


class Needs(NamedTuple):
    """What a reader needs beside the path: these window rows, and maybe the state.

    ``first_page``: the first page with any of these rows; ``NEVER`` where no sub-pool retires rows.
    """

    rows: RowNeeds
    state: bool
    first_page: int


GONE = -1
"""The number of a node that was evicted."""

NO_ID = np.int64(UNBOUND).tobytes()
"""``UNBOUND`` as nodes have ids: where a page is in no sub-pool."""


class Node:
    """The tokens of positions ``start`` to ``stop``, both in pages, behind those of its ``parent``.

    ``keys`` are the token values and ``ids`` the pages, int64, as bytes: a copy, a slice and a comparison of bytes are
    the quickest there are, and a million small nodes stay small. An id is -1 where no sub-pool has the page. ``rows``
    has, per sub-pool that retires rows, those that are still there (see ``kinds``). ``state`` is the slot of the state
    after its last token. ``origin`` is what the insert that brought it said of itself; ``is_end``: an insert ended
    here.

    ``locks`` end here; ``pins`` are these and the children with pins. ``readers`` are the locks that were not relaxed,
    by what each needs. ``leases`` are those from here on whose windows reach into the node, by what they
    need of window rows. ``counted`` is what of it can be evicted, ``listed`` the pieces that its
    policy knows: flags. ``free_rows``: per sub-pool of ``rows``, how many of its pages count as evictable.
    """

    __slots__ = (
        "children", "counted", "free_rows", "hits", "ids", "is_end", "keys", "leases", "listed", "locks", "number",
        "origin", "parent", "pins", "priority", "readers", "rows", "start", "state", "stop", "used",
    )  # fmt: skip

    def __init__(
        self, parent: "Node | None", start: int, stop: int, *, keys: bytes, ids: bytes, rows: tuple[Any, ...]
    ) -> None:
        self.parent = parent
        self.start, self.stop = start, stop
        self.keys, self.ids, self.rows = keys, ids, rows
        self.children: dict[bytes, Node] | None = None
        self.state: int | None = None
        self.origin: Any = None
        self.is_end = False
        self.locks = self.pins = 0
        self.readers: dict[Needs, int] | None = None
        self.leases: dict[RowNeeds, int] | None = None
        self.free_rows: Counts = ()
        self.number = GONE
        self.counted = self.listed = 0
        self.used = self.hits = 0
        self.priority: float = 0


class Root(Node):
    """Where the prefixes of one namespace begin: no token of its own, and no piece."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Any) -> None:
        super().__init__(None, 0, 0, keys=b"", ids=b"", rows=())
        self.namespace = namespace


class Entry:
    """A place where a request can start, ``tokens`` from the beginning: what is locked and unlocked.

    It stays what it is when nodes are split: the node that had its last page keeps what lies behind the split.
    One reader has it: another who starts here has one of its own, from another ``match``.
    ``lands``: whether a request could start there when it was handed out; else it is only read on. ``leased``: what its
    locks that were not relaxed need, the last one last; ``narrowed``: what a reader needed that had moved on, and whose
    lock was taken off.
    """

    __slots__ = ("lands", "leased", "narrowed", "node", "stop", "tokens")

    def __init__(self, node: Node, stop: int, tokens: int, *, lands: bool) -> None:
        self.node, self.stop, self.tokens, self.lands = node, stop, tokens, lands
        self.leased: list[Needs] = []
        self.narrowed: Needs | None = None

    def __repr__(self) -> str:
        return f"<Entry of {self.tokens} tokens>"
