"""The device without bytes."""

import numpy as np
import pytest

from kvarena.backends.host import CURRENT, HostDevice
from kvarena.ledger.timeline import Timeline
from kvarena.terms.errors import InvariantError, KvarenaError
from kvarena.terms.ports import Device, FieldView, Touch


def test_it_counts_what_it_is_asked() -> None:
    """Pages and bytes, copied and zeroed; an arena of any size costs nothing."""
    device = HostDevice()
    assert isinstance(device, Device)
    device.reserve(192 << 30)
    device.copy_pages(device.current(), 4096, np.arange(3), np.arange(3, 6))
    device.zero_pages(device.current(), 16, np.arange(5))
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
        HostDevice().copy_pages(CURRENT, 8, np.arange(2), np.arange(3))


def test_its_streams_are_names_and_everything_is_done_at_once() -> None:
    """Forwards may overlap on it: each event is another, and all have come."""
    device, ran = HostDevice(), list[int]()
    assert Timeline(device, 1).overlaps
    stream = device.stream("forward")
    assert stream.name == "forward"
    assert device.current() is device.current()
    device.run(stream, lambda: ran.append(1), (), ())
    assert ran == [1]
    first, second = device.record(stream), device.record(stream)
    assert first is not second
    assert first.done()
    device.wait(device.current(), first)
    device.synchronize(second)
    device.warm([64])


def test_saves_and_loads_are_counted_and_host_memory_has_no_bytes() -> None:
    """A shape that reads as zeros, of any size; pages and places come in pairs."""
    device = HostDevice()
    host = device.host_memory(1 << 20, 1 << 30)
    assert host.shape == (1 << 30, 1 << 20)
    assert not host[12345].any()
    pages = Touch(1 << 20, np.arange(3), "full")
    device.save(device.current(), pages, host, np.arange(3))
    device.load(device.current(), host, np.arange(3), pages)
    device.load(device.current(), host, np.arange(3), pages)
    assert (device.saved_pages, device.loaded_pages) == (3, 6)
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        device.save(device.current(), pages, host, np.arange(2))
    with pytest.raises(InvariantError, match=r"device\.copy_pairs"):
        device.load(device.current(), host, np.arange(2), pages)
