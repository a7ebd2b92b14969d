"""What is on the stage: the storage, who holds what by which name, the tags, and what was found to be wrong."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np

from kvarena.ledger.clearance import Actor
from kvarena.plugins.prefix_tree import Entry as Landing
from kvarena.plugins.stress.stage.keys import Keys
from kvarena.plugins.stress.stage.tags import Mismatch, PoolTags, Tags, spelled
from kvarena.storage.iteration_ids import Maps
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray, Touch

NO_PAGES: IntArray = np.empty(0, dtype=np.int64)

T = TypeVar("T")


@attrs.frozen
class Finding:
    """A broken promise that the bytes show. ``check``: its name; ``words``: all of it for people."""

    check: str
    words: str


@attrs.define(eq=False)
class Pending:
    """A checkpoint on its way: ``slot`` has the state after ``tokens`` once the forward of that number is processed.

    ``slot`` is None until the forward is recorded: then it is the row's no more.
    """

    entry: str
    tokens: int
    forward: int
    slot: int | None = None


@attrs.define(eq=False)
class Request:
    """A request with a row, and its token values. ``written``: its rows up to here were given to somebody to write.

    ``reserved``: the length that its drafts may reach; 0 without any. ``reading``: the entry of the cache that is
    locked for it; ``is_relaxed``: its path alone; ``narrowed``: what queries from this length on need of it.
    ``pending``: checkpoints that are not in the cache yet.
    """

    name: str
    row: int
    keys: Keys
    written: int = 0
    reserved: int = 0
    reading: Landing | None = None
    is_relaxed: bool = False
    narrowed: int = 0
    pending: list[Pending] = attrs.field(factory=list)


@attrs.define(eq=False)
class Units:
    """Units that are no request's: their ids by sub-pool."""

    name: str
    ids: dict[str, IntArray]


@attrs.define
class Check:
    """What work on a stream reads in one sub-pool: pages, and what each of their rows should hold, (pages, rows).

    ``names[whose[i]]`` is who holds page i; ``at[i]`` is its place among the pages of that holder.
    """

    tags: PoolTags
    pages: IntArray
    expected: IntArray
    names: Sequence[str]
    whose: IntArray
    at: IntArray


@attrs.define
class Write:
    """What work on a stream writes in one sub-pool: rows by page and place, with their tags."""

    tags: PoolTags
    pages: IntArray
    places: IntArray
    written: IntArray


