"""The works of the table, done by SGLang: only its own calls are timed, a scheduler's rows beside them are not."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from peers.schedule import OUTPUT, PROMPT, Drift, Schedule
from peers.sglang_side import Sglang
from peers.shape import STATE_BYTES, WINDOW
from peers.timing import WALL, Reading, Watch

RETIRE_EVERY = 128
"""Its scheduler looks at a request's window every so many tokens."""

Readings = Mapping[str, Reading]


class Rows:
    """A scheduler's rows of virtual token ids, and how far each window was retired."""

    def __init__(self, peer: Sglang, running: int, context: int) -> None:
        self.peer = peer
        self.ids = torch.zeros((running, context), dtype=torch.int32)
        self.lengths = torch.zeros(running, dtype=torch.int64)
        self.retired = np.zeros(running, dtype=np.int64)
        self.slots = torch.zeros(running, dtype=torch.int64)

    def fill(self, rows: list[int], ids: Any, counts: Any) -> None:
        """Write down the ids of new requests."""
        for row, part in zip(rows, ids.split(counts.tolist()), strict=True):
            self.ids[row, : len(part)] = part.to(torch.int32)
            self.lengths[row], self.retired[row] = len(part), 0

    def of(self, row: int) -> tuple[Any, int]:
        """What a free of this row passes."""
        return self.ids[row, : int(self.lengths[row])], int(self.retired[row])

    def due(self, every: int) -> list[tuple[Any, int]]:
        """Spans that fell out of windows, where there are so many tokens of them; retired from here on."""
        page = self.peer.shape.page_tokens
        ends = self.lengths.numpy() - 1 - WINDOW
        found = []
        for row in np.flatnonzero(ends >= self.retired + every).tolist():
            end, start = int(ends[row]) // page * page, int(self.retired[row])
            if end > start:
                found.append((self.ids[row, start:end], start))
                self.retired[row] = end
        return found


class ServingStep:
    """Gate, admission, frees, new prompts, retired windows, a token each, write ids, a forward; perhaps a flush.

    The write ids are those of the prompts too, as on our side.
    """

    def __init__(self, peer: Sglang, schedule: Schedule, *, flush: bool = False) -> None:
        peer.reset()
        self.peer, self.schedule, self.flush = peer, schedule, flush
        self.rows = Rows(peer, schedule.running, context=4096)
        for first in range(0, schedule.running, 16):
            some = list(range(first, min(first + 16, schedule.running)))
            self._start(some, torch.tensor(schedule.lengths[some]), Watch())
        self.moved = 0

    def __call__(self) -> Readings:
        """One step."""
        peer, rows, page = self.peer, self.rows, self.peer.shape.page_tokens
        leaving = self.schedule.leaving().tolist()
        opens = page * int((rows.lengths % page == 0).sum())
        peer.spent.clear()
        watch = Watch()
        with watch:
            peer.gate(opens)
        with watch:
            budget = peer.budget()
            for _ in leaving:
                budget.admits(PROMPT, OUTPUT)
        ended, slots = [rows.of(row) for row in leaving], rows.slots[leaving]
        with watch:
            peer.free(ended)
            peer.slots.free(slots)
        self._start(leaving, torch.full((len(leaving),), PROMPT), watch)
        due = rows.due(RETIRE_EVERY)
        if due:
            with watch:
                peer.retire(due)
        every = torch.arange(len(rows.lengths))
        last = rows.ids[every, rows.lengths - 1].to(torch.int64)
        rows.lengths += 1
        with watch:
            written = peer.decode(rows.lengths, last)
        rows.ids[every, rows.lengths - 1] = written.to(torch.int32)
        with watch:
            peer.write_ids(written)
            peer.forward(written)
        if self.flush:
            with watch:
                self.moved += peer.flush()
        return {"step": _net(watch, peer)}

    def _start(self, rows: list[int], counts: Any, watch: Watch) -> None:
        with watch:
            slots, ids = self.peer.take_slots(len(rows)), self.peer.extend(counts)
        assert ids is not None, "SGLang ran out of memory"
        with watch:
            self.peer.write_ids(ids)
        self.rows.fill(rows, ids, counts)
        self.rows.slots[rows] = slots


class DecodeTake:
    """A token for each of 256 requests, and the ids that the forward writes to, in every pool."""

    def __init__(self, peer: Sglang, lengths: Any) -> None:
        peer.reset()
        self.peer = peer
        self.rows = Rows(peer, len(lengths), context=4096)
        counts = torch.tensor(lengths)
        self.rows.fill(list(range(len(lengths))), peer.extend(counts), counts)
        self.every = torch.arange(len(lengths))

    def __call__(self) -> Readings:
        """One step of decoding."""
        peer, rows, take, write = self.peer, self.rows, Watch(), Watch()
        last = rows.ids[self.every, rows.lengths - 1].to(torch.int64)
        rows.lengths += 1
        peer.spent.clear()
        with take:
            ids = peer.decode(rows.lengths, last)
        rows.ids[self.every, rows.lengths - 1] = ids.to(torch.int32)
        taken = _net(take, peer)
        with write:
            peer.write_ids(ids)
        return {"take": taken, "write": Reading(write.total)}


