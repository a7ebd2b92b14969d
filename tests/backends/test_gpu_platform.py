"""The backends ``cuda`` and ``rocm`` by name: what they say where they cannot run, and how they speak to torch."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import gpu_toys
import pytest
import torch

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.assembly.loader import make
from kvarena.backends import gpu_platform
from kvarena.backends.cuda import CudaDevice
from kvarena.backends.gpu_device import GpuDevice
from kvarena.backends.gpu_platform import TorchPlatform
from kvarena.backends.rocm import RocmDevice
from kvarena.plugins.cli.main import run
from kvarena.terms.errors import ConfigError, KvarenaError

NO_GPU = torch.version.cuda is None and torch.version.hip is None


@pytest.mark.skipif(not NO_GPU, reason="this torch is built for a GPU")
@pytest.mark.parametrize(("name", "build"), [("cuda", "CUDA"), ("rocm", "ROCm")])
def test_a_torch_without_the_device_is_refused_with_the_cure(name: str, build: str) -> None:
    """One message: which torch, what it lacks, what to install."""
    words = rf"^backend '{name}': torch .* was not built for {build}; install its {build} build, as pytorch.org says$"
    with pytest.raises(KvarenaError, match=words):
        make(Catalog.installed(), "backends", name)


@pytest.mark.skipif(not NO_GPU, reason="this torch is built for a GPU")
@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_stress_resolves_the_device_and_refuses_clearly(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The name is known; the exit code is 2 and the reason is the backend's own."""
    assert run(["stress", "--device", name, "--seeds", "0:1"]) == 2
    build = {"cuda": "CUDA", "rocm": "ROCm"}[name]
    told = " ".join(capsys.readouterr().err.split())
    assert re.match(
        rf"kvarena: seed 0: --device {name}: torch \S+ was not built for {build}; install its {build} build", told
    )


def test_doctor_says_that_no_gpu_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Both backends are listed with what they found, and what nobody has run is said."""
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"cuda", "rocm"} <= found["backends"].keys()
    if NO_GPU:
        assert "was not built for CUDA" in found["backends"]["cuda"]["why"]
    assert any("no GPU was there" in line and "pytest -m gpu" in line for line in found["untested"])


def test_settings_of_the_backend_are_checked() -> None:
    """A number below 0 and kernels of no such name, each by its place; before any device is looked for."""
    for wrong in ({"device": -1}, {"kernels": "cutlass"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            make(gpu_toys.CATALOG, "backends", Choice("toy-gpu", wrong))
    with pytest.raises(KvarenaError, match="asked for by its backend's name: cuda or rocm"):
        GpuDevice()


OTHERS = """
import sys
from kvarena.assembly.catalog import Catalog
from kvarena.plugins.cli.main import run
assert run(["plan", {config!r}, "--memory", "1GiB"]) == 0
assert "torch" not in sys.modules
Catalog.installed().load("backends", "cpu")
assert "torch" in sys.modules and "triton" not in sys.modules
Catalog.installed().load("backends", "cuda")
"""


LAYERS = """
version = 1
[arena]
memory = "1GiB"
[[layers]]
index = 0
layout = "mha"
kv_heads = 2
head_dim = 16
"""


@gpu_toys.NEEDS_TRITON
@pytest.mark.slow
def test_triton_is_imported_by_a_gpu_backend_alone(tmp_path: Path) -> None:
    """Planning imports no torch, and the cpu backend no Triton."""
    config = tmp_path / "layers.toml"
    config.write_text(LAYERS)
    code = OTHERS.format(config=str(config))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr


BARE = """
import sys
from kvarena.assembly.catalog import Catalog
from kvarena.terms.errors import MissingExtraError
sys.modules["torch"] = None
try:
    Catalog.installed().load("backends", "rocm")
except MissingExtraError as error:
    print(error)
"""


def test_without_torch_the_extra_is_named() -> None:
    """The command that installs it is in the message."""
    ended = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False, timeout=120)
    assert "torch (for the backend 'rocm')" in ended.stdout, ended.stderr
    assert "pip install 'kvarena[gpu]'" in ended.stdout


@attrs.define(eq=False)
class FakeStream:
    """A stream of a torch that was built for a GPU."""

    device: Any
    waits: list[Any] = attrs.field(factory=list)

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)


class FakeEvent:
    """An event likewise."""

    def __init__(self, *, fails: bool = False) -> None:
        self.on: Any = None
        self.fails = fails

    def record(self, stream: Any) -> None:
        self.on = stream

    def query(self) -> bool:
        return self.on is not None

    def synchronize(self) -> None:
        if self.fails:
            raise RuntimeError("an illegal memory access was encountered")


class FakeCuda:
    """What the platform uses of torch.cuda, on a machine with two devices of which the first is current."""

    Stream = FakeStream
    Event = FakeEvent
    OutOfMemoryError = torch.cuda.OutOfMemoryError

    def __init__(self) -> None:
        self.device = 0
        self.there = True
        self.now: dict[int, Any] = {index: FakeStream(torch.device("cuda", index)) for index in range(2)}
        self.emptied = 0

    def is_available(self) -> bool:
        return self.there

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return self.device

    def current_stream(self, device: Any) -> Any:
        return self.now[device.index]

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, index = (self.device, self.now[stream.device.index]), stream.device.index
        self.device, self.now[index] = index, stream
        try:
            yield
        finally:
            self.device, self.now[index] = before

    def synchronize(self, device: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    def empty_cache(self) -> None:
        self.emptied += 1

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return 10 << 30, 80 << 30

    def get_device_name(self, device: Any) -> str:
        return "NVIDIA H200"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A torch that was built for CUDA, as far as the platform looks."""
    cuda = FakeCuda()

    def zeros(count: int, *, dtype: Any, device: Any = None, pin_memory: bool = False) -> Any:
        if count > 1 << 20:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory") if device else RuntimeError("cannot lock")
        return ("pinned" if pin_memory else device, count, dtype)

    version = SimpleNamespace(cuda="13.0", hip=None)
    names: dict[str, Any] = {"cuda": cuda, "version": version, "zeros": zeros, "device": torch.device}
    names |= {"__version__": "2.13.0", "uint8": torch.uint8}
    monkeypatch.setattr(gpu_platform, "torch", SimpleNamespace(**names))
    return cuda


