"""The exporter: what Prometheus finds, where it may look, and what it is told when it cannot."""

import contextlib
import io
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from storages import FULL, SHORT, STATE, opened, storage_of

from kvarena.plugins.metrics import exporter
from kvarena.plugins.metrics.catalogue import COUNTER, GAUGE, METRICS
from kvarena.plugins.metrics.reading import CACHE_FIGURES, CACHE_UNITS, COUNTED
from kvarena.storage.storage import Storage
from kvarena.terms.errors import KvarenaError

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def storage() -> Storage:
    """Two requests, of three kinds."""
    made = storage_of((STATE, SHORT, FULL))
    rows = np.array([opened(made), opened(made)])
    made.step(rows, np.array([17, 9]))
    return made


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its labels' values, as Prometheus's own parser reads them."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def everything() -> dict[str, Any]:
    """Sources that give every figure there is."""
    cache = dict.fromkeys(CACHE_FIGURES, 7) | dict.fromkeys(CACHE_UNITS, (1, 2, 3))
    return {
        "counts": {name: number for number, name in enumerate(COUNTED)},
        "cache": SimpleNamespace(stats=lambda: cache),
        "waiting": lambda: 5,
    }


def test_every_metric_is_told() -> None:
    """With all sources there, each metric of the catalogue has samples, and there are no others."""
    found = samples(exporter.text(exporter.register(storage(), registry=CollectorRegistry(), **everything())))

    assert {key[0] for key in found} == {metric.name for metric in METRICS}
    assert found["kvarena_requests_waiting",] == 5
    assert found["kvarena_cache_evictable_units", "full"] == 3
    assert found["kvarena_checkpoints_skipped_total",] == COUNTED.index("checkpoints_skipped")


def test_what_nobody_counts_is_left_out() -> None:
    """A storage alone tells of bands, arena and ledger; an engine's own counts are those that it has."""
    bare = samples(exporter.text(exporter.register(storage(), registry=CollectorRegistry())))
    some = samples(exporter.text(exporter.register(storage(), registry=CollectorRegistry(), counts={"admitted": 2})))

    assert {key[0] for key in some} - {key[0] for key in bare} == {"kvarena_requests_admitted_total"}
    assert ("kvarena_requests_running",) in bare
    assert not [name for name, *_ in bare if "cache" in name]


def test_the_bands_of_a_scrape_are_those_of_the_storage() -> None:
    """Units by state and band, in bytes the arena's own; the states add up to the span."""
    made = storage()
    found = samples(exporter.text(exporter.register(made, registry=CollectorRegistry())))
    for name, counts in made.stats().items():
        states = ("live", "holes", "pending", "vacated", "reserved")
        assert [found["kvarena_band_units", name, state] for state in states] == [counts[state] for state in states]
        assert found["kvarena_band_span_units", name] == counts["span"] == sum(counts[state] for state in states)
        assert found["kvarena_band_unit_bytes", name] == counts["unit_bytes"]
        assert found["kvarena_band_fixed_units", name] == counts["fixed"]
        assert found["kvarena_band_free_ids", name] == counts["ids_free"]
        assert found["kvarena_band_moved_units_total", name] == counts["moves"]
        assert found["kvarena_band_refusals_total", name] == counts["refusals"]
    assert found["kvarena_arena_free_bytes",] == made.chain.estimates.free_bytes
    assert found["kvarena_requests_running",] == 2
    assert found["kvarena_request_rows",] == 4


