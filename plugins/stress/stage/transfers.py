"""On the stage: sends and receives, and the engines outside all streams that carry them."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from kvarena.plugins.stress.stage.batch import places_of, reads_of
from kvarena.plugins.stress.stage.props import Props, Request, Write, born, touches
from kvarena.plugins.stress.stage.requests import Requests
from kvarena.storage.transfers import Transfer
from kvarena.terms.answers import Refused
from kvarena.terms.errors import ConfigError
from kvarena.terms.ports import Event, IntArray, Stream


@attrs.define(eq=False)
class Passage:
    """A transfer by its name. ``pages``: a receive's, by sub-pool and page position, once the peer knows them.

    ``engine``: the actor that reads or writes, from its first work on; ``event`` comes after all that it was given.
    """

    name: str
    transfer: Transfer
    request: Request
    rows: int
    is_receive: bool
    pages: dict[str, IntArray] = attrs.field(factory=dict)
    engine: Stream | None = None
    event: Event | None = None


class Transfers:
    """The verbs of network transfers."""

    def __init__(self, props: Props, requests: Requests) -> None:
        self._props = props
        self._requests = requests
        self.passages: dict[str, Passage] = {}

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "send": self.send, "recv": self.recv, "publish": self.publish, "peer_write": self.peer_write,
            "release": self.release,
        }  # fmt: skip

    def send(self, transfer: str, request: str) -> int:
        """An engine reads a request's pages from now on; how many units."""
        props, one = self._props, self._props.present(request, "send")
        self._check_new(transfer)
        chain, table = props.storage.chain, props.storage.requests
        pages = table.pages[one.row, : int(table.page_counts[one.row])]
        ids = {pool.name: pages for pool in props.storage.plan.token_pools if pool.unit_bytes}
        if props.maps.slots_name is not None:
            ids[props.maps.slots_name] = table.slots[one.row, : table.live_slots]
        bound = {name: chain.bands[name].ids.bound_among(mine) for name, mine in ids.items()}
        bound = {name: mine for name, mine in bound.items() if len(mine)}
        handle = props.storage.transfers.send(bound)
        passage = Passage(transfer, handle, one, props.length(one), is_receive=False)
        self.passages[transfer] = passage
        checks = reads_of(props, (request,), props.storage.translate(np.array([one.row])))
        engine = self._engine(passage, handle.after)
        props.device.run(engine, props.work(f"send {transfer}", checks, []), touches(checks), [])
        self._was_given(passage, engine)
        return sum(map(len, bound.values()))

    def recv(self, transfer: str, request: str, rows: int) -> int | Refused:
        """A row is opened, unless it is and has no rows; pages for a receive into it are taken: its rows."""
        self._check_new(transfer)
        is_new = request not in self._props.requests
        opened = self._requests.open(request) if is_new else self._props.request(request)
        if isinstance(opened, Refused):
            return opened
        handle = self._props.storage.transfers.recv(opened.row, rows)
        if isinstance(handle, Refused):
            if is_new:
                self._requests.end(request)
            return handle
        born(self._props, np.array([opened.row]), 0)
        opened.written = rows
        self.passages[transfer] = Passage(transfer, handle, opened, rows, is_receive=True)
        return rows

    def publish(self, transfer: str) -> dict[str, list[int]]:
        """The peer learns the pages, by sub-pool."""
        props, passage = self._props, self._passage(transfer)
        published = props.storage.transfers.publish(passage.transfer)
        passage.pages = {tags.name: places_of(props, tags, passage.request.row) for tags in props.tags.token_pools}
        passage.engine = self._engine(passage, published.after)
        return {name: pages.tolist() for name, pages in published.pages.items()}

    def peer_write(self, transfer: str, rows: Sequence[int] | None = None) -> int:
        """The peer writes rows, as soon as the order of things lets it; whoever has the pages now."""
        props, passage = self._props, self._passage(transfer)
        if passage.engine is None:
            raise ConfigError(f"transfer {transfer!r} is not published, so the peer knows no page; publish it first")
        if passage.transfer.released:
            raise ConfigError(f"transfer {transfer!r} is released: its peer writes no more")
        props.check_rows(passage.request.name, rows or (), passage.rows)
        positions = np.array(list(range(passage.rows) if rows is None else rows), dtype=np.int64)
        is_there = props.requests.get(passage.request.name) is passage.request
        writes, held = [], props.storage.requests.pages[passage.request.row]
        for tags in props.tags.token_pools:
            mine = passage.pages[tags.name]
            pages = mine[positions // tags.rows]
            bound = pages >= 0
            fresh = props.tags.fresh(int(np.count_nonzero(bound)))
            offsets = positions[bound] % tags.rows
            if is_there:
                tags.by_id[held[positions[bound] // tags.rows], offsets] = fresh
            writes.append(Write(tags, pages[bound], offsets, fresh))
        work = props.work(f"the peer of {transfer}", [], writes)
        props.device.run(passage.engine, work, [], touches(writes))
        self._was_given(passage, passage.engine)
        return len(positions)

    def release(self, transfer: str, wait: bool = True) -> int:
        """The transfer is over; its number."""
        props, passage = self._props, self._passage(transfer)
        if wait and passage.event is not None:
            props.device.synchronize(passage.event)
        props.storage.transfers.release(passage.transfer)
        return passage.transfer.number

    # -- inside

    def _passage(self, name: str) -> Passage:
        return self._props.named(self.passages, name, "transfer")

    def _check_new(self, name: str) -> None:
        known = self.passages.get(name)
        if known is not None and not known.transfer.released:
            raise ConfigError(f"there is a transfer {name!r} already; give each a name of its own")

    def _engine(self, passage: Passage, after: Event | None) -> Stream:
        """An engine of its own, which begins behind ``after``; outside all streams where the device has such actors."""
        device: Any = self._props.device
        if hasattr(device, "engine"):
            return device.engine(f"engine {passage.name}", after)  # type: ignore[no-any-return]
        stream = device.stream(f"engine {passage.name}")
        if after is not None:
            device.wait(stream, after)
        return stream  # type: ignore[no-any-return]

    def _was_given(self, passage: Passage, engine: Stream) -> None:
        passage.event = self._props.device.record(engine)
        self._props.events[passage.name] = passage.event
