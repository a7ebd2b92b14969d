"""Copies between the arena and the host, and of state slots within it."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from kvarena.ledger.clearance import (
    COPY_READ,
    COPY_WRITE,
    FORWARD,
    FORWARD_READ,
    HOST_LOAD,
    HOST_SAVE,
    SCHEDULE_COPY,
    SCHEDULE_READ,
)
from kvarena.ledger.steps import Forward
from kvarena.ledger.uses import Use
from kvarena.storage.forwards import Forwards
from kvarena.storage.growth import Growth
from kvarena.storage.iteration_ids import Maps
from kvarena.storage.lanes import Lanes
from kvarena.storage.under_way import UnderWay
from kvarena.terms.answers import Refused
from kvarena.terms.doors import line
from kvarena.terms.errors import KvarenaError, nearest
from kvarena.terms.invariants import invariant
from kvarena.terms.members import among, any_of
from kvarena.terms.ports import IntArray, Touch

BACKUP, LOAD = "backup", "load"

HostPlaces = Mapping[str, tuple[Any, IntArray]]
"""By sub-pool: memory of ``device.host_memory``, and the place in it for each id of the copy, in their order."""


@attrs.define(eq=False)
class Copy:
    """One copy, of the pages of these ids by sub-pool. ``row``: the one that a load fills, held by ``holder``.

    ``fixed``: the sub-pools whose pages are reserved until it is submitted. ``use``: from then on, until it ends.
    """

    number: int
    kind: str
    ids: Mapping[str, IntArray]
    row: int | None = None
    holder: int = 0
    fixed: set[str] = attrs.field(factory=set)
    use: Use | None = None
    state: str = "made"

    def __str__(self) -> str:
        return f"{self.kind} {self.number} ({self.state})"


class Copies:
    """Host copies under way, and copies of state slots.

    A copy's life:  1. backup, load  made; a load's pages are taken and fixed, and its row does not step.
                    2. name          a load's pages of a sub-pool may move from here on: its ids name them.
                    3. submit        it is on its stream, and the pages are in use; no reservation is left.
                    4. end           it is over, for all ranks in the same round.
    Or:             2. cancel        a load is given up: its row is empty again.
    Always:  a copy's pages are fixed, or named by ids that its row owns, or in an open use, from its start to its end
    """

    def __init__(self, maps: Maps, growth: Growth, forwards: Forwards, lanes: Lanes) -> None:
        self._maps = maps
        self._growth = growth
        self._forwards = forwards
        self._lanes = lanes
        self._ledger = maps.chain.ledger
        self._under_way: UnderWay[Copy] = UnderWay()

    def __len__(self) -> int:
        """How many copies have not ended."""
        return len(self._under_way)

    def under_way(self) -> list[Copy]:
        """The copies that have not ended, the oldest first."""
        return self._under_way.all()

    def backup(self, ids: Mapping[str, IntArray]) -> Copy:
        """Pages to be saved on the host. Their ids must stay bound until it is submitted; no use is recorded yet.

        Raises:
            KvarenaError: a sub-pool that does not exist, or has no bytes.
            InvariantError: an id has no page.
        """
        ids = checked_ids(self._maps, ids, "copies.backup")
        return self._under_way.begin(Copy(0, BACKUP, ids))

    def load(self, row: int, tokens: int) -> Copy | Refused:
        """Take the pages of an empty row's first tokens for a load from the host, in one scope over all sub-pools.

        A sub-pool gets the pages that a query at that length still needs. They stay where they are until ``submit``.

        Returns:
            The copy, with the ids by sub-pool; or the refusal, and nothing has changed.

        Raises:
            KvarenaError: a row cannot hold so many tokens; nothing has changed.
        """
        filled = self._growth.fill(row, tokens, HOST_LOAD)
        if isinstance(filled, Refused):
            return filled
        usage, bands = self._maps.chain.usage, self._maps.chain.bands
        ids = {name: some for name, some in filled.items() if bands[name].grid.unit_bytes}
        for name, some in ids.items():
            usage.fix(name, some)
        holder = self._maps.table.away.hold(row)
        return self._under_way.begin(Copy(0, LOAD, ids, int(row), holder, set(ids)))

    def name(self, copy: Copy, sub_pool: str) -> None:
        """The load's reservation of one sub-pool ends: its pages may move, and are found by their ids at ``submit``."""
        self._check(copy, "made")
        reserved = sub_pool in copy.fixed
        invariant("copies.name_of_unreserved_sub_pool", reserved, copy=str(copy), sub_pool=sub_pool, held=copy.fixed)
        self._check_row(copy)
        self._maps.chain.usage.unfix(sub_pool, copy.ids[sub_pool])
        copy.fixed.remove(sub_pool)

    def submit(self, copy: Copy, hosts: HostPlaces) -> None:
        """Put the copy on its stream, behind the forwards and the allocator; its pages are in use from here on.

        Every sub-pool of the copy is named; a load may leave out the state slots.

        Raises:
            KvarenaError: a sub-pool is missing, or places that are not one for each id.
            InvariantError: it was submitted or cancelled before, its row was closed, a page of it may not be had, or a
                forward is open that might write what a backup reads; nothing has changed.
        """
        self._check(copy, "made")
        self._check_row(copy)
        places = self._places(copy, hosts)
        saves = copy.kind == BACKUP
        if saves:
            self._forwards.check_closed("copies.submit of a backup")
        chain, device = self._maps.chain, self._ledger.timeline.device
        touches = []
        for name in places:
            band = chain.bands[name]
            band.ids.check_bound(copy.ids[name])
            touches.append(Touch(band.grid.unit_bytes, band.ids.pages_of(copy.ids[name]), name))
        stream = self._lanes.behind("save" if saves else "load")
        for touch in touches:
            self._ledger.clear(touch.unit_bytes, touch.pages, (HOST_SAVE if saves else HOST_LOAD,), stream)
        try:
            for touch, (host, at) in zip(touches, places.values(), strict=True):
                if saves:
                    device.save(stream, touch, host, at)
                else:
                    device.load(stream, host, at, touch)
        except BaseException:  # a part may be on the stream: whoever has these pages next comes after it
            self._ledger.timeline.wait(device.record(stream))
            raise
        used = {name: copy.ids[name] for name in places}
        copy.use = chain.usage.record(COPY_READ if saves else COPY_WRITE, used, device.record(stream))
        self._let_go(copy)
        copy.state = "submitted"

    def end(self, copy: Copy) -> None:
        """The copy is over: a call that every rank makes in the same round. A later writer still waits its event.

        Raises:
            InvariantError: it was not submitted, or ended before; nothing has changed.
        """
        self._check(copy, "submitted")
        if copy.use is not None and copy.use in self._ledger.uses:
            self._maps.chain.usage.end(copy.use)
        copy.state = "ended"
        self._under_way.end(copy)

    def cancel(self, copy: Copy) -> None:
        """Give up a copy that was not submitted: a load's pages come back, and its row is as empty as before.

        A load whose row was closed meanwhile is forgotten: its pages have come back with the row.

        Raises:
            InvariantError: it was submitted, ended or cancelled before; nothing has changed.
        """
        self._check(copy, "made")
        if copy.row is not None and self._maps.table.away.is_held_by(copy.row, copy.holder):
            self._forwards.check_closed("copies.cancel")
            self._let_go(copy)
            self._growth.empty(copy.row)
        copy.state = "cancelled"
        self._under_way.end(copy)

    def copy_state(self, sources: IntArray, targets: IntArray, forward: Forward | None = None) -> None:
        """Copy state slots, by their ids, to others: on the allocator's stream, behind the forwards that write either.

        With an open ``forward``: on its stream, behind the kernels put there so far; it then writes the targets too.

        Raises:
            InvariantError: a slot has no page, a target is named twice or is a source; the forward is not open, or
                another is; nothing has changed.
        """
        self._maps.check_current()
        name, sources, targets = self._slots_name(), line(sources, "sources"), line(targets, "targets")
        invariant("copies.state_pairs", len(sources) == len(targets), sources=sources, targets=targets)
        band = self._maps.chain.bands[name]
        band.ids.check_bound(targets)
        bound = len(band.ids.bound_among(sources)) == len(sources)
        invariant("copies.state_of_unbound_slot", bound, sources=sources)
        invariant("copies.state_onto_a_source", not any_of(among(targets, sources)), sources=sources, targets=targets)
        read, written, unit_bytes = band.ids.pages_of(sources), band.ids.pages_of(targets), band.grid.unit_bytes
        timeline, steps = self._ledger.timeline, self._ledger.steps
        if forward is not None:
            self._forwards.check_open(forward)
        else:
            self._forwards.check_closed("copies.copy_state")
        for slots in (sources, targets):
            _check_filled(self._maps, {name: slots}, "copies.copy_state")
        if forward is not None:
            self._ledger.clear(unit_bytes, written, (FORWARD,), timeline.forward)
            self._ledger.clear(unit_bytes, read, (FORWARD_READ,), timeline.forward)
            timeline.device.copy_pages(timeline.forward, unit_bytes, read, written)
            self._forwards.also_writes(written)
            return
        timeline.begin()
        self._ledger.settle(max(steps.writes.newest(name, read), steps.writes.newest(name, written)))
        self._ledger.clear(unit_bytes, written, (SCHEDULE_COPY,))
        self._ledger.clear(unit_bytes, read, (SCHEDULE_READ,))
        timeline.copy_pages(unit_bytes, read, written)

    # -- inside

    def _slots_name(self) -> str:
        if self._maps.slots_name is None:
            raise KvarenaError("the model keeps no state, so there is none to copy")
        return self._maps.slots_name

    def _check(self, copy: Copy, state: str) -> None:
        known = copy in self._under_way and copy.state == state
        invariant("copies.unknown_copy", known, copy=str(copy), wanted=state)

    def _check_row(self, copy: Copy) -> None:
        """A load's row is still its own."""
        is_held = copy.row is None or self._maps.table.away.is_held_by(copy.row, copy.holder)
        invariant("copies.row_was_closed", is_held, copy=str(copy), row=copy.row)

    def _let_go(self, copy: Copy) -> None:
        """What is left of a load's reservation ends, and its row may step."""
        for name in copy.fixed:
            self._maps.chain.usage.unfix(name, copy.ids[name])
        copy.fixed.clear()
        if copy.row is not None:
            self._maps.table.away.let_go(copy.row, copy.holder)

    def _places(self, copy: Copy, hosts: HostPlaces) -> dict[str, tuple[Any, IntArray]]:
        """Where on the host each page goes or comes from, in the order of the copy's sub-pools."""
        for name in hosts:
            if name not in copy.ids:
                raise KvarenaError(f"copies.submit: the copy has no sub-pool {name!r}; {nearest(name, copy.ids)}")
        optional = {self._maps.slots_name} if copy.kind == LOAD else set()
        missing = sorted(copy.ids.keys() - hosts.keys() - optional)
        if missing:
            raise KvarenaError(f"copies.submit: no places for sub-pool {missing[0]!r}; give one for each of its ids")
        places = {}
        for name, ids in copy.ids.items():
            if name in hosts:
                host, at = hosts[name]
                at = line(at, f"copies.submit: the places of {name}")
                if len(at) != len(ids):
                    raise KvarenaError(f"copies.submit: {len(at)} places of {name} for {len(ids)} pages; one each")
                _check_memory(host, at, name, self._maps.chain.bands[name].grid.unit_bytes, saves=copy.kind == BACKUP)
                places[name] = (host, at)
        return places


