"""``kvarena run``: a model serves real traffic out of one arena, and every token is checked."""

import time
from pathlib import Path
from typing import Any

import attrs
import click
import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.planning.plan import SubPool
from kvarena.plugins.cli.output import Progress, console, pairs, print_json, table
from kvarena.plugins.cli.run_config import RunConfig, read_run_config
from kvarena.plugins.replay.replay import requests_of
from kvarena.plugins.replay.traces import read_trace
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import DONE, FAILED, REFUSED, Report
from kvarena.plugins.serving.scheduler import Progress as At
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.plugins.transformers.folder import load_folder
from kvarena.plugins.transformers.geometry import probe_layers
from kvarena.plugins.transformers.runner import ModelRunner
from kvarena.plugins.transformers.text import load_local
from kvarena.plugins.transformers.tiny import TINY, build_tiny
from kvarena.plugins.transformers.verify import Verdict, verify
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError
from kvarena.terms.units import format_bytes


@attrs.frozen
class Finished:
    """A run and what it measured."""

    report: Report
    verdict: Verdict | None
    wall_seconds: float
    verify_seconds: float


@click.command(short_help="Serve a model out of one arena and check every token.")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--model", help="A tiny model's name, or a folder with config.json, weights and tokenizer.")
@click.option("--prompt", help="Answer this text with the model folder instead of serving a trace.")
@click.option("--memory", default="2GiB", show_default=True, help="The arena's budget for --prompt.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True, help="For --prompt.")
@click.option("--no-verify", is_flag=True, help="Do not repeat the run with transformers' own cache.")
@click.option("--dry-run", is_flag=True, help="Plan, and say what would run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
def run(**options: Any) -> None:
    """Serve the requests of a trace with a model whose whole cache lives in one arena.

    CONFIG is a TOML file such as examples/quickstart.toml. With --model FOLDER --prompt TEXT, answer one
    prompt with a model from disk instead.
    """
    if options["prompt"] is not None:
        _answer(options)
    elif options["config"] is None:
        raise click.UsageError("name a CONFIG file, or give --model FOLDER --prompt TEXT")
    else:
        _serve(read_run_config(options["config"], options["model"]), options)


def _answer(options: dict[str, Any]) -> None:
    if options["model"] is None:
        raise click.UsageError("--prompt needs --model FOLDER")
    found = load_local(options["model"]).answer(
        options["prompt"], memory=options["memory"], max_new_tokens=options["max_new_tokens"]
    )
    if options["as_json"]:
        print_json({"model": options["model"], "prompt": options["prompt"], **attrs.asdict(found)})
    else:
        click.echo(found.text)


def _serve(config: RunConfig, options: dict[str, Any]) -> None:
    """One run: the requests, the model, the storage, the loop, the check, the page."""
    trace = read_trace(config.trace.file, config.trace.options())
    model = _model(config)
    requests = _with_prompts(tuple(requests_of(trace.rows)), model.config.get_text_config().vocab_size, config.seed)
    layers = probe_layers(model)
    catalog = Catalog.installed(config.plugins)
    storage = build_storage(layers, config.storage(layers, requests), catalog, source=options["config"].name)
    try:
        if not options["as_json"]:
            console().print(_heading(config, storage, requests))
        if options["dry_run"]:
            if options["as_json"]:
                print_json({**_planned(config, storage, requests), "dry_run": True})
            return
        finished = _run(config, storage, model, requests, options)
    finally:
        storage.release()
    if options["as_json"]:
        print_json({**_planned(config, storage, requests), **_document(finished)})
    else:
        _print(storage, finished)
    if finished.verdict is not None and not finished.verdict.equal:
        raise ConfigError(f"the tokens differ from those of transformers' own cache: {finished.verdict}")


def _model(config: RunConfig) -> Any:
    """A tiny model by name, or one from a folder; without the notes on kernels that no tiny model needs."""
    transformers_logging.set_verbosity_error()
    if config.model not in TINY:
        return load_folder(config.model)
    torch.set_num_threads(1)  # several threads make such small tensors ten times slower
    return build_tiny(config.model, config.seed)


def _with_prompts(requests: tuple[Request, ...], vocabulary: int, seed: int) -> tuple[Request, ...]:
    """A trace has lengths only: draw each prompt's tokens, leaving out the first few ids, which are special."""
    draw = np.random.default_rng(seed)
    return tuple(
        attrs.evolve(request, prompt=tuple(draw.integers(3, vocabulary, request.prompt_tokens).tolist()))
        for request in requests
    )


def _run(
    config: RunConfig, storage: Storage, model: Any, requests: tuple[Request, ...], options: dict[str, Any]
) -> Finished:
    check = not options["no_verify"]
    quiet = options["as_json"]
    runner = ModelRunner(
        model, storage, step_seconds=config.clock.step_seconds, token_seconds=config.clock.token_seconds
    )
    scheduler = Scheduler(storage, runner, attrs.evolve(config.serving, keep_forwards=check))
    began = time.perf_counter()
    with Progress("requests", len(requests), quiet=quiet) as progress:

        def show(at: At) -> None:
            progress.at(at.finished, f"{at.running} running, {at.waiting} waiting")

        report = scheduler.run(requests, show)
    served = time.perf_counter()
    verdict = None
    if check:
        with Progress("checking", len(requests), quiet=quiet) as progress:
            verdict = verify(model, report, runner.tokens, on_request=progress.at)
    return Finished(report, verdict, served - began, time.perf_counter() - served)


def _planned(config: RunConfig, storage: Storage, requests: tuple[Request, ...]) -> dict[str, Any]:
    sizing = storage.sizing
    return {
        "version": 1,
        "model": config.model,
        "requests": len(requests),
        "prompt_tokens": sum(request.prompt_tokens for request in requests),
        "output_tokens": sum(request.output_tokens for request in requests),
        "arena_bytes": sizing.arena_bytes,
        "page_tokens": storage.plan.page_tokens,
        "running": sizing.running,
        "sub_pools": {name: sizing.units[name] for name in storage.plan.names},
    }


def _heading(config: RunConfig, storage: Storage, requests: tuple[Request, ...]) -> str:
    """What runs, before it runs."""
    sizing, plan = storage.sizing, storage.plan
    bands = "   ".join(
        f"{pool.name}: {len(pool.layers)} layers, {format_bytes(pool.unit_bytes)} a {_unit(pool)}"
        for pool in plan.sub_pools
    )
    prompts, outputs = (
        sum(getattr(request, name) for request in requests) for name in ("prompt_tokens", "output_tokens")
    )
    return pairs(
        {
            "model": f"{config.model}{' (tiny, random weights)' if config.model in TINY else ''}",
            "bands": bands,
            "arena": f"{format_bytes(sizing.arena_bytes)} on {storage.device.name}, "
            f"pages of {plan.page_tokens} tokens, at most {sizing.running} requests at once",
            "trace": f"{len(requests)} requests of {config.trace.file.name}: {prompts:,} prompt tokens, "
            f"{outputs:,} to generate",
            "loop": f"chunks of {config.serving.chunk_tokens}, output_fraction {config.serving.output_fraction:g}",
        }
    )


def _document(finished: Finished) -> dict[str, Any]:
    report = finished.report
    return {
        "done": report.count(DONE),
        "refused": report.count(REFUSED),
        "failed": report.count(FAILED),
        "waits": report.waits,
        "retractions": report.retractions,
        "steps": report.steps,
        "tokens_forwarded": report.tokens_forwarded,
        "pages_moved": report.pages_moved,
        "bands": [attrs.asdict(band) for band in report.bands],
        "tokens_equal": None if finished.verdict is None else finished.verdict.equal,
        "tokens_compared": None if finished.verdict is None else finished.verdict.tokens,
        "wall_seconds": round(finished.wall_seconds, 3),
        "verify_seconds": round(finished.verify_seconds, 3),
        "kvarena_share": round(_share(finished), 4),
    }


def _unit(pool: SubPool) -> str:
    return "slot" if pool.is_slots else "page"


def _share(finished: Finished) -> float:
    """The share of serving that went into kvarena's own decisions."""
    return finished.report.memory_cpu_seconds / finished.wall_seconds


def _print(storage: Storage, finished: Finished) -> None:
    """The page for a person, the line that matters last."""
    report, targets = finished.report, storage.sizing.units
    rows = [
        (band.name, format_bytes(band.unit_bytes), targets[band.name], band.peak, f"{band.mean:.1f}")
        for band in report.bands
    ]
    out = console()
    out.print()
    out.print(table("", ("band", "unit", "boot target", "peak", "mean"), rows))
    out.print()
    ends = ", ".join(f"{report.count(fate)} {fate}" for fate in (DONE, REFUSED, FAILED) if report.count(fate))
    out.print(
        pairs(
            {
                "requests": f"{ends}; {report.waits} waited, {report.retractions} retractions",
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
            f"transformers' own cache ({finished.verify_seconds:.1f} s)"
        )
