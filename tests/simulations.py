"""A small vocabulary for tests of the simulated device: pages of 128 B that are written and read on streams."""

from collections.abc import Callable

import numpy as np

from kvarena.backends.simulated import SimulatedDevice
from kvarena.terms.ports import IntArray, Stream, Touch

UNIT = 128
TIMINGS = ("early", "late", "random", "manual")


def device_of(pages: int = 16, timing: str = "random", seed: int = 0) -> SimulatedDevice:
    device = SimulatedDevice(seed, timing)
    device.reserve(pages * UNIT)
    return device


def at(*pages: int) -> IntArray:
    return np.array(pages, dtype=np.int64)


def fill(device: SimulatedDevice, page: int, value: int) -> Callable[[], None]:
    """Work that writes a page."""

    def fill_page() -> None:
        device.host_bytes(UNIT, page)[:] = value

    return fill_page


def write(device: SimulatedDevice, stream: Stream, page: int, value: int, kind: str = "full") -> None:
    device.run(stream, fill(device, page, value), [], [Touch(UNIT, at(page), kind)])


def read(device: SimulatedDevice, stream: Stream, page: int, seen: list[int], kind: str = "full") -> None:
    device.run(stream, lambda: seen.append(int(device.host_bytes(UNIT, page)[0])), [Touch(UNIT, at(page), kind)], [])


def checks(device: SimulatedDevice) -> list[str]:
    return [violation.check for violation in device.violations]
