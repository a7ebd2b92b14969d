"""The running requests as arrays by request row, so that a step costs vector operations, not a loop."""

import numpy as np
import numpy.typing as npt

from kvarena.planning.demand import chunk_stops
from kvarena.plugins.serving.job import RUNNING, Job
from kvarena.terms.ports import IntArray

Flags = npt.NDArray[np.bool_]


class Running:
    """The jobs in their rows, oldest admission first, and how far each has come.

    Arrays by row. ``known``: the tokens that are known or being sampled; a row whose length is there has nothing to
    do. ``most``: the rows that it will ever write. ``prompts``: the tokens that had to be forwarded when it started.
    ``done``: the rows of forwards that were processed. ``stamp``: 0, or a number that no other job has had, so that a
    result is told from one of the row's next job. ``cut``: where a chunk of the prompt is cut in two; 0: nowhere.
    """

    def __init__(self, rows: int, grid: int | None) -> None:
        self.jobs: dict[int, Job] = {}
        self.requests = np.full(rows, None, dtype=np.object_)
        columns = np.zeros((10, rows), dtype=np.int64)
        self.known, self.most, self.prompts, self.done, self.generated, self.outputs = columns[:6]
        self.chunk, self.stamp, self.cut, self._after_cut = columns[6:]
        self._grid = grid
        self._stamps = 0
        self._order: IntArray = np.empty(0, dtype=np.int64)
        self._order_stamps: IntArray = np.empty(0, dtype=np.int64)
        self._joined: list[int] = []
        self._left = False

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, row: int, job: Job, chunk_tokens: int, done: int) -> None:
        """A job starts in this row, in chunks of so many tokens at most, with ``done`` tokens there already."""
        self._stamps += 1
        job.place, job.row = RUNNING, row
        self.jobs[row], self.requests[row] = job, job.request
        self.known[row] = self.prompts[row] = job.known_tokens
        self.most[row] = job.request.prompt_tokens + job.outputs - 1
        self.generated[row], self.outputs[row] = job.generated, job.outputs
        self.done[row], self.chunk[row], self.stamp[row] = done, chunk_tokens, self._stamps
        self.cut[row], self._after_cut[row] = job.cut, 0
        self._joined.append(row)

    def remove(self, row: int) -> Job:
        """The job leaves its row; what was sampled for it and not processed is dropped."""
        job = self.jobs.pop(row)
        job.generated, job.row = int(self.generated[row]), -1
        self.requests[row], self.stamp[row] = None, 0
        self._left = True
        return job

    def rows(self) -> IntArray:
        """The rows in use, oldest admission first."""
        if self._left:
            here = self.stamp[self._order] == self._order_stamps
            self._order, self._order_stamps = self._order[here], self._order_stamps[here]
            self._joined = [row for row in self._joined if row in self.jobs]
            self._left = False
        if self._joined:
            self._order = np.concatenate((self._order, self._joined))
            self._order_stamps = self.stamp[self._order]
            self._joined.clear()
        return self._order

    def compose(self, lengths: IntArray, step_tokens: int) -> tuple[IntArray, IntArray]:
        """The rows of the next step and the length that each reaches in it, from lengths alone.

        Every row that decodes takes part; prefills, oldest first, share ``step_tokens`` in whole chunks: a chunk cut
        short would move the grid that admission priced. A row that waits for the result of its last token does not.
        """
        rows = self.rows()
        starts, stops = lengths[rows], self.known[rows]
        rest = stops - starts
        chosen = rest > 0
        prefills = (rest > 1).nonzero()[0]
        if len(prefills):
            ends = self._chunk(rows[prefills], starts[prefills], stops[prefills])
            stops[prefills] = ends
            chosen[prefills] = (ends - starts[prefills]).cumsum() <= step_tokens
        if chosen.all():
            return rows, stops
        return rows[chosen], stops[chosen]

    def _chunk(self, rows: IntArray, starts: IntArray, known: IntArray) -> IntArray:
        """Where the next chunks of these rows' prompts end."""
        return self._cut(rows, starts, chunk_stops(starts, known, self.chunk[rows], self._grid))

    def _cut(self, rows: IntArray, starts: IntArray, stops: IntArray) -> IntArray:
        """Chunks with a cut in them stop there; the next one has the rest, so that no step holds more than without."""
        cuts = self.cut[rows]
        if cuts.any():
            after = self._after_cut[rows]
            stops = np.where((starts == cuts) & (after > 0), after, stops)
            inside = (starts < cuts) & (cuts < stops)
            self._after_cut[rows[inside]] = stops[inside]
            stops = np.where(inside, cuts, stops)
        return stops

    def launched(self, rows: IntArray, stops: IntArray) -> Flags:
        """These rows are forwarded to these lengths; which of them sample their next token thereby."""
        known = self.known[rows]
        samples: Flags = stops == known
        self.known[rows] = np.minimum(known + samples, self.most[rows])
        return samples

    def processed(self, rows: IntArray, stops: IntArray, samples: Flags) -> tuple[IntArray, IntArray]:
        """These rows' results have come. Returns the rows that got their first token, and those that got their last."""
        self.done[rows] = stops
        sampled = rows[samples]
        generated = self.generated[sampled] + 1
        self.generated[sampled] = generated
        return sampled[generated == 1], sampled[generated >= self.outputs[sampled]]

    def victims(self, below: int | None = None) -> list[int]:
        """Whom a shortage stops, in this order: the lowest priority first, and of one priority the latest admitted.

        ``below``: only those of a lower priority.
        """
        rows = [
            row for row in reversed(self.rows().tolist()) if below is None or self.jobs[row].request.priority < below
        ]
        return sorted(rows, key=lambda row: self.jobs[row].request.priority)
