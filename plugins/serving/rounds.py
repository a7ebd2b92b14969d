"""One forward after another: launched over whoever runs, landed in the order of the launches.

1. launch  pages are taken for every running request, however much has to give way; the forward begins.
2. land    the oldest in flight is processed: tokens count, what others can start from goes to the cache, and who got
           the last token leaves. Where the runner failed, the requests of its batch end.
"""

import numpy as np

from kvarena.plugins.serving.config import ServingConfig
from kvarena.plugins.serving.counts import Counts
from kvarena.plugins.serving.ends import Ends
from kvarena.plugins.serving.flights import Flights, Landed
from kvarena.plugins.serving.port import Batch
from kvarena.plugins.serving.report import Forward
from kvarena.plugins.serving.seats import Seats
from kvarena.plugins.serving.stepping import Stepping
from kvarena.plugins.serving.use import UseMeter
from kvarena.storage.storage import Storage


class Rounds:
    """The forwards of one loop.

    Always: a forward that landed counts for the jobs that are still in their rows, and for nobody else
    """

    def __init__(
        self,
        storage: Storage,
        config: ServingConfig,
        stepping: Stepping,
        flights: Flights,
        seats: Seats,
        *,
        ends: Ends,
        counts: Counts,
        use: UseMeter,
    ) -> None:
        self._storage = storage
        self._config = config
        self._stepping = stepping
        self._flights = flights
        self._seats = seats
        self._ends = ends
        self._counts = counts
        self._use = use

    @property
    def flying(self) -> bool:
        """Whether a forward is in flight."""
        return len(self._flights) > 0

    def turn(self) -> bool:
        """Launch a forward, and land those that may not fly on; whether there was anything to do."""
        moved = self._launch() or self.land()
        while len(self._flights) >= self._flights.most:
            self.land()
        return moved

    def land(self) -> bool:
        """Process the oldest forward in flight; False where there is none.

        What its runner raised is raised here, once its requests have ended.
        """
        if not self._flights:
            return False
        landed = self._flights.land()
        if landed.error is not None:
            reason = f"the runner failed: {type(landed.error).__name__}: {landed.error}"
            for job in self._seats.leave(landed.batch.rows[landed.valid]):
                self._ends.fail(job, reason)
            raise landed.error
        seconds = landed.outcome.seconds
        self._ends.now += seconds
        self._counts.steps += 1
        self._counts.forwarded_tokens += int((landed.batch.stops - landed.batch.starts).sum())
        self._use.count(landed.held, seconds)
        self._process(landed)
        self._storage.flush()
        return True

    # -- inside

    def _launch(self) -> bool:
        """Launch a forward in which every running request advances; False where nobody has anything to run."""
        taken = self._stepping.take(self._config.step_tokens, self.land)
        if taken is None:
            return False
        ids, due = taken
        running, rows, stops = self._seats.running, ids.rows, ids.lengths
        samples = running.launched(rows, stops)
        self._flights.launch(Batch(rows, ids.starts, stops, samples, running.requests[rows], ids), due)
        self._stepping.settle(rows, stops)
        return True

    def _process(self, landed: Landed) -> None:
        """Tokens count, what others can start from goes to the cache, and who got the last token leaves."""
        running, prefixes = self._seats.running, self._seats.prefixes
        batch, valid, ended = landed.batch, landed.valid, landed.ended()
        rows, starts, stops, samples = batch.rows, batch.starts, batch.stops, batch.samples
        if not valid.all():
            rows, starts, stops = rows[valid], starts[valid], stops[valid]
            samples = samples[valid]
            ended = None if ended is None else ended[valid]
        if self._config.keep_forwards:
            pieces = (starts.tolist(), stops.tolist(), samples.tolist())
            for row, *piece in zip(rows.tolist(), *pieces, strict=True):
                running.jobs[row].trials[-1].add(Forward(*piece))
        firsts, lasts = running.processed(rows, stops, samples)
        self._counts.generated_tokens += int(np.count_nonzero(samples))
        for row in firsts.tolist():
            job = running.jobs[row]
            job.first_token_at = self._ends.now if job.first_token_at is None else job.first_token_at
        if prefixes is not None:
            for job, pending in landed.checkpoints:
                if pending in job.pending:  # else it was stopped, and the slot is free already
                    self._seats.keep(job, pending)
            prefills = stops <= running.prompts[rows]
            prefixes.chunks(rows[prefills], stops[prefills])
        if ended is not None and ended.any():
            lasts = np.union1d(lasts, rows[ended])
        if len(lasts):
            for job in self._seats.leave(lasts):
                self._ends.done(job)
        if prefixes is not None:
            prefixes.relax()
