"""A toy engine around one arena: continuous batching, chunked prefill, overlap, shared prefixes, retraction, abort."""

import numpy as np
from toy_model import END, checked, forward

from kvarena import Admission, Asked, Refused, StorageConfig, Wait, build_storage
from kvarena.assembly.config import structure
from kvarena.planning.demand import chunk_stop
from kvarena.plugins.prefix_tree import PrefixTree


class Engine:
    """Requests wait, run and leave. A forward is processed once the next one was launched."""

    def __init__(self, settings, chunk=16):
        self.storage = storage = build_storage([], checked(structure(StorageConfig, settings, "engine.toml")))
        self.tree, books = PrefixTree(storage), (storage.chain, storage.sizing, storage.ownership)
        self.admission = Admission(*books, chunk_tokens=chunk, output_fraction=0.3, cache=self.tree)
        parts = [part.fields.values() for layer in storage.routed().values() for part in layer.values()]
        (self.states,), *self.layers = [[view.numpy() for view in part] for part in parts]
        self.chunk, self.grid, self.slots = chunk, storage.sizing.limits.grid, storage.requests.slots
        self.waiting, self.running, self.flying = [], [], []

    def step(self):
        """One iteration; whether there is more to do."""
        while self.waiting and self.storage.requests.free_count and self.admit(self.waiting[0]):
            self.waiting.pop(0)
        launched = self.take()
        if self.flying and (len(self.flying) == 2 or not launched):
            self.process()
        self.storage.flush()
        return bool(self.waiting or self.running or self.flying)

    def admit(self, request):
        """Whether it need not wait any more: it runs, or can never be served."""
        match = self.tree.match(request.tokens[: request.known])
        asked = Asked(request.known, len(request.tokens) - request.known, match.tokens, match.entry)
        answers, stopped = self.admission.admit([asked])  # who is let in is promised its charge, its entry is locked
        if stopped is not None:
            request.fate = "waiting" if isinstance(stopped, Wait) else f"never: {stopped}"
            return not isinstance(stopped, Wait)
        request.row, request.entry, request.kept, request.fate = self.storage.open(), match.entry, {}, "running"
        self.admission.start(np.array([request.row]), answers)
        if match.tokens:
            self.storage.sharing.start(request.row, match.ids, match.tokens)
            self.storage.copies.copy_state(np.array([match.state]), self.slots[request.row, :1])
        request.launched, request.prefill, request.cached = match.tokens, request.known, request.cached + match.tokens
        request.chunk = answers[0].chunk_tokens or self.chunk
        self.running.append(request)
        return True

    def take(self):
        """Pages for all that can go on, and their forward; where there is no room, who came last gives way."""
        while batch := [request for request in self.running if request.launched < request.rows]:
            stops = [chunk_stop(r.launched, max(r.prefill, r.launched + 1), r.chunk, self.grid) for r in batch]
            ids = self.storage.step(np.array([request.row for request in batch]), np.array(stops))
            if not isinstance(ids, Refused):
                return self.launch(list(zip(batch, stops, strict=True)), ids)
            if self.admission.free_for(tuple(ids.asked.get(name, 0) for name in self.storage.plan.names)):
                continue  # the cache gave enough back
            if self.flying:
                self.process()  # may end requests
            elif batch[1:]:
                self.leave(batch[-1], "waiting")
                batch[-1].retracted += 1
                self.waiting.insert(0, batch[-1])
            else:
                self.leave(batch[-1], f"failed: {ids}")
        return False

    def launch(self, batch, ids):
        """The pages are there: the kernels, a copy of each state that ends at a grid point, and the record."""
        tables = [ids.tables[name].copy() for name in self.storage.plan.names[1:]]
        work = [(r, r.launched, stop, ids.slots[at, 0], *(t[at] for t in tables)) for at, (r, stop) in enumerate(batch)]
        kept = [(r, stop) for r, stop in batch if stop % self.grid == 0 and self.slots[r.row, 1] >= 0]
        flight = self.storage.forwards.launch(ids)
        self.storage.forwards.run(flight, lambda: [forward(self.states, self.layers, *each) for each in work])
        for request, _ in kept:  # behind the kernels, on their stream
            self.storage.copies.copy_state(self.slots[request.row, :1], self.slots[request.row, 1:], flight)
        self.storage.forwards.record(flight)
        for request, stop in kept:
            request.kept[stop] = self.storage.sharing.hand_over_slot(request.row, 1)
        for request, stop in batch:
            request.launched = stop
        self.flying.append((flight, [(request, stop, request.kept) for request, stop in batch]))
        return True

    def process(self):
        """The oldest forward has ended: its tokens count, its checkpoints go to the cache."""
        flight, batch = self.flying.pop(0)
        self.storage.device.synchronize(flight.event)
        self.storage.forwards.process(flight)
        for request, stop, kept in [item for item in batch if item[2] is item[0].kept]:  # the others have left since
            if stop in kept:
                told = {"state": kept.pop(stop), "after": request.entry, "lock": True}
                request.entry = self.tree.insert(request.row, request.tokens, stop, **told).entry
                self.storage.sharing.take_slot(request.row, 1)  # for the next one; it is skipped where none can be had
            if stop >= request.prefill:
                request.known = stop + 1
                if stop == request.rows or request.tokens[stop] == END:
                    self.leave(request, "done")

    def leave(self, request, fate):
        """It runs no more; forwards in flight may still read what comes back here."""
        self.running.remove(request)
        self.storage.sharing.free_slots(np.array([*request.kept.values()], dtype=np.int64))
        self.storage.close(request.row)
        self.admission.forget(request.row)
        if request.entry:
            self.tree.unlock(request.entry)
        request.fate, request.kept = fate, None

    def abort(self, request):
        """Nobody wants its answer any more; what has ended stays as it is."""
        if request in self.running:
            self.leave(request, "aborted")
        elif request in self.waiting:
            self.waiting.remove(request)
            request.fate = "aborted"
