"""What the GPU backends use of torch.cuda, which speaks to NVIDIA's and to AMD's devices alike: one small object."""

from collections.abc import Callable
from typing import Any, Protocol

from kvarena.terms.errors import KvarenaError, MissingExtraError
from kvarena.terms.units import format_bytes

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch (a GPU backend)", "gpu") from error

BUILDS = {"cuda": "CUDA", "rocm": "ROCm"}
HIDES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


class Platform(Protocol):
    """Streams, events and memory of one device. Streams and events are its own handles, for nobody to look into.

    What a device does is put on a stream by ``put``; inside of it ``upload`` and ``move`` and kernels go there.
    """

    name: str
    device: "torch.device"

    def stream(self) -> Any:
        """A new stream."""
        ...

    def current(self) -> Any:
        """The stream on which the caller's own work goes."""
        ...

    def put(self, stream: Any, work: Callable[..., None], *arguments: Any) -> None:
        """What ``work`` gives the device goes on this stream."""
        ...

    def record(self, stream: Any, event: Any = None) -> Any:
        """The place after all work of the stream, as a new event or as this one."""
        ...

    def has_come(self, event: Any) -> bool:
        """Whether all work before it has ended."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Work that the stream is given from now on begins after the event."""
        ...

    def synchronize(self, event: Any = None) -> None:
        """The caller waits for an event, or for all work of the device."""
        ...

    def zeros(self, count: int, dtype: "torch.dtype") -> "torch.Tensor":
        """Memory of the device."""
        ...

    def pinned(self, count: int, dtype: "torch.dtype") -> "torch.Tensor":
        """Zeros in memory of the host that the device reaches by itself."""
        ...

    def upload(self, target: "torch.Tensor", source: "torch.Tensor") -> None:
        """From pinned memory to the device."""
        ...

    def move(self, target: "torch.Tensor", source: "torch.Tensor") -> None:
        """Bytes from one place to another, of the device or pinned."""
        ...

    def memory(self) -> "Memory":
        """The device's memory. What nobody uses goes back to it first."""
        ...


class Memory:
    """How much memory a device has, and who says so."""

    def __init__(self, place: str, free: int, total: int) -> None:
        self.place = place
        self.free = free
        self.total = total

    def check(self, backend: str, arena_bytes: int) -> None:
        """The arena fits.

        Raises:
            KvarenaError: it does not; with the sizes and the cure.
        """
        if arena_bytes > self.free:
            raise KvarenaError(
                f"backend {backend!r} cannot reserve {format_bytes(arena_bytes)} on {self.place}: "
                f"{format_bytes(self.free)} of its {format_bytes(self.total)} are free; lower [arena] memory, "
                "or end what else uses the device"
            )


class TorchPlatform:
    """A device that torch was built for. Nothing of it is touched before memory is asked for."""

    def __init__(self, name: str, index: int) -> None:
        """Find the device.

        Raises:
            KvarenaError: torch was not built for it, none is there, or none of this number.
        """
        self.name = name
        _check_there(name, index)
        self.device = torch.device("cuda", index)

    def stream(self) -> Any:
        """A new stream."""
        return torch.cuda.Stream(self.device)

    def current(self) -> Any:
        """torch's current stream of the device."""
        return torch.cuda.current_stream(self.device)

    def put(self, stream: Any, work: Callable[..., None], *arguments: Any) -> None:
        """Make the stream, and its device, the current ones meanwhile: torch and Triton both go by them."""
        if torch.cuda.current_device() == self.device.index and stream == self.current():
            work(*arguments)
            return
        with torch.cuda.stream(stream):
            work(*arguments)

    def record(self, stream: Any, event: Any = None) -> Any:
        """An event without a time, or the same one again."""
        event = event or torch.cuda.Event()
        event.record(stream)
        return event

    def has_come(self, event: Any) -> bool:
        """Ask the driver."""
        return bool(event.query())

    def wait(self, stream: Any, event: Any) -> None:
        """The stream waits, the caller does not."""
        stream.wait_event(event)

    def synchronize(self, event: Any = None) -> None:
        """The caller waits, and lets other threads run.

        Raises:
            KvarenaError: work on the device has failed.
        """
        try:
            if event is None:
                torch.cuda.synchronize(self.device)
            else:
                event.synchronize()
        except RuntimeError as error:
            raise KvarenaError(
                f"backend {self.name!r}: work on {self.device} failed: {error}; nothing on the device can be used any "
                "more: end the process"
            ) from error

    def zeros(self, count: int, dtype: "torch.dtype") -> "torch.Tensor":
        """Memory of torch's allocator, zeroed.

        Raises:
            KvarenaError: there is not as much.
        """
        try:
            return torch.zeros(count, dtype=dtype, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            amount, memory = format_bytes(count * dtype.itemsize), self.memory()
            raise KvarenaError(
                f"backend {self.name!r} cannot get {amount} on {memory.place}: {format_bytes(memory.free)} of its "
                f"{format_bytes(memory.total)} are free; lower [arena] memory"
            ) from error

    def pinned(self, count: int, dtype: "torch.dtype") -> "torch.Tensor":
        """Page-locked memory.

        Raises:
            KvarenaError: the system does not lock as much.
        """
        try:
            return torch.zeros(count, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            amount = format_bytes(count * dtype.itemsize)
            raise KvarenaError(
                f"backend {self.name!r} cannot get {amount} of page-locked memory: {error}; ask for less host memory, "
                "or raise the limit of locked memory (ulimit -l)"
            ) from error

    def upload(self, target: "torch.Tensor", source: "torch.Tensor") -> None:
        """One copy on the current stream."""
        target.copy_(source, non_blocking=True)

    def move(self, target: "torch.Tensor", source: "torch.Tensor") -> None:
        """One copy on the current stream."""
        target.copy_(source, non_blocking=True)

    def memory(self) -> Memory:
        """What the driver says."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return Memory(f"{torch.cuda.get_device_name(self.device)} ({self.device})", int(free), int(total))


def _check_there(name: str, index: int) -> None:
    """torch was built for these devices, and there is one of this number.

    Raises:
        KvarenaError: not so; with the cure.
    """
    built = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    if built[name] is None:
        other = next((one for one, version in built.items() if version is not None), None)
        cure = f'choose backend = "{other}", or install' if other else "install"
        raise KvarenaError(
            f"torch {torch.__version__} was not built for {BUILDS[name]}; "
            f"{cure} its {BUILDS[name]} build, as pytorch.org says"
        )
    if not torch.cuda.is_available():
        raise KvarenaError(
            f"torch {torch.__version__} finds no {BUILDS[name]} device; look for a driver that is "
            f"loaded, and at {HIDES[name]}, which hides devices"
        )
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise KvarenaError(
            f"there is no device {index}, torch finds {count}, from 0 to {count - 1}; "
            f"set [backend] device, or {HIDES[name]}"
        )
