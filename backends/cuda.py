"""The backend ``cuda``: an NVIDIA GPU, through CUDA."""

import attrs

from kvarena.backends.gpu_device import GpuDevice
from kvarena.backends.gpu_platform import Platform, TorchPlatform


@attrs.define(eq=False)
class CudaDevice(GpuDevice):
    """An NVIDIA GPU, through CUDA: torch must be built for it, and the device be there when this is made."""

    name = "cuda"

    def open_platform(self) -> Platform:
        """torch's own streams and memory.

        Raises:
            KvarenaError: torch was not built for CUDA, or there is no such device; with the cure.
        """
        return TorchPlatform(self.name, self.device)
