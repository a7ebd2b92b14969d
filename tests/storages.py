"""Small storages that tests share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np
from chains import bytes_left, everything
from toys import Bytes, SinksAndWindow

from kvarena.admission.admission import Admission
from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import ArenaConfig, ChecksConfig, Choice, PrefixConfig, StorageConfig
from kvarena.ledger.steps import Forward
from kvarena.storage.iteration_ids import IterationIds
from kvarena.storage.routed import views_of
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Never, Refused, Wait
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Chunk, Full, Lifetime, State, Window
from kvarena.terms.ports import IntArray

CATALOG = Catalog.installed()
STATE, FULL, SHORT, LONG = State(), Full(), Window(6), Window(17)
SIZES = {STATE: 40, FULL: 6, SHORT: 10, LONG: 4}
CHAINS: dict[str, tuple[Lifetime, ...]] = {
    "state, window, full": (STATE, SHORT, FULL),
    "full alone": (FULL,),
    "state alone": (STATE,),
    "window alone": (SHORT,),
    "two windows": (SHORT, LONG),
    "state, three floats, full": (STATE, SHORT, LONG, Chunk(10), FULL),
    "window and chunk, byte-less owner": (Chunk(8), SHORT),
    "sinks and a window, full": (SinksAndWindow(5, 4), FULL),
    "sinks alone with a state": (STATE, SinksAndWindow(5, 4)),
}


def storage_of(
    lifetimes: Sequence[Lifetime],
    *,
    memory: int = 4000,
    page_tokens: int = 4,
    running: int = 4,
    context: int = 60,
    backend: str | Choice = "host",
    mirrors: bool = False,
    checks: int = 1,
    prefix: PrefixConfig | None = None,
    **arena: int,
) -> Storage:
    """A storage with one layer per lifetime."""
    layers = [
        Layer(index, (Part(Bytes(SIZES.get(lifetime, 5)), lifetime, lifetime.name),))
        for index, lifetime in enumerate(lifetimes)
    ]
    limits = {"memory": memory, "page_tokens": page_tokens, "context_tokens": context, "max_running": running}
    config = StorageConfig(
        arena=ArenaConfig(mirrors=mirrors, **limits, **arena),
        backend=backend,
        checks=ChecksConfig(level=checks),
        prefix=prefix or PrefixConfig(),
    )
    return build_storage(layers, config, CATALOG)


def built(*parts: Part, backend: str = "cpu", **arena: int) -> Storage:
    """A storage with one layer per part, on real bytes."""
    layers = [Layer(index, (part,)) for index, part in enumerate(parts)]
    config = {"memory": 4000, "page_tokens": 4, "context_tokens": 60, "mirrors": False, **arena}
    return build_storage(layers, StorageConfig(arena=ArenaConfig(**config), backend=backend), CATALOG)


def rows_of(*rows: int) -> IntArray:
    """Rows, or anything else, as an array."""
    return np.array(rows, dtype=np.int64)


def own_ids(storage: Storage, row: int) -> IntArray:
    """The ids of a row's own pages, in order."""
    table = storage.requests
    return table.flat[table.places(rows_of(row), own=True)]


def state_of(storage: Storage) -> tuple[object, ...]:
    """All that a call may change: the chain, the request rows and who owns what."""
    table = storage.requests
    rows = [
        table.pages, table.slots, table.lengths, table.page_counts, table.handed, table.retired, table.open_rows(),
        table.tails, table.looked_at, table.due, storage.ownership.held(), storage.ownership.handed_over(),
        table.away.reserved, table.away.drafts, table.away.holds, table.shared, storage.ownership.slots.ids(),
    ]  # fmt: skip
    ledger = storage.chain.ledger
    time = (repr(ledger.steps), [str(use) for use in ledger.uses], [*map(str, storage.copies.under_way())])
    transfers = [(str(transfer), transfer.published) for transfer in storage.transfers.under_way()]
    kept = (table.free_count, table.away.count, table.stateless, time, transfers)
    return (everything(storage.chain), kept, *(array.tobytes() for array in rows))


@contextmanager
def nothing_changes(storage: Storage) -> Iterator[None]:
    """Whatever is done inside, a refusal or an error, leaves the storage as it was and every sum in order."""
    before = state_of(storage)
    yield
    assert state_of(storage) == before
    storage.verify()


def assert_quiet(storage: Storage) -> None:
    """Nothing is held any more: no page, no id, no row, and after one flush every byte is free."""
    storage.flush()
    storage.verify()
    chain = storage.chain
    assert [(shot.live, shot.holes, shot.pending, shot.reserved) for shot in chain.snapshot().bands] == [
        (0, 0, 0, 0)
    ] * len(chain.bands)
    assert all(minter.pool.free == minter.pool.count for minter in chain.minters.values())
    assert bytes_left(chain) == len(chain.usable)
    assert storage.requests.free_count == len(storage.requests)
    assert not len(storage.ownership.handed_over()) + len(storage.ownership.slots.ids())
    assert not len(chain.ledger.uses)
    assert not len(storage.copies) + len(storage.transfers) + storage.requests.away.count
    assert chain.ledger.steps.launched == chain.ledger.steps.processed


def simulated(timing: str, seed: int = 0) -> Choice:
    """A device whose work lands when ``timing`` says, and that judges every access byte by byte."""
    return Choice("simulated", {"timing": timing, "seed": seed, "grain_bytes": 1})


def overlapped(*lifetimes: Lifetime, in_flight: int = 2, **settings: Any) -> Storage:
    """A storage under which forwards overlap."""
    return storage_of(lifetimes, forwards_in_flight=in_flight, **settings)


