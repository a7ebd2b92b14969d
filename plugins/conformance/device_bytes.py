"""A device's bytes from the host, wherever they lie: read whole, and written whole, with no work under way."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvarena.terms.ports import Device, FieldView, IntArray

Bytes = npt.NDArray[np.uint8]

UNIT = 48
PAGES = 24
TAIL = 17
"""The arena is no whole number of units."""
ARENA_BYTES = UNIT * PAGES + TAIL


def array(numbers: Sequence[int]) -> IntArray:
    """Pages, places, positions or values as core has them."""
    return np.array(numbers, dtype=np.int64)


def near(values: Any) -> Any:
    """What a view or a table holds, as an array of the host of its own."""
    return np.array(values.cpu().numpy() if hasattr(values, "cpu") else values)


def put(view: Any, values: Any) -> None:
    """Write values into all of a view."""
    if hasattr(view, "new_tensor"):  # a tensor of torch
        view.copy_(view.new_tensor(values))
    else:
        view[...] = values


def settle(device: Device, *names: str) -> None:
    """Wait for all work on these streams, and on the caller's own."""
    for stream in (device.current(), *(device.stream(name) for name in names)):
        device.synchronize(device.record(stream))


def whole(device: Device, size: int = ARENA_BYTES) -> Any:
    """A view of the arena's bytes, one a row."""
    return device.view(FieldView("uint8", (), 1, 0, 1, size))


def read(device: Device, size: int = ARENA_BYTES) -> Bytes:
    """The arena's bytes."""
    found: Bytes = near(whole(device, size)).reshape(-1)
    return found


def filled(device: Device, seed: int, size: int = ARENA_BYTES) -> Bytes:
    """Write random bytes over the arena; they are returned."""
    content = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    put(whole(device, size), content.reshape(-1, 1))
    settle(device)
    return content


def unit_of(content: Bytes, page: int, unit_bytes: int = UNIT) -> Bytes:
    """The bytes of one page."""
    return content[page * unit_bytes : (page + 1) * unit_bytes]


def differs(found: Bytes, expected: Bytes, unit_bytes: int = UNIT) -> str:
    """Where an arena is not as it should be, in words; empty where it is."""
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return ""
    at = int(wrong[0])
    page = f"byte {at % unit_bytes} of page {at // unit_bytes} of units of {unit_bytes} B"
    return f"{page} is {int(found[at])}, not {int(expected[at])} ({len(wrong)} bytes differ)"


@contextmanager
def opened(device: Device, size: int = ARENA_BYTES) -> Iterator[Device]:
    """The device with an arena, until it is closed."""
    device.reserve(size)
    try:
        yield device
    finally:
        device.close()
