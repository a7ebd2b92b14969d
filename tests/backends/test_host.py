"""The device without bytes."""

import numpy as np
import pytest

from kvarena.backends.host import HostDevice
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Device, FieldView


def test_it_counts_what_it_is_asked() -> None:
    """Pages and bytes, copied and zeroed; an arena of any size costs nothing."""
    device = HostDevice()
    assert isinstance(device, Device)
    device.reserve(192 << 30)
    device.copy_pages(4096, np.arange(3), np.arange(3, 6))
    device.zero_pages(16, np.arange(5))
    assert (device.copied_pages, device.copied_bytes) == (3, 3 * 4096)
    assert (device.zeroed_pages, device.zeroed_bytes) == (5, 80)
    device.resize(1 << 40)
    assert device.arena_bytes == 1 << 40
    device.close()


def test_views_are_refused_with_the_cure() -> None:
    """It says which backend has them."""
    device = HostDevice()
    device.reserve(100)
    with pytest.raises(KvarenaError, match='choose backend = "cpu"'):
        device.view(FieldView("uint8", (), 1, 0, 1, 100))


def test_copies_come_in_pairs() -> None:
    """As on a device with bytes."""
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        HostDevice().copy_pages(8, np.arange(2), np.arange(3))
