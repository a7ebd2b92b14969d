"""Streams in memory: each is a thread that works through a queue. Events really come; what fails is kept and told."""

import atexit
import weakref
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, NoReturn

import attrs

from kvarena.terms.errors import KvarenaError
from kvarena.terms.invariants import fail
from kvarena.terms.ports import Event, Stream, Touch

Item = tuple[str, Callable[..., object] | None, tuple[Any, ...]]
"""A title, work and its arguments. Without a title it is run on a stream that has failed, too."""

ORDER = ""
"""The title of events and waits."""
RUN = "run"
"""The title of work that is named by its function."""
CLOSED: Item = ("closed", None, ())
DROPPED: Item = ("dropped", None, ())
EXIT_SECONDS = 10
"""How long the end of the program waits for a piece of work that has begun."""


@attrs.define(eq=False)
class Failure:
    """What went wrong on a stream, until somebody is told."""

    stream: str
    work: str
    error: BaseException
    is_told: bool = False

    def __str__(self) -> str:
        return f"stream {self.stream!r} failed at {self.work}: {type(self.error).__name__}: {self.error}"

    def tell(self) -> NoReturn:
        """Raise it.

        Raises:
            KvarenaError: always; its cause is what the work raised.
        """
        self.is_told = True
        raise KvarenaError(
            f"backend 'cpu': {self}; nothing that came after it was run, here or on streams that waited for it: "
            "close the device"
        ) from self.error


@attrs.define(eq=False)
class Account:
    """How a stream fares. What its thread shares with its owner, so that the thread keeps no device alive."""

    name: str
    put: Callable[[Item], None]
    failure: Failure | None = None
    is_leaving: bool = False


class Past:
    """A place in work that was done when it was given."""

    __slots__ = ()

    def done(self) -> bool:
        """It has come."""
        return True


class Arrival:
    """A place in a stream's work. It also comes after work that failed, and says so."""

    __slots__ = ("_gate", "_has_come", "failure")

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self._has_come = False
        self._gate = Lock()
        self._gate.acquire()

    def done(self) -> bool:
        """Whether it has come."""
        return self._has_come

    def come(self, account: Account) -> None:
        """All work before it is over. For the stream's thread, once."""
        self.failure = account.failure
        self._has_come = True
        self._gate.release()

    def wait(self) -> None:
        """Block until it has come."""
        if not self._has_come:
            with self._gate:
                pass

    def hold(self, account: Account) -> None:
        """Block a stream's thread until it has come; what is built on failed work fails, too."""
        self.wait()
        if account.failure is None:
            account.failure = self.failure


@attrs.define(eq=False)
class Inline:
    """The caller's own stream: work on it is done by the thread that asks for it, before the call returns."""

    name: str = "current"


class Worker:
    """A stream with a thread of its own, which ends when the stream is closed, or when nobody holds it any more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._account = Account(name, self._queue.put)
        self._is_closed = False
        arguments = (self._queue.get, self._account)
        self._thread = Thread(target=_serve, args=arguments, name=f"kvarena {name}", daemon=True)
        self._thread.start()
        _SERVED[self._account] = self._thread
        self._end = weakref.finalize(self, self._queue.put, DROPPED)
        self._end.atexit = False

    def __repr__(self) -> str:
        return f"<stream {self.name!r}>"

    def check(self) -> None:
        """The stream can be given work.

        Raises:
            KvarenaError: earlier work failed, or the device was closed.
        """
        if self._account.failure is not None:
            self._account.failure.tell()
        if self._is_closed:
            raise KvarenaError(f"backend 'cpu': stream {self.name!r} was closed with its device; open another device")

    def put(self, title: str, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Queue work behind all there is.

        Raises:
            KvarenaError: earlier work failed, or the device was closed.
        """
        self.check()
        self._queue.put((title, work, arguments))

    def record(self) -> Arrival:
        """The place behind all there is."""
        arrival = Arrival()
        self._queue.put((ORDER, arrival.come, (self._account,)))
        return arrival

    def hold(self, arrival: Arrival) -> None:
        """What is queued from now on comes after this."""
        self._queue.put((ORDER, arrival.hold, (self._account,)))

    def is_me(self) -> bool:
        """Whether the calling thread is this stream's."""
        return current_thread() is self._thread

    def close(self) -> None:
        """Work through the queue and end the thread; a second time does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._end.detach()
            self._queue.put(CLOSED)
            self._thread.join()


def _serve(take: Callable[[], Item], account: Account) -> None:
    """A stream's thread: one piece of work after another. Nothing of a piece is held while the next is waited for."""
    while True:
        title, work, arguments = take()
        if work is None:
            break
        if title == ORDER or (account.failure is None and not account.is_leaving):
            try:
                work(*arguments)
            except BaseException as error:
                named = f"{title} of {getattr(work, '__qualname__', work)}" if title == RUN else title
                account.failure = Failure(account.name, named, error)
        del work, arguments
    _SERVED.pop(account, None)
    if title == DROPPED[0] and account.failure is not None and not account.failure.is_told:
        account.failure.tell()


