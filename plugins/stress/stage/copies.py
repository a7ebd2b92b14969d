"""On the stage: host copies out and back, and state copies from slot to slot."""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from kvarena.ledger.steps import Forward
from kvarena.plugins.stress.stage.entries import Entries
from kvarena.plugins.stress.stage.forwards import Forwards
from kvarena.plugins.stress.stage.props import NO_PAGES, Props, Request, born
from kvarena.plugins.stress.stage.requests import Requests
from kvarena.storage.copies import Copy
from kvarena.terms.answers import Refused
from kvarena.terms.errors import ConfigError
from kvarena.terms.members import among
from kvarena.terms.ports import Event, IntArray


@attrs.define(eq=False)
class Saved:
    """Pages of one sub-pool in host memory: which page of the sequence each is, where it lies, and its tags."""

    at: IntArray
    places: IntArray
    tags: IntArray


class Shelves:
    """Host memory by sub-pool, a place per page."""

    def __init__(self, props: Props, places: int) -> None:
        self._props = props
        self._count = places
        self._memory: dict[str, Any] = {}
        self._free: dict[str, list[int]] = {}
        self._later: list[tuple[Event, dict[str, Saved]]] = []

    def memory(self, name: str) -> Any:
        """The memory of one sub-pool, made at the first use."""
        if name not in self._memory:
            unit = self._props.storage.plan[name].unit_bytes
            self._memory[name] = self._props.device.host_memory(unit, self._count)
            self._free[name] = list(range(self._count - 1, -1, -1))
        return self._memory[name]

    def take(self, name: str, count: int) -> IntArray:
        """So many free places.

        Raises:
            ConfigError: there are no more.
        """
        self.memory(name)
        later, self._later = self._later, []
        for after, saved in later:
            self.free(saved, None if after.done() else after)
        free = self._free[name]
        if len(free) < count:
            raise ConfigError(
                f"host memory has {len(free)} places left for {name}, {count} are needed; raise host_places"
            )
        return np.array([free.pop() for _ in range(count)], dtype=np.int64)

    def free(self, saved: dict[str, Saved], after: Event | None = None) -> None:
        """These places may be used again, once ``after`` has come."""
        if after is not None:
            self._later.append((after, saved))
            return
        for name, mine in saved.items():
            self._free[name] += mine.places.tolist()


@attrs.define(eq=False)
class Transport:
    """A copy by its name. ``saved``: what it wrote to the host, or reads from there."""

    name: str
    copy: Copy
    is_load: bool
    saved: dict[str, Saved]
    request: Request | None = None
    whose: tuple[str, str] = ("", "")
    """The request or the entry that a backup is of."""
    is_own: bool = False
    """A load whose host pages nobody else has: they are free at its end."""