def run_forward(storage: Storage, ids: IterationIds | None, **record: Any) -> Forward:
    """Launch a forward over these ids, and record it."""
    forward = storage.forwards.launch(ids)
    storage.forwards.record(forward, **record)
    return forward


def process(storage: Storage, *forwards: Forward) -> None:
    """Wait for these forwards on the host, as a scheduler does for their results, and process them."""
    for forward in forwards:
        if forward.event is not None:
            storage.device.synchronize(forward.event)
        storage.forwards.process(forward)


def stepped(storage: Storage, *lengths: tuple[int, int]) -> IterationIds:
    """Advance rows, each to its length; it must succeed."""
    rows, stops = (rows_of(*numbers) for numbers in zip(*lengths, strict=True))
    ids = storage.step(rows, stops)
    assert not isinstance(ids, Refused), str(ids)
    return ids


def opened(storage: Storage) -> int:
    """A row for a new request; there must be one."""
    row = storage.open()
    assert not isinstance(row, Refused), str(row)
    return row


def free_units(storage: Storage, name: str) -> int:
    """How many more units of one sub-pool, alone, a take would get."""
    names = storage.plan.names
    count = 0
    while storage.chain.feasible(tuple(count + 1 if pool == name else 0 for pool in names)):
        count += 1
    return count


@attrs.define
class Entries:
    """A cache: entries by name, each with the ids of its pages, oldest first."""

    storage: Storage
    pages: dict[str, np.ndarray] = attrs.Factory(dict)
    locks: dict[str, int] = attrs.Factory(dict)
    evicted: list[str] = attrs.Factory(list)

    def keep(self, name: str, row: int, tokens: int) -> None:
        """A finished request's first tokens become an entry."""
        self.pages[name] = self.storage.ownership.hand_over(row, tokens)
        self.storage.close(row)

    def evictable(self) -> Sequence[int]:
        ids = [pages for name, pages in self.pages.items() if not self.locks.get(name)]
        bound = np.concatenate(ids) if ids else rows_of()
        chain = self.storage.chain
        return [
            0 if pool.is_slots else len(chain.bands[pool.name].ids.bound_among(bound)) for pool in chain.plan.sub_pools
        ]

    def evict(self, enough: Callable[[tuple[int, ...]], bool]) -> None:
        for name in [name for name in self.pages if not self.locks.get(name)]:
            self.storage.ownership.free_pages(self.pages.pop(name))
            self.evicted.append(name)
            if enough((0,) * len(self.storage.plan.sub_pools)):
                return

    def lock(self, entry: str) -> None:
        self.locks[entry] = self.locks.get(entry, 0) + 1

    def unlock(self, entry: str) -> None:
        self.locks[entry] -= 1


class Tagged:
    """A storage on real bytes in which every token is written with a tag of its own, and read back by its row."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.names = [pool.name for pool in storage.plan.token_pools if pool.unit_bytes]
        self.views = {name: [view.numpy() for view in views_of(storage, name).values()] for name in self.names}
        self.tags: dict[tuple[int, int], int] = {}
        self.serial = 0

    def step(self, *lengths: tuple[int, int]) -> bool:
        """Advance rows, each to its length, and write what is new; False where it was refused."""
        rows, stops = (rows_of(*numbers) for numbers in zip(*lengths, strict=True))
        ids = self.storage.step(rows, stops)
        if isinstance(ids, Refused):
            return False
        index, positions = ids.write_positions()
        for at, (row, position) in enumerate(zip(rows[index].tolist(), positions.tolist(), strict=True)):
            self.serial += 1
            self.tags[row, position] = self.serial
            for name in self.names:
                page, place = int(ids.write_pages(name)[at]), int(ids.write_offsets()[at])
                for layer, view in enumerate(self.views[name]):
                    view[page, place] = self.pattern(layer, self.serial, view)
        return True

    def pattern(self, layer: int, tag: int, view: Any) -> IntArray:
        """What a layer of a token's page holds."""
        return np.resize(np.array([tag % 251 + 1, tag // 251 % 251 + 1, layer]), view.shape[-1])

    def reads(self, name: str, row: int, positions: Iterable[int]) -> bool:
        """Whether the row finds its own tags there, in every layer."""
        size, ids = self.storage.plan.page_tokens, self.storage.translate(rows_of(row)).read_ids(name)[0]
        return all(
            np.array_equal(view[divmod(int(ids[at]), size)], self.pattern(layer, self.tags[row, at], view))
            for at in positions
            for layer, view in enumerate(self.views[name])
        )

    def reads_the_sink(self, name: str, row: int, positions: Iterable[int]) -> bool:
        """Whether nothing of these positions is bound, and what they read is zero."""
        size, ids = self.storage.plan.page_tokens, self.storage.translate(rows_of(row)).read_ids(name)[0]
        sink = self.storage.chain.bands[name].grid.sink_page
        pages = {int(ids[at]) // size for at in positions}
        return pages == {sink} and not any(view[sink].any() for view in self.views[name])

    def release(self) -> None:
        """Give the arena back."""
        self.views = {}
        self.storage.release()


def one_by_one(
    admission: Admission, requests: list[tuple[int, int]]
) -> tuple[list[tuple[int, ...]], Wait | Never | None]:
    """``ask``, ``make_room`` and ``promise`` in turn, up to the first that may not start."""
    charges: list[tuple[int, ...]] = []
    for request in requests:
        answer = admission.ask(*request)
        if not isinstance(answer, Admit):
            return charges, answer
        assert admission.make_room(answer)
        admission.promise(answer.charge)
        charges.append(answer.charge)
    return charges, None
