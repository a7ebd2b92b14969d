"""``kvarena run``: a model serves real traffic out of one arena, and every token is checked."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click
import torch
from transformers.utils import logging as transformers_logging

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.loader import check_eviction, make_eviction, make_policies
from kvarena.assembly.places import Places
from kvarena.plugins.cli.kv_option import kv_layout_option
from kvarena.plugins.cli.logs import settle_logs
from kvarena.plugins.cli.output import Progress, console, print_json
from kvarena.plugins.cli.run_config import RunConfig, read_run_config
from kvarena.plugins.cli.run_page import Finished, document, heading, planned, print_page
from kvarena.plugins.cli.run_prompts import with_prompts
from kvarena.plugins.cli.watching import Watch, WatchSettings, watch_options
from kvarena.plugins.models.kv_layout import KvLayout
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.replay.replay import requests_of
from kvarena.plugins.replay.traces import read_trace
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Progress as At
from kvarena.plugins.serving.scheduler import Scheduler
from kvarena.plugins.transformers.geometry import probe_layers
from kvarena.plugins.transformers.keeping import Keeping
from kvarena.plugins.transformers.runner import ModelRunner
from kvarena.plugins.transformers.text import load_local
from kvarena.plugins.transformers.tiny import TINY, load_model
from kvarena.plugins.transformers.verify import verify
from kvarena.storage.storage import Storage
from kvarena.terms.errors import KvarenaError

_GIVEN: Mapping[str, str] = {"model": "--model", "kv_layout": "--kv-layout"}
"""The options that stand for settings of the file."""

_NAMES = {"config": "a CONFIG", "dry_run": "--dry-run", "no_verify": "--no-verify"}


@click.command(short_help="Serve a model out of one arena and check every token.")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--model", help="A tiny model's name, or a folder with config.json, weights and tokenizer.")
@click.option("--prompt", help="Answer this text with the model folder instead of serving a trace.")
@click.option("--memory", default="2GiB", show_default=True, help="The arena's budget for --prompt.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True, help="For --prompt.")
@kv_layout_option
@click.option("--no-verify", is_flag=True, help="Do not repeat the run with transformers' own cache.")
@click.option("--dry-run", is_flag=True, help="Plan, and say what would run.")
@watch_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
def run(**options: Any) -> None:
    """Serve the requests of a trace with a model whose whole cache lives in one arena.

    CONFIG is a TOML file such as examples/quickstart.toml. With --model FOLDER --prompt TEXT, answer one
    prompt with a model from disk instead.
    """
    watched = WatchSettings.of(options)
    for name in ("prompt", "dry_run"):
        if options[name] and watched.flags:
            raise click.UsageError(f"{watched.flags[0]} watches a run of a CONFIG; --{name.replace('_', '-')} has none")
    if options["prompt"] is not None:
        for name in ("config", "dry_run", "no_verify"):
            if options[name]:
                raise click.UsageError(f"--prompt answers with a model folder; {_NAMES[name]} goes without it")
        _answer(options)
    elif options["config"] is None:
        raise click.UsageError("name a CONFIG file, or give --model FOLDER --prompt TEXT")
    else:
        given = {name: options[name] for name in _GIVEN}
        _serve(read_run_config(options["config"], **given), options)


def _answer(options: dict[str, Any]) -> None:
    if options["model"] is None:
        raise click.UsageError("--prompt needs --model FOLDER")
    kv_layout = KvLayout.named(options["kv_layout"], "--kv-layout")
    _quiet()
    found = load_local(options["model"]).answer(
        options["prompt"],
        memory=options["memory"],
        max_new_tokens=options["max_new_tokens"],
        kv_layout=kv_layout,
    )
    if options["as_json"]:
        print_json({"model": options["model"], "prompt": options["prompt"], **attrs.asdict(found)})
    else:
        click.echo(found.text)


def _serve(config: RunConfig, options: dict[str, Any]) -> None:
    """One run: the requests, the model, the storage, the loop, the check, the page."""
    given = {name: option for name, option in _GIVEN.items() if options[name] is not None}
    places = Places.in_file(options["config"], given, name=options["config"].name)
    settle_logs(config.logs)
    catalog = Catalog.installed(config.plugins, source=places)
    check_eviction(catalog, config.prefix, places)  # before a model is loaded, as all that a file can say
    make_policies(catalog, config.policies, places)
    kv_layout = KvLayout.named(config.kv_layout, places.place("kv_layout"), catalog)
    with places.reading("trace"):
        trace = read_trace(config.trace.file, config.trace)
    with places.reading("model"):
        model = _model(config)
    requests = with_prompts(tuple(requests_of(trace.rows)), model.config.get_text_config().vocab_size, config)
    keeping = Keeping.of(probe_layers(model), kv_layout)
    layers = keeping.layers
    storage = build_storage(layers, config.storage(layers, requests, places), catalog, source=places)
    try:
        if not options["as_json"]:
            console().print(heading(config, storage, requests, keeping))
        if options["dry_run"]:
            if options["as_json"]:
                print_json({**planned(config, storage, requests), "dry_run": True})
            return
        finished = _run(config, storage, model, requests, keeping=keeping, catalog=catalog, options=options)
    finally:
        storage.release()
    if options["as_json"]:
        print_json({**planned(config, storage, requests), **document(finished)})
    else:
        print_page(storage, finished)
    if finished.verdict is not None and not finished.verdict.equal:
        raise KvarenaError(f"the tokens differ from those of {finished.reference}: {finished.verdict.difference}")


def _quiet() -> None:
    """Transformers' own bars and notes would stand between our lines."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _model(config: RunConfig) -> Any:
    """A tiny model by name, or one from a folder; without the notes on kernels that no tiny model needs."""
    _quiet()
    if config.model in TINY:
        torch.set_num_threads(1)  # several threads make such small tensors ten times slower
    return load_model(config.model, config.seed)


def _run(
    config: RunConfig,
    storage: Storage,
    model: Any,
    requests: tuple[Request, ...],
    *,
    keeping: Keeping,
    catalog: Catalog,
    options: dict[str, Any],
) -> Finished:
    check = not options["no_verify"]
    quiet = options["as_json"]
    clock = config.clock
    runner = ModelRunner(
        model, storage, keeping=keeping, step_seconds=clock.step_seconds, token_seconds=clock.token_seconds
    )
    serving = attrs.evolve(config.serving, keep_forwards=check)
    cache = PrefixTree(storage, make_eviction(catalog, config.prefix)) if config.prefix.share else None
    scheduler = Scheduler(storage, runner, serving, cache=cache)
    began = time.perf_counter()
    with Watch(WatchSettings.of(options)) as watch, Progress("requests", len(requests), quiet=quiet) as progress:

        def show(at: At) -> None:
            progress.at(at.finished, f"{at.running} running, {at.waiting} waiting")
            watch.at(at)

        watch.open(scheduler)
        report = scheduler.run(requests, show)
        watch.finish()
    served = time.perf_counter()
    verdict = None
    if check:
        with Progress("checking", len(requests), quiet=quiet) as progress:
            verdict = verify(model, report, runner.tokens, on_request=progress.at, keeping=keeping)
    return Finished(report, verdict, served - began, time.perf_counter() - served, codec=keeping.codec)
