"""The backend ``rocm``: an AMD GPU, through ROCm."""

import attrs

from kvarena.backends.gpu_device import GpuDevice
from kvarena.backends.gpu_platform import Platform, TorchPlatform


@attrs.define(eq=False)
class RocmDevice(GpuDevice):
    """An AMD GPU, through ROCm: torch must be built for it, and the device be there when this is made."""

    name = "rocm"

    def open_platform(self) -> Platform:
        """torch's own streams and memory.

        Raises:
            KvarenaError: torch was not built for ROCm, or there is no such device; with the cure.
        """
        return TorchPlatform(self.name, self.device)
