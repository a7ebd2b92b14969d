"""On the stage: requests take rows, let go of them, and are written and read by hand."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.ledger.clearance import FORWARD, FORWARD_READ
from kvarena.plugins.stress.stage.batch import is_past, reads_of, reads_of_units, rows_of_request, whole_of, writes_of
from kvarena.plugins.stress.stage.entries import Entries
from kvarena.plugins.stress.stage.keys import Keys
from kvarena.plugins.stress.stage.props import Check, Pending, Props, Request, Units, Write, born
from kvarena.plugins.stress.stage.tags import BLANK, value_tag, word_tag
from kvarena.terms.answers import Refused
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray


class Requests:
    """The verbs of a request's life."""

    def __init__(self, props: Props, entries: Entries, admission: Callable[[], Admission]) -> None:
        """``admission`` gives the one of now: it is made anew after a resize."""
        self._props = props
        self._entries = entries
        self._admission = admission
        self.promised: dict[str, tuple[int, ...]] = {}
        """What was admitted and has not been taken, by request."""

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "take": self.take, "extend": self.extend, "advance": self.advance, "free": self.free,
            "finish": self.finish, "abort": self.abort, "retract": self.end, "write": self.write, "read": self.read,
            "pages": self.pages,
        }  # fmt: skip

    def open(self, name: str, keys: Keys | None = None) -> Request | Refused:
        """A row for a new request with these values; with those that it was matched with, or its own, by default."""
        if name in self._props.requests or name in self._props.units:
            raise ConfigError(f"there is a request {name!r} already; give each a name of its own")
        row = self._props.storage.open()
        if isinstance(row, Refused):
            return row
        if keys is None:
            wish = self._entries.wishes.known.get(name)
            keys = wish.keys if wish is not None else self._entries.keys_for(None)
        request = self._props.requests[name] = Request(name, row, keys)
        if self._props.tags.slots is not None:
            slots = self._props.storage.requests.slots[row]
            self._props.tags.slots.born(slots[slots != UNBOUND])
        charge = self.promised.pop(name, None)
        if charge is not None:
            self._admission().start(np.array([row]), [charge])
        self._props.begin()  # what follows is an operation of its own
        return request

    def take(
        self,
        request: str,
        rows: int = 0,
        units: Mapping[str, int] | None = None,
        write: bool = False,
        shares: Mapping[str, int] | None = None,
    ) -> int | Refused:
        """Rows for a request, which is opened first; or units without one. Its rows now, or its units."""
        if units is not None:
            return self._take_units(request, units)
        one = self._props.requests.get(request)
        is_new = one is None
        if one is None:
            opened = self.open(request, self._entries.keys_for(shares) if shares else None)
            if isinstance(opened, Refused):
                return opened
            self._entries.wishes.drop(request)
            one = opened
        elif shares:
            raise ConfigError(f"{request} has its values already; it may share when it is opened")
        length = self._props.length(one) + rows
        refused = self._extend([one], [length]) if rows else None
        if refused is not None:
            if is_new:
                self.end(request)
            return refused
        if write:
            self.write(request)
        return length

    def extend(self, to: Mapping[str, int]) -> int | Refused:
        """Take rows for requests up to these lengths, all or nothing."""
        requests = [self._props.request(name) for name in to]
        refused = self._extend(requests, list(to.values()))
        return refused if refused is not None else len(requests)

    def advance(self, requests: Sequence[str]) -> int:
        """Let rows retire at the present lengths."""
        ones = [self._props.request(name) for name in requests]
        self._extend(ones, [self._props.length(one) for one in ones])
        return len(ones)

    def free(self, request: str, pieces: Sequence[Sequence[int]] | None = None) -> int:
        """A request's last rows; or all units held under the name. The rows left, or the units."""
        props = self._props
        if request in props.units:
            return self._free_units(request)
        one = props.request(request)
        ranges = [range(*piece) for piece in pieces] if pieces is not None else [range(props.length(one))]
        left = min((piece.start for piece in ranges), default=props.length(one))
        if left < one.narrowed or (one.is_relaxed and not is_past(props, one, left)):
            raise ConfigError(f"{request} has let go of window rows that it would need with {left} rows")
        props.storage.ownership.free_rows(one.row, ranges)
        length = props.length(one)
        one.written = min(one.written, length)
        self._entries.changed_from(one, length)
        self._drop(one, [pending for pending in one.pending if pending.tokens > length])
        return length

    def finish(self, request: str, entry: str = "", tokens: int = -1, state: bool = False) -> int:
        """All that a request holds comes back, its first rows to the cache where an entry is named: its rows."""
        one = self._props.request(request)
        whole = whole_of(self._props, one, tokens) if entry else 0
        if whole:
            self._entries.check_new(entry)
            self._entries.keep(entry, one, whole, self._state_at(one, whole) if state else None)
        return self.end(request)

    def abort(self, request: str) -> int:
        """A request is gone, started or not; how many rows it had."""
        if request in self._props.requests:
            return self.end(request)
        promised, had_wish = self.promised.pop(request, None), self._entries.wishes.drop(request)
        if promised is None and not had_wish:
            self._props.request(request)
        if promised is not None:
            self._admission().withdraw(promised)
        return 0

    def end(self, request: str) -> int:
        """A request is gone; how many rows it had."""
        props = self._props
        one = props.request(request)
        length = props.length(one)
        props.storage.close(one.row)
        self._admission().forget(one.row)
        self._drop(one, list(one.pending))
        self._entries.leave(one)
        del props.requests[request]
        return length

    def write(
        self,
        request: str,
        rows: Sequence[int] | None = None,
        sub_pool: str = "",
        pattern: int = 0,
        value: float | None = None,
    ) -> int:
        """Tags, or one word all over, by hand; the rows or slots written."""
        props = self._props
        props.check_sub_pool(sub_pool)
        if props.storage.chain.ledger.steps.is_open:
            raise ConfigError("a forward is launched and not recorded: it reads what was there; write before or after")
        if not props.tags.on:
            return 0
        props.clear(self._reads(request), FORWARD)
        fixed = word_tag(pattern) if pattern else value_tag(value) if value is not None else None
        if request in props.units:
            writes = self._writes_of_units(props.units[request], rows, sub_pool)
        else:
            one = props.present(request, "write")
            length = props.length(one)
            props.check_rows(request, rows or (), length)
            ids = rows_of_request(props, one.row, length)
            writes = writes_of(props, ids, None if rows is None else {one.row: rows}, sub_pool)
            one.written = max(one.written, length)
        if fixed is not None:
            _refill(writes, fixed)
        props.by_hand(f"a write of {request}", [], writes)
        return sum(len(part.pages) for part in writes)

    def read(
        self, request: str, rows: Sequence[int] | None = None, sub_pool: str = "", whole: bool = False
    ) -> str | list[str] | dict[str, Any]:
        """``ok``, ``sink`` where nothing is bound and all is zero, or what is wrong, in words."""
        props = self._props
        props.check_sub_pool(sub_pool)
        checks = [check for check in self._reads(request) if not sub_pool or check.tags.name == sub_pool]
        if not props.tags.on:
            return "ok"
        props.clear(checks, FORWARD_READ)
        if whole:
            return self._values(checks)
        if rows is not None:
            checks = [_only_rows(check, rows) for check in checks]
            bound = [len(check.pages) for check in checks]
            if not any(bound):
                return self._read_sinks(checks)
        before = len(props.findings)
        props.by_hand(f"a read of {request}", checks, [])
        found = [finding.words for finding in props.findings[before:] if f"a read of {request} " in finding.words]
        if rows is not None:
            lost = [check.tags.name for check in checks if not len(check.pages) and not check.tags.is_slots]
            found += [f"rows {list(rows)} of {request} are not bound in {name}" for name in lost]
        return found or "ok"

    def pages(self, request: str, sub_pool: str = "") -> dict[str, list[int]]:
        """The physical pages by page position; -1 where none is bound. Slots of a row or units likewise."""
        props = self._props
        chain = props.storage.chain
        if request in props.units:
            held = {name: chain.pages(name, ids) for name, ids in props.units[request].ids.items()}
        else:
            row, table = props.request(request).row, props.storage.requests
            own = {name: table.pages[row, : int(table.page_counts[row])] for name in props.maps.names}
            if props.maps.slots_name is not None:
                own[props.maps.slots_name] = table.slots[row]
            held = {
                name: np.where(pages == chain.bands[name].grid.sink_page, -1, pages)
                for name, ids in own.items()
                if (pages := chain.pages(name, ids)) is not None
            }
        return {name: pages.tolist() for name, pages in held.items() if not sub_pool or name == sub_pool}

    # -- inside

    def _state_at(self, request: Request, tokens: int) -> int:
        """A request's slot, which is its no more, with its state after so many tokens."""
        table, length = self._props.storage.requests, self._props.length(request)
        is_one = table.live_slots == 1 and request.written >= length
        if tokens != length or not is_one or request.reserved:
            raise ConfigError(f"{request.name} has {length} rows, and no state after {tokens} alone")
        return self._props.storage.sharing.hand_over_slot(request.row, 0)

    def _drop(self, request: Request, gone: Iterable[Pending]) -> None:
        """These checkpoints of a request are nobody's."""
        for pending in gone:
            request.pending.remove(pending)
            if pending.slot is not None:
                self._props.storage.sharing.free_slots(np.array([pending.slot]))

    def _extend(self, requests: Sequence[Request], lengths: Sequence[int]) -> Refused | None:
        rows = np.array([one.row for one in requests], dtype=np.int64)
        before = self._props.storage.requests.page_counts[rows]
        stepped = self._props.storage.step(rows, np.array(lengths, dtype=np.int64))
        if isinstance(stepped, Refused):
            return stepped
        born(self._props, rows, before)
        return None

    def _take_units(self, name: str, units: Mapping[str, int]) -> int | Refused:
        props = self._props
        if name in props.requests or name in props.units:
            raise ConfigError(f"there is a request {name!r} already; give each a name of its own")
        ids = take_units(props, units)
        if isinstance(ids, Refused):
            return ids
        for pool, mine in ids.items():
            if pool in props.tags.pools:
                props.tags.pools[pool].born(mine)
        props.units[name] = Units(name, ids)
        return sum(map(len, ids.values()))

    def _free_units(self, name: str) -> int:
        units = self._props.units[name]
        free_units(self._props, units.ids)
        del self._props.units[name]
        return sum(map(len, units.ids.values()))

    def _writes_of_units(self, units: Units, rows: Sequence[int] | None, sub_pool: str) -> list[Write]:
        """Rows of units are counted through all of a sub-pool's."""
        props, found = self._props, []
        for name, ids in units.ids.items():
            if (sub_pool and name != sub_pool) or name not in props.tags.pools:
                continue
            tags = props.tags.pools[name]
            count = len(ids) * tags.rows
            places = np.array([row for row in (range(count) if rows is None else rows) if row < count], dtype=np.int64)
            fresh = props.tags.fresh(len(places))
            mine, offsets = ids[places // tags.rows], places % tags.rows
            tags.by_id[mine, offsets] = fresh
            found.append(Write(tags, props.storage.chain.pages(name, mine), offsets, fresh))
        return found

    def _reads(self, name: str) -> list[Check]:
        props = self._props
        if name in props.units:
            return reads_of_units(props, props.units[name])
        if name in self._entries.known:
            return reads_of_units(props, Units(name, self._entries.ids_of(self._entries.known[name])))
        row = props.present(name, "read").row
        return reads_of(props, (name,), props.storage.translate(np.array([row])))

    def _values(self, checks: Sequence[Check]) -> dict[str, Any]:
        """Whole pages as bfloat16: a value a row where it is the same all along, and the sum."""
        self._props.by_hand("a read", [], [])
        pages = [check.tags.values(int(page)) for check in checks for page in check.pages]
        rows = [row for page in pages for row in page]
        same = [float(row[0]) if (row == row[0]).all() else [float(value) for value in row] for row in rows]
        total = float(sum(float(page.sum()) for page in pages))
        return {"rows": same, "sum": total, "finite": bool(all(np.isfinite(page).all() for page in pages))}

    def _read_sinks(self, checks: Sequence[Check]) -> str | list[str]:
        """What a read of rows that are not bound gets."""
        bands, found = self._props.storage.chain.bands, []
        for check in checks:
            sink = np.array([bands[check.tags.name].grid.sink_page])
            zeros = np.full((1, check.tags.rows), BLANK)
            for wrong in check.tags.compare(sink, zeros):
                found.append(f"the sink of {check.tags.name} holds tag {wrong.found} at place {wrong.place}")
        return found or "sink"


def _refill(writes: Iterable[Write], tag: int) -> None:
    """What was to be tags is one word instead."""
    for part in writes:
        part.tags.by_id[np.isin(part.tags.by_id, part.written)] = tag
        part.written = np.full_like(part.written, tag)


def _only_rows(check: Check, rows: Sequence[int]) -> Check:
    """Of the pages read, those that hold these rows, and of their rows no others."""
    if check.tags.is_slots:
        return Check(check.tags, check.pages[:0], check.expected[:0], check.names, check.whose[:0], check.at[:0])
    places = check.at[:, None] * check.tags.rows + np.arange(check.tags.rows)
    wanted = np.isin(places, np.array(list(rows), dtype=np.int64))
    keep = wanted.any(axis=1)
    expected = np.where(wanted, check.expected, -1)[keep]
    return Check(check.tags, check.pages[keep], expected, check.names, check.whose[keep], check.at[keep])


def take_units(props: Props, units: Mapping[str, int]) -> dict[str, IntArray] | Refused:
    """Mint ids and bind them in the sub-pools named, in one arrangement; token sub-pools share their ids."""
    chain = props.storage.chain
    for unknown in sorted(set(units) - set(chain.bands)):
        raise ConfigError(f"there is no sub-pool {unknown!r}; {nearest(unknown, chain.bands)}")
    groups = {name: minter for name, minter in chain.minters.items() if set(minter.names) & set(units)}
    minted: dict[str, IntArray] = {}
    for name, minter in groups.items():
        count = max(units.get(pool, 0) for pool in minter.names)
        ids = minter.mint(count)
        if ids is None:
            _give_back(props, minted)
            return Refused(dict(units), (), 0, f"{name} has fewer than {count} ids left")
        minted[name] = ids
    wanted = {
        pool: ids[: units[pool]] for name, ids in minted.items() for pool in groups[name].names if units.get(pool)
    }
    try:
        taken = chain.take(wanted)
    except BaseException:
        _give_back(props, minted)
        raise
    if isinstance(taken, Refused):
        _give_back(props, minted)
        return taken
    for name, ids in minted.items():  # ids beyond what the minting sub-pool itself binds stay out with the units
        wanted.setdefault(name, ids[:0])
    return wanted


def free_units(props: Props, ids: Mapping[str, IntArray]) -> None:
    """Units that ``take_units`` took come back, and their ids."""
    chain = props.storage.chain
    for minter in chain.minters.values():
        mine = {name: ids[name] for name in minter.names if name in ids and len(ids[name])}
        for name, some in mine.items():
            chain.free(name, some)
        if mine:
            minter.give_back(max(mine.values(), key=len))


def _give_back(props: Props, minted: Mapping[str, IntArray]) -> None:
    for name, ids in minted.items():
        props.storage.chain.minters[name].give_back(ids)
