"""``kvarena replay``: a trace through the serving loop on the host backend, priced by a cost model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from kvarena.assembly.config import EXTRA_BUFFER, STRATEGIES, SettingError
from kvarena.assembly.loader import check_eviction, make_policies
from kvarena.assembly.places import Places
from kvarena.plugins.cli.context import AMOUNT, DTYPE, FILE, catalog_of, json_option
from kvarena.plugins.cli.kv_option import kv_layout_option
from kvarena.plugins.cli.output import Progress, console, pairs, print_json, table
from kvarena.plugins.cli.replay_config import configured
from kvarena.plugins.cli.watching import Watch, WatchSettings, watch_options
from kvarena.plugins.models import ModelSpec, read_config, read_model
from kvarena.plugins.models.kv_layout import KvLayout
from kvarena.plugins.replay.gpus import Gpu, load_gpu, preset_names
from kvarena.plugins.replay.replay import ReplaySettings
from kvarena.plugins.replay.replay import replay as replay_trace
from kvarena.plugins.replay.traces import ON_BAD, READERS, TraceOptions, read_trace
from kvarena.plugins.serving import scheduler
from kvarena.terms.errors import ConfigError
from kvarena.terms.units import format_bytes

T = TypeVar("T")

PARAMETERS_MAX = 1e15
PLACES = Places(
    options={
        "arena.memory": "--memory",
        "arena.page_tokens": "--page-size",
        "arena.context_tokens": "--context",
        "arena.max_running": "--max-running",
        "arena.forwards_in_flight": "--forwards-in-flight",
        "prefix.strategy": "--strategy",
        "prefix.checkpoint_tokens": "--checkpoint-tokens",
        "prefix.eviction": "--eviction",
    }
)
"""Which options stand for settings of a storage."""

_MODEL = (
    click.option("--model", type=FILE, required=True, help="A model's config.json, or a folder with one."),
    click.option("--memory", type=AMOUNT, help="The budget of one rank, such as 60GiB."),
    click.option(
        "--config", type=FILE, help="TOML with [arena], [prefix], [policies], [plugins]; options go before it."
    ),
    click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks."),
    click.option("--dtype", type=DTYPE, help="Of keys and values; the config's own by default."),
    kv_layout_option,
    click.option("--page-size", "page_tokens", type=click.IntRange(min=1), help="Tokens a page; 16 by default."),
    click.option("--parameters", type=float, help="Parameters of the model, where the config does not say."),
    click.option("--active-parameters", type=float, help="Those that one token uses; all by default."),
    click.option("--gpu", default="h100", show_default=True, help=f"{', '.join(preset_names())}, or FILE.toml[:NAME]."),
)
_TRACE = (
    click.option("--trace", type=FILE, required=True, help="A trace file, or a folder of sessions."),
    click.option("--format", help=f"Of the trace: {', '.join(READERS)}. Told from the content by default."),
    click.option(
        "--on-bad",
        type=click.Choice(ON_BAD),
        default="stop",
        show_default=True,
        help="What a bad row of the trace does.",
    ),
    click.option("--limit", type=int, help="Only so many requests."),
    click.option("--start", type=float, default=0.0, help="Only requests from this second of the trace on."),
    click.option("--stop", type=float, help="Only requests before this second."),
    click.option("--time-scale", type=float, default=1.0, help="0.5 lets requests arrive twice as fast."),
    click.option("--length-scale", type=float, default=1.0, help="0.1 makes prompts and outputs ten times shorter."),
    click.option("--prompt-max", type=int, help="Cut prompts to so many tokens."),
    click.option("--output-max", type=int, help="Cut outputs to so many tokens."),
    click.option("--seed", type=int, default=0, help="For traces that are distributions (ServeGen)."),
)
_LOOP = (
    click.option("--context", "context_tokens", type=click.IntRange(min=1), help="The longest request, in tokens."),
    click.option("--max-running", type=int, default=256, show_default=True, help="The most requests that run at once."),
    click.option("--chunk-tokens", type=int, default=2048, show_default=True, help="The prefill chunk of a request."),
    click.option("--step-tokens", type=int, default=8192, show_default=True, help="What the prefills of a step share."),
    click.option(
        "--output-fraction",
        type=float,
        default=1.0,
        show_default=True,
        help="Share of its output a request is charged.",
    ),
    click.option(
        "--forwards-in-flight",
        type=int,
        default=2,
        show_default=True,
        help="So many are launched before the oldest one's result is looked at; 0: one after another.",
    ),
    click.option("--timings", "with_timings", is_flag=True, help="Add wall times: they differ from run to run."),
)
_PREFIX = (
    click.option(
        "--prefix-cache/--no-prefix-cache",
        "prefix_cache",
        default=False,
        help="Whether requests start from what is cached of their prompts; off by default.",
    ),
    click.option("--strategy", default=EXTRA_BUFFER, show_default=True, help=f"Of states: {', '.join(STRATEGIES)}."),
    click.option("--checkpoint-tokens", type=int, help="Tokens between checkpoints of states; the model's by default."),
    click.option(
        "--eviction", default="lru", show_default=True, help="Which cached entry goes first: a policy's name."
    ),
)
_BAND_COLUMNS = ("band", "unit", "peak", "peak bytes", "mean", "mean bytes", "moves", "refusals")


def _options(command: Any) -> Any:
    for option in reversed((*_MODEL, *_TRACE, *_LOOP, *_PREFIX)):
        command = option(command)
    return command


@click.command()
@_options
@watch_options
@json_option
@click.pass_context
def replay(ctx: click.Context, /, as_json: bool, model: Path, trace: Path, **given: Any) -> None:
    """Replay a trace of requests against a model's memory: latencies, throughput and what each band held.

    No GPU and no weights: a cost model gives each step its time. The same command gives the same JSON.
    """
    found = configured(ctx, given, PLACES.options)
    given, places = dict(found.given), found.places
    settings = _read(ReplaySettings, {**given, "gpu": _gpu(given["gpu"])})
    watch = Watch(WatchSettings.of(given))
    catalog = catalog_of(ctx).under(found.plugins, source=places)
    make_policies(catalog, settings.policies, places)
    check_eviction(catalog, settings.prefix, places)
    config = read_config(model)
    kv_layout = KvLayout.named(given["kv_layout"], "--kv-layout", catalog)
    spec = read_model(
        config, tp=given["tp"], dtype=given["dtype"], source=str(model), catalog=catalog, kv_layout=kv_layout
    )
    spec = _with_parameters(spec, given["parameters"], given["active_parameters"])
    rows = read_trace(trace, _read(TraceOptions, given))
    if settings.prefix_cache and not any(row.prefix_ids for row in rows.rows):
        raise ConfigError(
            f"--prefix-cache: the rows of {trace.name} do not say which prefixes they share; leave it out"
        )
    with watch, Progress("requests", len(rows.rows), quiet=as_json) as progress:

        def show(at: scheduler.Progress) -> None:
            progress.at(at.finished, f"{at.running} running, {at.waiting} to come")
            watch.at(at)

        document = replay_trace(spec, rows, settings, catalog=catalog, on_step=show, on_open=watch.open, source=places)
        watch.finish()
    if as_json:
        print_json(document)
    else:
        _print(document)


def _gpu(text: str) -> Gpu:
    """The accelerator of ``--gpu``."""
    try:
        return load_gpu(text)
    except ConfigError as error:
        raise ConfigError(f"--gpu: {error}") from None


def _read(cls: type[T], given: Mapping[str, Any]) -> T:
    """The settings of a class from the options of the same names; what it refuses is told by the flag."""
    names = [field.name for field in attrs.fields(cls) if field.name in given]  # type: ignore[arg-type]
    try:
        return cls(**{name: given[name] for name in names})
    except SettingError as error:
        raise ConfigError(f"{_option(error.setting)} {error.finding}") from None


def _option(setting: str) -> str:
    """The option that stands for a setting."""
    own = f"--{setting.replace('_', '-')}"
    return PLACES.options.get(f"arena.{setting}", own)


def _with_parameters(spec: ModelSpec, parameters: float | None, active: float | None) -> ModelSpec:
    """The model with the parameter counts of the command line in place of the estimated ones."""
    for name, value in (("parameters", parameters), ("active-parameters", active)):
        if value is not None and not 1 <= value <= PARAMETERS_MAX:
            raise ConfigError(f"--{name} is {value}; it must be a number from 1 to {PARAMETERS_MAX:g}, such as 8.03e9")
    total = spec.parameters if parameters is None else int(parameters)
    share = spec.active_parameters if parameters is None else total
    used = share if active is None else int(active)
    if total and used and used > total:
        raise ConfigError(f"--active-parameters {used:,} are more than the {total:,} of the model")
    return attrs.evolve(spec, parameters=total, active_parameters=used)


def _print(document: Mapping[str, Any]) -> None:
    """The document for a person."""
    out = console()
    trace, arena, requests = document["trace"], document["arena"], document["requests"]
    flow = document["throughput"]
    out.print(
        pairs(
            {
                "model": f"{document['model']['model_type']}, {document['model']['num_layers']} layers, "
                f"tp {document['model']['tp']}{_kept(document['model'])}, on {document['gpu']['name']} (cost model)",
                "trace": f"{trace['file']} ({trace['format']}): {trace['requests']:,} requests, {trace['skipped']:,} "
                "rows skipped",
                "arena": f"{format_bytes(arena['arena_bytes'])}, pages of {arena['page_tokens']} tokens, requests of "
                f"up to {arena['context_tokens']:,} tokens, {arena['max_running']:,} at once",
                "requests": ", ".join(f"{requests[fate]:,} {fate}" for fate in ("done", "refused", "failed", "waited"))
                + f", {requests['retracted']:,} retracted ({requests['retractions']:,} times)",
                **_cache(document),
                "throughput": f"{flow['requests_per_second']:,.2f} requests/s, {flow['output_tokens_per_second']:,.0f} "
                f"output tokens/s over {flow['seconds']:,.1f} s, {document['steps']:,} steps",
            }
        )
    )
    out.print(table("latency", ["seconds", "mean", "p50", "p90", "p99", "max"], _latency(document["latency"])))
    out.print(table("bands", _BAND_COLUMNS, _bands(document["bands"])))
    for row in trace["skipped_rows"][:5]:
        out.print(f"skipped {row}")
    for refusal in document["refusals"][:5]:
        out.print(f"request {refusal['request']} {refusal['fate']}: {refusal['reason']}")
    if "timings" in document:
        out.print(pairs({name: f"{value:,.2f}" for name, value in document["timings"].items()}))


def _kept(model: Mapping[str, Any]) -> str:
    """The layout that stands in for the model's own, where one does."""
    return f", kept as {model['kv_layout']}" if model["kv_layout"] else ""


def _cache(document: Mapping[str, Any]) -> dict[str, str]:
    """What the prefix cache did, where there is one."""
    prefix, cache = document["prefix"], document["cache"]
    if prefix is None or cache is None:
        return {}
    grid = "" if prefix["grid_tokens"] is None else f", checkpoints every {prefix['grid_tokens']} tokens"
    return {
        "prefix cache": f"{cache['cached_tokens']:,} of {cache['prompt_tokens']:,} tokens were there "
        f"({100 * cache['hit_rate']:.1f} %), {cache['evictions']:,} evictions by {prefix['eviction']['name']}{grid}"
    }


def _latency(latency: Mapping[str, Mapping[str, float] | None]) -> list[list[str]]:
    return [
        [name.replace("_", " "), *(f"{value:.4f}" for value in marks.values())]
        for name, marks in latency.items()
        if marks is not None
    ]


def _bands(bands: list[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            band["name"],
            format_bytes(band["unit_bytes"]),
            f"{band['peak']:,}",
            format_bytes(band["peak_bytes"]),
            f"{band['mean']:,.1f}",
            format_bytes(round(band["mean_bytes"])),
            f"{band['moves']:,}",
            f"{band['refusals']:,}",
        ]
        for band in bands
    ]
