"""A device without bytes, for planning and replay: it counts what it is asked to do, and is done at once."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from kvarena.backends.staged_mirror import StagedMirror
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail
from kvarena.terms.ports import Event, FieldView, IntArray, Mirror, Stream, Touch


class Past:
    """A place in work that was done when it was given."""

    __slots__ = ()

    def done(self) -> bool:
        """It has come."""
        return True


@attrs.define(eq=False)
class NamedStream:
    """A stream by name: there is never anything on it."""

    name: str


CURRENT = NamedStream("current")


class NamedStreams:
    """Streams on which every piece of work is done when it is given, so that there is nothing to order."""

    __slots__ = ()
    has_streams = True

    def current(self) -> Stream:
        """The caller's own."""
        return CURRENT

    def stream(self, name: str) -> Stream:
        """One more name."""
        return NamedStream(name)

    def record(self, stream: Stream) -> Event:
        """A place that has come."""
        return Past()

    def wait(self, stream: Stream, event: Event) -> None:
        """Nothing to wait for."""

    def synchronize(self, event: Event) -> None:
        """Nothing to wait for."""

    def run(self, stream: Stream, work: Callable[[], None], reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Do the work now."""
        work()


@attrs.define
class HostDevice(NamedStreams):
    """Holds no bytes; an arena of any size costs nothing."""

    name = "host"
    holds_bytes = False
    arena_bytes: int = attrs.field(default=0, init=False)
    copied_pages: int = attrs.field(default=0, init=False)
    copied_bytes: int = attrs.field(default=0, init=False)
    zeroed_pages: int = attrs.field(default=0, init=False)
    zeroed_bytes: int = attrs.field(default=0, init=False)
    saved_pages: int = attrs.field(default=0, init=False)
    loaded_pages: int = attrs.field(default=0, init=False)

    def reserve(self, arena_bytes: int) -> None:
        """Remember the size."""
        self.arena_bytes = arena_bytes

    def resize(self, arena_bytes: int) -> None:
        """Remember the new size; any is reached."""
        self.arena_bytes = arena_bytes

    def view(self, field: FieldView) -> Any:
        """Refused: there is nothing to view.

        Raises:
            KvarenaError: always.
        """
        raise KvarenaError('backend "host" holds no bytes, so it has no views; choose backend = "cpu" for them')

    def copy_pages(self, stream: Stream, unit_bytes: int, sources: IntArray, targets: IntArray) -> None:
        """Count."""
        count = len(sources)
        if count != len(targets):
            fail("device.copy_pairs", sources=count, targets=len(targets))
        self.copied_pages += count
        self.copied_bytes += count * unit_bytes

    def zero_pages(self, stream: Stream, unit_bytes: int, pages: IntArray) -> None:
        """Count."""
        count = len(pages)
        self.zeroed_pages += count
        self.zeroed_bytes += count * unit_bytes

    def warm(self, units_bytes: Sequence[int]) -> None:
        """Nothing is ever allocated."""

    def mirror(self, size: int, slots: int, slot_entries: int) -> Mirror:
        """A mirror that holds its integers: what runs on it can read them. Each update is done at once."""
        return StagedMirror(size, slots, slot_entries, _now)

    def host_memory(self, unit_bytes: int, count: int) -> Any:
        """The shape of it, without the bytes: it reads as zeros and cannot be written."""
        return np.broadcast_to(np.uint8(0), (count, unit_bytes))

    def save(self, stream: Stream, pages: Touch, host: Any, places: IntArray) -> None:
        """Count."""
        self.saved_pages += _pairs(pages.pages, places)

    def load(self, stream: Stream, host: Any, places: IntArray, pages: Touch) -> None:
        """Count."""
        self.loaded_pages += _pairs(pages.pages, places)

    def close(self) -> None:
        """Nothing to give back."""
        self.arena_bytes = 0


def _now(stream: Stream, title: str, work: Callable[..., object], *arguments: Any) -> None:
    work(*arguments)


def _pairs(pages: IntArray, places: IntArray) -> int:
    """How many, of pages and their places."""
    if len(pages) != len(places):
        fail("device.copy_pairs", pages=len(pages), places=len(places))
    return len(pages)
