"""What ``kvarena run`` says: what will run, how it went, and whether the tokens are equal."""

from typing import Any

import attrs

from kvarena.planning.plan import SubPool
from kvarena.plugins.cli.output import console, pairs, table
from kvarena.plugins.cli.run_config import RunConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import DONE, FAILED, REFUSED, Report
from kvarena.plugins.transformers.keeping import Keeping
from kvarena.plugins.transformers.tiny import TINY
from kvarena.plugins.transformers.verify import Verdict
from kvarena.storage.storage import Storage
from kvarena.terms.units import format_bytes


@attrs.frozen
class Finished:
    """A run and what it measured. ``codec``: the layout whose codec keys and values went through, if one."""

    report: Report
    verdict: Verdict | None
    wall_seconds: float
    verify_seconds: float
    codec: str = ""

    @property
    def reference(self) -> str:
        """What the tokens are compared with, in words."""
        return f"transformers' own cache{f' through the codec of {self.codec!r}' if self.codec else ''}"


def planned(config: RunConfig, storage: Storage, requests: tuple[Request, ...]) -> dict[str, Any]:
    """What would run, for ``--dry-run --json``: the model, the trace in tokens, the arena and its bands."""
    sizing = storage.sizing
    return {
        "version": 1,
        "model": config.model,
        "kv_layout": None if config.kv_layout is None else config.kv_layout.name,
        "requests": len(requests),
        "prompt_tokens": sum(request.prompt_tokens for request in requests),
        "output_tokens": sum(request.output_tokens for request in requests),
        "arena_bytes": sizing.arena_bytes,
        "page_tokens": storage.plan.page_tokens,
        "running": sizing.running,
        "sub_pools": {name: sizing.units[name] for name in storage.plan.names},
    }


def heading(config: RunConfig, storage: Storage, requests: tuple[Request, ...], keeping: Keeping) -> str:
    """What runs, before it runs."""
    sizing, plan = storage.sizing, storage.plan
    bands = "   ".join(
        f"{pool.name}: {_layers(pool)}, {format_bytes(pool.unit_bytes)} a {_unit(pool)}" for pool in plan.sub_pools
    )
    prompts, outputs = (
        sum(getattr(request, name) for request in requests) for name in ("prompt_tokens", "output_tokens")
    )
    return pairs(
        {
            "model": f"{config.model}{' (tiny, random weights)' if config.model in TINY else ''}",
            **_kept(config, keeping),
            "bands": bands,
            "arena": f"{format_bytes(sizing.arena_bytes)} on {storage.device.name}, "
            f"pages of {plan.page_tokens} tokens, at most {sizing.running} requests at once",
            "trace": f"{len(requests)} requests of {config.trace.file.name}: {prompts:,} prompt tokens, "
            f"{outputs:,} to generate",
            "loop": f"chunks of {config.serving.chunk_tokens}, output_fraction {config.serving.output_fraction:g}, "
            f"{_in_flight(storage)}{_sharing(config, storage)}",
        }
    )


def _kept(config: RunConfig, keeping: Keeping) -> dict[str, str]:
    if config.kv_layout is None:
        return {}
    kept, written = (
        sum(field.bytes for rows in keeping.rows.values() for field in getattr(rows, which))
        for which in ("fields", "written")
    )
    return {"kv layout": f"{config.kv_layout}: {kept:,} B a token in all layers, {written:,} B as the model writes it"}


def _in_flight(storage: Storage) -> str:
    count = storage.sizing.limits.in_flight
    return f"{count} forwards in flight" if count else "one forward after another"


def _sharing(config: RunConfig, storage: Storage) -> str:
    if not config.prefix.share:
        return ""
    grid = storage.sizing.limits.grid
    return ", prefixes shared" + ("" if grid is None else f", checkpoints every {grid} tokens")


def document(finished: Finished) -> dict[str, Any]:
    """What a run did, for ``--json``: ends, waits, steps, seconds, the use of each band, and the verdict."""
    report = finished.report
    return {
        "done": report.count(DONE),
        "refused": report.count(REFUSED),
        "failed": report.count(FAILED),
        "waits": report.waits,
        "retractions": report.retractions,
        "preemptions": report.preemptions,
        "cache": None if report.cache is None else attrs.asdict(report.cache),
        "steps": report.steps,
        "tokens_forwarded": report.tokens_forwarded,
        "pages_moved": report.pages_moved,
        "bands": [attrs.asdict(band) for band in report.bands],
        "tokens_equal": None if finished.verdict is None else finished.verdict.equal,
        "tokens_reference": None if finished.verdict is None else finished.reference,
        "tokens_compared": None if finished.verdict is None else finished.verdict.tokens,
        "wall_seconds": round(finished.wall_seconds, 3),
        "verify_seconds": round(finished.verify_seconds, 3),
        "kvarena_share": round(_share(finished), 4),
    }


def _layers(pool: SubPool) -> str:
    return f"{len(pool.layers)} layer{'' if len(pool.layers) == 1 else 's'}"


def _unit(pool: SubPool) -> str:
    return "slot" if pool.is_slots else "page"


def _share(finished: Finished) -> float:
    """The share of serving that went into kvarena's own decisions."""
    return finished.report.memory_cpu_seconds / finished.wall_seconds


def _cache_line(report: Report) -> dict[str, str]:
    cache = report.cache
    if cache is None:
        return {}
    return {
        "prefixes": f"{cache.cached_tokens:,} of {cache.prompt_tokens:,} tokens were cached "
        f"({100 * cache.hit_rate:.0f} %); {cache.checkpoints_taken:,} checkpoints of states, "
        f"{cache.evictions:,} evictions"
    }


def print_page(storage: Storage, finished: Finished) -> None:
    """The page for a person, the line that matters last."""
    report, targets = finished.report, storage.sizing.units
    rows = [
        (
            band.name,
            format_bytes(band.unit_bytes),
            targets[band.name],
            band.peak,
            f"{band.mean:.1f}",
            band.moves,
            band.refusals,
        )
        for band in report.bands
    ]
    out = console()
    out.print()
    out.print(table("", ("band", "unit", "boot target", "peak", "mean", "moves", "refusals"), rows))
    out.print()
    ends = ", ".join(f"{report.count(fate)} {fate}" for fate in (DONE, REFUSED, FAILED) if report.count(fate))
    out.print(
        pairs(
            {
                "requests": f"{ends}; {report.waits} waited, {report.retractions} retractions",
                **_cache_line(report),
                "steps": f"{report.steps:,}, {report.tokens_forwarded:,} tokens forwarded, "
                f"{report.pages_moved} pages moved",
                "wall time": f"{finished.wall_seconds:.1f} s, {100 * _share(finished):.1f} % of it in kvarena",
            }
        )
    )
    verdict = finished.verdict
    if verdict is None:
        out.print("tokens     not checked (--no-verify)")
    else:
        sign = "equal" if verdict.equal else "DIFFER"
        out.print(
            f"tokens     {sign}: {verdict.tokens:,} greedy tokens of {verdict.requests} requests against "
            f"{finished.reference} ({finished.verify_seconds:.1f} s)"
        )
