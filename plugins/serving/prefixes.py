"""What the loop shares by prefix: a request starts from what the cache has, and leaves what it has made.

A request's way:  1. match   how much of its tokens the cache has; nothing changes.
                  2. begin   admission has locked the entry; the row reads its pages, and its state is copied.
                  3. relax   the row has moved past the entry's window rows: the cache may let these go; where memory
                             is short they go one by one, as they are passed (``narrow``).
                  4. insert  at each landing that it makes, its pages are the cache's; the new entry is locked for it.
                  5. leave   what it has beyond that is inserted too, where somebody could start from it; unlocked.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvarena.admission.preemption import Relaxing
from kvarena.planning.plan import Plan
from kvarena.plugins.serving.job import Job, Pending, Trial
from kvarena.plugins.serving.lineage import Lineage, stops_of
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.running import Running
from kvarena.storage.storage import Storage
from kvarena.terms.lifetimes import NEVER, Full, floor_reaches, on_grid
from kvarena.terms.ports import IntArray


class Match(Protocol):
    """Where a request can start: ``tokens`` of it are there, in pages ``ids``, with a ``state`` where there is one.

    ``agreed`` tokens, as many or more, are in the cache.
    """

    @property
    def entry(self) -> Any: ...

    @property
    def tokens(self) -> int: ...

    @property
    def ids(self) -> IntArray: ...

    @property
    def state(self) -> int | None: ...

    @property
    def agreed(self) -> int: ...

    @property
    def origin(self) -> Any: ...


class Inserted(Protocol):
    """What came of an insert; ``entry`` is the landing at its end."""

    @property
    def entry(self) -> Any: ...


class PrefixCache(Relaxing, Protocol):
    """A cache by prefix, as the loop calls it: ``plugins.prefix_tree.PrefixTree`` is one."""

    def match(self, keys: IntArray, *, namespace: Hashable = None) -> Match:
        """The longest prefix of these tokens that a request can start from, and leave one to compute."""
        ...

    def insert(
        self,
        row: int,
        keys: IntArray,
        tokens: int,
        *,
        namespace: Hashable = None,
        state: int | None = None,
        priority: int = 0,
        origin: Any = None,
        after: Any = None,
        lock: bool = False,
    ) -> Inserted:
        """The row's first tokens are the cache's, with the state after them where there is one.

        ``after``: the locked entry that the row reads. ``lock``: it reads the new one from here on, which is locked in
        the stead of ``after``.
        """
        ...

    def touch(self, entry: Any) -> None:
        """A request has started from a matched entry."""
        ...

    def narrow(self, entry: Any, length: int) -> None:
        """The reader of a locked entry is so long: of its window rows it needs those of a query there alone."""
        ...

    def relax(self, entry: Any) -> None:
        """The reader of a locked entry needs its window rows and its state no more."""
        ...

    def stats(self) -> Any:
        """Counts: ``entries``, ``evictions`` and more."""
        ...


class Keys(Protocol):
    """Who knows the token values: a runner."""

    def keys(self, request: Request, count: int) -> IntArray | None:
        """The first tokens of a request as keys; None where they are not to be cached."""
        ...


class Begun(NamedTuple):
    """A row that starts, its job, and what the cache had for it."""

    row: int
    job: Job
    match: Match | None


class Prefixes:
    """One loop's use of a prefix cache.

    ``landings``: a row can be resumed at any page it has, so it is inserted as it goes; where a state is kept, only
    at checkpoints (a grid), or at its very end.
    """

    def __init__(self, storage: Storage, cache: PrefixCache, runner: Keys, running: Running, *, origins: bool) -> None:
        self.cache = cache
        self.kept_max: IntArray = np.zeros(len(storage.requests), dtype=np.int64)
        self._storage = storage
        self._outputs = storage.prefix is None or storage.prefix.cache_outputs
        self._runner = runner
        self._running = running
        self._origins = origins
        self._page = storage.plan.page_tokens
        self._slots = storage.plan.slots is not None
        self._grid = storage.sizing.limits.grid
        self._windows = [pool for pool in storage.plan.token_pools if not isinstance(pool.lifetime, Full)]
        self._reaches = PastWindows(storage.plan, self._grid)
        self._relax_at: IntArray = np.full(len(storage.requests), NEVER, dtype=np.int64)
        self._narrowed_at: IntArray = np.full(len(storage.requests), NEVER, dtype=np.int64)  # where nothing is left to

    # -- the start

    def match(self, job: Job) -> Match | None:
        """What the cache has of a job's tokens; None where it is not to be cached, or nothing is there."""
        keys = self._runner.keys(job.request, job.known_tokens) if job.shares else None
        job.kept_max = job.cut = 0
        if keys is None:
            return None
        outputs = job.outputs if self._outputs else 0
        job.kept_max = job.request.prompt_tokens + outputs
        found = self.cache.match(keys, namespace=job.request.namespace)
        grain = self._grid or self._page
        branch = found.agreed // grain * grain
        if found.tokens < branch <= job.kept_max and not (self._slots and self._grid is None):
            job.cut = branch
        return found if found.entry is not None else None

    def begin(self, begun: Sequence[Begun]) -> None:
        """These rows are open, and admission has locked the entries that they start from."""
        sources, targets = [], []
        for row, job, match in begun:
            self.kept_max[row] = job.kept_max
            if match is None:
                continue
            self._storage.sharing.start(row, match.ids, match.tokens)
            self._hold(row, job, match.entry, match.tokens)
            self.cache.touch(match.entry)
            if match.state is not None:
                sources.append(match.state)
                targets.append(int(self._storage.requests.slots[row, 0]))
        if sources:
            self._storage.copies.copy_state(np.array(sources), np.array(targets))

    def trial(self, match: Match | None) -> Trial:
        """The record of an admission that starts from this match."""
        if match is None:
            return Trial()
        stops = stops_of(match.origin, match.tokens)
        return Trial(match.tokens, match.origin, lineage=Lineage(None, stops))

    # -- on the way

    def relax(self) -> None:
        """Rows that have moved past the windows of the entry that they read need only its path."""
        rows = self._running.rows()
        past = rows[self._storage.requests.lengths[rows] >= self._relax_at[rows]]
        for row in past.tolist():
            job = self._running.jobs[row]
            self.cache.relax(job.entry)
            job.relaxed = True
        if len(past):
            self._relax_at[past] = self._narrowed_at[past] = NEVER

    def narrow(self) -> bool:
        """Memory is short: rows let go of the window rows that they have passed.

        Whether any may have let go of some. Rows behind the last grid point stay: a checkpoint there may be under way.
        """
        if not self._windows:
            return False
        rows, size = self._running.rows(), self._grid or 1
        lengths = self._storage.requests.lengths[rows] // size * size
        moved = lengths > self._narrowed_at[rows]
        rows, lengths = rows[moved], lengths[moved]
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            self.cache.narrow(self._running.jobs[row].entry, length)
        self._narrowed_at[rows] = lengths
        return bool(len(rows))

    def checkpoint(self, job: Job, pending: Pending) -> bool:
        """The forward that made a checkpoint is processed: the cache gets it, with all tokens before it.

        False where nobody could start from it: so many forwards are in flight that the row has let go of window rows
        which lie behind it; its slot comes back.
        """
        job.pending.remove(pending)
        if self._can_land(job.row, pending.tokens) and self._insert(job, pending.tokens, pending.slot):
            return True
        self._storage.sharing.free_slots(np.array([pending.slot]))
        return False

    def chunks(self, rows: IntArray, stops: IntArray) -> None:
        """Chunks of these rows' prompts are processed: where any page is a landing, what they made is inserted."""
        if self._slots:
            return
        tokens = np.minimum(stops, self.kept_max[rows]) // self._page * self._page
        for row, whole in zip(rows.tolist(), tokens.tolist(), strict=True):
            job = self._running.jobs[row]
            if whole > job.kept and self._can_land(row, whole):
                self._insert(job, whole, None)

    # -- the end

    def leave(self, row: int, job: Job) -> None:
        """A job is about to leave its row: what others can start from stays in the cache, and nothing is locked."""
        done, length = int(self._running.done[row]), int(self._storage.requests.lengths[row])
        tokens = min(done, job.kept_max) // self._page * self._page
        if tokens > job.kept and self._can_land(row, tokens):
            if not self._slots:
                self._insert(job, tokens, None)
            elif self._grid is None and tokens == done == length:  # the live state is that of just these tokens
                slot = self._storage.sharing.hand_over_slot(row, 0)
                if not self._insert(job, tokens, slot):
                    self._storage.sharing.free_slots(np.array([slot]))
        if job.entry is not None:
            self.cache.unlock(job.entry, relaxed=job.relaxed)
            job.entry = None
        job.kept = 0
        self._relax_at[row] = self._narrowed_at[row] = NEVER
        self.kept_max[row] = 0

    # -- inside

    def _can_land(self, row: int, tokens: int) -> bool:
        """Whether the row still has every page that a request needs which starts at ``tokens``."""
        return self._storage.sharing.can_start(self._storage.requests.pages[row, : tokens // self._page], tokens)

    def _insert(self, job: Job, tokens: int, state: int | None) -> bool:
        """The row's first tokens are the cache's; whether they are to be cached at all."""
        request, row = job.request, job.row
        keys = self._runner.keys(request, tokens)
        if keys is None:
            return False
        origin = job.trials[-1].so_far() if self._origins else None
        inserted = self.cache.insert(
            row, keys, tokens,
            namespace=request.namespace, state=state, priority=request.priority, origin=origin, after=job.entry,
            lock=True,
        )  # fmt: skip
        self._hold(row, job, inserted.entry, tokens)
        return True

    def _hold(self, row: int, job: Job, entry: Any, tokens: int) -> None:
        """The job reads this entry, locked, from here on."""
        job.entry, job.relaxed, job.kept = entry, False, tokens
        self._narrowed_at[row] = tokens
        self._relax_at[row] = self._reaches(tokens)


class PastWindows:
    """At which length a row needs no window row below so many tokens: that of the window that lets go last.

    At once where there are states alone to let go of, and never where there is nothing.
    """

    def __init__(self, plan: Plan, grid: int | None) -> None:
        lifetimes = [on_grid(pool.lifetime, grid) for pool in plan.token_pools]
        self._lifetimes = [lifetime for lifetime in lifetimes if not isinstance(lifetime, Full)]
        self._without = 0 if plan.slots else NEVER
        self._known: dict[int, int] = {}  # one for each page of a context at most

    def __call__(self, tokens: int) -> int:
        found = self._known.get(tokens)
        if found is None:
            found = self._known[tokens] = self._reached(tokens)
        return found

    def _reached(self, tokens: int) -> int:
        rows = np.array([tokens])
        lengths = [floor_reaches(lifetime, rows) for lifetime in self._lifetimes]
        return max((NEVER if found is None else int(found[0]) for found in lengths), default=self._without)
