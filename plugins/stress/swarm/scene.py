"""Who is there, by name, and what may happen to each: kept from the operations and their outcomes alone.

The stage knows the pages; the scene knows what a scheduler would know. It lets a generator propose what is possible.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

from kvarena.plugins.stress.stage.operations import Op

READY, LOADING, RECEIVING = "ready", "loading", "receiving"

WHILE_OPEN = frozenset({"run", "record", "turn", "land", "copy_state", "checkpoint", "fits", "counts"})
"""What may stand between the launch of a forward and its recording."""


@attrs.define(eq=False)
class Guest:
    """One request. ``length``: its rows; ``written``: those that were given to somebody to write.

    ``reserved``: the length that its drafts may reach; 0 where it has none. ``saving``: backups of it that are made and
    not submitted: its pages are named in them. ``sending``: transfers that read it. ``reads``: rows that it started
    with and has not moved past.
    """

    name: str
    length: int = 0
    written: int = 0
    reserved: int = 0
    state: str = READY
    saving: int = 0
    sending: int = 0
    has_run: bool = False
    reads: int = 0


@attrs.define(eq=False)
class HostCopy:
    """One copy: made, then submitted and ended, or cancelled. ``is_named``: all pages of a load may move."""

    name: str
    is_load: bool
    request: str = ""
    entry: str = ""
    rows: int = 0
    is_named: bool = False
    is_submitted: bool = False


@attrs.define(eq=False)
class Transfer:
    """One transfer: a receive is published before the peer writes, and released at its end."""

    name: str
    is_receive: bool
    request: str
    rows: int = 0
    is_published: bool = False
    is_written: bool = False


class Scene:
    """Everything by name. ``saw`` is told every operation that went through."""

    def __init__(self) -> None:
        self.guests: dict[str, Guest] = {}
        self.entries: dict[str, int] = {}
        """Entries of the cache, the oldest first, and how often each is locked by name."""
        self.entry_rows: dict[str, int] = {}
        self.wishes: list[str] = []
        """Requests that were matched and have not started."""
        self.saving_entry: dict[str, int] = {}
        self.open_forward = ""
        self.open_batch: tuple[str, ...] = ()
        self.open_drafts = False
        self.has_run = False
        self.flying: deque[str] = deque()
        self.copies: dict[str, HostCopy] = {}
        self.saved: dict[str, int] = {}
        """Backups that ended, and how many rows each has."""
        self.transfers: dict[str, Transfer] = {}

    def saw(self, op: Op, value: Any) -> None:
        """The operation was played, and was neither refused nor an error. ``value``: what it answered."""
        note = _NOTES.get(op.verb)
        if note is not None:
            note(self, op.arguments, value)

    def failed(self, op: Op) -> None:
        """The operation was an error; of a release or a peer's write that means that the transfer is over already."""
        transfer = self.transfers.get(op.arguments.get("transfer", ""))
        if transfer is not None and op.verb == "release":
            self._release(op.arguments, None)
        elif transfer is not None and op.verb == "peer_write":
            transfer.is_written = True

    def sees(self, entries: Mapping[str, tuple[int, int]]) -> None:
        """What the cache has by now: of each entry its rows, and how often it is locked by name."""
        self.entries = {name: locks for name, (_, locks) in entries.items()}
        self.entry_rows = {name: rows for name, (rows, _) in entries.items()}

    def ready(self) -> list[Guest]:
        """Requests that may run: no load or receive is under way for them."""
        return [guest for guest in self.guests.values() if guest.state is READY]

    def is_pointless(self, op: Op, *, overlaps: bool) -> bool:
        """Whether nobody would do this, nothing would refuse it, and what came of it would tell nothing.

        A look at rows that are not filled yet; and, where nothing overlaps and so nothing is recorded, whatever changes
        pages between the launch of a forward and its end.
        """
        if op.verb == "read":
            guest = self.guests.get(op.arguments["request"])
            return bool(self.open_forward) or (guest is not None and (guest.state != READY or guest.reserved > 0))
        return bool(self.open_forward) and not overlaps and op.verb not in WHILE_OPEN

    def is_in_use(self, op: Op) -> bool:
        """Whether the operation asks for pages that a transfer reads or fills: it is refused by name."""
        names = op.arguments.get("requests", ()) if op.verb in ("launch", "step") else ()
        names = (op.arguments["source"], op.arguments["target"]) if op.verb == "copy_state" else names
        asked = [self.guests[name] for name in names if name in self.guests]
        return any(guest.sending or guest.state == RECEIVING for guest in asked)

    # -- what each operation means

    def _take(self, given: Mapping[str, Any], value: Any) -> None:
        self._not_waiting(given["request"])
        guest = self._guest(given["request"])
        guest.length += given.get("rows", 0)

    def _extend(self, given: Mapping[str, Any], value: Any) -> None:
        for name, length in given["to"].items():
            self._guest(name).length = length

    def _free(self, given: Mapping[str, Any], value: Any) -> None:
        pieces = given.get("pieces")
        if not pieces:
            self.guests.pop(given["request"], None)
            return
        guest = self._guest(given["request"])
        guest.length = min(guest.length, pieces[0][0])
        guest.written = min(guest.written, guest.length)

    def _launch(self, given: Mapping[str, Any], value: Any) -> None:
        self.open_forward, self.open_batch = given["forward"], tuple(given.get("requests", ()))
        self.has_run = False
        for name in self.open_batch:
            guest = self._guest(name)
            guest.written, guest.has_run = max(guest.length, guest.reserved), True

    def _run(self, given: Mapping[str, Any], value: Any) -> None:
        self.has_run = True

    def _copy_state(self, given: Mapping[str, Any], value: Any) -> None:
        if given.get("forward"):
            self.has_run = True  # a copy behind its kernels puts them on the stream

    def _record(self, given: Mapping[str, Any], value: Any) -> None:
        self.flying.append(given["forward"])
        self.open_forward, self.open_batch = "", ()

    def _process(self, given: Mapping[str, Any], value: Any) -> None:
        while self.flying and self.flying.popleft() != given["forward"]:
            pass

    def _step(self, given: Mapping[str, Any], value: Any) -> None:
        for name in given["requests"]:
            guest = self._guest(name)
            guest.length += given.get("rows", 1)
            guest.written, guest.has_run = guest.length, True
        self.flying.append(given["forward"])

    def _leave(self, given: Mapping[str, Any], value: Any) -> None:
        self.guests.pop(given["request"], None)
        self._not_waiting(given["request"])

    def _match(self, given: Mapping[str, Any], value: Any) -> None:
        self._not_waiting(given["request"])
        self.wishes.append(given["request"])

    def _start(self, given: Mapping[str, Any], value: Any) -> None:
        self._not_waiting(given["request"])
        self.guests[given["request"]] = Guest(given["request"], length=value, written=value, reads=value, has_run=True)

    def _relax(self, given: Mapping[str, Any], value: Any) -> None:
        self._guest(given["request"]).reads = 0

    def _cache(self, given: Mapping[str, Any], value: Any) -> None:
        self._guest(given["request"]).reads = value if isinstance(value, int) else 0

    def _checkpoint(self, given: Mapping[str, Any], value: Any) -> None:
        if value in ("cached", "taken"):
            guest = self._guest(given["request"])
            guest.reads = guest.length

    def _not_waiting(self, name: str) -> None:
        if name in self.wishes:
            self.wishes.remove(name)

    def _reserve(self, given: Mapping[str, Any], value: Any) -> None:
        for name, length in given["to"].items():
            self._guest(name).reserved = length

    def _commit(self, given: Mapping[str, Any], value: Any) -> None:
        for name, length in given["to"].items():
            guest = self._guest(name)
            guest.length = guest.written = length
            guest.reserved = 0

    def _backup(self, given: Mapping[str, Any], value: Any) -> None:
        request, entry = given.get("request", ""), given.get("entry", "")
        if request:
            self.guests[request].saving += 1
            rows = self.guests[request].length
        else:
            self.saving_entry[entry] = self.saving_entry.get(entry, 0) + 1
            rows = self.entry_rows.get(entry, 0)
        self.copies[given["copy"]] = HostCopy(given["copy"], False, request, entry, rows)

    def _load(self, given: Mapping[str, Any], value: Any) -> None:
        rows, name = given["rows"], given["request"]
        self.copies[given["copy"]] = HostCopy(given["copy"], True, name, rows=rows)
        self.guests[name] = Guest(name, length=rows, written=rows, state=LOADING)

    def _name(self, given: Mapping[str, Any], value: Any) -> None:
        if given["copy"] in self.copies and not given.get("sub_pool"):
            self.copies[given["copy"]].is_named = True

    def _submit(self, given: Mapping[str, Any], value: Any) -> None:
        copy = self.copies.setdefault(given["copy"], HostCopy(given["copy"], False))
        copy.is_submitted = True
        self._let_go(copy)

    def _cancel(self, given: Mapping[str, Any], value: Any) -> None:
        copy = self.copies.pop(given["copy"], None)
        if copy is None:
            return
        if copy.is_load and copy.request in self.guests:
            guest = self.guests[copy.request]
            guest.length = guest.written = 0
        self._let_go(copy)

    def _let_go(self, copy: HostCopy) -> None:
        """Nothing waits for the copy to be submitted any more."""
        if copy.is_load:
            self._ready(copy.request, LOADING)
        elif copy.request in self.guests:
            self.guests[copy.request].saving -= 1
        elif copy.entry:
            self.saving_entry[copy.entry] = self.saving_entry.get(copy.entry, 1) - 1

    def _end(self, given: Mapping[str, Any], value: Any) -> None:
        copy = self.copies.pop(given["copy"], None) or HostCopy(given["copy"], False)
        if not copy.is_load and copy.request:
            self.saved[copy.name] = copy.rows

    def _send(self, given: Mapping[str, Any], value: Any) -> None:
        self.transfers[given["transfer"]] = Transfer(given["transfer"], False, given["request"])
        self._guest(given["request"]).sending += 1

    def _recv(self, given: Mapping[str, Any], value: Any) -> None:
        rows, name = given["rows"], given["request"]
        self.transfers[given["transfer"]] = Transfer(given["transfer"], True, name, rows)
        self.guests[name] = Guest(name, length=rows, written=rows, state=RECEIVING)

    def _publish(self, given: Mapping[str, Any], value: Any) -> None:
        if given["transfer"] in self.transfers:
            self.transfers[given["transfer"]].is_published = True

    def _peer_write(self, given: Mapping[str, Any], value: Any) -> None:
        if given["transfer"] in self.transfers:
            self.transfers[given["transfer"]].is_written = True

    def _release(self, given: Mapping[str, Any], value: Any) -> None:
        transfer = self.transfers.pop(given["transfer"], None)
        if transfer is None:
            return
        if transfer.is_receive:
            self._ready(transfer.request, RECEIVING)
        elif transfer.request in self.guests:
            self.guests[transfer.request].sending -= 1

    def _guest(self, name: str) -> Guest:
        return self.guests.setdefault(name, Guest(name))

    def _ready(self, name: str, state: str) -> None:
        guest = self.guests.get(name)
        if guest is not None and guest.state == state:
            guest.state = READY


_NOTES = {
    "take": Scene._take,
    "extend": Scene._extend,
    "free": Scene._free,
    "launch": Scene._launch,
    "run": Scene._run,
    "copy_state": Scene._copy_state,
    "record": Scene._record,
    "process": Scene._process,
    "step": Scene._step,
    "finish": Scene._leave,
    "abort": Scene._leave,
    "retract": Scene._leave,
    "match": Scene._match,
    "start": Scene._start,
    "cache": Scene._cache,
    "checkpoint": Scene._checkpoint,
    "relax": Scene._relax,
    "reserve": Scene._reserve,
    "commit": Scene._commit,
    "backup": Scene._backup,
    "load": Scene._load,
    "name": Scene._name,
    "submit": Scene._submit,
    "cancel": Scene._cancel,
    "end": Scene._end,
    "send": Scene._send,
    "recv": Scene._recv,
    "publish": Scene._publish,
    "peer_write": Scene._peer_write,
    "release": Scene._release,
}
