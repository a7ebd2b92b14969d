"""What a backend promises of page work: copies, zeros, saves and loads, to the byte what a plain loop would do."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarena.plugins.conformance.base import FEWER, Conformance, needs
from kvarena.plugins.conformance.device_bytes import (
    ARENA_BYTES,
    PAGES,
    UNIT,
    array,
    differs,
    filled,
    opened,
    read,
    settle,
    unit_of,
)
from kvarena.plugins.conformance.pauses import pause
from kvarena.terms.ports import Device, Touch

STREAM = "memory"
KIND = "full"


class Lists(NamedTuple):
    """Where pages are copied from and to, one after another; no target is a later source."""

    unit_bytes: int
    sources: list[int]
    targets: list[int]


@st.composite
def copies(draw: st.DrawFn) -> Lists:
    """Single pages and runs, some of which slide over themselves."""
    unit = draw(st.sampled_from((UNIT, 2 * UNIT, 16)))
    pages = min(PAGES, ARENA_BYTES // unit)
    segment = st.tuples(st.integers(0, pages - 1), st.integers(0, pages - 1), st.integers(1, 9))
    sources: list[int] = []
    targets: list[int] = []
    for source, target, count in draw(st.lists(segment, max_size=6)):
        for step in range(count):
            if max(source, target) + step < pages and source + step not in targets:
                sources.append(source + step)
                targets.append(target + step)
    return Lists(unit, sources, targets)


SOME_PAGES = st.lists(st.integers(0, PAGES - 1), unique=True, max_size=PAGES)
PLACED = SOME_PAGES.flatmap(lambda pages: st.tuples(st.just(pages), st.permutations(range(PAGES))))


class PagePromises(Conformance):
    """Page work, compared with a plain loop over numpy arrays."""

    @needs("bytes")
    @FEWER
    @given(lists=copies(), seed=st.integers(0, 99))
    def test_copies_pages_in_their_order(self, make_device: Callable[[], Device], lists: Lists, seed: int) -> None:
        """``copy_pages`` copies whole units, one pair after another, and changes nothing else."""
        with opened(make_device()) as device:
            expected = filled(device, seed)
            for source, target in zip(lists.sources, lists.targets, strict=True):
                unit_of(expected, target, lists.unit_bytes)[:] = unit_of(expected, source, lists.unit_bytes)
            stream = device.stream(STREAM)
            device.copy_pages(stream, lists.unit_bytes, array(lists.sources), array(lists.targets))
            settle(device, STREAM)
            wrong = differs(read(device), expected, lists.unit_bytes)
            if wrong:
                self._fail(device, f"copy_pages of {lists.sources} to {lists.targets}: {wrong}")

    @needs("bytes")
    @FEWER
    @given(pages=SOME_PAGES, seed=st.integers(0, 99))
    def test_zeroes_pages(self, make_device: Callable[[], Device], pages: list[int], seed: int) -> None:
        """``zero_pages`` writes zeros over whole units, and changes nothing else."""
        with opened(make_device()) as device:
            expected = filled(device, seed)
            for page in pages:
                unit_of(expected, page)[:] = 0
            device.zero_pages(device.stream(STREAM), UNIT, array(pages))
            settle(device, STREAM)
            wrong = differs(read(device), expected)
            if wrong:
                self._fail(device, f"zero_pages of {pages}: {wrong}")

    @needs("bytes")
    @FEWER
    @given(placed=PLACED, seed=st.integers(0, 99))
    def test_saves_pages(self, make_device: Callable[[], Device], placed: tuple[Any, Any], seed: int) -> None:
        """``save`` copies pages to these places of the host's memory, and to no others; the arena stays."""
        pages, places = placed[0], list(placed[1])[: len(placed[0])]
        with opened(make_device()) as device:
            content, host = filled(device, seed), device.host_memory(UNIT, PAGES)
            expected = np.zeros((PAGES, UNIT), dtype=np.uint8)
            for page, place in zip(pages, places, strict=True):
                expected[place] = unit_of(content, page)
            device.save(device.stream(STREAM), Touch(UNIT, array(pages), KIND), host, array(places))
            settle(device, STREAM)
            if not np.array_equal(np.asarray(host), expected):
                place = int(np.argwhere((np.asarray(host) != expected).any(1))[0, 0])
                self._fail(device, f"save of pages {pages} to places {places}: place {place} is not as it should be")
            wrong = differs(read(device), content)
            if wrong:
                self._fail(device, f"save of pages {pages}: {wrong} of the arena")

    @needs("bytes")
    @FEWER
    @given(placed=PLACED, seed=st.integers(0, 99))
    def test_loads_pages(self, make_device: Callable[[], Device], placed: tuple[Any, Any], seed: int) -> None:
        """``load`` copies these places of the host's memory to pages, and to no others."""
        pages, places = placed[0], list(placed[1])[: len(placed[0])]
        with opened(make_device()) as device:
            expected, host = filled(device, seed), device.host_memory(UNIT, PAGES)
            host[:] = np.random.default_rng(seed + 1).integers(0, 256, host.shape, dtype=np.uint8)
            for page, place in zip(pages, places, strict=True):
                unit_of(expected, page)[:] = host[place]
            device.load(device.stream(STREAM), host, array(places), Touch(UNIT, array(pages), KIND))
            settle(device, STREAM)
            wrong = differs(read(device), expected)
            if wrong:
                self._fail(device, f"load of places {places} to pages {pages}: {wrong}")

    @needs("bytes")
    def test_reads_lists_when_it_is_called(self, device: Device) -> None:
        """What a call names is read when it is called: whoever gave the lists may change them at once."""
        expected, stream = filled(device, 7), device.stream(STREAM)
        sources, targets, zeroed = array([0, 1, 2]), array([5, 6, 7]), array([9, 11])
        device.run(stream, pause, (), ())
        device.copy_pages(stream, UNIT, sources, targets)
        device.zero_pages(stream, UNIT, zeroed)
        sources[:], targets[:], zeroed[:] = 3, 20, 21
        settle(device, STREAM)
        for source, target in ((0, 5), (1, 6), (2, 7)):
            unit_of(expected, target)[:] = unit_of(expected, source)
        for page in (9, 11):
            unit_of(expected, page)[:] = 0
        wrong = differs(read(device), expected)
        if wrong:
            self._fail(device, f"its lists of pages were changed after the calls, and {wrong}")

    @needs("bytes")
    def test_does_page_work_in_the_order_of_the_calls(self, device: Device) -> None:
        """On one stream copies, zeros, saves and loads begin after those before them have ended."""
        expected, stream = filled(device, 8), device.stream(STREAM)
        host = device.host_memory(UNIT, 2)
        first = unit_of(expected, 0).copy()
        device.run(stream, pause, (), ())
        for page in range(1, 12):
            device.copy_pages(stream, UNIT, array([page - 1]), array([page]))
            device.zero_pages(stream, UNIT, array([page - 1]))
        device.save(stream, Touch(UNIT, array([11]), KIND), host, array([1]))
        device.zero_pages(stream, UNIT, array([11]))
        device.load(stream, host, array([1]), Touch(UNIT, array([3]), KIND))
        settle(device, STREAM)
        expected[: 12 * UNIT] = 0
        unit_of(expected, 3)[:] = first
        wrong = differs(read(device), expected)
        if wrong:
            self._fail(device, f"a page was handed along by copies, zeros, a save and a load: {wrong}")
