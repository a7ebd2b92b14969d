"""What ``replay`` and ``run`` can be watched by: a timeline in a file, metrics on a port, metrics in a file."""

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import click

from kvarena.plugins.cli.plain import write_line
from kvarena.plugins.cli.whole_file import WholeFile
from kvarena.plugins.replay.timeline import ROWS_LEAST, ROWS_MAX, Timeline
from kvarena.plugins.replay.timeline_files import WRITERS, writer_of
from kvarena.plugins.serving.scheduler import Progress, Scheduler
from kvarena.terms.errors import ConfigError

EXPORTER = "kvarena.plugins.metrics.exporter"
"""Loaded when metrics are asked for: prometheus-client is an extra."""

PORT_MAX = 65_535
_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--timeline", type=_FILE, help=f"Write what each band held over time: {', '.join(WRITERS)}."),
    click.option(
        "--timeline-rows",
        type=click.IntRange(min=ROWS_LEAST),
        help=f"At most so many rows, the peaks among them; {ROWS_MAX:,} by default.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, PORT_MAX),
        help="Serve Prometheus metrics on 127.0.0.1 while it runs; 0 takes a free port.",
    ),
    click.option("--metrics-file", type=_FILE, help="Write the metrics of the end, as Prometheus reads them."),
)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that can be watched."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@attrs.frozen(kw_only=True)
class WatchSettings:
    """The options, as given; None where not."""

    timeline: Path | None = None
    timeline_rows: int | None = None
    metrics_port: int | None = None
    metrics_file: Path | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> "WatchSettings":
        """Those among a command's options.

        Raises:
            ConfigError: rows of no timeline, a suffix that no timeline has, or one file for two things.
        """
        settings = cls(**{field.name: given[field.name] for field in attrs.fields(cls)})
        if settings.timeline is not None:
            writer_of(settings.timeline)
        elif settings.timeline_rows is not None:
            raise ConfigError("--timeline-rows thins a timeline: name its file with --timeline FILE")
        if settings.timeline is not None and settings.timeline == settings.metrics_file:
            raise ConfigError(f"--timeline and --metrics-file are both {settings.timeline}: name two files")
        return settings

    @property
    def flags(self) -> list[str]:
        """The options that were given, as they were spelt."""
        given = attrs.asdict(self)
        return [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]


class Watch:
    """Watches one loop, in the loop's own thread but for the port.

    A watch's life:  1. enter   files are known to be writable, and the port answers.
                     2. open    the loop and its storage are there; once.
                     3. at      after each step.
                     4. finish  the run went well: the files take their places.
                     5. exit    the port is given back; without ``finish`` no file is there.
    """

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._exporter: Any = None
        self._registry: Any = None
        self._collector: Any = None
        self._scheduler: Scheduler | None = None
        self._timeline: Timeline | None = None
        self._files: dict[str, WholeFile] = {}

    def __enter__(self) -> "Watch":
        """Everything that can be wrong is wrong before the run.

        Raises:
            ConfigError: a file cannot be written.
            MissingExtraError: metrics need prometheus-client.
            KvarenaError: the port cannot be had.
        """
        settings = self._settings
        with ExitStack() as stack:
            for option, path in (("--timeline", settings.timeline), ("--metrics-file", settings.metrics_file)):
                if path is not None:
                    self._files[option] = WholeFile(path, option)
            if settings.metrics_port is not None or settings.metrics_file is not None:
                self._exporter = importlib.import_module(EXPORTER)
                self._registry = self._exporter.CollectorRegistry()
            if settings.metrics_port is not None:
                server = self._exporter.serve(settings.metrics_port, registry=self._registry)
                stack.callback(server.close)
                write_line(f"metrics: {server.url}")
            self._stack = stack.pop_all()
        return self

    def open(self, scheduler: Scheduler) -> None:
        """The loop that is watched; it has not begun."""
        self._scheduler = scheduler
        if self._settings.timeline is not None:
            rows = self._settings.timeline_rows or ROWS_MAX
            self._timeline = Timeline(scheduler.storage, scheduler.cache, rows_max=rows)
        if self._exporter is not None:
            self._collector = self._exporter.register(
                scheduler.storage,
                counts=scheduler.counts,
                cache=scheduler.cache,
                waiting=lambda: scheduler.waiting,
                registry=self._registry,
            )

    def at(self, progress: Progress) -> None:
        """The loop made a step."""
        scheduler = self._scheduler
        if self._timeline is not None and scheduler is not None:
            self._timeline.note(scheduler.now, step=progress.steps, running=progress.running, waiting=scheduler.waiting)

    def finish(self) -> None:
        """Write the files of a run that went well; its storage may be released by now."""
        if self._timeline is not None and self._settings.timeline is not None:
            timeline, write = self._timeline, writer_of(self._settings.timeline)
            self._files["--timeline"].write(lambda stream: write(timeline, stream))
            rows = len(timeline)
            thinned = f" of {timeline.noted:,}" if rows < timeline.noted else ""
            write_line(f"timeline: {rows:,}{thinned} moments in {self._settings.timeline}")
        if self._settings.metrics_file is not None:
            text = self._exporter.text(self._collector)
            self._files["--metrics-file"].write(lambda stream: print(text, end="", file=stream))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
