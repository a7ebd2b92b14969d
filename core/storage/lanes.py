"""The streams beside the forwards: one for copies out, one for copies in, one where transfer engines start."""

from kvarena.ledger.ledger import Ledger
from kvarena.terms.ports import Stream


class Lanes:
    """Streams by name, each opened at its first use. Without overlap all of them are the caller's own.

    What is put on a lane comes after everything that the forwards' and the allocator's streams were given before.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._streams: dict[str, Stream] = {}

    def behind(self, name: str) -> Stream:
        """The stream, once it waits for the forwards and for the tail of the allocator's."""
        timeline = self._ledger.timeline
        if not timeline.overlaps:
            return timeline.memory
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = timeline.device.stream(name)
        timeline.device.wait(stream, timeline.device.record(timeline.forward))
        timeline.hand(stream)
        return stream

    def drain(self) -> None:
        """The host waits until all work of every stream, the forwards' and the allocator's among them, has ended."""
        timeline = self._ledger.timeline
        for stream in (timeline.memory, timeline.forward, *self._streams.values()):
            timeline.device.synchronize(timeline.device.record(stream))
