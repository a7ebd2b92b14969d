"""On the stage: requests start from what others computed, and leave in a prefix cache what they have."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.plugins.stress.stage.batch import has_rows, is_past, whole_of
from kvarena.plugins.stress.stage.copies import copy_slots
from kvarena.plugins.stress.stage.entries import Entries
from kvarena.plugins.stress.stage.forwards import Forwards
from kvarena.plugins.stress.stage.props import Pending, Props, Request
from kvarena.plugins.stress.stage.requests import Requests
from kvarena.terms.answers import Refused
from kvarena.terms.errors import ConfigError
from kvarena.terms.numbers import UNBOUND

CACHED, SKIPPED, TAKEN, HELD = "cached", "skipped", "taken", "held"


class Sharing:
    """The verbs of the prefix cache."""

    def __init__(
        self,
        props: Props,
        entries: Entries,
        requests: Requests,
        forwards: Forwards,
        admission: Callable[[], Admission],
    ) -> None:
        self._props = props
        self._entries = entries
        self._requests = requests
        self._forwards = forwards
        self._admission = admission

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "match": self.match, "start": self.start, "cache": self.cache, "spare": self.spare,
            "checkpoint": self.checkpoint, "narrow": self.narrow, "relax": self.relax, "lock": self.lock,
            "unlock": self.unlock, "evict": self.evict, "entries": self.entries,
        }  # fmt: skip

    # -- a request that is still to start

    def match(
        self,
        request: str,
        shares: Mapping[str, int] | None = None,
        prompt: int = 0,
        lock: bool = False,
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """What a request would start from; it keeps its values until it starts or is aborted."""
        entries = self._entries
        if request in self._props.requests or request in self._props.units:
            raise ConfigError(f"request {request!r} runs already; match one that is still to start")
        known = entries.wishes.known.get(request)
        keys = known.keys if known is not None and not shares else entries.keys_for(shares, namespace)
        entries.wishes.drop(request)
        wish = entries.wishes.make(keys, prompt or sum((shares or {}).values()) + 1)
        if lock and wish.match.entry is not None:
            entries.tree.lock(wish.match.entry)
            wish.locked = wish.match.entry
        entries.wishes.known[request] = wish
        match = wish.match
        return {
            "tokens": match.tokens, "agreed": match.agreed, "has_state": match.state is not None,
            "stopped": match.stopped,
        }  # fmt: skip

    def start(self, request: str) -> int | Refused:
        """A request that was matched has a row, which reads what was found, and a copy of the state: its rows."""
        props, entries = self._props, self._entries
        wish = props.named(entries.wishes.known, request, "request that was matched")
        match = entries.wishes.look_again(wish)
        opened = self._requests.open(request, wish.keys)
        if isinstance(opened, Refused):
            return opened
        del entries.wishes.known[request]
        if match.entry is None:
            return 0
        if wish.locked is None:
            entries.tree.lock(match.entry)
        entries.told.check(request, wish.keys, match)
        opened.reading = match.entry  # locked once, and let go of at its end
        try:
            props.storage.sharing.start(opened.row, match.ids, match.tokens)
            if match.state is not None:
                slots = props.storage.requests.slots[opened.row]
                copy_slots(props, np.array([match.state]), slots[:1])
        except BaseException:
            self._requests.end(request)
            raise
        entries.tree.touch(match.entry)
        opened.written = match.tokens
        return match.tokens

    # -- what goes into the cache

    def cache(self, request: str, entry: str, tokens: int = -1) -> int:
        """A request's first rows are in the cache, and read from there: how many."""
        props, one = self._props, self._props.present(request, "cache")
        tokens = whole_of(props, one, tokens)
        if props.storage.plan.slots is not None:
            raise ConfigError(
                f"nobody could start from {entry!r}, which has no state; use checkpoint, or finish with state = true"
            )
        if not has_rows(props, one, tokens):
            raise ConfigError(f"{request} has let go of window rows that a start at {tokens} needs")
        if one.reading is not None and tokens <= one.reading.tokens:
            raise ConfigError(f"{request} reads {one.reading.tokens} rows from the cache already, {tokens} among them")
        if tokens:
            self._entries.check_new(entry)
            self._entries.keep(entry, one, tokens)
        return tokens

    def spare(self, request: str) -> str:
        """A slot beside the one that the request runs on, for its next checkpoint: held, or skipped where none is."""
        storage, one = self._props.storage, self._props.present(request, "spare")
        at = self._spare_place()
        if storage.requests.slots[one.row, at] != UNBOUND:
            return HELD
        is_promised = storage.requests.slots_per_row > at
        admission = self._admission()
        room = admission.free_for if is_promised else admission.room_for
        one_slot = tuple(int(pool.is_slots) for pool in storage.plan.sub_pools)
        has_room = room(one_slot)
        self._entries.gone()
        if not has_room or isinstance(slot := storage.sharing.take_slot(one.row, at), Refused):
            return SKIPPED
        if self._props.tags.slots is not None:
            self._props.tags.slots.born(np.array([slot]))
        return HELD

    def checkpoint(self, request: str, entry: str, forward: str = "") -> str:
        """A request's state is offered to the cache, at a grid point: cached, or skipped where no slot is to be had.

        With an open forward it is copied behind its kernels, and cached when that is processed: taken.
        """
        props, one = self._props, self._props.present(request, "checkpoint")
        at, tokens = self._spare_place(), self._grid_point(one)
        self._entries.check_new(entry)
        if any(pending.slot is None for pending in one.pending):
            raise ConfigError(f"{request} has a checkpoint on its way behind {forward!r} already")
        if not forward and self.spare(request) == SKIPPED:
            return SKIPPED
        slots = props.storage.requests.slots[one.row]
        if slots[at] == UNBOUND:
            return SKIPPED
        if not forward:
            copy_slots(props, slots[:1], slots[at : at + 1])
            self._entries.keep(entry, one, tokens, props.storage.sharing.hand_over_slot(one.row, at))
            return CACHED
        if request not in self._forwards.batch_of(forward):
            raise ConfigError(f"{request} is not in the batch of {forward!r}, so its state is not made there")
        handle = self._forwards.with_kernels(forward)
        copy_slots(props, slots[:1], slots[at : at + 1], handle)
        one.pending.append(Pending(entry, tokens, handle.number))
        self._forwards.any_pending = True
        return TAKEN

    # -- who reads it, and what goes

    def relax(self, request: str) -> int:
        """A request needs of what it reads the path alone: its rows there."""
        one = self._props.request(request)
        if one.reading is None or one.is_relaxed:
            raise ConfigError(f"{request} reads no entry of the cache, or was relaxed before")
        if not is_past(self._props, one, self._props.length(one)):
            raise ConfigError(f"{request} needs the window rows of what it reads still")
        self._entries.tree.relax(one.reading)
        one.is_relaxed = True
        return one.reading.tokens

    def narrow(self, request: str) -> int:
        """A request needs of what it reads what a query from here on needs: the length that is meant."""
        props, one = self._props, self._props.request(request)
        if one.reading is None or one.is_relaxed:
            raise ConfigError(f"{request} reads no entry of the cache, or was relaxed before")
        size = props.storage.sizing.limits.grid or props.maps.paging.tokens
        length = props.length(one) // size * size
        self._entries.tree.narrow(one.reading, length)
        one.narrowed = max(one.narrowed, length)
        return length

    def lock(self, entry: str) -> int:
        """An entry is kept; how often."""
        found = self._entries.find(entry)
        self._entries.hold(found)
        return found.locks

    def unlock(self, entry: str) -> int:
        """A lock is taken away; how many are left."""
        found = self._entries.find(entry)
        if not found.locks:
            raise ConfigError(f"entry {entry!r} is not locked by name; requests unlock what they read at their end")
        self._entries.tree.unlock(found.held.pop())
        return found.locks

    def evict(self, entry: str = "", pieces: int = 1) -> list[str]:
        """One entry goes, or so many pieces: the names of what is gone."""
        return self._entries.give_back(entry, pieces)

    def entries(self) -> list[str]:
        """The names of what is there."""
        self._entries.gone()
        return list(self._entries.known)

    # -- inside

    def _spare_place(self) -> int:
        table = self._props.storage.requests
        if table.slots.shape[1] <= table.live_slots:
            raise ConfigError("a request has no place for a second state slot; give the chain a prefix with a strategy")
        return table.live_slots

    def _grid_point(self, one: Request) -> int:
        """The length of a request, at which its state may be kept."""
        grid, length = self._props.storage.sizing.limits.grid, self._props.length(one)
        if not grid or not length or length % grid or one.reserved or one.written < length:
            raise ConfigError(f"{one.name} has no state at a grid point: {length} rows, a grid of {grid}")
        return length
