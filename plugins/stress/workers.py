"""Worker processes: they end with the process that started them, and one that is killed is one message."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from kvarena.terms.errors import KvarenaError

Begin = Callable[[Any], None]


class Pool(ProcessPoolExecutor):
    """A pool that an interrupt never finds half-way through the start of a worker: any submit may start one."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        """Hand out work. Ctrl-C waits until it is handed out."""
        with _interrupts_later():
            return super().submit(work, *arguments, **more)


@contextlib.contextmanager
def worker_pool(count: int, begin: Begin | None = None, given: Any = None) -> Iterator[ProcessPoolExecutor]:
    """So many processes; each calls ``begin`` with what is ``given`` first. At the end nobody is waited for."""
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = Pool(count, mp_context=context, initializer=_begin, initargs=(begin, given))
    try:
        for _ in range(count):
            pool.submit(_nothing)  # each starts a worker, as long as none is idle yet
        yield pool
    finally:  # an interrupt, an error or a caller that has enough: nobody waits for what is under way
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)  # its thread too: left to the exit, it may fail there with a traceback


def lost(under_way: str) -> KvarenaError:
    """What is said where a worker is gone: nothing of what it did is known."""
    return KvarenaError(
        f"a worker process was ended from outside (the system may be out of memory); under way: {under_way}; "
        "run again with --jobs 1, or with fewer jobs"
    )


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: the parent ends the others, which are started deaf to it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing() -> None:
    """The first work of a worker."""


def _begin(begin: Begin | None, given: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    if begin is not None:
        begin(given)


def _leave_with_the_parent() -> None:
    """A parent that was killed tells nobody: without this its workers go on, and hold its output open."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
