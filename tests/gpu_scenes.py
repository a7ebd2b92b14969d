"""What is played on a GPU device and on the cpu alike, so that their bytes can be compared."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from storages import CHAINS, process, rows_of, storage_of

from kvarena.assembly.config import Choice
from kvarena.terms.answers import Refused
from kvarena.terms.ports import Device, FieldView, Touch

PAGES = 40
STEP = st.tuples(
    st.sampled_from(["copy", "slide", "zero", "save", "load"]),
    st.sampled_from(["memory", "forward"]),
    st.integers(0, 12),
    st.integers(0, 2**32 - 1),
)
STEPS = st.lists(STEP, min_size=1, max_size=12)


def contents(device: Device, arena_bytes: int) -> Any:
    """The arena's bytes: a tensor over them."""
    return device.view(FieldView("uint8", (), 1, 0, 1, arena_bytes)).view(-1)


def play_steps(device: Device, unit: int, steps: list[tuple[str, str, int, int]]) -> tuple[Any, Any]:
    """Calls on two streams, in order, on random bytes: what the arena and memory of the host have afterwards."""
    arena = PAGES * unit + unit // 3
    device.reserve(arena)
    host, rng = device.host_memory(unit, PAGES), np.random.default_rng(unit)
    contents(device, arena)[:] = torch.from_numpy(rng.integers(0, 256, arena, dtype=np.uint8))
    host[:] = rng.integers(0, 256, host.shape, dtype=np.uint8)
    device.warm([unit])
    last = device.record(device.current())
    for verb, name, count, seed in steps:
        stream = device.stream(name)
        device.wait(stream, last)
        act(device, host, verb, stream, np.random.default_rng(seed), sizes=(unit, count))
        last = device.record(stream)
    device.synchronize(last)
    assert last.done()
    found = contents(device, arena).cpu().numpy().copy(), host.copy()
    device.close()
    return found


def act(device: Device, host: Any, verb: str, stream: Any, rng: Any, *, sizes: tuple[int, int]) -> None:
    """One call on pages and places that chance chooses: scattered, or partly in runs."""
    unit, count = sizes
    order = rng.permutation(PAGES)
    if rng.random() < 0.5:
        order = np.roll(np.arange(PAGES), int(order[0]))
    sources, targets = order[:count], order[count : 2 * count]
    if verb == "copy":
        device.copy_pages(stream, unit, sources, targets)
        sources[:], targets[:] = 0, 0  # what a call names is read when it is called
    elif verb == "slide" and count:
        device.copy_pages(stream, unit, np.arange(count, PAGES), np.arange(PAGES - count))
    elif verb == "zero":
        device.zero_pages(stream, unit, sources)
    elif verb == "save":
        device.save(stream, Touch(unit, sources, "full"), host, targets)
    elif verb == "load":
        device.load(stream, host, targets, Touch(unit, sources, "full"))


VERBS = st.lists(
    st.tuples(
        st.sampled_from(["open", "step", "step", "step", "close", "flush", "state", "backup", "load", "land"]),
        st.integers(0, 3),
        st.integers(0, 20),
    ),
    min_size=8,
    max_size=30,
)

HALF = 31


