"""GPU devices on memory of the host: the same code, streams that a test turns, kernels under Triton's interpreter."""

import importlib.util
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from kvarena.assembly.catalog import Catalog, Entry, installed_entries
from kvarena.backends import gpu_kernels
from kvarena.backends.gpu_device import GpuDevice
from kvarena.backends.gpu_kernels import Kernels, TorchKernels, choose
from kvarena.backends.gpu_platform import Memory, Platform
from kvarena.backends.gpu_tables import TablePlan

TOTAL = 1 << 38


def interpreted() -> Any:
    """The module of the kernels, under Triton's interpreter: it looks at the environment when it is imported."""
    place = Path(gpu_kernels.__file__).with_name("gpu_triton.py")
    spec = importlib.util.spec_from_file_location("kvarena_interpreted_kernels", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("TRITON_DEFAULT_FP_FUSION", os.environ.get("TRITON_DEFAULT_FP_FUSION", "1"))
        spec.loader.exec_module(module)
    return module


INTERPRETED: Any = interpreted() if importlib.util.find_spec("triton") else None
NEEDS_TRITON = pytest.mark.skipif(INTERPRETED is None, reason="triton is not installed; pip install 'kvarena[gpu]'")


class Marker:
    """A place in a stream's work."""

    def __init__(self) -> None:
        self.has_come = False


@attrs.define(eq=False)
class Handle:
    """A stream or an event of the platform: ``queue`` is what a stream has still to do, ``marker`` what an event is."""

    queue: deque[tuple[str, Any]] = attrs.field(factory=deque)
    marker: Marker = attrs.field(factory=Marker)


class HostPlatform:
    """Streams whose work is done when it is put there. ``calls`` counts what is asked of the device, by name."""

    name = "toy"
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._current = Handle()

    def stream(self) -> Any:
        return Handle()

    def current(self) -> Any:
        return self._current

    def put(self, stream: Any, work: Callable[..., None], *arguments: Any) -> None:
        work(*arguments)

    def record(self, stream: Any, event: Any = None) -> Any:
        event = event or Handle()
        event.marker.has_come = True
        return event

    def has_come(self, event: Any) -> bool:
        return bool(event.marker.has_come)

    def wait(self, stream: Any, event: Any) -> None:
        self.calls.append("wait")

    def synchronize(self, event: Any = None) -> None:
        self.calls.append("synchronize")

    def zeros(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self.calls.append("allocation")
        return torch.zeros(count, dtype=dtype)

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self.calls.append("allocation")
        return torch.zeros(count, dtype=dtype)

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.calls.append("upload")
        target.copy_(source)

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.calls.append("move")
        target.copy_(source)

    def memory(self) -> Memory:
        return Memory("a toy (cpu)", TOTAL, TOTAL)


class LaggingPlatform(HostPlatform):
    """Streams that do as little as they may, and now and then something more: what is not waited for has not happened.

    The caller's own stream is never late, and inside of work the current stream is the work's.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._streams: list[Handle] = []
        self._landing: Handle | None = None
        self.restless = True
        """Whether something more is done now and then."""

    def stream(self) -> Any:
        self._streams.append(Handle())
        return self._streams[-1]

    def current(self) -> Any:
        return self._landing or self._current

    def put(self, stream: Any, work: Callable[..., None], *arguments: Any) -> None:
        if stream is self.current():
            work(*arguments)
            return
        assert self._landing is None, "work on a stream gives another stream work"
        stream.queue.append(("work", lambda: work(*arguments)))
        self._wander()

    def record(self, stream: Any, event: Any = None) -> Any:
        event = event or Handle()
        event.marker = Marker()
        if stream is self._current:
            event.marker.has_come = True
        else:
            stream.queue.append(("event", event.marker))
        return event

    def has_come(self, event: Any) -> bool:
        self._wander()
        return bool(event.marker.has_come)

    def wait(self, stream: Any, event: Any) -> None:
        super().wait(stream, event)
        if stream is self._current:
            self._until(event.marker)
        else:
            stream.queue.append(("wait", event.marker))

    def synchronize(self, event: Any = None) -> None:
        super().synchronize(event)
        if event is not None:
            self._until(event.marker)
            return
        while any(stream.queue for stream in self._streams):
            stepped = [self._step(stream) for stream in self._streams if stream.queue]
            assert any(stepped), "a deadlock"

    def _wander(self) -> None:
        may = self.restless and self._streams and self._landing is None
        for _ in range(self._rng.choice((0, 0, 0, 1, 3)) if may else 0):
            self._step(self._rng.choice(self._streams))

    def _until(self, marker: Marker) -> None:
        """Do what must be done for it, and no more."""
        while not marker.has_come:
            stream = next(one for one in self._streams if ("event", marker) in one.queue)
            kind, item = stream.queue[0]
            if kind == "wait":
                self._until(item)
            self._step(stream)

    def _step(self, stream: Handle) -> bool:
        """The next piece of a stream's work, if it has one that may be done."""
        if not stream.queue:
            return False
        kind, item = stream.queue[0]
        if kind == "wait" and not item.has_come:
            return False
        stream.queue.popleft()
        if kind == "event":
            item.has_come = True
        elif kind == "work":
            before, self._landing = self._landing, stream
            try:
                item()
            finally:
                self._landing = before
        return True


class CountedKernels:
    """Kernels that are counted by the platform, and maybe do nothing else."""

    def __init__(self, calls: list[str], kernels: Kernels | None) -> None:
        self.name = "counted"
        self.reaches_host = True
        self._calls, self._kernels = calls, kernels

    def copy(
        self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor, lists: torch.Tensor, count: int
    ) -> None:
        self._calls.append("copy")
        if self._kernels is not None:
            self._kernels.copy(unit_bytes, source, target, lists, count)

    def zero(self, unit_bytes: int, target: torch.Tensor, lists: torch.Tensor, count: int) -> None:
        self._calls.append("zero")
        if self._kernels is not None:
            self._kernels.zero(unit_bytes, target, lists, count)

    def warm(self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor) -> None:
        self._calls.append("warm")

    def scatter(self, mirror: torch.Tensor, staged: torch.Tensor, count: int) -> None:
        self._calls.append("scatter")
        if self._kernels is not None:
            self._kernels.scatter(mirror, staged, count)

    def translate(self, mirror: torch.Tensor, plan: TablePlan, rows: int, width: int) -> None:
        self._calls.append("translate")
        if self._kernels is not None:
            self._kernels.translate(mirror, plan, rows, width)


class Blind(TorchKernels):
    """Kernels to which memory of the host is out of reach."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def copy(
        self, unit_bytes: int, source: torch.Tensor, target: torch.Tensor, lists: torch.Tensor, count: int
    ) -> None:
        self._calls.append("copy")
        super().copy(unit_bytes, source, target, lists, count)


@attrs.define(eq=False)
class ToyDevice(GpuDevice):
    """A GPU device on memory of the host. ``kernels``: ``triton`` is interpreted here.

    ``lag``: the seed of streams that are late; below 0, nothing is. ``counted``: kernels are counted;
    ``idle``: and do nothing else.
    """

    name = "toy-gpu"
    lag: int = -1
    counted: bool = False
    idle: bool = False

    def open_platform(self) -> Platform:
        return HostPlatform() if self.lag < 0 else LaggingPlatform(self.lag)

    def open_kernels(self) -> tuple[Kernels, str]:
        kernels, why = choose(self.platform, self.kernels, INTERPRETED and INTERPRETED.TritonKernels)
        if self.counted:
            return CountedKernels(self.calls, None if self.idle else kernels), "counted"
        return kernels, why

    @property
    def calls(self) -> list[str]:
        """What was asked of the device."""
        platform = self.platform
        assert isinstance(platform, HostPlatform)
        return platform.calls


CATALOG = Catalog([*installed_entries(), Entry("backends", "toy-gpu", "tests", "1", "gpu_toys:ToyDevice")])


@contextmanager
def toys_in(module: Any) -> Iterator[None]:
    """``backend="toy-gpu"`` can be named where a module of tests builds storages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CATALOG", CATALOG)
        yield


KERNELS: dict[str, Callable[[], Kernels]] = {
    "triton": lambda: INTERPRETED.TritonKernels(),
    "torch": TorchKernels,
}