def test_names_follow_the_conventions() -> None:
    """Counters end in _total and nothing else does; sizes say their unit last; every help is a sentence."""
    for metric in METRICS:
        assert re.fullmatch(r"kvarena_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.kind in (COUNTER, GAUGE)
        assert (metric.kind == COUNTER) == metric.name.endswith("_total")
        for unit in ("bytes", "tokens", "units"):
            assert f"_{unit}" not in metric.name.removesuffix("_total").removesuffix(f"_{unit}")
        assert metric.help.endswith(".")
        assert metric.help[0].isupper()
        assert set(metric.labels) <= {"band", "state"}
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_every_metric_is_documented() -> None:
    """docs/metrics.md has a row for each metric, with its type, labels and help, in this order, and for no other."""
    rows = re.findall(r"^\| `(kvarena_\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    told = [(m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in METRICS]

    assert rows == told


def test_the_example_of_the_page_prints_what_the_page_says() -> None:
    """To the letter."""
    page = DOCS.read_text(encoding="utf-8")
    ((code, output),) = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/metrics.md", "exec"), {})
    assert out.getvalue() == output


def test_every_count_is_documented() -> None:
    """docs/metrics.md lists what a loop of one's own may count."""
    page = DOCS.read_text(encoding="utf-8")
    assert not [name for name in COUNTED if f"`{name}`" not in page]


def test_one_registry_holds_one_storage() -> None:
    """A second one is refused with what to do, and may come once the first is gone."""
    registry, first = CollectorRegistry(), storage()
    exporter.register(first, registry=registry)
    with pytest.raises(KvarenaError, match="give this one a registry of its own"):
        exporter.register(storage(), registry=registry)

    first.release()
    exporter.unregister(exporter.register(storage(), registry=registry), registry)
    assert not list(registry.collect())


def test_a_released_storage_is_scraped_no_more() -> None:
    """Its metrics leave the registry with it; who kept the collector may still ask for the end."""
    registry, made = CollectorRegistry(), storage()
    collector = exporter.register(made, registry=registry)
    made.close(np.array([0, 1]))
    made.release()

    assert not list(registry.collect())
    assert samples(exporter.text(collector))["kvarena_band_units", "full", "live"] == 0


def test_a_resize_is_followed() -> None:
    """After the arena was resized, its new size and the new bands are what is read."""
    made = storage()
    collector = exporter.register(made, registry=CollectorRegistry())
    made.close(np.array([0, 1]))
    made.resize(8000)

    assert samples(exporter.text(collector))["kvarena_arena_bytes",] == made.sizing.arena_bytes


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"counts": object()}, "counts: object gives none of: admitted"),
        ({"counts": {"admitted": "many"}}, "admitted is 'many'; it must be a number"),
        ({"cache": object()}, "cache: object has no stats"),
        ({"cache": SimpleNamespace(stats=dict)}, "cache: dict gives none of: entries"),
        ({"cache": SimpleNamespace(stats=lambda: {"units": (1, 2)})}, "units has 2 figures for 3 sub-pools"),
    ],
)
def test_a_source_that_tells_nothing_is_refused(sources: dict[str, Any], words: str) -> None:
    """At once and by name, not at the first scrape."""
    registry = CollectorRegistry()
    with pytest.raises(KvarenaError, match=re.escape(words)):
        exporter.register(storage(), registry=registry, **sources)
    assert not list(registry.collect())


def test_metrics_are_served_on_the_loopback() -> None:
    """Any free port, this machine alone; a scrape reads what is so now; a closed server gives its port back."""
    registry, made = CollectorRegistry(), storage()
    exporter.register(made, registry=registry)
    server = exporter.serve(0, registry=registry)
    try:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        before = samples(fetch(server.url))
        made.close(0)
        after = samples(fetch(server.url))
        with pytest.raises(KvarenaError, match=f"port {server.port} of 127.0.0.1 cannot be served: Address already"):
            exporter.serve(server.port, registry=registry)
    finally:
        server.close()
    assert (before["kvarena_requests_running",], after["kvarena_requests_running",]) == (2, 1)
    with pytest.raises(urllib.error.URLError):
        fetch(server.url)
    exporter.serve(server.port, registry=registry).close()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    """As an error of ours, whatever the system calls it."""
    with pytest.raises(KvarenaError, match=f"port {port} of 127.0.0.1 cannot be served"):
        exporter.serve(port, registry=CollectorRegistry())


def test_scrapes_beside_a_running_loop_fail_nowhere() -> None:
    """Served from other threads while requests come and go, every scrape is answered, and the storage is in order."""
    registry, made = CollectorRegistry(), storage_of((STATE, SHORT, FULL))
    exporter.register(made, registry=registry)
    server, answers, ended = exporter.serve(0, registry=registry), [], threading.Event()

    def scrape() -> None:
        while not ended.is_set():
            answers.append(samples(fetch(server.url)))

    threads = [threading.Thread(target=scrape) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        while len(answers) < 20:
            row = opened(made)
            for length in (9, 17, 30):
                made.step(np.array([row]), np.array([length]))
            made.close(row)
            made.verify()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        server.close()
    assert all(("kvarena_arena_bytes",) in answer for answer in answers)


def test_without_prometheus_client_the_cure_is_told() -> None:
    """Importing the exporter says what to install; the catalogue can be read all the same."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from kvarena.plugins.metrics import catalogue\n"
        "from kvarena.terms.errors import MissingExtraError\n"
        "try:\n"
        "    from kvarena.plugins.metrics import exporter\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "prometheus-client" in done.stdout
    assert "pip install 'kvarena[metrics]'" in done.stdout


def test_the_loop_counts_what_can_be_told() -> None:
    """Each counter of the serving loop is a metric, and the other way round."""
    from_the_loop = pytest.importorskip("kvarena.plugins.serving.counts").Counts
    assert {field.name for field in attrs.fields(from_the_loop)} == set(COUNTED)
