"""On the stage: forwards are launched, run, recorded and processed; what they read is checked when they land."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from kvarena.ledger.steps import Forward
from kvarena.plugins.stress.stage.batch import has_rows, missing_rows, reads_of, reads_of_units, writes_of
from kvarena.plugins.stress.stage.entries import Entries
from kvarena.plugins.stress.stage.props import Check, Finding, Props, Write, born, touches
from kvarena.plugins.stress.stage.requests import Requests
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.mirrors import Mirrors
from kvarena.storage.tables import BatchTables
from kvarena.terms.answers import Refused
from kvarena.terms.errors import ConfigError
from kvarena.terms.ports import IntArray


@attrs.define(eq=False)
class Flight:
    """A forward by its name: its handle, its batch, and what its work reads and writes."""

    name: str
    requests: tuple[str, ...]
    forward: Forward
    ids: IterationIds | None
    checks: list[Check]
    writes: list[Write]
    tables: Mapping[str, IntArray]
    filled: BatchTables | None
    """Tables that the device fills by itself, told of the batch; None where it does not."""
    has_run: bool = False


class Forwards:
    """The verbs of a forward's life."""

    def __init__(self, props: Props, entries: Entries, requests: Requests) -> None:
        self._props = props
        self._entries = entries
        self._requests = requests
        self.any_pending = False
        """Whether a checkpoint may be on its way to the cache."""
        self.flights: dict[str, Flight] = {}
        self._opened: tuple[Mirrors | None, BatchTables | None] = (None, None)
        """The mirrors that tables were opened of, and these; a resize makes mirrors anew."""

    def verbs(self) -> dict[str, Callable[..., Any]]:
        """What this room does, by verb."""
        return {
            "launch": self.launch, "run": self.run, "record": self.record, "process": self.process, "step": self.step,
            "prebuilt": self.prebuilt, "barrier": self.barrier, "reserve": self.reserve, "commit": self.commit,
        }  # fmt: skip

    def launch(
        self,
        forward: str,
        requests: Sequence[str] = (),
        writes: Mapping[str, Sequence[int]] | None = None,
        units: Sequence[str] = (),
    ) -> int:
        """A forward begins. It writes the rows that nobody has written, or those named. Its number."""
        props = self._props
        ones = [props.request(name) for name in requests]
        held = [props.named(props.units, name, "held unit") for name in units]
        rows = np.array([one.row for one in ones], dtype=np.int64)
        lengths = np.array([max(one.reserved, props.length(one)) for one in ones], dtype=np.int64)
        for name, some in (writes or {}).items():
            props.check_rows(name, some, max(props.request(name).reserved, props.length(props.request(name))))
        named = {props.request(name).row: list(some) for name, some in (writes or {}).items()}
        if writes is None:
            starts = np.array([one.written for one in ones], dtype=np.int64)
        else:
            firsts = [min(named.get(one.row) or [stop]) for one, stop in zip(ones, lengths.tolist(), strict=True)]
            starts = np.array(firsts, dtype=np.int64)
        ids = IterationIds(props.maps, rows, starts, lengths, to_the_end=writes is None) if ones else None
        filled = self._batched(rows) if ids is not None else None
        handle = props.storage.forwards.launch(ids)
        if ids is not None and props.storage.requests.any_handed and (lost := missing_rows(props, requests, ids)):
            props.findings.append(Finding("missing_rows", f"forward {forward}: {lost}"))
        checks = reads_of(props, tuple(requests), ids) if ids is not None else []
        for units_held in held:
            checks += reads_of_units(props, units_held)
        written = writes_of(props, ids, named if writes is not None else None) if ids is not None else []
        for one, length in zip(ones, lengths.tolist(), strict=True):
            one.written = length
        tables = self._tables(ids) if ids is not None else {}
        self.flights[forward] = Flight(forward, tuple(requests), handle, ids, checks, written, tables, filled)
        return handle.number

    def run(self, forward: str) -> int:
        """The forward's work goes on its stream; how many rows and slots it writes."""
        props, flight = self._props, self._flight(forward)
        if flight.has_run:
            raise ConfigError(f"forward {forward!r} was run before; its work is on its stream once")
        work = props.work(f"forward {forward}", flight.checks, flight.writes)
        mirrors = props.storage.mirrors
        if mirrors is not None and flight.ids is not None:
            work = self._behind_mirrors(mirrors, flight.ids.rows, flight, work)
        stream = props.storage.chain.ledger.timeline.forward
        props.device.run(stream, work, touches(flight.checks), touches(flight.writes))
        flight.has_run = True
        return sum(len(part.pages) for part in flight.writes)

    def record(self, forward: str, unknown: bool = False) -> int:
        """All work of the forward is on its stream."""
        flight = self._flight(forward)
        if not flight.has_run:
            self.run(forward)
        props, number = self._props, flight.forward.number
        props.storage.forwards.record(flight.forward, unknown=unknown)
        props.events[forward] = flight.forward.event
        for one in props.requests.values() if self.any_pending else ():
            for pending in one.pending:
                if pending.forward == number:
                    at = props.storage.requests.live_slots
                    pending.slot = props.storage.sharing.hand_over_slot(one.row, at)
        return number

    def process(self, forward: str, wait: bool = True) -> int:
        """The forward is over for the scheduler; its number."""
        flight = self._flight(forward)
        event = flight.forward.event
        if wait and event is not None:
            self._props.device.synchronize(event)
        self._props.storage.forwards.process(flight.forward)
        if self.any_pending:
            self._keep_pending(flight.forward.number)
        return flight.forward.number

    def step(self, forward: str, requests: Sequence[str], rows: int = 1) -> int | Refused:
        """Extend, launch and record as one."""
        props = self._props
        extended = self._requests.extend({name: props.length(props.request(name)) + rows for name in requests})
        if isinstance(extended, Refused):
            return extended
        props.begin()
        self.launch(forward, requests)
        return self.record(forward)

    def prebuilt(self) -> int:
        """A step without a forward."""
        forwards = self._props.storage.forwards
        step = forwards.prebuilt()
        forwards.record(step)
        forwards.process(step)
        return step.number

    def barrier(self, stream: str = "engine") -> str:
        """An engine's stream waits for the forwards."""
        self._props.storage.forwards.barrier(self._props.device.stream(stream))
        return stream

    def reserve(self, to: Mapping[str, int]) -> int | Refused:
        """Rows for drafts, up to these lengths."""
        props = self._props
        lengths, rows = np.array(list(to.values()), dtype=np.int64), props.rows(to)
        before = props.storage.requests.page_counts[rows]
        reserved = props.storage.drafts.reserve(rows, lengths)
        if isinstance(reserved, Refused):
            return reserved
        born(props, rows, before)
        for name, length in to.items():
            props.request(name).reserved = length
        return len(lengths)

    def commit(self, to: Mapping[str, int]) -> int:
        """Of the rows reserved these lengths are kept: whole pages beyond come back."""
        props = self._props
        ones = [props.request(name) for name in to]
        props.storage.drafts.commit(props.rows(to), np.array(list(to.values()), dtype=np.int64))
        for one, length in zip(ones, to.values(), strict=True):
            one.written, one.reserved = min(one.written, length), 0
        return len(ones)

    def with_kernels(self, forward: str) -> Forward:
        """An open forward, whose work is on its stream."""
        flight = self._flight(forward)
        if not flight.has_run:
            self.run(forward)
        return flight.forward

    def batch_of(self, forward: str) -> Sequence[str]:
        """The requests that a forward runs on."""
        return self._flight(forward).requests

    # -- inside

    def _keep_pending(self, processed: int) -> None:
        """Checkpoints of forwards that are processed go to the cache."""
        props, left = self._props, 0
        for one in props.requests.values():
            for pending in [some for some in one.pending if some.forward <= processed]:
                one.pending.remove(pending)
                if pending.slot is None:
                    continue
                beyond = props.length(one) >= pending.tokens + (props.storage.sizing.limits.grid or 0)
                is_late = beyond and not has_rows(props, one, pending.tokens)  # nobody could start there any more
                if is_late or pending.entry in self._entries.known:
                    props.storage.sharing.free_slots(np.array([pending.slot]))
                else:
                    self._entries.keep(pending.entry, one, pending.tokens, pending.slot)
            left += len(one.pending)
        self.any_pending = left > 0

    def _flight(self, name: str) -> Flight:
        return self._props.named(self.flights, name, "forward")

    def _tables(self, ids: IterationIds) -> Mapping[str, IntArray]:
        """The page tables that the mirrors should give the forward when it lands."""
        if self._props.storage.mirrors is None:
            return {}
        return {name: ids.tables[name].copy() for name in ids.tables}

    def _batched(self, rows: IntArray) -> BatchTables | None:
        """Tables for these rows, where the device fills them by itself; opened before anything flies."""
        mirrors, steps = self._props.storage.mirrors, self._props.storage.chain.ledger.steps
        if mirrors is None or not mirrors.fills_tables:
            return None
        if self._opened[0] is not mirrors and steps.launched == steps.processed:
            self._opened = (mirrors, mirrors.tables(len(self._props.storage.requests)))
        of, tables = self._opened
        if of is not mirrors or tables is None:
            return None
        tables.batch(rows)
        return tables

    def _behind_mirrors(
        self, mirrors: Mirrors, rows: IntArray, flight: Flight, work: Callable[[], None]
    ) -> Callable[[], None]:
        """The forward reads its page tables from the device's maps, as kernels do: they must be those of its launch."""
        props = self._props

        def look(how: str, found: IntArray, expected: IntArray) -> None:
            if not np.array_equal(found, expected):
                words = f"forward {flight.name} {how} as {found.tolist()}, not {expected.tolist()}"
                props.findings.append(Finding("stale_mirror", words))

        def land() -> None:
            if flight.filled is not None:
                flight.filled.translate(len(rows))
            for name, expected in flight.tables.items():
                look(f"read the table of {name}", mirrors.pages(name, rows, expected.shape[1]), expected)
                if flight.filled is not None:
                    table = flight.filled[name].cpu().numpy()  # whoever fills them by itself has them as tensors
                    look(f"was filled the table of {name}", table[: len(rows), : expected.shape[1]], expected)
            work()

        return land