def test_a_device_that_is_not_there_is_refused_with_the_cure(fake: FakeCuda) -> None:
    """Built for another maker; no driver; no device of the number."""
    assert TorchPlatform("cuda", 1).device == torch.device("cuda", 1)
    with pytest.raises(KvarenaError, match="there is no device 2, torch finds 2, from 0 to 1"):
        TorchPlatform("cuda", 2)
    with pytest.raises(KvarenaError, match='not built for ROCm; choose backend = "cuda", or install its ROCm build'):
        TorchPlatform("rocm", 0)
    fake.there = False
    with pytest.raises(KvarenaError, match="finds no CUDA device; look for a driver that is loaded, and at CUDA_VIS"):
        TorchPlatform("cuda", 0)


def test_work_goes_on_its_stream_and_device(fake: FakeCuda) -> None:
    """Triton and torch go by what is current: it is the stream's meanwhile, and what it was before afterwards."""
    platform = TorchPlatform("cuda", 1)
    stream, seen = platform.stream(), list[Any]()

    def work(word: str) -> None:
        seen.append((word, fake.device, fake.now[1] is stream))

    platform.put(stream, work, "a")
    assert (fake.device, fake.now[1] is stream) == (0, False)
    platform.put(platform.current(), work, "b")
    fake.device, fake.now[1] = 1, stream
    platform.put(platform.current(), work, "c")
    assert seen == [("a", 1, True), ("b", 1, False), ("c", 1, True)]


def test_events_are_torchs(fake: FakeCuda) -> None:
    """Recorded on the stream, again where one is given; the stream waits, the host waits, and failures are told."""
    platform = TorchPlatform("cuda", 0)
    a, b = platform.stream(), platform.stream()
    event = platform.record(a)
    assert event.on is a
    assert platform.record(b, event) is event
    assert event.on is b
    assert platform.has_come(event)
    platform.wait(a, event)
    assert a.waits == [event]
    platform.synchronize(event)
    for failing in (lambda: platform.synchronize(FakeEvent(fails=True)), platform.synchronize):
        with pytest.raises(KvarenaError, match=r"work on cuda:0 failed: an illegal memory access.*end the process"):
            failing()


def test_memory_that_is_not_there_is_refused_with_its_sizes(fake: FakeCuda) -> None:
    """Of the device, of the host's locked memory, and of the arena before it is asked for."""
    platform = TorchPlatform("cuda", 0)
    assert platform.zeros(10, torch.uint8) == (torch.device("cuda", 0), 10, torch.uint8)
    assert platform.pinned(10, torch.uint8) == ("pinned", 10, torch.uint8)
    with pytest.raises(KvarenaError, match=r"cannot get 2\.00 MiB on NVIDIA H200 \(cuda:0\): 10\.00 GiB of its 80"):
        platform.zeros(2 << 20, torch.uint8)
    with pytest.raises(KvarenaError, match=r"cannot get 2\.00 MiB of page-locked memory: cannot lock; .*ulimit -l"):
        platform.pinned(2 << 20, torch.uint8)
    with pytest.raises(KvarenaError, match=r"backend 'cuda' cannot reserve 11\.00 GiB on NVIDIA H200"):
        platform.memory().check("cuda", 11 << 30)
    platform.memory().check("cuda", 10 << 30)
    assert fake.emptied == 3


def test_copies_do_not_wait() -> None:
    """An upload and a move go on the current stream, and the host goes on."""
    asked: list[tuple[Any, bool]] = []
    target: Any = SimpleNamespace(copy_=lambda source, non_blocking: asked.append((source, non_blocking)))
    platform: Any = TorchPlatform.__new__(TorchPlatform)
    acts: list[Callable[..., None]] = [platform.upload, platform.move]
    for act in acts:
        act(target, 7)
    assert asked == [(7, True), (7, True)]


def test_both_are_one_device_with_two_names() -> None:
    """What differs is the name, by which the platform looks for torch's build."""
    assert (CudaDevice.name, RocmDevice.name) == ("cuda", "rocm")
    assert issubclass(CudaDevice, GpuDevice)
    assert issubclass(RocmDevice, GpuDevice)
    assert [field.name for field in attrs.fields(CudaDevice) if field.init] == ["device", "kernels"]


def test_the_whole_of_stress_runs_on_cuda_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a platform, ``--device cuda`` runs: here on memory of the host, where Triton's kernels find no driver."""
    monkeypatch.setattr(CudaDevice, "open_platform", lambda device: gpu_toys.HostPlatform())
    assert run(["stress", "--device", "cuda", "--seeds", "0:2", "--ops", "60", "--json"]) == 0