class TakeFree:
    """One request of 8,192 tokens comes and goes; before it, perhaps, half of a crowd went and left holes."""

    def __init__(self, peer: Sglang, tokens: int, *, holes: bool) -> None:
        peer.reset()
        self.peer, self.counts, self.holes = peer, torch.tensor([tokens]), holes
        if holes:
            crowd = torch.full((16,), PROMPT)
            rows = [row for _ in range(16) for row in peer.extend(crowd).split(PROMPT)]
            for row in np.random.default_rng(0).permutation(len(rows))[: len(rows) // 2].tolist():
                peer.free([(rows[row].to(torch.int32), 0)])

    def __call__(self) -> Readings:
        """Once."""
        peer, take, free = self.peer, Watch(), Watch()
        peer.spent.clear()
        with take:
            ids = peer.extend(self.counts)
        taken = _net(take, peer)
        row = (ids.to(torch.int32), 0)
        with free:
            peer.free([row])
        if not self.holes:
            peer.flush()
        return {"take": taken, "free": Reading(free.total)}


class Translate:
    """The reads of a forward: 256 rows of 2,048 tokens, anywhere in what lives, for the full pool."""

    def __init__(self, peer: Sglang, rows: int = 256, tokens: int = 2048) -> None:
        peer.reset()
        self.peer = peer
        part = torch.tensor([min(rows * tokens, peer.shape.full_tokens // 3) // 64])
        live = torch.cat([peer.extend(part) for _ in range(64)])
        random = torch.Generator().manual_seed(2)
        self.ids = live[torch.randint(0, live.numel(), (rows, tokens), generator=random)].contiguous()
        self.out = torch.empty_like(self.ids)

    def __call__(self) -> Readings:
        """Once."""
        with Watch() as watch:
            self.peer.translate(self.ids, self.out)
        return {"tokens": Reading(watch.total)}


class Questions:
    """How much is there, after a change and again; and an admission pass over 64 waiting requests."""

    def __init__(self, peer: Sglang, waiting: list[tuple[int, int]]) -> None:
        peer.reset()
        self.peer, self.waiting = peer, waiting
        TakeFree(peer, 8192, holes=True)
        peer.take_slots(256)
        self.page = torch.tensor([peer.shape.page_tokens])

    def __call__(self) -> Readings:
        """One of each."""
        peer, changed, again, asked = self.peer, Watch(WALL), Watch(WALL), Watch(WALL)
        peer.free([(peer.extend(self.page).to(torch.int32), 0)])
        budget = peer.budget()
        with changed:
            budget.asks(PROMPT, OUTPUT)
        with again:
            for _ in range(32):
                budget.asks(PROMPT, OUTPUT)
        with asked:
            budget = peer.budget()
            for prompt, output in self.waiting:
                budget.admits(prompt, output)
        readings = {"changed": changed.total, "remembered": again.total // 32, "ask": asked.total // len(self.waiting)}
        return {name: Reading(ns) for name, ns in readings.items()}


class Pressure:
    """The drifting mix on a full arena. A refusal is false if bytes and ids for it, and two pages a kind, were free."""

    def __init__(self, peer: Sglang, drift: Drift) -> None:
        peer.reset()
        self.peer, self.drift = peer, drift
        self.live: list[tuple[Any, int, Any]] = []
        self.refused = self.false = self.moved_bytes = 0

    def __call__(self) -> Readings:
        """One turn."""
        peer, turn = self.peer, self.drift.next()
        counts, watch = torch.full((turn.count,), turn.tokens), Watch()
        peer.spent.clear()
        with watch:
            slots = peer.take_slots(turn.count)
            ids = None if slots is None else peer.extend(counts)
        reading = _net(watch, peer)
        self.moved_bytes += peer.spent.copied_bytes
        if ids is None:
            self._refused(turn.count, turn.tokens, slots)
        else:
            parts = zip(ids.to(torch.int32).split(turn.tokens), slots.split(1), strict=True)
            self.live += [(part, 0, slot) for part, slot in parts]
        spans = [self._past(place) for place in self.drift.looked_at(turn, len(self.live))]
        spans = [span for span in spans if len(span[0])]
        if spans:
            peer.retire(spans)
        for place in self.drift.leaving(turn, len(self.live), refused=ids is None):
            part, retired, slot = self.live.pop(place)
            peer.free([(part, retired)])
            peer.slots.free(slot)
        return {"take": reading}

    def _past(self, place: int) -> tuple[Any, int]:
        """What is beyond the window of a request: ids and where they start."""
        part, retired, slot = self.live[place]
        page = self.peer.shape.page_tokens
        end = max(retired, (len(part) - WINDOW) // page * page)
        self.live[place] = (part, end, slot)
        return part[retired:end], retired

    def _refused(self, count: int, tokens: int, slots: Any) -> None:
        peer, page = self.peer, self.peer.shape.page_tokens
        self.refused += 1
        full, window, _ = peer.pools()
        pages = count * -(-tokens // page)
        page_bytes = full.entry_bytes_per_page + window.entry_bytes_per_page
        need = pages * page_bytes + 2 * (page_bytes + STATE_BYTES) + (count * STATE_BYTES if slots is None else 0)
        ids = all(
            pool.num_pages - pool.min_page_index - pool.allocated_count() // page >= pages for pool in (full, window)
        )
        self.false += peer.free_bytes() >= need and ids
        if slots is not None:
            peer.slots.free(slots)


def _net(watch: Watch, peer: Sglang) -> Reading:
    """Bookkeeping, with zeroing and copying taken out."""
    apart = peer.spent.zero_ns + peer.spent.copy_ns
    return Reading(watch.total - apart, apart)
