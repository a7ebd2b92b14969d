"""From the loop's report to one JSON document, and figures that two runs of a command share to the bit."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from kvarena.plugins.serving.report import ABORTED, DONE, FAILED, REFUSED, BandUse, CacheUse, Report, Served

PERCENTILES = (50, 90, 99)
LISTED_MAX = 20
"""How many refused requests, and skipped rows, are listed one by one."""


def summarize(report: Report) -> dict[str, Any]:
    """Requests by fate, latencies and throughput on the loop's clock, and what each band held.

    Times are seconds, ``bands`` in chain order. No figure depends on the machine that replays.
    """
    done = [served for served in report.served if served.fate == DONE]
    return {
        "requests": {
            "total": len(report.served),
            "done": len(done),
            "refused": report.count(REFUSED),
            "failed": report.count(FAILED),
            "aborted": report.count(ABORTED),
            "clipped": sum(served.clipped for served in report.served),
            "retracted": sum(served.retractions > 0 for served in report.served),
            "retractions": report.retractions,
            "preemptions": report.preemptions,
            "waited": report.waits,
        },
        "latency": {
            "time_to_first_token": spread(served.time_to_first_token for served in done),
            "time_per_token": spread(served.time_per_token for served in done),
            "end_to_end": spread(_end_to_end(served) for served in done),
        },
        "throughput": _throughput(done, report),
        "steps": report.steps,
        "pages_moved": report.pages_moved,
        "bands": [_band(band) for band in report.bands],
        "cache": _cache(report.cache),
        "refusals": _refusals(report.served),
    }


def timings(report: Report, wall_seconds: float) -> dict[str, float]:
    """What the replay itself cost on this machine: wall times, which differ from run to run."""
    steps = max(1, report.steps)
    return {
        "wall_seconds": wall_seconds,
        "requests_per_second": len(report.served) / wall_seconds,
        "allocator_us_per_step": report.memory_cpu_seconds / steps * 1e6,
        "runner_us_per_step": report.runner_seconds / steps * 1e6,
        "loop_us_per_step": wall_seconds / steps * 1e6,
    }


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, percentiles and maximum of the values that there are; None without any.

    A percentile is the least value with so many per cent of the values at or below it.
    """
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(found):
        return None
    marks = np.percentile(found, PERCENTILES, method="inverted_cdf").tolist()
    return {
        "mean": float(found.mean()),
        **{f"p{percent}": mark for percent, mark in zip(PERCENTILES, marks, strict=True)},
        "max": float(found.max()),
    }


def _end_to_end(served: Served) -> float | None:
    return None if served.finished_at is None else served.finished_at - served.request.arrival


def _throughput(done: list[Served], report: Report) -> dict[str, float | int]:
    """Of the requests that were done; the tokens forwarded count recomputation after retractions too."""
    prompts = sum(served.request.prompt_tokens for served in done)
    outputs = sum(served.generated for served in done)
    seconds = report.seconds
    return {
        "seconds": seconds,
        "requests_per_second": len(done) / seconds if seconds else 0.0,
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "output_tokens_per_second": outputs / seconds if seconds else 0.0,
        "tokens_forwarded": report.tokens_forwarded,
    }


def _band(band: BandUse) -> Mapping[str, Any]:
    return {
        "name": band.name,
        "unit_bytes": band.unit_bytes,
        "peak": band.peak,
        "mean": band.mean,
        "peak_bytes": band.peak * band.unit_bytes,
        "mean_bytes": band.mean * band.unit_bytes,
        "moves": band.moves,
        "refusals": band.refusals,
    }


def _cache(cache: CacheUse | None) -> dict[str, Any] | None:
    return None if cache is None else {**attrs.asdict(cache), "hit_rate": cache.hit_rate}


def _refusals(served: Iterable[Served]) -> list[dict[str, Any]]:
    refused = [one for one in served if one.fate in (REFUSED, FAILED)]
    return [{"request": one.request.id, "fate": one.fate, "reason": one.reason} for one in refused[:LISTED_MAX]]
