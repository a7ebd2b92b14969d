"""On a GPU: the same promises on real streams, and graphs that replay. ``pytest -m gpu`` runs these alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu_scenes import STEPS, VERBS, Player, play_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import CHAINS, opened, process, rows_of, storage_of

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.assembly.loader import make
from kvarena.backends.cpu import CpuDevice
from kvarena.backends.gpu_device import GpuDevice
from kvarena.plugins.cli.main import run
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.ports import FieldView

BACKEND = "rocm" if torch.version.hip else "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason=f"torch {torch.__version__} finds no GPU here: nothing to run these on"
    ),
]
KERNELS = pytest.mark.parametrize("kernels", ["triton", "torch"])


def device_of(kernels: str = "triton") -> GpuDevice:
    device: GpuDevice = make(Catalog.installed(), "backends", Choice(BACKEND, {"kernels": kernels}))
    return device


@pytest.fixture
def decoding() -> Iterator[Storage]:
    """A storage of every kind, its rows open, with forwards in flight."""
    storage = storage_of(
        CHAINS["state, three floats, full"], memory=1 << 20, running=8, backend=Choice(BACKEND, {"kernels": "triton"}),
        mirrors=True, forwards_in_flight=2,
    )  # fmt: skip
    for _ in range(8):
        opened(storage)
    yield storage
    storage.release()


@KERNELS
@settings(max_examples=30)
@given(unit=st.integers(1, 80) | st.sampled_from([1024, 4100, 20_001, 1 << 20]), steps=STEPS)
def test_the_same_calls_leave_the_same_bytes_as_on_the_cpu(
    kernels: str, unit: int, steps: list[tuple[str, str, int, int]]
) -> None:
    """Copies, runs, blocks that slide, zeroes, saves and loads on two streams in order, compared byte for byte."""
    arena, host = play_steps(device_of(kernels), unit, steps)
    arena_cpu, host_cpu = play_steps(CpuDevice(), unit, steps)
    assert np.array_equal(arena, arena_cpu)
    assert np.array_equal(host, host_cpu)


@KERNELS
@settings(max_examples=20)
@given(name=st.sampled_from(sorted(CHAINS)), memory=st.integers(2000, 6000), verbs=VERBS)
def test_overlapped_work_leaves_the_same_bytes_as_on_the_cpu(
    kernels: str, name: str, memory: int, verbs: list[tuple[str, int, int]]
) -> None:
    """Every unit that is held, and every place of the host, after forwards, moves, zeroes, copies and loads."""
    players = [Player(name, memory, Choice(BACKEND, {"kernels": kernels})), Player(name, memory, Choice("cpu"))]
    found = []
    for player in players:
        for verb in verbs:
            player.play(*verb)
        found.append(player.rest())
        player.bytes.clear()
        player.storage.release()
    (held, hosts), (held_cpu, hosts_cpu) = found
    for sub_pool, (pages, contents) in held.items():
        assert np.array_equal(pages, held_cpu[sub_pool][0])
        assert np.array_equal(contents, held_cpu[sub_pool][1]), sub_pool
        assert np.array_equal(hosts[sub_pool], hosts_cpu[sub_pool]), sub_pool


def test_a_far_page_is_copied_and_zeroed() -> None:
    """Beyond 4 GiB of the arena, where the device has as much."""
    free, _ = torch.cuda.mem_get_info()
    if free < 6 << 30:
        pytest.skip(f"{free >> 20} MiB are free on the device, 6 GiB are needed")
    device, unit = device_of(), 4096
    device.reserve(5 << 30)
    last = (5 << 30) // unit - 1
    view = device.view(FieldView("uint8", (unit,), 1, 0, unit, last + 1))
    view[:12:2] = 7
    far = last - 2 * np.arange(6)
    device.copy_pages(device.current(), unit, np.arange(0, 12, 2), far)
    device.zero_pages(device.current(), unit, far[:5])
    assert (view[last - 10] == 7).all()
    assert not view[last - 8 :: 2].any()
    device.close()


def test_a_captured_graph_replays_over_pages_that_changed(decoding: Storage) -> None:
    """Updates go before the graph, on its stream; the graph fills its tables and reads them: as the host would."""
    assert decoding.mirrors is not None
    tables = decoding.mirrors.tables(8)
    device: Any = decoding.device
    forward_stream = decoding.chain.ledger.timeline.forward
    sums = torch.zeros(8, dtype=torch.int64, device="cuda")

    def kernels() -> None:
        tables.translate()
        sums.copy_(sum(tables[name].long().sum(dim=1) for name in tables))

    process(decoding, _launched(decoding, tables, 3, kernels))
    graph = torch.cuda.CUDAGraph()
    device.synchronize(device.record(forward_stream))
    with torch.cuda.graph(graph, stream=device.handle(forward_stream)):
        kernels()
    for length in range(4, 50, 3):
        if length == 25:
            decoding.close(rows_of(2, 5))
            opened(decoding)
            opened(decoding)
        decoding.flush()
        forward = _launched(decoding, tables, length, graph.replay)
        expected = sum(
            decoding.chain.pages(pool.name, decoding.requests.pages).sum(axis=1) for pool in decoding.plan.token_pools
        )
        process(decoding, forward)
        assert sums.cpu().tolist() == list(expected)


def test_serving_allocates_nothing_and_compiles_nothing(decoding: Storage) -> None:
    """After the first forward: moves, zeroes, updates and tables use what is there."""
    triton = pytest.importorskip("triton")
    assert decoding.mirrors is not None
    tables = decoding.mirrors.tables(8)
    process(decoding, _launched(decoding, tables, 3, tables.translate))
    compiled: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **told: compiled.append(told))
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for length in range(4, 50, 3):
            if length in (19, 34):
                decoding.close(rows_of(1, 6))
                opened(decoding)
                opened(decoding)
            decoding.flush()
            process(decoding, _launched(decoding, tables, length, tables.translate))
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert not compiled
    assert decoding.chain.counters.moves


@pytest.mark.slow
def test_stress_finds_nothing() -> None:
    """``kvarena stress --device`` on the GPU: two ranks, real streams, every byte that is read compared."""
    assert run(["stress", "--device", BACKEND, "--seeds", "0:5", "--ops", "200"]) == 0


def _launched(storage: Storage, tables: Any, length: int, work: Any) -> Any:
    """An iteration of all open rows, each to this length, or where it is by now."""
    rows = storage.requests.open_rows()
    ids = storage.step(rows, np.maximum(storage.requests.lengths[rows], length))
    assert not isinstance(ids, Refused)
    tables.batch(rows)
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, work)
    storage.forwards.record(forward)
    return forward