_SERVED: dict[Account, Thread] = {}
"""The threads that run, of all devices."""


@atexit.register
def _leave() -> None:
    """End of the program, with devices left open: their threads end what they are at, and begin nothing more.

    The interpreter would stop them anywhere, and a foreign library that holds one then brings the program down.
    """
    served = dict(_SERVED)
    for account in served:
        account.is_leaving = True
        account.put(DROPPED)
    for thread in served.values():
        thread.join(EXIT_SECONDS)


@attrs.define(eq=False)
class WorkerStreams:
    """The streams of one device. The caller's own is ``current``; also for work that runs on a stream, inside of it."""

    has_streams = True
    _inline: Stream = attrs.field(factory=Inline, init=False, repr=False)
    _workers: set[Worker] = attrs.field(factory=set, init=False, repr=False)
    _has_ended: bool = attrs.field(default=False, init=False, repr=False)

    def current(self) -> Stream:
        """The stream of whoever calls: its work is done when a call returns."""
        return self._inline

    def stream(self, name: str) -> Stream:
        """The stream of this name, with a thread of its own from when it is first asked for.

        Raises:
            KvarenaError: the device was closed.
        """
        if self._has_ended:
            raise KvarenaError(f"backend 'cpu' was closed and has no stream {name!r} to give; open another device")
        worker = next((known for known in self._workers if known.name == name), None)
        if worker is None:
            worker = Worker(name)
            self._workers.add(worker)
        return worker

    def record(self, stream: Stream) -> Event:
        """The place after all work that is on the stream now.

        Raises:
            KvarenaError: work on the stream failed, or the device was closed.
        """
        worker = self._worker(stream)
        if worker is None:
            return Past()
        worker.check()
        return worker.record()

    def wait(self, stream: Stream, event: Event) -> None:
        """Work that the stream is given from now on begins after the event. The caller's own stream is the caller.

        Raises:
            KvarenaError: work on the stream failed, or the device was closed.
        """
        worker = self._worker(stream)
        if worker is None:
            self.synchronize(event)
            return
        worker.check()
        arrival = _arrival(event)
        if arrival is not None and (not arrival.done() or arrival.failure is not None):
            worker.hold(arrival)

    def synchronize(self, event: Event) -> None:
        """The caller waits until the event has come.

        Raises:
            KvarenaError: work before it failed.
        """
        arrival = _arrival(event)
        if arrival is not None:
            arrival.wait()
            if arrival.failure is not None:
                arrival.failure.tell()

    def run(self, stream: Stream, work: Callable[[], None], reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Put a forward, or a part of one, on the stream; what it touches is not looked at."""
        self._do(stream, RUN, work)

    def _do(self, stream: Stream, title: str, work: Callable[..., object], *arguments: Any) -> None:
        """Run work in its turn: on the caller's own stream, that is now."""
        worker = self._worker(stream)
        if worker is None:
            work(*arguments)
        else:
            worker.put(title, work, arguments)

    def _worker(self, stream: Stream) -> Worker | None:
        """The worker of a stream, None for the caller's own."""
        if stream is self._inline:
            return None
        if not isinstance(stream, Worker) or stream not in self._workers:
            fail("device.stream_of_its_own", stream=stream)
        return stream

    def _drain(self) -> list[Failure]:
        """Wait for all work on all streams; returns what failed, each once."""
        if self._has_ended:
            return []
        if any(worker.is_me() for worker in self._workers):
            fail("device.waits_for_itself", thread=current_thread().name)
        arrivals = [worker.record() for worker in self._workers]
        for arrival in arrivals:
            arrival.wait()
        return list(dict.fromkeys(arrival.failure for arrival in arrivals if arrival.failure is not None))

    def _end(self) -> list[Failure]:
        """Wait for all work and end all threads; returns what failed and nobody was told."""
        if self._has_ended:
            return []
        failures = self._drain()
        self._has_ended = True
        for worker in self._workers:
            worker.close()
        return [failure for failure in failures if not failure.is_told]


def tell_all(failures: Iterable[Failure]) -> None:
    """Raise what failed, if anything did: the first, which names the others.

    Raises:
        KvarenaError: there is one.
    """
    all_failures = list(failures)
    for other in all_failures[1:]:
        other.is_told = True
        all_failures[0].error.add_note(f"and {other}")
    if all_failures:
        all_failures[0].tell()


def _arrival(event: Event) -> Arrival | None:
    """The event of a worker; None for a place on the caller's own stream, which has come."""
    if isinstance(event, Arrival):
        return event
    if not isinstance(event, Past):
        fail("device.event_of_its_own", event=event)
    return None
