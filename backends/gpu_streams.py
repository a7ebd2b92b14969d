"""Streams and events of a GPU by name, over what its platform gives."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kvarena.backends.gpu_platform import Platform
from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail
from kvarena.terms.ports import Event, Stream, Touch


@attrs.define(eq=False)
class GpuStream:
    """A stream: ``handle`` is torch's, for kernels of an engine. The caller's own has none: it is torch's current."""

    name: str
    handle: Any = attrs.field(default=None, repr=False)


@attrs.define(eq=False)
class GpuEvent:
    """A place in a stream's work: ``handle`` is torch's event, which was recorded."""

    handle: Any
    platform: Platform = attrs.field(repr=False)

    def done(self) -> bool:
        """Whether it has come."""
        return self.platform.has_come(self.handle)


@attrs.define(eq=False)
class GpuStreams:
    """The streams of one device. ``current`` is whatever stream is torch's current one when a call is made."""

    has_streams = True
    platform: Platform = attrs.field(init=False, repr=False)
    _current: GpuStream = attrs.field(factory=lambda: GpuStream("current"), init=False, repr=False)
    _streams: dict[str, GpuStream] = attrs.field(factory=dict, init=False, repr=False)
    _is_closed: bool = attrs.field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.platform = self.open_platform()

    def open_platform(self) -> Platform:
        """The platform of this device.

        Raises:
            KvarenaError: there is none here; with the cure.
        """
        raise KvarenaError("a GPU device is asked for by its backend's name: cuda or rocm")

    @property
    def words(self) -> str:
        """How messages call it."""
        return f"backend {self.platform.name!r}"

    def current(self) -> Stream:
        """torch's current stream of the device, as of each call that names it."""
        return self._current

    def stream(self, name: str) -> Stream:
        """The stream of this name, made when it is first asked for.

        Raises:
            KvarenaError: the device was closed.
        """
        if self._is_closed:
            raise KvarenaError(f"{self.words} was closed and has no stream {name!r} to give; open another device")
        if name not in self._streams:
            self._streams[name] = GpuStream(name, self.platform.stream())
        return self._streams[name]

    def record(self, stream: Stream) -> Event:
        """The place after all work that is on the stream now."""
        return GpuEvent(self.platform.record(self.handle(stream)), self.platform)

    def adopt(self, event: Any) -> Event:
        """An event of the engine's own, torch's, which was recorded: what ``forwards.record(event=...)`` takes."""
        return GpuEvent(event, self.platform)

    def wait(self, stream: Stream, event: Event) -> None:
        """Work that the stream is given from now on begins after the event; the caller does not wait."""
        self.platform.wait(self.handle(stream), self._known(event))

    def synchronize(self, event: Event) -> None:
        """The caller waits until the event has come.

        Raises:
            KvarenaError: work on the device failed.
        """
        self.platform.synchronize(self._known(event))

    def run(self, stream: Stream, work: Callable[[], None], reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Call the work now; the kernels that it launches go on the stream. What it touches is not looked at."""
        self.put(stream, work)

    def put(self, stream: Stream, work: Callable[..., None], *arguments: Any) -> None:
        """What ``work`` gives the device goes on this stream."""
        self.platform.put(self.handle(stream), work, *arguments)

    def handle(self, stream: Stream) -> Any:
        """torch's stream."""
        if stream is self._current:
            return self.platform.current()
        if not isinstance(stream, GpuStream) or self._streams.get(stream.name) is not stream:
            fail("device.stream_of_its_own", stream=stream)
        return stream.handle

    def _known(self, event: Event) -> Any:
        if not isinstance(event, GpuEvent):
            fail("device.event_of_its_own", event=event)
        return event.handle
