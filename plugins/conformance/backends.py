"""What a backend promises: an arena of bytes, page work that is exact, and an order that streams and events keep."""

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import pytest

from kvarena.plugins.conformance.backend_pages import PagePromises
from kvarena.plugins.conformance.backend_streams import MirrorPromises, StreamPromises
from kvarena.plugins.conformance.base import Conformance, needs
from kvarena.plugins.conformance.device_bytes import (
    ARENA_BYTES,
    PAGES,
    TAIL,
    UNIT,
    array,
    differs,
    filled,
    opened,
    put,
    read,
    settle,
)
from kvarena.plugins.conformance.swarm import MINE, Slice, broken_in
from kvarena.plugins.stress.swarm.world import Wanted
from kvarena.terms.errors import KvarenaError
from kvarena.terms.ports import Device, FieldView

SEEDS = 4
OPERATIONS = 150


class MemoryPromises(Conformance):
    """What a device says of itself, and its memory."""

    word: ClassVar[str] = "backend"
    powers: ClassVar = {
        "bytes": "the arena has bytes, which can be viewed, copied, zeroed, saved and loaded",
        "streams": "streams run beside the caller, and are ordered by events",
        "tables": "a mirror fills tables for kernels by itself, all of them in one go",
    }

    @pytest.fixture
    def make_device(self) -> Callable[[], Device]:
        """What makes a device when it is called: its class, say. It is reserved by whoever made it."""
        return self._missing("make_device", "MyDevice")

    @pytest.fixture
    def device(self, make_device: Callable[[], Device]) -> Iterator[Device]:
        """A device with an arena, closed in the end."""
        with opened(make_device()) as device:
            yield device

    def test_says_what_it_is(self, device: Device) -> None:
        """It has every method of ``Device``, a name, and says with True or False whether it has bytes and streams."""
        if not isinstance(device, Device):
            methods = (name for one in Device.__mro__ for name in vars(one) if not name.startswith("_"))
            lacks = sorted({name for name in methods if not hasattr(device, name)})
            self._fail(device, f"it is no device: it lacks {', '.join(lacks)}")
        if not isinstance(device.name, str) or not device.name:
            self._fail(device, f"its name is {device.name!r}; it must be a text")
        for flag, power in (("holds_bytes", "bytes"), ("has_streams", "streams")):
            said = getattr(device, flag)
            if not isinstance(said, bool):
                self._fail(device, f"its {flag} is {said!r}; it must be True or False")
            if said == (power in self.declines):
                verb = "decline" if not said else "do not decline"
                self._fail(device, f"its {flag} is {said}: {verb} {power!r}")

    @needs("bytes")
    def test_reserves_zeros(self, make_device: Callable[[], Device]) -> None:
        """The arena is all zeros when it is reserved, also where another device wrote before."""
        for seed in range(2):
            with opened(make_device()) as device:
                wrong = differs(read(device), np.zeros(ARENA_BYTES, dtype=np.uint8))
                if wrong:
                    self._fail(device, f"a new arena: {wrong}")
                filled(device, seed)

    @needs("bytes")
    def test_resizes_at_the_top(self, device: Device) -> None:
        """A smaller arena keeps its bytes; grown again inside what was reserved, what is new is zero."""
        content, less = filled(device, 1), UNIT * (PAGES // 2)
        device.resize(less)
        wrong = differs(read(device, less), content[:less])
        if wrong:
            self._fail(device, f"after a resize to {less} bytes: {wrong}")
        device.resize(ARENA_BYTES)
        content[less:] = 0
        wrong = differs(read(device), content)
        if wrong:
            self._fail(device, f"after a resize to {less} bytes and back: {wrong}")

    @needs("bytes")
    def test_views_are_the_arena(self, device: Device) -> None:
        """A view of any grid reads and writes page p at byte p times its unit: nothing is copied."""
        expected, rng = filled(device, 2), np.random.default_rng(3)
        for unit, rows, offset, width in ((UNIT, 4, 5, 7), (20, 1, 0, 20), (UNIT, 2, 30, 9)):
            pages = ARENA_BYTES // unit
            view = device.view(FieldView("uint8", (width,), rows, offset, unit, pages))
            if tuple(view.shape) != (pages, rows, width):
                self._fail(device, f"a view of {pages} pages, {rows} rows of {width} has shape {tuple(view.shape)}")
            page = int(rng.integers(pages))
            written = rng.integers(0, 256, (rows, width), dtype=np.uint8)
            put(view[page], written)
            settle(device)
            start = page * unit + offset
            expected[start : start + rows * width] = written.reshape(-1)
            wrong = differs(read(device), expected)
            if wrong:
                self._fail(device, f"page {page} of a view in units of {unit} B at byte {offset} was written: {wrong}")

    @needs("bytes")
    def test_keeps_devices_apart(self, make_device: Callable[[], Device]) -> None:
        """What is written into one device's arena is not in another's."""
        with opened(make_device()) as one, opened(make_device()) as other:
            before = read(other)
            filled(one, 4)
            wrong = differs(read(other), before)
            if wrong:
                self._fail(one, f"one device was written, and of another {wrong}")

    def test_closes_again(self, make_device: Callable[[], Device]) -> None:
        """``close`` after all work; a second time does nothing."""
        device = make_device()
        device.reserve(ARENA_BYTES)
        device.close()
        try:
            device.close()
        except Exception as error:  # whatever it is, nobody who closes expects it
            self._fail(device, f"closed a second time, it raises {type(error).__name__}: {error}")

    def test_gives_memory_of_the_host(self, device: Device) -> None:
        """``host_memory`` is uint8 of shape (count, unit_bytes), zero, and another's at every call."""
        one, other = device.host_memory(UNIT, 5), device.host_memory(UNIT, 5)
        for host in (one, other):
            found = (str(host.dtype), tuple(host.shape))
            if found != ("uint8", (5, UNIT)):
                self._fail(device, f"host_memory({UNIT}, 5) is {found[0]} of shape {found[1]}")
            if np.asarray(host).any():
                self._fail(device, f"host_memory({UNIT}, 5) is not zero")
            if device.holds_bytes:
                host[:] = 9


class BackendConformance(MirrorPromises, StreamPromises, PagePromises, MemoryPromises):
    """A backend: give the fixture ``make_device``, what makes a new one: its class, or a ``functools.partial``."""

    @needs("bytes")
    def test_warming_changes_nothing(self, device: Device) -> None:
        """``warm`` makes copies ready and changes no byte, for units of any size."""
        expected = filled(device, 5)
        device.warm([UNIT, 2 * UNIT, ARENA_BYTES - TAIL])
        settle(device)
        wrong = differs(read(device), expected)
        if wrong:
            self._fail(device, f"after warm: {wrong}")

    @needs("bytes")
    def test_refuses_pages_outside(self, device: Device) -> None:
        """A page outside the arena, or a source without a target, is refused before any byte changes."""
        expected, here = filled(device, 6), device.current()
        good = array([0, 1])
        asked: dict[str, Callable[[], None]] = {
            f"zero_pages of page {PAGES}": lambda: device.zero_pages(here, UNIT, array([1, PAGES])),
            "zero_pages of page -1": lambda: device.zero_pages(here, UNIT, array([1, -1])),
            f"copy_pages to page {PAGES}": lambda: device.copy_pages(here, UNIT, good, array([2, PAGES])),
            f"copy_pages from page {PAGES}": lambda: device.copy_pages(here, UNIT, array([2, PAGES]), good),
            "copy_pages of 2 sources to 1 target": lambda: device.copy_pages(here, UNIT, good, array([2])),
        }
        for what, call in asked.items():
            try:
                call()
                settle(device)
                self._fail(device, f"{what} is not refused")
            except Exception:  # by an error of any class: a broken promise of the caller's
                settle(device)
            wrong = differs(read(device), expected)
            if wrong:
                self._fail(device, f"{what} was refused, and {wrong}")

    def test_holds_in_the_stress_harness(self, make_device: Callable[[], Device]) -> None:
        """Random requests on it keep every promise of the stress harness: what work reads is what was written."""
        alone = "streams" in self.declines and "bytes" not in self.declines  # what is read may not change meanwhile
        wanted = (Wanted(overlaps=not alone),)
        makers = {("backends", MINE): make_device}
        found = broken_in(Slice(makers=makers, wanted=wanted, device=MINE, seeds=SEEDS, operations=OPERATIONS))
        if found:
            try:
                device = make_device()
            except KvarenaError:
                device = make_device  # type: ignore[assignment]
            self._fail(device, found)