class Props:
    """Everything by name, for the rooms of the stage. ``findings`` grow as work lands."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.device = storage.device
        self.begin: Callable[[], None] = getattr(self.device, "operation", _nothing)
        """An operation begins, for a device that judges by it."""
        self.tags = Tags(storage)
        self.maps = Maps(storage.chain, storage.requests)
        self.requests: dict[str, Request] = {}
        self.units: dict[str, Units] = {}
        self.events: dict[str, Any] = {}
        """By the name of a forward, a copy or a transfer: what ``land`` lands."""
        self.findings: list[Finding] = []

    def reopen(self) -> None:
        """The arena was resized: maps and views are new."""
        self.tags = Tags(self.storage)
        self.maps = Maps(self.storage.chain, self.storage.requests)

    def request(self, name: str) -> Request:
        """The request of this name."""
        return self.named(self.requests, name, "request")

    def named(self, among: "dict[str, T]", name: str, what: str) -> T:
        """One of those that are there.

        Raises:
            ConfigError: there is none of that name.
        """
        found = among.get(name)
        if found is None:
            raise ConfigError(f"there is no {what} {name!r} now; {nearest(name, among)}")
        return found

    def check_rows(self, name: str, rows: Iterable[int], length: int) -> None:
        """All of these are rows that it has.

        Raises:
            ConfigError: one is not.
        """
        beyond = [row for row in rows if row >= length]
        if beyond:
            raise ConfigError(f"{name} has {length} rows, and no row {beyond[0]}")

    def check_sub_pool(self, name: str) -> None:
        """There is such a sub-pool, or none is named.

        Raises:
            ConfigError: there is not.
        """
        names = self.storage.plan.names
        if name and name not in names:
            raise ConfigError(f"there is no sub-pool {name!r}; {nearest(name, names)}")

    def rows(self, names: Iterable[str]) -> IntArray:
        """The rows of requests, in the order named."""
        return np.array([self.request(name).row for name in names], dtype=np.int64)

    def present(self, name: str, asked_by: str) -> Request:
        """The request of this name, with its rows there: no load is to be submitted, no receive to be released.

        Raises:
            InvariantError: they are still to come.
        """
        request = self.request(name)
        self.storage.requests.away.check_none(np.array([request.row]), asked_by=asked_by, drafting=True)
        return request

    def length(self, request: Request) -> int:
        """How many rows a request has."""
        return int(self.storage.requests.lengths[request.row])

    def tell(self, who: str, check: Check, mismatches: Iterable[Mismatch]) -> None:
        """Rows did not hold what they should, when this work landed."""
        for wrong in mismatches:
            owner = check.names[int(check.whose[wrong.page])]
            position = int(check.at[wrong.page]) * check.tags.rows + wrong.place
            words = (
                f"{who} read {check.tags.name} row {position} of {owner} (page {int(check.pages[wrong.page])}, "
                f"place {wrong.place}): expected {spelled(wrong.expected)}, found {spelled(wrong.found)}"
            )
            self.findings.append(Finding("lost_write", words))

    def work(self, who: str, checks: list[Check], writes: list[Write]) -> Callable[[], None]:
        """What runs when the turn of the stream has come: everything is read and compared, then written."""

        def land() -> None:
            for check in checks:
                wrong = check.tags.compare(check.pages, check.expected)
                if wrong:
                    self.tell(who, check, wrong)
            for write in writes:
                write.tags.write(write.pages, write.places, write.written)

        return land

    def clear(self, parts: "Iterable[Check]", actor: Actor) -> None:
        """These pages are about to be used by hand, as a forward would: what is still under way on them is waited for.

        Raises:
            InvariantError: a transfer is, and nobody may have them.
        """
        ledger = self.storage.chain.ledger
        for part in parts:
            ledger.clear(part.tags.unit_bytes, part.pages, (actor,), ledger.timeline.forward)

    def by_hand(self, who: str, checks: list[Check], writes: list[Write]) -> None:
        """Do it on the forward stream, behind everything that is queued there and on the allocator's, and wait."""
        self.begin()
        timeline = self.storage.chain.ledger.timeline
        timeline.hand(timeline.forward)
        for use in self.storage.chain.ledger.uses:
            if use.event is not None:
                self.device.wait(timeline.forward, use.event)
        reads, written = touches(checks), touches(writes)
        self.device.run(timeline.forward, self.work(who, checks, writes), reads, written)
        self.device.synchronize(self.device.record(timeline.forward))


def _nothing() -> None:
    """For a device that does not care where an operation begins."""


def touches(parts: "Iterable[Check] | Iterable[Write]") -> list[Touch]:
    """What the device is told of pages read or written."""
    return [Touch(part.tags.unit_bytes, distinct(part.pages), part.tags.name) for part in parts if len(part.pages)]


def distinct(numbers: IntArray) -> IntArray:
    """Each number once, rising."""
    if len(numbers) < 2:
        return numbers
    numbers = numbers.copy()
    numbers.sort()
    is_new = numbers[1:] != numbers[:-1]
    if np.count_nonzero(is_new) == len(is_new):
        return numbers
    return np.concatenate((numbers[:1], numbers[1:][is_new]))


def born(props: Props, rows: IntArray, before: IntArray | int) -> None:
    """The pages that these rows have beyond the ``before`` first are new."""
    if not props.tags.on:
        return
    table = props.storage.requests
    now = table.page_counts[rows]
    grown = (now > before).nonzero()[0]
    if not len(grown):
        return
    first = np.broadcast_to(before, now.shape)
    ids = [table.pages[rows[at], first[at] : now[at]] for at in grown.tolist()]
    new = ids[0] if len(ids) == 1 else np.concatenate(ids)
    props.tags.born(new[new != UNBOUND])
