"""The works of the table, done by us: the whole of each call is timed, request rows and page tables included."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvarena.admission.admission import Admission
from kvarena.ledger.steps import Forward
from kvarena.planning.demand import Demand
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Refused
from kvarena.terms.ports import IntArray
from peers.schedule import OUTPUT, PROMPT, Drift, Schedule
from peers.timing import WALL, Reading, Watch

CHUNK = 8192
Readings = Mapping[str, Reading]


def token_demand(storage: Storage, pages: int, slots: int = 0) -> tuple[int, ...]:
    """So many pages of every token kind, and so many slots, in chain order."""
    return tuple(slots if pool.is_slots else pages for pool in storage.plan.sub_pools)


def started(storage: Storage, lengths: IntArray) -> IntArray:
    """The rows of new requests of these lengths, which must fit."""
    rows = storage.open_batch(len(lengths))
    assert not isinstance(rows, Refused), rows
    ids = storage.step(rows, lengths)
    assert not isinstance(ids, Refused), ids
    return rows


def admission_of(storage: Storage) -> Admission:
    """Admission over a storage, without a cache."""
    return Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=CHUNK)


def asked_in_turn(admission: Admission, waiting: Sequence[tuple[int, int]]) -> list[Demand]:
    """Each is asked about by itself, and who is admitted is promised its charge, which later answers heed."""
    charges = []
    for prompt, output in waiting:
        answer = admission.ask(prompt, output)
        if isinstance(answer, Admit):
            admission.promise(answer.charge)
            charges.append(answer.charge)
    return charges


def token_names(storage: Storage) -> list[str]:
    """The sub-pools whose ids a forward writes by token."""
    return [pool.name for pool in storage.plan.token_pools if pool.unit_bytes]


class ServingStep:
    """Gate, admission, frees, new prompts, retired windows, a token each, write ids; perhaps a flush.

    One step takes the prompts of the new and a token for each of the others, and the write ids are those of both.
    """

    def __init__(self, storage: Storage, schedule: Schedule, *, flush: bool = False) -> None:
        self.storage, self.schedule, self.flush = storage, schedule, flush
        self.admission = admission_of(storage)
        self.names = token_names(storage)
        self.rows = started(storage, schedule.lengths)

    def __call__(self) -> Readings:
        """One step."""
        storage, admission, schedule = self.storage, self.admission, self.schedule
        page = storage.plan.page_tokens
        places = schedule.leaving()
        opens = int((schedule.lengths % page == 0).sum())
        gate = token_demand(storage, opens)
        lengths = schedule.advance(places)
        with Watch() as watch:
            assert storage.chain.feasible(gate)
            charges, _ = admission.admit([(PROMPT, OUTPUT)] * len(places))
            ended = self.rows[places]
            admission.forget(ended)
            storage.close(ended)
            fresh = storage.open_batch(len(places))
            assert not isinstance(fresh, Refused), fresh
            admission.start(fresh, charges)
            self.rows[places] = fresh
            ids = storage.step(self.rows, lengths)
            assert not isinstance(ids, Refused), ids
            for name in self.names:
                ids.write_ids(name)
            if self.flush:
                storage.flush()
        return {"step": Reading(watch.total)}


class OverlappedStep:
    """The same step under an overlapped loop: forward N is launched before N-1 is processed and its requests end.

    Beside the work of ``ServingStep``: launch, record and process; what ends is freed while a forward is in flight.
    """

    def __init__(self, storage: Storage, schedule: Schedule, *, flush: bool = False) -> None:
        self.storage, self.schedule, self.flush = storage, schedule, flush
        self.admission = admission_of(storage)
        self.names = token_names(storage)
        self.rows = started(storage, schedule.lengths)
        self.places = schedule.leaving()
        self.flying: Forward | None = None
        self._leave()

    def __call__(self) -> Readings:
        """One step."""
        storage, admission, schedule, places = self.storage, self.admission, self.schedule, self.places
        opens = int((schedule.lengths % storage.plan.page_tokens == 0).sum())
        gate = token_demand(storage, opens)
        lengths = schedule.advance(places)
        self.places = schedule.leaving()
        with Watch() as watch:
            assert storage.chain.feasible(gate)
            charges, _ = admission.admit([(PROMPT, OUTPUT)] * len(places))
            fresh = storage.open_batch(len(places))
            assert not isinstance(fresh, Refused), fresh
            admission.start(fresh, charges)
            self.rows[places] = fresh
            ids = storage.step(self.rows, lengths)
            assert not isinstance(ids, Refused), ids
            for name in self.names:
                ids.write_ids(name)
            forward = storage.forwards.launch(ids)
            storage.forwards.record(forward)
        if self.flying is not None and self.flying.event is not None:
            storage.device.synchronize(self.flying.event)
        with watch:
            if self.flying is not None:
                storage.forwards.process(self.flying)
            self.flying = forward
            if self.flush:
                storage.flush()
            self._leave()
        return {"step": Reading(watch.total)}

    def _leave(self) -> None:
        """The requests that ended with the forward that was processed last."""
        ended = self.rows[self.places]
        self.admission.forget(ended)
        self.storage.close(ended)


class DecodeTake:
    """A token for each of 256 requests, windows retired; and the ids that the forward writes to, in every sub-pool."""

    def __init__(self, storage: Storage, lengths: IntArray) -> None:
        self.storage, self.lengths = storage, lengths.copy()
        self.names = token_names(storage)
        self.rows = started(storage, self.lengths)

    def __call__(self) -> Readings:
        """One step of decoding."""
        self.lengths = self.lengths + 1
        with Watch() as take:
            ids = self.storage.step(self.rows, self.lengths)
        assert not isinstance(ids, Refused), ids
        with Watch() as write:
            for name in self.names:
                ids.write_ids(name)
        return {"take": Reading(take.total), "write": Reading(write.total)}

    def close(self) -> None:
        """Every request ends."""
        self.storage.close(self.rows)


class TakeFree:
    """The pages of 8,192 tokens come and go; before it, perhaps, half of a crowd went and left holes.

    The chain's own verbs, as the peer's allocator's: request rows are not in it on either side.
    """

    def __init__(self, storage: Storage, tokens: int, *, holes: bool) -> None:
        self.storage, self.holes = storage, holes
        self.pages = -(-tokens // storage.plan.page_tokens)
        self.crowd = np.empty(0, dtype=np.int64)
        if holes:
            self.crowd = np.concatenate([started(storage, np.full(16, PROMPT)) for _ in range(16)])
            order = np.random.default_rng(0).permutation(len(self.crowd))
            for place in order[: len(order) // 2].tolist():
                storage.close(self.crowd[place : place + 1])
            self.crowd = self.crowd[order[len(order) // 2 :]]

    def __call__(self) -> Readings:
        """Once."""
        chain, owner = self.storage.chain, self.storage.plan.owner
        assert owner is not None
        with Watch() as take:
            taken = chain.take_new(owner, self.pages)
        assert not isinstance(taken, Refused), taken
        with Watch() as free:
            chain.free_all({owner: taken.ids})
        if not self.holes:
            chain.flush()
        return {"take": Reading(take.total), "free": Reading(free.total)}

    def close(self) -> None:
        """The rest of the crowd ends."""
        self.storage.close(self.crowd)


class Translate:
    """The reads of a forward: 256 rows of 2,048 tokens, grown page by page so that no row's pages are neighbours."""

    def __init__(self, storage: Storage, rows: int = 256, tokens: int = 2048) -> None:
        self.storage = storage
        page = storage.plan.page_tokens
        self.rows = started(storage, np.full(rows, page))
        for length in range(2 * page, tokens + 1, page):
            assert storage.step(self.rows, np.full(rows, length))

    def __call__(self) -> Readings:
        """Both forms, each from ids that know nothing yet."""
        ids = self.storage.translate(self.rows)
        with Watch() as tokens:
            ids.read_ids("full")
        ids = self.storage.translate(self.rows)
        with Watch() as tables:
            ids.tables["full"]
        return {"tokens": Reading(tokens.total), "tables": Reading(tables.total)}

    def close(self) -> None:
        """Every request ends."""
        self.storage.close(self.rows)


