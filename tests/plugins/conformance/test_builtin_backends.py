"""The built-in backends join the kit as a stranger's would; GPU ones where there is a GPU, and on toys everywhere."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from entry_points import own_names
from gpu_toys import NEEDS_TRITON, ToyDevice

from kvarena.backends.cpu import CpuDevice
from kvarena.backends.cuda import CudaDevice
from kvarena.backends.host import HostDevice
from kvarena.backends.rocm import RocmDevice
from kvarena.backends.simulated import SimulatedDevice
from kvarena.plugins.conformance import BackendConformance
from kvarena.terms.ports import Device

Make = Callable[[], Device]
ON_ROCM = torch.version.hip is not None
BACKENDS = (HostDevice, CpuDevice, SimulatedDevice, CudaDevice, RocmDevice)


@pytest.mark.req("PLG-1")
class TestHost(BackendConformance):
    """No bytes, and work that is done where it is given."""

    declines: ClassVar = ("bytes", "tables")

    @pytest.fixture
    def make_device(self) -> Make:
        """Its class."""
        return HostDevice


@pytest.mark.req("PLG-1")
class TestCpu(BackendConformance):
    """Streams of worker threads."""

    declines: ClassVar = ("tables",)

    @pytest.fixture
    def make_device(self) -> Make:
        """Its class."""
        return CpuDevice


@pytest.mark.req("PLG-1")
class TestSimulated(BackendConformance):
    """Work that lands when the adversary likes."""

    declines: ClassVar = ("tables",)

    @pytest.fixture(params=["early", "late", "random"])
    def make_device(self, request: pytest.FixtureRequest) -> Make:
        """With each adversary, over units of any size."""
        return partial(SimulatedDevice, timing=request.param, grain_bytes=1)


@pytest.mark.req("PLG-1")
class TestGpuOnAToy(BackendConformance):
    """What both GPU backends are, on memory of the host: streams that are done at once, and late ones."""

    @pytest.fixture(
        params=[
            pytest.param({"kernels": "triton"}, marks=NEEDS_TRITON),
            {"kernels": "torch"},
            {"kernels": "torch", "lag": 5},
        ],
        ids=str,
    )
    def make_device(self, request: pytest.FixtureRequest) -> Make:
        """With each set of kernels."""
        settings: dict[str, Any] = request.param
        return partial(ToyDevice, **settings)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or ON_ROCM, reason="there is no GPU that CUDA reaches")
@pytest.mark.req("PLG-1")
class TestCuda(BackendConformance):
    """On a GPU."""

    @pytest.fixture
    def make_device(self) -> Make:
        """Its class."""
        return CudaDevice


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not ON_ROCM, reason="there is no GPU that ROCm reaches")
@pytest.mark.req("PLG-1")
class TestRocm(BackendConformance):
    """On a GPU."""

    @pytest.fixture
    def make_device(self) -> Make:
        """Its class."""
        return RocmDevice


def test_every_backend_is_tested() -> None:
    """There is a class for each entry point."""
    assert {backend.name for backend in BACKENDS} == own_names("backends")
