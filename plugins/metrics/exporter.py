"""The exporter: a storage's metrics in a registry of prometheus-client, as text, or served on a port.

    from kvarena.plugins.metrics import exporter

    exporter.register(storage, counts=scheduler.counts, cache=tree)
    server = exporter.serve(9400)          # http://127.0.0.1:9400/metrics

Metrics are read when they are asked for, in the thread that asks: the loop is not called, locked or slowed.

Raises:
    MissingExtraError: at import, when prometheus-client is not installed.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIServer

from kvarena.plugins.metrics.catalogue import COUNTER, METRICS, Metric
from kvarena.plugins.metrics.reading import Reading, Source
from kvarena.storage.storage import Storage
from kvarena.terms.errors import KvarenaError, MissingExtraError

try:
    from prometheus_client import REGISTRY, generate_latest, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise MissingExtraError("prometheus-client (kvarena.plugins.metrics)", "metrics") from error

LOOPBACK = "127.0.0.1"
Family = CounterMetricFamily | GaugeMetricFamily


class StorageCollector(Collector):
    """Reads one storage at each scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterator[Family]:
        """The names that it may give, so that a registry holds each once."""
        return (_family(metric) for metric in METRICS)

    def collect(self) -> Iterator[Family]:
        """All metrics that there is something to tell of, from one look."""
        reading = self._source.read()
        for metric in METRICS:
            family = _filled(metric, reading)
            if family.samples:
                yield family


def register(
    storage: Storage,
    *,
    counts: Any = None,
    cache: Any = None,
    waiting: Callable[[], int] | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> StorageCollector:
    """Put a storage's metrics into a registry, prometheus-client's own by default, until the storage is released.

    Args:
        counts: what the loop counted: a mapping or an object with attributes, of any names in ``reading.COUNTED``.
        cache: a prefix cache with ``stats()``, to be called from the thread that scrapes.
        waiting: gives the length of the queue, from that thread too.

    Raises:
        KvarenaError: the registry has such metrics already, or a source gives nothing that is known.
    """
    collector = StorageCollector(Source(storage, counts, cache, waiting))
    try:
        registry.register(collector)
    except ValueError as error:
        cure = "unregister that, or give this one a registry of its own"
        raise KvarenaError(f"metrics: the registry has the metrics of a storage already; {cure}") from error
    storage.at_release.append(lambda: unregister(collector, registry))
    return collector


def unregister(collector: StorageCollector, registry: CollectorRegistry = REGISTRY) -> None:
    """Take a storage's metrics out of a registry; where they are not in it, nothing happens."""
    try:
        registry.unregister(collector)
    except KeyError:
        return


def text(collector: StorageCollector) -> str:
    """A storage's metrics as Prometheus reads them, as of now; after its release, as they were then."""
    return generate_latest(collector).decode()


class Server:
    """Metrics on a port, in threads of their own, until it is closed or the process ends."""

    def __init__(self, httpd: WSGIServer, thread: threading.Thread, host: str) -> None:
        self.port = httpd.server_port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._httpd = httpd
        self._thread = thread

    def close(self) -> None:
        """Stop answering and give the port back."""
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()


def serve(port: int, *, host: str = LOOPBACK, registry: CollectorRegistry = REGISTRY) -> Server:
    """Serve a registry over HTTP. ``port`` 0 takes any that is free; only this machine is answered by default.

    Raises:
        KvarenaError: the port cannot be had.
    """
    try:
        httpd, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise KvarenaError(f"metrics: port {port} of {host} cannot be served: {why}") from error
    return Server(httpd, thread, host)


def _family(metric: Metric) -> Family:
    made = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    return made(metric.name, metric.help, labels=metric.labels)


def _filled(metric: Metric, reading: Reading) -> Family:
    family = _family(metric)
    for labels, value in metric.read(reading):
        family.add_metric(labels, value)
    return family