class Player:
    """The same verbs on one storage: overlapped forwards that write, moves, zeroes, state copies, saves and loads."""

    def __init__(self, name: str, memory: int, backend: Choice) -> None:
        self.storage = storage_of(CHAINS[name], memory=memory, backend=backend, mirrors=True, forwards_in_flight=2)
        self.flying: list[Any] = []
        self.copies: list[Any] = []
        self.serial = 0
        self.half = 0
        self.hosts = {
            pool.name: self.storage.device.host_memory(pool.unit_bytes, 2 * HALF)
            for pool in self.storage.plan.sub_pools
            if pool.unit_bytes
        }
        self.bytes = {name: self._view(name) for name in self.hosts}

    def _view(self, name: str) -> Any:
        unit, arena = self.storage.plan[name].unit_bytes, self.storage.sizing.arena_bytes
        return self.storage.device.view(FieldView("uint8", (unit,), 1, 0, unit, arena // unit))

    def play(self, verb: str, which: int, amount: int) -> None:
        """One verb, as far as it applies."""
        storage = self.storage
        rows = [row for row in storage.requests.open_rows().tolist() if not storage.requests.away.holds[row]]
        row = rows[which % len(rows)] if rows else None
        if verb == "open":
            storage.open()
        elif verb == "flush":
            storage.flush()
        elif verb == "land":
            self.land()
        elif row is None:
            return
        elif verb == "step":
            self.step(row, min(60, int(storage.requests.lengths[row]) + amount))
        elif verb == "close":
            storage.close(row)
        elif verb == "state" and storage.plan.slots is not None and len(rows) > 1:
            other = rows[(which + 1) % len(rows)]
            if other != row:
                slots = storage.requests.slots
                storage.copies.copy_state(slots[row, :1].copy(), slots[other, :1].copy())
        elif verb == "backup" and storage.requests.page_counts[row]:
            self.submit(storage.copies.backup(self.ids_of(row)))
        elif verb == "load" and not storage.requests.page_counts[row] and storage.plan.token_pools:
            copy = storage.copies.load(row, amount + 1)
            if not isinstance(copy, Refused):
                self.submit(copy)

    def ids_of(self, row: int) -> dict[str, Any]:
        """What the row owns, where it has pages."""
        storage, found = self.storage, {}
        ids = storage.requests.pages[row]
        for pool in storage.plan.token_pools:
            if pool.unit_bytes:
                mine = ids[ids >= 0]
                found[pool.name] = mine[storage.chain.bands[pool.name].ids.is_bound(mine)]
        return {name: mine for name, mine in found.items() if len(mine)}

    def submit(self, copy: Any) -> None:
        """Saves go to one half of the host's places, loads come from the other: the halves change when all has landed.

        Nothing orders a load behind a save that is under way, that is the caller's: so none meets another's places.
        """
        half = self.half if copy.kind == "backup" else 1 - self.half
        places = {
            name: (self.hosts[name], (np.arange(len(ids)) * 7 + self.serial) % HALF + half * HALF)
            for name, ids in copy.ids.items()
        }
        self.storage.copies.submit(copy, places)
        self.copies.append(copy)

    def step(self, row: int, length: int) -> None:
        """A forward that writes a tag all over the pages of its new tokens, and over the row's live state."""
        storage = self.storage
        ids = storage.step(rows_of(row), rows_of(length))
        if isinstance(ids, Refused):
            return
        self.serial += 1
        tag = self.serial % 251 + 1
        written = {name: ids.written_pages(name).copy() for name in ids.tables if name in self.bytes}
        if ids.live_slots is not None:
            written[storage.plan.slots.name] = ids.live_slots.reshape(-1).copy()  # type: ignore[union-attr]

        def work() -> None:
            for name, pages in written.items():
                self.bytes[name][torch.from_numpy(pages)] = tag

        if len(self.flying) == 2:
            process(storage, self.flying.pop(0))
        forward = storage.forwards.launch(ids)
        storage.forwards.run(forward, work)
        storage.forwards.record(forward)
        self.flying.append(forward)

    def land(self) -> None:
        """All forwards are processed, and all copies have ended."""
        process(self.storage, *self.flying)
        self.flying.clear()
        for copy in self.copies:
            if copy.use is not None and copy.use.event is not None:
                self.storage.device.synchronize(copy.use.event)
            self.storage.copies.end(copy)
        self.copies.clear()
        self.half = 1 - self.half

    def rest(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything has landed: what the units that are held have in them, and what the host has."""
        self.land()
        storage = self.storage
        for name in ("memory", "save", "load", "forward"):
            storage.device.synchronize(storage.device.record(storage.device.stream(name)))
        storage.verify()
        held = {}
        for name, band in storage.chain.bands.items():
            if name in self.bytes:
                owned = np.flatnonzero(band.ids.owners_of(slice(None)) >= 0)
                held[name] = (owned, self.bytes[name][torch.from_numpy(owned)].cpu().numpy())
        return held, {name: host.copy() for name, host in self.hosts.items()}