class Questions:
    """Does a demand fit, after a change and again; and an admission pass over 64 waiting requests."""

    def __init__(self, storage: Storage, waiting: Sequence[tuple[int, int]]) -> None:
        self.storage, self.waiting = storage, waiting
        self.admission = admission_of(storage)
        TakeFree(storage, CHUNK, holes=True)
        page = storage.plan.page_tokens
        self.page = np.array([page])
        self.demand = token_demand(storage, -(-(PROMPT + OUTPUT) // page), slots=1)

    def __call__(self) -> Readings:
        """One of each."""
        chain, demand = self.storage.chain, self.demand
        self.storage.close(started(self.storage, self.page))
        with Watch(WALL) as changed:
            chain.feasible(demand)
        with Watch(WALL) as again:
            for _ in range(32):
                chain.feasible(demand)
        asked = self._pass()
        readings = {"changed": changed.total, "remembered": again.total // 32, "ask": asked // len(self.waiting)}
        return {name: Reading(ns) for name, ns in readings.items()}

    def _pass(self) -> int:
        """The nanoseconds of one pass over the queue; then the promises are taken back: those requests end at once."""
        with Watch(WALL) as watch:
            charges = asked_in_turn(self.admission, self.waiting)
        rows = self.storage.open_batch(len(charges))
        assert not isinstance(rows, Refused), rows
        self.admission.start(rows, charges)
        self.admission.forget(rows)
        self.storage.close(rows)
        return watch.total


class Pressure:
    """The drifting mix on a full arena. A refusal is false if the bytes for it, and two pages a kind, were free."""

    def __init__(self, storage: Storage, drift: Drift) -> None:
        self.storage, self.drift = storage, drift
        self.live: list[int] = []
        self.lengths: dict[int, int] = {}
        self.refused = self.false = 0

    def __call__(self) -> Readings:
        """One turn."""
        storage, turn = self.storage, self.drift.next()
        lengths = np.full(turn.count, turn.tokens)
        with Watch() as watch:
            rows = storage.open_batch(turn.count)
            ids = rows if isinstance(rows, Refused) else storage.step(rows, lengths)
        refused = isinstance(ids, Refused)
        if refused:
            self.refused += 1
            self.false += self._fits(turn.count, turn.tokens, slots=isinstance(rows, Refused))
            if not isinstance(rows, Refused):
                storage.close(rows)
        elif not isinstance(rows, Refused):
            self.live += rows.tolist()
            self.lengths.update(dict.fromkeys(rows.tolist(), turn.tokens))
        looked_at = np.array([self.live[place] for place in self.drift.looked_at(turn, len(self.live))], dtype=np.int64)
        if len(looked_at):
            storage.step(looked_at, np.array([self.lengths[row] for row in looked_at.tolist()]))
        leaving = [self.live.pop(place) for place in self.drift.leaving(turn, len(self.live), refused=refused)]
        if leaving:
            storage.close(np.array(leaving))
        return {"take": Reading(watch.total)}

    @property
    def moved_bytes(self) -> int:
        """What was copied to make room."""
        return self.storage.chain.counters.moved_bytes

    def _fits(self, count: int, tokens: int, *, slots: bool) -> bool:
        """Whether the free bytes hold so many requests, with their slots or without, and two units of every kind."""
        storage = self.storage
        demand = token_demand(storage, count * -(-tokens // storage.plan.page_tokens), slots=count * slots)
        shots = storage.chain.snapshot().bands
        live = sum(shot.live * shot.unit_bytes for shot in shots)
        need = sum((units + 2) * shot.unit_bytes for units, shot in zip(demand, shots, strict=True))
        return storage.sizing.arena_bytes - storage.sizing.sink_bytes - live >= need
