"""The runner of a replay: no model and no tokens, only the time that the cost model gives each step."""

from collections import deque
from collections.abc import Callable

from kvarena.ledger.steps import Forward
from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import Gpu
from kvarena.plugins.replay.keys import TraceKeys
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.terms.ports import IntArray


class ReplayRunner:
    """Runs batches by pricing them. Every request generates as many tokens as its trace says.

    ``moved_bytes`` tells how many bytes the allocator has moved so far: what it moved since the launch before is read
    and written before this forward runs, at the GPU's bandwidth. None: moves cost nothing.
    """

    def __init__(
        self,
        cost: CostModel,
        gpu: Gpu,
        moved_bytes: Callable[[], int] | None = None,
        keys: TraceKeys | None = None,
    ) -> None:
        self._cost = cost
        self._gpu = gpu
        self._moved_bytes = moved_bytes
        self._moved_before = 0
        self._keys = keys or TraceKeys()
        self._seconds: deque[float] = deque()

    def launch(self, batch: Batch, forward: Forward) -> None:
        """Price the batch; there is nothing to run."""
        self._seconds.append(self._cost.work(batch.starts, batch.stops).seconds(self._gpu) + self._moving())

    def result(self, batch: Batch) -> Outcome:
        """The seconds that the GPU takes for the batch."""
        return Outcome(seconds=self._seconds.popleft())

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """None are made."""
        return ()

    def keys(self, request: Request, count: int) -> IntArray | None:
        """The tokens as the trace names them."""
        return self._keys.of(request, count)

    def _moving(self) -> float:
        """The seconds that moves since the launch before take."""
        if self._moved_bytes is None:
            return 0.0
        before, self._moved_before = self._moved_before, self._moved_bytes()
        gpu = self._gpu
        return 2 * (self._moved_before - before) / (gpu.bandwidth * gpu.bandwidth_efficiency)
