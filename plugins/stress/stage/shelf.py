"""A small cache for the stage: entries of handed-over pages by name, the oldest first; locks, matches, evictions."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from kvarena.plugins.stress.stage.props import NO_PAGES, Props, Request, Units
from kvarena.terms.errors import ConfigError, InvariantError
from kvarena.terms.invariants import broken


@attrs.define(eq=False)
class Entry(Units):
    """A cached prefix: its page ids, the same in every token sub-pool, and how often it is locked.

    ``reader``: the request that handed it over; while it runs it reads these pages, and nobody may evict them.
    """

    tokens: int = 0
    locks: int = 0
    reader: Request | None = None


class Shelf:
    """The cache behind the port of admission. What it holds was handed over by requests."""

    def __init__(self, props: Props) -> None:
        self._props = props
        self.entries: dict[str, Entry] = {}
        self.evicted: list[str] = []

    def keep(self, name: str, request: Request, tokens: int) -> Entry:
        """A request's first rows become an entry; those that it handed over before are another's."""
        if name in self.entries:
            raise ConfigError(f"there is an entry {name!r} already; give each a name of its own")
        props, row = self._props, request.row
        storage, size = props.storage, props.maps.paging.tokens
        if tokens < 0:
            tokens = props.length(request) // size * size
        before = int(storage.requests.handed[row])
        ids = storage.ownership.hand_over(row, tokens)
        first, stop = before, max(before, tokens // size)
        kept = storage.requests.pages[row, first:stop] >= 0
        held = {tags.name: ids for tags in props.tags.token_pools} if props.tags.on else {}
        tags = {tags.name: tags.page_tags(row, first, stop)[kept] for tags in props.tags.token_pools}
        entry = self.entries[name] = Entry(name, held or {storage.plan.owner or "": ids}, tags, tokens, reader=request)
        return entry

    def find(self, name: str) -> Entry:
        """The entry of this name."""
        return self._props.named(self.entries, name, "entry")

    def remove(self, name: str) -> None:
        """Give one entry back.

        Raises:
            InvariantError: somebody has locked it, or the request that it is of still reads it.
        """
        entry = self.find(name)
        if self._is_read(entry):
            raise InvariantError(broken("shelf.evict_of_read_entry", entry=name))
        if entry.locks:
            raise InvariantError(broken("shelf.evict_of_locked_entry", entry=name, locks=entry.locks))
        self._props.storage.ownership.free_pages(_ids(entry))
        del self.entries[name]
        self.evicted.append(name)

    # -- the port of admission

    def evictable(self) -> Sequence[int]:
        """The units that come back if everything that is not locked is evicted."""
        ids = [_ids(entry) for entry in self.entries.values() if self._may_go(entry)]
        return self._props.storage.ownership.units(np.concatenate(ids) if ids else NO_PAGES)

    def evict(self, enough: Callable[[], bool]) -> None:
        """Give back the oldest that are not locked, until it is enough."""
        for name in [name for name, entry in self.entries.items() if self._may_go(entry)]:
            self.remove(name)
            if enough():
                return

    def lock(self, entry: Any) -> None:
        """It may not be evicted; locks count."""
        self.find(entry).locks += 1

    def unlock(self, entry: Any) -> None:
        """One lock less."""
        found = self.find(entry)
        if not found.locks:
            raise InvariantError(broken("shelf.unlock_of_unlocked_entry", entry=entry))
        found.locks -= 1

    # -- inside

    def _is_read(self, entry: Entry) -> bool:
        return entry.reader is not None and self._props.requests.get(entry.reader.name) is entry.reader

    def _may_go(self, entry: Entry) -> bool:
        return not entry.locks and not self._is_read(entry)


def _ids(entry: Entry) -> Any:
    return next(iter(entry.ids.values()), NO_PAGES)
