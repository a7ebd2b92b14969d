"""When the loop runs empty, it looks whether anything was left behind."""

import numpy as np
import pytest
from toys import Bytes

from kvarena.assembly.build import build_storage
from kvarena.assembly.config import ArenaConfig, ChecksConfig, StorageConfig
from kvarena.ledger.steps import Forward
from kvarena.plugins.serving import scheduler
from kvarena.plugins.serving.port import Batch, Outcome, Request
from kvarena.plugins.serving.report import DONE
from kvarena.plugins.serving.scheduler import Scheduler, ServingConfig
from kvarena.storage.storage import Storage
from kvarena.terms.errors import InvariantError
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, State, Window
from kvarena.terms.ports import IntArray

pytestmark = pytest.mark.req("CHK-2")


class Runner:
    """A second a step; ``leaks``: it takes a page in its first step that nobody gives back."""

    def __init__(self, storage: Storage, *, leaks: bool) -> None:
        self.storage = storage
        self.leaks = leaks

    def launch(self, batch: Batch, forward: Forward) -> None:
        """Nothing runs."""

    def result(self, batch: Batch) -> Outcome:
        """A second has passed."""
        if self.leaks:
            self.storage.chain.take_new("full", 1)
            self.leaks = False
        return Outcome(1.0)

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """None are made."""
        return ()

    def keys(self, request: Request, count: int) -> IntArray | None:
        """Nothing is cached."""
        return None


def loop_at(level: int, *, leaks: bool) -> Scheduler:
    """A loop over a state, a window of 8 and full attention, pages of 4 tokens."""
    layers = [
        Layer(0, (Part(Bytes(16), State(), "state"),)),
        Layer(1, (Part(Bytes(2), Window(8)),)),
        Layer(2, (Part(Bytes(2), Full()),)),
    ]
    arena = ArenaConfig(memory=4000, page_tokens=4, context_tokens=64, max_running=4, mirrors=False)  # type: ignore[arg-type]
    config = StorageConfig(arena=arena, backend="host", checks=ChecksConfig(level=level))  # type: ignore[arg-type]
    storage = build_storage(layers, config)
    return Scheduler(storage, Runner(storage, leaks=leaks), ServingConfig(chunk_tokens=8, step_tokens=16))


def test_a_leak_stops_a_strict_run_when_it_runs_empty() -> None:
    """At level 2 the run ends with the sum; at 1 it is served and logged; at 0 nobody looks."""
    requests = [Request(0, 0.0, 9, 3), Request(1, 50.0, 9, 3)]
    with pytest.raises(InvariantError, match=r"storage\.leaked_pages: sub_pool='window-8' leaked=1 live=1 rows_own=0"):
        loop_at(2, leaks=True).run(requests)
    for level in (0, 1):
        assert loop_at(level, leaks=True).run(requests).count(DONE) == 2


def test_a_leak_is_told_each_time_the_loop_runs_empty(caplog: pytest.LogCaptureFixture) -> None:
    """Between two bursts and at the end, a line for each sub-pool that lost pages."""
    with caplog.at_level("WARNING", "kvarena"):
        loop_at(1, leaks=True).run([Request(0, 0.0, 9, 3), Request(1, 50.0, 9, 3)])
    assert len([line for line in caplog.messages if "storage.leaked_pages" in line]) == 2 * 2


def test_it_looks_when_it_runs_empty_and_not_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bursts are three looks, however many steps they took; a run without requests needs none."""
    looks: list[int] = []
    loop = loop_at(2, leaks=False)

    def look(storage: Storage) -> tuple[str, ...]:
        looks.append(int(np.sum(storage.requests.lengths)))
        return ()

    monkeypatch.setattr(scheduler, "check_idle", look)
    loop.run([])
    assert looks == []
    loop.run([Request(number, 100.0 * (number // 2), 20, 9) for number in range(6)])
    assert looks == [0, 0, 0]


def test_moves_and_refusals_of_each_band_are_reported() -> None:
    """As the chain counted them; the pages moved are their sum."""
    loop = loop_at(1, leaks=False)
    report = loop.run([Request(number, 0.0, 30, 20) for number in range(8)])
    counted = loop.storage.stats()

    assert [(band.name, band.moves, band.refusals) for band in report.bands] == [
        (name, counts["moves"], counts["refusals"]) for name, counts in counted.items()
    ]
    assert report.pages_moved == loop.storage.chain.counters.moves > 0
