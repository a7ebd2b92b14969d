"""The serving step with a prefix cache, as the loop does it: match, checkpoints, inserts, locks, evictions."""

import numpy as np

from kvarena.admission.admission import Admission, Asked
from kvarena.assembly.loader import make_eviction
from kvarena.ledger.steps import Forward
from kvarena.planning.demand import Demand
from kvarena.plugins.prefix_tree import Entry, PrefixTree
from kvarena.plugins.serving.prefixes import PastWindows
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.lifetimes import NEVER
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray
from peers.kvarena_side import CATALOG
from peers.kvarena_work import CHUNK, Readings, token_names
from peers.schedule import OUTPUT, PROMPT, Schedule
from peers.timing import Reading, Watch

VOCABULARY = 100_000
TOKENS_MAX = 4096
"""No request of the schedule gets longer."""

WARM_MAX = 4000
"""So many steps at most until the cache is full and evicts in every step."""

Pending = tuple[int, int, int, int]
"""A checkpoint in flight: place, row, tokens, slot."""


class CachedStep:
    """``OverlappedStep`` with a prefix cache of states, windows and full attention; checkpoints on the storage's grid.

    Prompts are drawn, and share nothing. Token values are the runner's to know, and not timed; what is timed begins
    with them: keys, the walk through the tree, the locks, what is handed over, and what is evicted for it. The arena is
    full by then, so that every step evicts.
    """

    def __init__(self, storage: Storage, schedule: Schedule, *, flush: bool = False) -> None:
        self.storage, self.schedule, self.flush = storage, schedule, flush
        self.tree = PrefixTree(storage, make_eviction(CATALOG, storage.prefix))
        self.admission = Admission(
            storage.chain, storage.sizing, storage.ownership, chunk_tokens=CHUNK, cache=self.tree
        )
        self.names = token_names(storage)
        grid = storage.sizing.limits.grid
        assert grid is not None
        self.grid = grid
        self.one_slot: Demand = tuple(int(pool.is_slots) for pool in storage.plan.sub_pools)
        self.past_windows = PastWindows(storage.plan, grid)
        running, rows = schedule.running, len(storage.requests)
        self.random = np.random.default_rng(7)
        self.keys: IntArray = self.random.integers(0, VOCABULARY, (running, TOKENS_MAX))
        self.entries: list[Entry | None] = [None] * running
        self.relaxed = [True] * running
        self.relax_at: IntArray = np.full(rows, NEVER)
        self.place_of: IntArray = np.zeros(rows, dtype=np.int64)
        self.rows: IntArray = np.empty(running, dtype=np.int64)
        self.flying: tuple[Forward, list[Pending]] | None = None
        self._begin(np.arange(running), schedule.lengths)
        ids = storage.step(self.rows, schedule.lengths)
        assert not isinstance(ids, Refused), ids
        self.places = schedule.leaving()
        self._leave()
        for _ in range(WARM_MAX):
            self()
            if self.tree.stats().evictions > running:
                break

    def __call__(self) -> Readings:
        """One step."""
        storage, schedule, places = self.storage, self.schedule, self.places
        self.keys[places] = self.random.integers(0, VOCABULARY, (len(places), self.keys.shape[1]))
        lengths = schedule.advance(places)
        self.places = schedule.leaving()
        with Watch() as watch:
            self._begin(places, np.full(len(places), PROMPT))
            due = (lengths % self.grid == 0).nonzero()[0]
            self._prepare(self.rows[due])
            ids = storage.step(self.rows, lengths)
            if isinstance(ids, Refused):
                asked = tuple(ids.asked.get(name, 0) for name in storage.plan.names)
                assert self.admission.free_for(asked), ids
                ids = storage.step(self.rows, lengths)
            assert not isinstance(ids, Refused), ids
            for name in self.names:
                ids.write_ids(name)
            forward = storage.forwards.launch(ids)
            pending = self._checkpoints(due, lengths, forward)
        if self.flying is not None and self.flying[0].event is not None:
            storage.device.synchronize(self.flying[0].event)
        with watch:
            if self.flying is not None:
                self._process(*self.flying)
            self.flying = forward, pending
            if self.flush:
                storage.flush()
            self._leave()
        return {"step": Reading(watch.total)}

    # -- the start and the end of requests

    def _begin(self, places: IntArray, prompts: IntArray) -> None:
        """Match, make room for all, ask, and open their rows."""
        storage, tree, admission = self.storage, self.tree, self.admission
        matches = [
            tree.match(self.keys[place, :prompt])
            for place, prompt in zip(places.tolist(), prompts.tolist(), strict=True)
        ]
        questions = [
            Asked(prompt, OUTPUT, match.tokens, match.entry)
            for prompt, match in zip(prompts.tolist(), matches, strict=True)
        ]
        entries = [match.entry for match in matches if match.entry is not None]
        for entry in entries:
            tree.lock(entry)
        charges = [admission.prices.charge(*question[:3], question.purpose) for question in questions]
        assert admission.room_for(tuple(map(sum, zip(*[charge or () for charge in charges], strict=True))))
        answers, stopped = admission.admit(questions)
        assert stopped is None, str(stopped)
        for entry in entries:
            tree.unlock(entry)
        rows = storage.open_batch(len(places))
        assert not isinstance(rows, Refused), rows
        self.admission.start(rows, answers)
        for place, row, match in zip(places.tolist(), rows.tolist(), matches, strict=True):
            if match.entry is not None and match.state is not None:
                storage.sharing.start(row, match.ids, match.tokens)
                storage.copies.copy_state(np.array([match.state]), storage.requests.slots[row, :1])
                self._hold(place, row, match.entry)
        self.rows[places] = rows
        self.place_of[rows] = places

    def _leave(self) -> None:
        """The requests that ended with the forward that was processed last; their checkpoints in flight are dropped."""
        ended = self.rows[self.places]
        if self.flying is not None:
            kept, gone = list[Pending](), set(ended.tolist())
            for pending in self.flying[1]:
                if pending[1] in gone:
                    self.storage.sharing.free_slots(np.array([pending[3]]))
                else:
                    kept.append(pending)
            self.flying = self.flying[0], kept
        for place in self.places.tolist():
            entry = self.entries[place]
            if entry is not None:
                self.tree.unlock(entry, relaxed=self.relaxed[place])
            self.entries[place], self.relaxed[place] = None, True
        self.relax_at[ended] = NEVER
        self.admission.forget(ended)
        self.storage.close(ended)

    # -- checkpoints

    def _prepare(self, rows: IntArray) -> None:
        """A slot in each spare place."""
        empty = rows[self.storage.requests.slot_columns[1][rows] == UNBOUND]
        if len(empty) and self.admission.free_for(tuple([units * len(empty) for units in self.one_slot])):
            self.storage.sharing.take_slots(empty, 1)

    def _checkpoints(self, due: IntArray, lengths: IntArray, forward: Forward) -> list[Pending]:
        """Copies behind the forward, then the slots are handed over."""
        storage, rows = self.storage, self.rows[due]
        live, spare = storage.requests.slot_columns
        there = spare[rows] != UNBOUND
        rows, due = rows[there], due[there]
        if len(rows):
            storage.copies.copy_state(live[rows], spare[rows], forward)
        storage.forwards.record(forward)
        if not len(rows):
            return []
        slots = storage.sharing.hand_over_slots(rows, 1)
        return list(zip(due.tolist(), rows.tolist(), lengths[due].tolist(), slots.tolist(), strict=True))

    def _process(self, forward: Forward, pending: list[Pending]) -> None:
        """What was made is the cache's; rows that have moved past their entry's windows let go of them."""
        storage, tree = self.storage, self.tree
        storage.forwards.process(forward)
        for place, row, tokens, slot in pending:
            before = self.entries[place]
            inserted = tree.insert(row, self.keys[place, :tokens], tokens, state=slot, after=before, lock=True)
            self._hold(place, row, inserted.entry)
        past = self.rows[storage.requests.lengths[self.rows] >= self.relax_at[self.rows]]
        for row in past.tolist():
            place = int(self.place_of[row])
            entry = self.entries[place]
            if entry is not None:
                tree.relax(entry)
                self.relaxed[place] = True
        self.relax_at[past] = NEVER

    def _hold(self, place: int, row: int, entry: Entry) -> None:
        """The request reads this entry from here on."""
        self.entries[place], self.relaxed[place] = entry, False
        self.relax_at[row] = self.past_windows(entry.tokens)
