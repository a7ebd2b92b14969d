"""A cost model of one step: what a batch computes and moves, and how long a GPU takes for it.

    seconds = max(FLOPs / (peak * efficiency), bytes / (bandwidth * efficiency)) + overhead

FLOPs: the dense ones of each new token (2 per active parameter), and attention's for each pair of a new
token and a row that it sees, by the lifetime of the sub-pool. Bytes: the weights once, the rows that each
chunk sees once, the rows it writes, and each state read and written once. Left out: communication between
ranks, activations, and the padding of kernels.
"""

import attrs
import numpy as np

from kvarena.plugins.replay.gpus import Gpu
from kvarena.terms.lifetimes import Lifetime
from kvarena.terms.ports import IntArray


@attrs.frozen
class PoolCost:
    """What one sub-pool, or a part of it that is read alike, costs a step.

    ``entry_bytes`` is one token's rows over the layers that own them, or a request's whole state;
    ``read_bytes`` the same over the layers that read them, None where these are the owners.
    ``flops_per_row`` is for each new token and each row it sees; for a state (``lifetime.own_ids``), for each
    new token. ``rows_max`` is the most rows that a query reads of those that are kept (sparse attention).
    """

    lifetime: Lifetime
    entry_bytes: float
    flops_per_row: float = 0.0
    rows_max: int | None = None
    read_bytes: float | None = None


@attrs.frozen
class ModelCost:
    """A model on one rank in plain numbers.

    ``weights_bytes`` are all weights; ``active_share`` is the part that one token uses, 1 for a dense model.
    """

    weights_bytes: float
    flops_per_token: float
    pools: tuple[PoolCost, ...] = ()
    active_share: float = attrs.field(default=1.0, validator=[attrs.validators.gt(0), attrs.validators.le(1)])

    def weights_read(self, tokens: int) -> float:
        """Bytes of weights that a step of this many tokens reads.

        For experts an approximation: the first token reads its active share, and each further one an
        independent active share of what is still unread. Exact for one token, and for a dense model.
        """
        unread = (1 - self.active_share) ** tokens
        return self.weights_bytes * (1 - unread) if tokens else 0.0


@attrs.frozen
class Work:
    """What a step computes and moves."""

    flops: float
    bytes: float

    def seconds(self, gpu: Gpu) -> float:
        """The longer of the two, and the constant."""
        computing = self.flops / (gpu.peak_flops * gpu.compute_efficiency)
        moving = self.bytes / (gpu.bandwidth * gpu.bandwidth_efficiency)
        return max(computing, moving) + gpu.overhead_us * 1e-6


class CostModel:
    """The work of batches of one model. Holds tables of the rows that each lifetime shows to a query."""

    def __init__(self, model: ModelCost) -> None:
        self.model = model
        self._pools = tuple(pool for pool in model.pools if pool.entry_bytes or pool.flops_per_row)
        self._seen = {pool: SeenRows(pool.lifetime, pool.rows_max) for pool in self._pools if not pool.lifetime.own_ids}

    def work(self, starts: IntArray, stops: IntArray) -> Work:
        """The work of forwarding tokens ``[starts[i], stops[i])`` of each sequence i in one step."""
        tokens = int((stops - starts).sum())
        flops = self.model.flops_per_token * tokens
        moved = self.model.weights_read(tokens)
        for pool in self._pools:
            if pool.lifetime.own_ids:
                flops += pool.flops_per_row * tokens
                moved += 2 * pool.entry_bytes * len(starts)
                continue
            before, pairs = self._seen[pool].count(starts, stops)
            flops += pool.flops_per_row * pairs
            read_bytes = pool.entry_bytes if pool.read_bytes is None else pool.read_bytes
            moved += read_bytes * (before + tokens) + pool.entry_bytes * tokens
        return Work(flops, moved)


class SeenRows:
    """How many rows the queries of a chunk see, for any lifetime, from its own ``retained``.

    ``_before[p]`` is what the query at p reads before it; ``_pairs[p]`` is the sum over all queries before p
    of that and their own row. Both grow by doubling to the longest sequence that was asked for.
    """

    def __init__(self, lifetime: Lifetime, rows_max: int | None = None) -> None:
        self._lifetime = lifetime
        self._rows_max = rows_max
        self._before: IntArray = np.zeros(0, dtype=np.int64)
        self._pairs: IntArray = np.zeros(1, dtype=np.int64)

    def count(self, starts: IntArray, stops: IntArray) -> tuple[int, int]:
        """(rows before their chunk that the chunks read, pairs of a query and a row), summed over chunks.

        Queries of a chunk that choose ``rows_max`` rows each are taken to choose different ones, as far as
        there are so many.
        """
        if not len(starts):
            return 0, 0
        self._reach(int(stops.max()) + 1)
        pairs = int((self._pairs[stops] - self._pairs[starts]).sum())
        if self._rows_max is None:
            return int(self._before[starts].sum()), pairs
        return int(np.minimum(starts, self._before[starts] * (stops - starts)).sum()), pairs

    def _reach(self, length: int) -> None:
        known = len(self._before)
        if length <= known:
            return
        length = max(length, 2 * known, 4096)
        more = np.fromiter(map(self._lifetime.retained, range(known, length)), dtype=np.int64, count=length - known)
        if self._rows_max is not None:
            more = np.minimum(more, self._rows_max - 1)
        self._pairs = np.concatenate([self._pairs, self._pairs[-1] + np.cumsum(more + 1)])
        self._before = np.concatenate([self._before, more])
