"""The metrics of a loop: sums that hold at every step, and at the end."""

import sys
import threading

import numpy as np
import pytest
from loops import CountingRunner, assert_empty, loop_over, storage_of
from prometheus_client import CollectorRegistry

from kvarena.assembly.config import PrefixConfig
from kvarena.plugins.metrics import exporter
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.scheduler import Progress, Scheduler


class Scraped:
    """A registry that is scraped after each step of a loop."""

    def __init__(self, loop: Scheduler) -> None:
        self.loop = loop
        self.registry = CollectorRegistry()
        exporter.register(
            loop.storage,
            counts=loop.counts,
            cache=loop.cache,
            waiting=lambda: loop.waiting,
            registry=self.registry,
        )
        self.seen: list[dict[str, float]] = []

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"kvarena_{name}", labels)
        assert found is not None, name
        return found

    def at(self, progress: Progress) -> None:
        """Whoever came is somewhere, and every start ended in one way or goes on."""
        counters = ("admitted", "done", "refused", "failed", "aborted", "waited", "clipped")
        now = {name: self.value(f"requests_{name}_total") for name in counters}
        now |= {name: self.value(f"requests_{name}") for name in ("running", "waiting")}
        now |= {name: self.value(f"{name}_total") for name in ("retractions", "preemptions", "steps")}
        over = now["done"] + now["refused"] + now["failed"] + now["aborted"]
        assert over == progress.finished
        assert now["running"] == progress.running
        went_on = now["admitted"] - now["retractions"] - now["preemptions"] - now["running"]
        assert now["done"] <= went_on <= now["done"] + now["failed"] + now["aborted"]
        self.seen.append(now)


def requests(count: int, seed: int) -> list[Request]:
    """Prompts that share beginnings, of a few lengths, some too long for any arena."""
    draw, shared = np.random.default_rng(seed), np.random.default_rng(7).integers(3, 90, 40)
    found = []
    for number in range(count):
        own = draw.integers(3, 90, int(draw.integers(1, 12)))
        prompt = [*shared[: int(draw.choice([0, 16, 24, 40]))].tolist(), *own.tolist()]
        found.append(
            Request(
                number, float(draw.integers(0, 40)), len(prompt), int(draw.integers(1, 14)), tuple(prompt),
                priority=int(draw.integers(0, 3)),
            )
        )  # fmt: skip
    return [*found, Request(count, 1.0, 200, 5, tuple(range(200)))]


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("memory", [420, 900])
def test_the_sums_of_a_replay_hold(memory: int, in_flight: int) -> None:
    """Under pressure and with a cache: requests by fate and place, tokens, and bands that are the storage's own."""
    prefix = PrefixConfig(share=True, checkpoint_tokens=8)
    storage = storage_of(memory, in_flight=in_flight, prefix=prefix)
    loop = loop_over(storage, CountingRunner(), output_fraction=0.5)
    scraped = Scraped(loop)
    report = loop.run(requests(30, seed=memory), scraped.at)

    end = scraped.seen[-1]
    assert end["done"] + end["refused"] + end["failed"] == 31
    assert (end["done"], end["refused"]) == (report.count("done"), report.count("refused"))
    assert (end["running"], end["waiting"], end["steps"]) == (0, 0, report.steps)
    assert (end["retractions"], end["preemptions"]) == (report.retractions, report.preemptions)
    assert max(now["waiting"] for now in scraped.seen) > 0
    for before, after in zip(scraped.seen, scraped.seen[1:], strict=False):
        assert all(after[name] >= before[name] for name in before if name not in ("running", "waiting"))
    assert scraped.value("generated_tokens_total") == sum(served.generated for served in report.served)
    assert scraped.value("cached_tokens_total") <= scraped.value("prompt_tokens_total")
    assert scraped.value("cached_tokens_total") == sum(served.cached_tokens for served in report.served) > 0
    for name, counts in storage.stats().items():
        assert scraped.value("band_units", band=name, state="live") == counts["live"]
        assert scraped.value("cache_units", band=name) == counts["live"]
        assert scraped.value("cache_evictable_units", band=name) == counts["live"]
    loop.cache.clear()
    assert scraped.value("cache_entries") == 0
    assert_empty(loop)


def test_a_loop_that_is_scraped_all_the_time_decides_alike() -> None:
    """From another thread, at check level 2, with a cache: no scrape fails, and nothing comes out otherwise."""

    def served(*, scrape: bool) -> tuple[object, int]:
        storage = storage_of(420, in_flight=2, prefix=PrefixConfig(share=True, checkpoint_tokens=8), checks=2)
        loop = loop_over(storage, CountingRunner(), output_fraction=0.5)
        collector = exporter.register(
            storage, counts=loop.counts, cache=loop.cache, waiting=lambda: loop.waiting, registry=CollectorRegistry()
        )
        texts, faults, ended = [], [], threading.Event()

        def read() -> None:
            try:
                while not ended.is_set():
                    texts.append(exporter.text(collector))
            except BaseException as fault:  # told by the test
                faults.append(fault)

        thread = threading.Thread(target=read)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            if scrape:
                thread.start()
            report = loop.run(requests(30, seed=3))
        finally:
            ended.set()
            if scrape:
                thread.join()
            sys.setswitchinterval(before)
        assert not faults
        return report.served, len(texts)

    alone, scraped = served(scrape=False), served(scrape=True)
    assert scraped[1] > 5
    assert scraped[0] == alone[0]
