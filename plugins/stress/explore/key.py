"""The state of a small world as a short text of bytes: two states of the same key have the same future.

What counts is what is where and who must wait for whom; names that nothing depends on are left out:

- Ids and request rows are named by who has them or had them: which of the other free ones is next is only a name.
- Forwards are counted from the last that was processed, uses by their order.
- Works of the device: of each actor only whether each place in time (a stream's end, an event, what the host has waited
  for) comes before or after each last access to each cell, for a race is a comparison of those. Works that come before
  every such place are in nobody's way ever again.
- Contents of rows: a live row holds its last tag, or the search says so (``exhaustive``), whichever tag that is. Pages
  that nobody has differ in whose data they were.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kvarena.bands.id_band import IdBand
from kvarena.bands.span import Span
from kvarena.ledger.batches import Batches
from kvarena.plugins.stress.stage.props import Request
from kvarena.plugins.stress.stage.stage import Stage
from kvarena.terms.ports import IntArray

KEY_BYTES = 12
_COLUMNS = ("lengths", "page_counts", "handed", "looked_at", "due", "slots_held")


class Keys:
    """Makes the keys of one stage's states. The stage is on a simulated device."""

    def __init__(self, stage: Stage) -> None:
        """The stage is as it was opened; host memory of every sub-pool is made here, as a search needs it to stay."""
        self._stage = stage
        self._storage = stage.storage
        self._ledger = stage.storage.chain.ledger
        device: Any = stage.device
        self._order = device.order
        backed = [name for name, band in self._storage.chain.bands.items() if band.grid.unit_bytes]
        for name in backed:
            device.findings.code(name)  # kinds are numbered the same on every path
            stage.copies.host.memory(name)
        hosts = inside(device, "_hosts").values()
        self._shadows = [device.shadow, *(host.shadow for host in hosts)]
        self._lanes = next(value for value in vars(self._storage).values() if type(value).__name__ == "Lanes")
        self._minter_of = {
            name: minter.name for minter in self._storage.chain.minters.values() for name in minter.names
        }
        self._ids: dict[tuple[str, int], int] = {}
        self._events: list[Any] = []

    def key(self) -> bytes:
        """The state of now. No forward is open."""
        self._ids.clear()
        self._events = []
        host = repr(list(self._host())).encode()  # before the device: it says which events count
        return hashlib.blake2b(host + self._device(), digest_size=KEY_BYTES).digest()

    # -- the host

    def _host(self) -> Iterator[Any]:
        """All that a decision reads, requests first: they give the ids their names."""
        props = self._stage.props
        names = sorted(props.requests)
        rows = {props.requests[name].row: name for name in names}
        for name in names:
            yield name, list(self._request(props.requests[name]))
        steps = self._ledger.steps
        yield steps.recorded - steps.processed, steps.retired - steps.processed
        for forward in self._flying():
            yield self._event(forward.event)
        for one in steps.writes:
            writes = {name: pages.tolist() for name, pages in one.pages.items()}
            yield one.forward - steps.processed, sorted(one.unknown), sorted(writes.items())
        for use in self._ledger.uses:
            pages = [(name, mine.pages.tolist()) for name, mine in use.pages.items()]
            yield use.hazard.name, pages, self._event(use.event)
        yield from self._copies()
        yield from self._transfers(rows)
        for band in self._storage.chain.bands.values():
            yield list(self._band(band))
        for name, minter in self._storage.chain.minters.items():
            pool = minter.pool
            yield pool.free, self._named(name, inside(pool, "_returned")[: inside(pool, "_top")])
        yield self._event(self._ledger.timeline.tail())

    def _request(self, request: Request) -> Iterator[Any]:
        table, row = self._storage.requests, request.row
        yield request.written, request.reserved
        yield [int(getattr(table, column)[row]) for column in _COLUMNS], table.retired[:, row].tolist()
        away = table.away
        yield int(np.sign(away.holds[row])), int(away.drafts[row]), int(away.reserved[row])
        owner = self._storage.plan.owner or ""
        pages = table.pages[row, : int(table.page_counts[row])]
        yield self._named(owner, pages)
        slots = self._stage.props.maps.slots_name
        if slots is not None:
            yield self._named(slots, table.slots[row])
        for name, tags in self._stage.props.tags.pools.items():
            held = self._storage.chain.bands[name].ids.bound_among(table.slots[row] if tags.is_slots else pages)
            yield np.sign(tags.by_id[held]).tolist()

    def _flying(self) -> list[Any]:
        flights = [flight.forward for flight in self._stage.forwards.flights.values()]
        processed = self._ledger.steps.processed
        return sorted((one for one in flights if one.number > processed), key=lambda one: one.number)

    def _copies(self) -> Iterator[Any]:
        copies = self._stage.copies
        for name, transport in copies.under_way.items():
            ids = [(pool, self._named(pool, mine)) for pool, mine in transport.copy.ids.items()]
            whose = transport.request.name if transport.request is not None else transport.whose
            yield name, transport.copy.state, whose, ids, _saved(transport.saved)
        for name, saved in copies.saved.items():
            yield name, _saved(saved)
        yield sorted(inside(copies.host, "_free").items())

    def _transfers(self, rows: Mapping[int, str]) -> Iterator[Any]:
        for name, passage in self._stage.transfers.passages.items():
            transfer = passage.transfer
            if transfer.released:
                continue
            yield name, passage.is_receive, passage.request.name, passage.rows, transfer.published
            yield self._stage.props.requests.get(passage.request.name) is passage.request
            yield [(pool, self._named(pool, ids)) for pool, ids in transfer.ids.items()]
            yield [(pool, pages.tolist()) for pool, pages in passage.pages.items()]
            yield (
                None if transfer.row is None else rows.get(transfer.row),
                [row == transfer.row for row in inside(self._storage.requests, "_free")],
            )
            for stop in (passage.engine, passage.event, transfer.after):
                yield self._event(stop)

    def _band(self, band: Span | IdBand) -> Iterator[Any]:
        name = band.grid.name
        if isinstance(band, IdBand):
            yield band.live
            return
        yield band.start, band.stop
        yield self._named(name, band.ids.owners_of(slice(band.start, band.stop)))
        yield len(band.holes)
        for batches in (band.pending, band.vacated):
            yield self._batches(batches)
        yield band.still.fixed.tolist(), band.still.reserved.tolist(), band.still.immovable.tolist()

    def _batches(self, batches: Batches) -> list[tuple[int, list[int]]]:
        held = inside(batches, "_batches")
        processed = self._ledger.steps.processed
        return [(forward - processed, sorted(np.concatenate(parts).tolist())) for forward, parts in held]

    def _named(self, pool: str, ids: IntArray) -> list[int]:
        """Ids by the order in which they were met; below 0 as they are."""
        space, known = self._minter_of[pool], self._ids
        return [one if one < 0 else known.setdefault((space, one), len(known)) for one in ids.tolist()]

    # -- the device

    def _event(self, stop: Any) -> int:
        """A place in time, by the order in which it was met; -1 for none."""
        if stop is None:
            return -1
        self._events.append(stop)
        return len(self._events) - 1

    def _device(self) -> bytes:
        """How every place in time lies to every last access of every cell, and whose data each cell is."""
        timeline, lanes = self._ledger.timeline, inside(self._lanes, "_streams")
        streams = [self._order.host, timeline.memory, timeline.forward]
        streams += [lanes.get(name) for name in ("save", "load", "transfer")]
        places = [*streams, *self._events]
        width = self._order.width
        clocks = np.zeros((len(places), width), dtype=np.int32)
        owners = np.zeros_like(clocks)
        for number, place in enumerate(places):
            if place is not None:
                clocks[number, : len(place.clock)] = place.clock
                if getattr(place, "actor", -1) >= 0:
                    owners[number, place.actor] = 1
        cells = [inside(shadow, name) for shadow in self._shadows for name in ("_touched", "_written")]
        last = np.concatenate([clocks, *cells])
        before = (clocks[:, None, :] < last[None, :, :]).sum(axis=0, dtype=np.uint8)
        columns = np.ascontiguousarray(np.concatenate([owners.astype(np.uint8), before]).T)
        used = sorted(column.tobytes() for column in columns if column.any())
        kinds = [shadow.kinds.tobytes() for shadow in self._shadows]
        return b"|".join([*used, b"", *kinds])


def inside(one: Any, name: str) -> Any:
    """What an object keeps to itself: a key has to know all that the future hangs on, and asks nothing to change."""
    return getattr(one, name)


def _saved(saved: Mapping[str, Any]) -> list[Any]:
    return [(name, mine.at.tolist(), mine.places.tolist(), np.sign(mine.tags).tolist()) for name, mine in saved.items()]
