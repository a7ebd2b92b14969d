"""Counts read beside the loop: the same as the storage's own, and nothing is kept by reading them."""

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from storages import CHAINS, FULL, SHORT, STATE, opened, overlapped, process, run_forward, storage_of

from kvarena.bands.span import Span
from kvarena.chain.chain import Chain
from kvarena.plugins.metrics import counts
from kvarena.plugins.metrics.counts import BandCounts, free_bytes, largest_gap_bytes, read_bands
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused

DRAWS = np.random.default_rng


def churn(storage: Storage, seed: int, steps: int, in_flight: int) -> Iterator[int]:
    """Requests come, grow and go at random, under forwards; yields after each step."""
    draw, flying = DRAWS(seed), deque()
    for step in range(steps):
        rows = storage.requests.open_rows()
        leaving = rows[draw.random(len(rows)) < 0.2]
        storage.close(leaving)
        if storage.requests.free_count and draw.random() < 0.7:
            opened(storage)
        rows = storage.requests.open_rows()
        ids = storage.step(rows, np.minimum(storage.requests.lengths[rows] + draw.integers(1, 9, len(rows)), 60))
        if not isinstance(ids, Refused) and len(rows):
            flying.append(run_forward(storage, ids))
        elif flying:  # a refusal: wait, and let one go
            storage.close(rows[:1])
        while len(flying) > max(0, in_flight - 1):
            process(storage, flying.popleft())
        storage.flush()
        yield step
    while flying:
        process(storage, flying.popleft())


def stats_of(band: BandCounts) -> dict[str, int]:
    """A reading in the words of ``Storage.stats``."""
    words = band._asdict() | {"span": band.span}
    return {name: value for name, value in words.items() if name not in ("name", "start", "stop")}


@pytest.mark.parametrize("kinds", CHAINS)
def test_a_reading_is_what_the_storage_says(kinds: str) -> None:
    """Band by band and word by word, at every moment of a busy life with forwards in flight."""
    storage = overlapped(*CHAINS[kinds], running=6, memory=3000)
    seen = set()
    for _ in churn(storage, seed=1, steps=60, in_flight=2):
        bands = read_bands(storage.chain)
        assert {band.name: stats_of(band) for band in bands} == storage.stats()
        assert all(band.adds_up for band in bands)
        assert free_bytes(storage.chain, bands) == storage.chain.estimates.free_bytes
        seen |= {name for band in bands for name, value in stats_of(band).items() if value}
    assert {"live", "pending", "ids_free"} <= seen


def test_fixed_and_reserved_pages_are_counted() -> None:
    """A page that an engine still reads may not move, and is reserved once its owner is gone."""
    storage = storage_of((SHORT, FULL))
    row = opened(storage)
    storage.step(np.array([row]), np.array([8]))
    transfer = storage.transfers.send({"full": storage.requests.pages[row, :2].copy()})
    storage.close(row)

    full = read_bands(storage.chain)[1]
    assert (full.fixed, full.reserved, full.live) == (2, 2, 0)
    assert stats_of(full) == storage.stats()["full"]
    storage.transfers.release(transfer)
    assert read_bands(storage.chain)[1].reserved == 0


def test_the_largest_gap_is_between_two_spans_or_at_an_edge() -> None:
    """Empty, it is the whole of the usable bytes; then what the bands leave in one piece."""
    storage = storage_of((STATE, SHORT, FULL))
    chain = storage.chain
    assert largest_gap_bytes(chain, read_bands(chain)) == len(chain.usable)

    storage.step(np.array([opened(storage)]), np.array([17]))
    bands = read_bands(chain)
    edges = [chain.usable.start, *(e * b.unit_bytes for b in bands for e in (b.start, b.stop)), chain.usable.stop]
    assert largest_gap_bytes(chain, bands) == max(b - a for a, b in zip(edges[::2], edges[1::2], strict=True))
    assert 0 < largest_gap_bytes(chain, bands) < free_bytes(chain, bands)


def test_a_torn_reading_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a sum does not hold the reading waits and tries again; in the end it gives what it has."""
    storage, waited = storage_of((FULL,)), []
    band = storage.chain.bands["full"]
    monkeypatch.setattr(counts.time, "sleep", waited.append)
    band.stop += 3  # as if a take had moved the frontier and not yet bound the pages
    assert not read_bands(storage.chain)[0].adds_up
    assert len(waited) == counts.TRIES

    waited.clear()
    monkeypatch.setattr(counts.time, "sleep", lambda _: setattr(band, "stop", band.start))
    assert read_bands(storage.chain)[0].adds_up


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_a_reader_in_another_thread_disturbs_nothing() -> None:
    """A loop that is read all the time keeps its sums and its kept answers, and no reading fails."""
    storage = overlapped(STATE, SHORT, FULL, running=6, memory=3000, checks=2)
    readings, faults, ended = [], [], threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                readings.append(read_bands(storage.chain))
            except BaseException as fault:  # told by the test
                faults.append(fault)
                return

    with switching_often():
        thread = threading.Thread(target=read)
        thread.start()
        try:
            for _ in churn(storage, seed=2, steps=150, in_flight=2):
                storage.verify()  # a snapshot that a reader kept would be stale here
        finally:
            ended.set()
            thread.join()
    assert not faults
    assert len(readings) > 20
    assert len({reading[2].live for reading in readings}) > 3


def test_a_reading_asks_nothing_that_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and shots are kept by those who ask for them, so a reader of another thread asks for none."""
    storage = storage_of((STATE, SHORT, FULL))
    storage.step(np.array([opened(storage)]), np.array([9]))
    asked = []
    for owner, name in ((Chain, "snapshot"), (Span, "shot")):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: asked.append(name))

    assert [band.live for band in read_bands(storage.chain)] == [1, 3, 3]
    assert not asked
