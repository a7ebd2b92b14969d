"""Whole storages on GPU devices of memory of the host: what holds on the cpu holds there, byte for byte."""

from collections.abc import Callable, Iterator
from typing import Any

import gpu_toys
import numpy as np
import pytest
import storages
from gpu_scenes import VERBS, Player
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from storage_machine import HARD, StorageMachine
from storages import CHAINS, storage_of

from kvarena.assembly.config import Choice
from kvarena.backends.gpu_device import GpuDevice
from kvarena.backends.gpu_mirror import GpuMirror, GpuTables
from kvarena.plugins.stress.swarm import harness as harness_of_stress
from kvarena.plugins.stress.swarm.harness import run_seed
from kvarena.plugins.stress.swarm.world import draw_world
from kvarena.storage.storage import Storage
from kvarena.terms.errors import ConfigError

TOYS = {
    "torch": {"kernels": "torch"},
    "torch, late streams": {"kernels": "torch", "lag": 1},
}


@pytest.fixture(autouse=True, scope="module")
def toys() -> Iterator[None]:
    with gpu_toys.toys_in(storages):
        yield


class GpuStorageMachine(StorageMachine):
    """Every token gets a tag where its step says it is written: on a GPU device, without overlap."""

    kernels = "torch"

    @initialize(
        name=st.sampled_from(sorted(CHAINS)) | st.sampled_from(HARD),
        page_tokens=st.sampled_from([1, 3, 4]),
        memory=st.integers(900, 4000) | st.just(4000),
    )
    def build(self, name: str, page_tokens: int, memory: int) -> None:
        slots = 2 if "state" in name and memory > 2000 else 1
        backend = Choice("toy-gpu", {"kernels": self.kernels})
        self.begin(
            storage_of(CHAINS[name], page_tokens=page_tokens, memory=memory, backend=backend, slots_per_request=slots)
        )


def test_requests_keep_their_bytes_on_a_gpu_device() -> None:
    """Opens, steps, frees, hand-overs and flushes in any order, as on the cpu."""
    few = settings(max_examples=15, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(GpuStorageMachine, settings=few)  # type: ignore[no-untyped-call]


@pytest.mark.req("BLD-1")
@pytest.mark.parametrize("kind", [*TOYS, pytest.param("triton", marks=gpu_toys.NEEDS_TRITON)])
@given(name=st.sampled_from(sorted(CHAINS)), memory=st.integers(2000, 6000), verbs=VERBS)
@settings(max_examples=20)
def test_overlapped_work_leaves_the_same_bytes_as_on_the_cpu(
    kind: str, name: str, memory: int, verbs: list[tuple[str, int, int]]
) -> None:
    """Every unit that is held, and every place of the host, after forwards, moves, zeroes, copies and loads."""
    players = [
        Player(name, memory, Choice("toy-gpu", TOYS.get(kind, {"kernels": kind}))),
        Player(name, memory, Choice("cpu")),
    ]
    found = []
    for player in players:
        for verb in verbs:
            player.play(*verb)
        found.append(player.rest())
    (held, hosts), (held_cpu, hosts_cpu) = found
    assert held.keys() == held_cpu.keys()
    for sub_pool, (pages, contents) in held.items():
        assert np.array_equal(pages, held_cpu[sub_pool][0])
        assert np.array_equal(contents, held_cpu[sub_pool][1]), sub_pool
        assert np.array_equal(hosts[sub_pool], hosts_cpu[sub_pool]), sub_pool
    for player in players:
        player.bytes.clear()
        player.storage.release()


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[str]]:
    """The stress harness on GPU devices whose streams are late by a seed: what broke in the first so many worlds."""
    monkeypatch.setattr(harness_of_stress, "catalog_under", lambda plugins: gpu_toys.CATALOG)

    def run(worlds: int, lag: int) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_toys.ToyDevice, "__init__", made_with(lag))
            runs = [run_seed(draw_world(seed), 400, "toy-gpu") for seed in range(worlds)]
        return [f"{run.case.check}: {run.case.words}" for run in runs if run.case is not None]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("lag", [-1, 4])
def test_the_stress_harness_finds_nothing_on_a_gpu_device(lag: int, harness: Callable[[int, int], list[str]]) -> None:
    """Random operations on two ranks of GPU devices, whose streams are late or are not: every promise holds."""
    assert harness(5, lag) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "act"),
    [
        (gpu_toys.LaggingPlatform, "wait"),
        (GpuDevice, "zero_pages"),
        (GpuDevice, "copy_pages"),
        (GpuDevice, "load"),
        (GpuMirror, "apply"),
        (GpuTables, "translate"),
    ],
    ids=["wait", "zero_pages", "copy_pages", "load", "apply", "translate"],
)
def test_the_harness_finds_what_a_gpu_device_leaves_out(
    where: type, act: str, harness: Callable[[int, int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test itself: a wait, a zero, a copy, a load, an update or a table that is not made is seen."""
    monkeypatch.setattr(where, act, lambda *arguments: None)
    found = harness(5, 4)
    assert {words.partition(":")[0] for words in found} & {"lost_write", "stale_mirror"}


def made_with(lag: int) -> Any:
    """A maker of devices without settings, as the harness makes them."""
    make = gpu_toys.ToyDevice.__init__

    def init(device: Any, *args: Any, **settings: Any) -> None:
        make(device, *args, **{"kernels": "torch", "lag": lag, **settings})

    return init


def test_a_gpu_storage_is_built_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the catalog, with the settings of a config; what it does not have is refused."""
    storage: Storage = storage_of([storages.FULL], backend=Choice("toy-gpu", {"kernels": "torch"}))
    assert storage.device.name == "toy-gpu"
    storage.release()
    for wrong, words in (
        ({"kernel": "torch"}, "kernel: unknown key; did you mean 'kernels'"),
        ({"device": -1}, "device"),
    ):
        with pytest.raises(ConfigError, match=words):
            storage_of([storages.FULL], backend=Choice("toy-gpu", wrong))
