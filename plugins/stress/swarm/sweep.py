"""Many seeds, one after another or on several workers: what each came to, and the case of each that broke a promise."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import attrs

from kvarena.plugins.stress.swarm.case import Case
from kvarena.plugins.stress.swarm.harness import run_seed, shrink_case
from kvarena.plugins.stress.swarm.world import draw_world
from kvarena.plugins.stress.workers import lost, worker_pool

AHEAD = 2
"""So many seeds a worker are handed out before their turn."""


@attrs.frozen(kw_only=True)
class Job:
    """One seed to run. ``storage``: the sections of a user's own config, in place of a drawn chain."""

    seed: int
    operations: int
    device: str = "simulated"
    minimize: bool = False
    storage: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class Ended:
    """What a seed came to. ``case``: what broke, and how to see it again; None where every promise held.

    ``seconds``: time that the process spent on the operations; shrinking is not counted.
    """

    seed: int
    operations: int
    seconds: float
    case: Case | None = None


def run_job(job: Job) -> Ended:
    """Run one seed, and shrink what breaks where the job says so.

    Raises:
        KvarenaError: the storage of this seed cannot be built.
    """
    began = time.process_time()
    run = run_seed(draw_world(job.seed, job.storage), job.operations, job.device)
    seconds = time.process_time() - began
    case = run.case
    if case is not None and job.minimize:
        case = shrink_case(case)
    return Ended(seed=job.seed, operations=run.operations, seconds=seconds, case=case)


def sweep(jobs: Sequence[Job], workers: int = 1) -> Iterator[Ended]:
    """Run the jobs; what each came to, in the order in which they end.

    Raises:
        KvarenaError: a storage cannot be built, or a worker was killed.
    """
    if workers <= 1 or len(jobs) <= 1:
        yield from map(run_job, jobs)
        return
    with worker_pool(min(workers, len(jobs))) as pool:
        yield from _in_turn(pool, jobs, AHEAD * workers)


def _in_turn(pool: ProcessPoolExecutor, jobs: Sequence[Job], most: int) -> Iterator[Ended]:
    """Keep the workers busy, and no more than that in their queue."""
    left = iter(jobs)
    under_way: dict[Future[Ended], Job] = {}
    while True:
        try:
            for job in left:
                under_way[pool.submit(run_job, job)] = job
                if len(under_way) >= most:
                    break
            if not under_way:
                return
            done = wait(under_way, return_when=FIRST_COMPLETED).done
            ended = [future.result() for future in done]
        except BrokenProcessPool:
            seeds = sorted(job.seed for job in under_way.values())
            raise lost(f"the seeds {', '.join(map(str, seeds))}") from None
        for future in done:
            del under_way[future]
        yield from ended
