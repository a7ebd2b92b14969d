"""The runner of a replay: no model and no tokens, only the time that the cost model gives each step."""

from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import Gpu
from kvarena.plugins.serving.port import Batch, Outcome


class ReplayRunner:
    """Runs batches by pricing them. Every request generates as many tokens as its trace says."""

    def __init__(self, cost: CostModel, gpu: Gpu) -> None:
        self._cost = cost
        self._gpu = gpu

    def run(self, batch: Batch) -> Outcome:
        """The seconds that the GPU would take for the batch."""
        return Outcome(seconds=self._cost.work(batch.starts, batch.stops).seconds(self._gpu))

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """None are made."""
        return ()