def checked_ids(maps: Maps, ids: Mapping[str, IntArray], what: str) -> dict[str, IntArray]:
    """Ids by sub-pool as a copy or a transfer keeps them: each bound and named once, sub-pools without any left out.

    Raises:
        KvarenaError: a sub-pool that does not exist, or has no bytes.
        InvariantError: an id has no page, or one that a load which is not submitted will fill.
    """
    maps.check_current()
    checked = {}
    for name, some in ids.items():
        band = maps.chain.bands[name]
        if not band.grid.unit_bytes:
            raise KvarenaError(f"{what}: sub-pool {name!r} has no bytes; leave it out")
        if len(line(some, f"{what}: the ids of {name}")):
            band.ids.check_bound(some)
            checked[name] = some.copy()
    _check_filled(maps, checked, what)
    if not checked:
        raise KvarenaError(f"{what}: no ids are given, so there is nothing to copy")
    return checked


def _check_filled(maps: Maps, ids: Mapping[str, IntArray], what: str) -> None:
    """None of these pages waits for a load: what it holds is not what its row will read."""
    table = maps.table
    waiting = np.flatnonzero(table.away.holds > 0) if table.away.count else ()
    if not len(waiting):
        return
    for name, some in ids.items():
        own = table.slots[waiting] if name == maps.slots_name else table.pages[waiting]
        early = some[among(some, own.reshape(-1))]
        invariant("copies.read_before_submit", not len(early), asked_by=what, sub_pool=name, ids=early)


def _check_memory(host: Any, at: IntArray, name: str, unit: int, *, saves: bool) -> None:
    """These places lie in memory of whole units; a backup writes each of them once."""
    shape: Any = getattr(host, "shape", ())
    kind = getattr(host, "dtype", None)
    fits = len(shape) == 2 and shape[1] == unit and kind == np.uint8 and 0 <= at.min() <= at.max() < shape[0]
    if not fits or (saves and len(np.unique(at)) < len(at)):
        once = ", each once," if saves else ""
        raise KvarenaError(
            f"copies.submit: the places of {name} do not lie{once} in uint8 memory of {unit} B units (its shape is "
            f"{shape}); get it with device.host_memory({unit}, count)"
        )