class Copies:
    """The verbs of host copies."""

    def __init__(self, props: Props, entries: Entries, requests: Requests, forwards: Forwards, places: int) -> None:
        self._props = props
        self._entries = entries
        self._requests = requests
        self._forwards = forwards
        self.host = Shelves(props, places)
        self.under_way: dict[str, Transport] = {}
        self.saved: dict[str, dict[str, Saved]] = {}
        """What finished backups left on the host, by the copy's name."""

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "backup": self.backup, "load": self.load, "name": self.name, "submit": self.submit, "end": self.end,
            "cancel": self.cancel, "copy_state": self.copy_state,
        }  # fmt: skip

    def forget(self, copy: str) -> None:
        """What a backup left on the host is dropped, and its places are free."""
        self.host.free(self.saved.pop(copy))

    def backup(self, copy: str, request: str = "", entry: str = "") -> int:
        """A copy of a request's pages and slots, or of an entry's pages: how many units."""
        self._check_new(copy)
        props = self._props
        chain = props.storage.chain
        if bool(request) == bool(entry):
            raise ConfigError(f"backup {copy!r}: name a request or an entry, one of the two")
        if entry:
            found = self._entries.ids_of(self._entries.find(entry))
            ids = {name: mine for name, mine in found.items() if chain.bands[name].grid.unit_bytes}
        else:
            ids = self._ids_of(props.present(request, "backup"))
        kept, saved = {}, {}
        for name, mine in ids.items():
            at = chain.bands[name].ids.is_bound(mine).nonzero()[0]
            if not len(at):
                continue
            kept[name] = mine[at]
            saved[name] = Saved(at, NO_PAGES, NO_PAGES)  # what it holds is what is there when it is submitted
        handle = props.storage.copies.backup(kept)
        self.under_way[copy] = Transport(copy, handle, is_load=False, saved=saved, whose=(request, entry))
        return sum(map(len, kept.values()))

    def load(self, copy: str, request: str, rows: int, source: str = "") -> int | Refused:
        """A row is opened, unless it is and has no rows; pages for a load into it are taken: its rows."""
        self._check_new(copy)
        props = self._props
        is_new = request not in props.requests
        opened = self._requests.open(request) if is_new else props.request(request)
        if isinstance(opened, Refused):
            return opened
        saved = props.named(self.saved, source, "saved copy") if source else {}
        handle = props.storage.copies.load(opened.row, rows)
        if isinstance(handle, Refused):
            if is_new:
                self._requests.end(request)
            return handle
        born(props, np.array([opened.row]), 0)
        opened.written = rows
        self.under_way[copy] = Transport(
            copy, handle, is_load=True, saved=dict(saved), request=opened, is_own=not source
        )
        return rows

    def name(self, copy: str, sub_pool: str = "") -> int:
        """A load's pages of a sub-pool, or all of them, may move from here on; how many pages."""
        props, made = self._props, self._transport(copy).copy
        props.check_sub_pool(sub_pool)
        named = [sub_pool] if sub_pool else [name for name in made.ids if name in made.fixed]
        for name in named:
            props.storage.copies.name(made, name)
        return sum(len(made.ids[name]) for name in named)

    def submit(self, copy: str) -> int:
        """The copy goes on its stream; how many units it moves."""
        props, transport = self._props, self._transport(copy)
        request = transport.request
        is_gone = request is not None and props.requests.get(request.name) is not request
        if is_gone or transport.copy.state != "made":
            targets = {}  # its row was closed, or it is on its stream: the storage says so
        elif transport.is_load:
            targets = self._fill(transport)
        else:
            self._check_held(transport)
            targets = {name: self.host.take(name, len(mine.at)) for name, mine in transport.saved.items()}
            for name, places in targets.items():
                mine = transport.saved[name]
                mine.places, mine.tags = places, self._tags_of(name, transport.copy.ids[name])
        moved = {name: (self.host.memory(name), places) for name, places in targets.items()}
        props.storage.copies.submit(transport.copy, moved)
        use = transport.copy.use
        props.events[copy] = use.event if use is not None else None
        return sum(map(len, targets.values()))

    def end(self, copy: str, wait: bool = True) -> int:
        """The copy is over; its number."""
        props, transport = self._props, self._transport(copy)
        use = transport.copy.use
        if wait and use is not None and use.event is not None:
            props.device.synchronize(use.event)
        props.storage.copies.end(transport.copy)
        del self.under_way[copy]
        if transport.is_load:
            if transport.is_own:
                self.host.free(transport.saved, None if wait or use is None else use.event)
        else:
            self.saved[copy] = transport.saved
        return transport.copy.number

    def cancel(self, copy: str) -> int:
        """The copy is given up before it was submitted; its number."""
        transport = self._transport(copy)
        self._props.storage.copies.cancel(transport.copy)
        del self.under_way[copy]
        if transport.request is not None:
            transport.request.written = 0
        return transport.copy.number

    def copy_state(self, source: str, target: str, forward: str = "") -> int:
        """The state of one request becomes another's too: how many slots."""
        sources, targets = self._slots_of(source), self._slots_of(target)
        flight = self._forwards.with_kernels(forward) if forward else None
        copy_slots(self._props, sources, targets, flight)
        return len(sources)

    # -- inside

    def _slots_of(self, name: str) -> IntArray:
        """The state slots of a request, or those held by name."""
        props, slots = self._props, self._props.maps.slots_name
        if name in props.units and slots is not None:
            return props.units[name].ids.get(slots, NO_PAGES)
        table = props.storage.requests
        return table.slots[props.request(name).row, : table.live_slots]

    def _ids_of(self, request: Request) -> dict[str, IntArray]:
        """The ids that a request has, by sub-pool with bytes."""
        props, row, table = self._props, request.row, self._props.storage.requests
        pages = table.pages[row, : int(table.page_counts[row])]
        ids = {pool.name: pages for pool in props.storage.plan.token_pools if pool.unit_bytes}
        if props.maps.slots_name is not None:
            ids[props.maps.slots_name] = table.slots[row, : table.live_slots]
        return ids

    def _check_held(self, transport: Transport) -> None:
        """Who has the pages of a backup that is to be submitted still has them: ids may be another's by now."""
        request, entry = transport.whose
        entries = self._entries
        held = entries.ids_of(entries.find(entry)) if entry else self._ids_of(self._props.request(request))
        if not all(among(ids, held[name]).all() for name, ids in transport.copy.ids.items()):
            raise ConfigError(f"backup {transport.name!r}: {request or entry} let go of its pages; cancel it")

    def _transport(self, name: str) -> Transport:
        return self._props.named(self.under_way, name, "copy")

    def _check_new(self, name: str) -> None:
        if name in self.under_way:
            raise ConfigError(f"there is a copy {name!r} already; give each a name of its own")

    def _tags_of(self, name: str, ids: IntArray) -> IntArray:
        tags = self._props.tags.pools.get(name)
        return tags.by_id[ids] if tags is not None else np.zeros((len(ids), 1), dtype=np.int64)

    def _fill(self, transport: Transport) -> dict[str, IntArray]:
        """Host places of each page that a load fills; those that no saved copy has are filled with new tags."""
        props, request = self._props, transport.request
        assert request is not None
        targets: dict[str, IntArray] = {}
        for name, ids in transport.copy.ids.items():
            tags = props.tags.pools.get(name)
            at = self._places_in_row(name, request, ids)
            known = transport.saved.get(name)
            if known is None or transport.is_own:
                known = transport.saved[name] = self._new_pages(name, at, props.length(request))
            order = {page: index for index, page in enumerate(known.at.tolist())}
            if not order.keys() >= set(at.tolist()):
                raise ConfigError(f"load {transport.name!r}: its source has not all pages of {name}; load fewer rows")
            picked = np.array([order[page] for page in at.tolist()], dtype=np.int64)
            targets[name] = known.places[picked]
            if tags is not None:
                tags.by_id[ids] = known.tags[picked]
        return targets

    def _places_in_row(self, name: str, request: Request, ids: IntArray) -> IntArray:
        """Which page of the row each id is, or which of its slots."""
        table = self._props.storage.requests
        if name == self._props.maps.slots_name:
            mine = table.slots[request.row]
        else:
            mine = table.pages[request.row, : int(table.page_counts[request.row])]
        order = {id_: index for index, id_ in enumerate(mine.tolist())}
        return np.array([order[id_] for id_ in ids.tolist()], dtype=np.int64)

    def _new_pages(self, name: str, at: IntArray, length: int) -> Saved:
        """Host pages that were never a request's: rows up to the length with tags, zeros behind it."""
        props = self._props
        places = self.host.take(name, len(at))
        tags = props.tags.pools.get(name)
        if tags is None:
            return Saved(at, places, np.zeros((len(at), 1), dtype=np.int64))
        rows = at[:, None] * tags.rows + np.arange(tags.rows)
        fresh = props.tags.fresh(rows.size).reshape(rows.shape)
        if not tags.is_slots:
            fresh[rows >= length] = 0
        content = tags.content(fresh).reshape(len(at), -1)
        memory = np.asarray(self.host.memory(name))
        memory[places, : content.shape[1]] = content
        return Saved(at, places, fresh)


def copy_slots(props: Props, sources: IntArray, targets: IntArray, forward: Forward | None = None) -> None:
    """Copy state slots by their ids; behind the kernels of an open forward, if one is given."""
    props.storage.copies.copy_state(sources, targets, forward)
    if props.tags.slots is not None:
        props.tags.slots.by_id[targets] = props.tags.slots.by_id[sources]
