"""What a request takes when nobody else is served: what ``goodput`` measures against, and what it loads phases by."""

from collections.abc import Iterable
from itertools import pairwise

import attrs
import numpy as np
from mix import Load

from kvarena.planning.demand import decode_demand
from kvarena.planning.plan import Plan
from kvarena.plugins.replay.cost import CostModel
from kvarena.plugins.replay.gpus import Gpu
from kvarena.plugins.replay.trace_rows import TraceRow


@attrs.frozen
class Unloaded:
    """Seconds to the first token, and the mean seconds between tokens after it; 0 where there is only one."""

    first: float
    per_token: float


class Alone:
    """A model on a machine that serves one request at a time, with nothing cached.

    Decode steps are priced once per length, by the cost model of the replay itself.
    """

    def __init__(self, cost: CostModel, gpu: Gpu, chunk_tokens: int) -> None:
        self._cost = cost
        self._gpu = gpu
        self._chunk_tokens = chunk_tokens
        self._decode = np.zeros(1)
        """At n: the seconds of all decode steps from lengths below n."""
        self._known: dict[tuple[int, int], Unloaded] = {}

    def unloaded(self, row: TraceRow) -> Unloaded:
        """What this request takes, sampled tokens after the first one step each."""
        key = (row.prompt_tokens, row.output_tokens)
        if key not in self._known:
            self._known[key] = Unloaded(self._prefill(row.prompt_tokens)[0], self._per_token(*key))
        return self._known[key]

    def load(self, plan: Plan, rows: Iterable[TraceRow]) -> Load:
        """What these ask for on average: the bytes at their full length for as long as they run; their FLOPs."""
        memory, compute = [], []
        for row in rows:
            alone = self.unloaded(row)
            units = decode_demand(plan, row.prompt_tokens + row.output_tokens - 1)
            held = sum(pool.unit_bytes * count for pool, count in zip(plan.sub_pools, units, strict=True))
            memory.append(held * (alone.first + alone.per_token * (row.output_tokens - 1)))
            compute.append(self._prefill(row.prompt_tokens)[1])
        return Load(float(np.mean(memory)), float(np.mean(compute)))

    def _prefill(self, prompt_tokens: int) -> tuple[float, float]:
        """Seconds of a prompt's chunks, and the part of them that its FLOPs take."""
        edges = [*range(0, prompt_tokens, self._chunk_tokens), prompt_tokens]
        work = [self._cost.work(np.array([start]), np.array([stop])) for start, stop in pairwise(edges)]
        rate = self._gpu.peak_flops * self._gpu.compute_efficiency
        return sum(step.seconds(self._gpu) for step in work), sum(step.flops for step in work) / rate

    def _per_token(self, prompt_tokens: int, output_tokens: int) -> float:
        if output_tokens == 1:
            return 0.0
        stop = prompt_tokens + output_tokens - 1
        known = len(self._decode) - 1
        if stop > known:
            lengths = np.arange(known, max(stop, 2 * known, 4096))
            steps = [self._cost.work(np.array([at]), np.array([at + 1])).seconds(self._gpu) for at in lengths.tolist()]
            self._decode = np.concatenate([self._decode, self._decode[-1] + np.cumsum(steps)])
        return float(self._decode[stop] - self._decode[prompt_tokens]) / (output_tokens - 1)
