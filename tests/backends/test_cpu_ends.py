"""Streams that nobody closes: a device that is dropped, and a program that ends."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from kvarena.backends.cpu import CpuDevice

UNIT = 64
PATIENCE_S = 30
"""How long a test waits for what must come, before it fails instead of hanging."""


def fails() -> None:
    """Work that fails."""
    raise ValueError("seven is not eight")


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_device_that_is_dropped_takes_its_threads_along() -> None:
    """Its queued work is done, its memory is free, and no thread is left that holds either."""
    device, done = CpuDevice(), list[int]()
    device.reserve(16 * UNIT)
    stream = device.stream("dropped")
    (thread,) = threads_named("kvarena dropped")
    gate = threading.Event()
    device.run(stream, lambda: None if gate.wait(PATIENCE_S) else fails(), (), ())
    device.zero_pages(stream, UNIT, np.array([1]))
    device.run(stream, lambda: done.append(1), (), ())
    held = weakref.ref(device)
    del device, stream
    gc.collect()
    assert held() is None
    gate.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert done == [1]


def test_a_device_that_is_dropped_still_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody is left to be told, the thread's last words are the error."""
    told = list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda hook: told.append(str(hook.exc_value)))
    device = CpuDevice()
    stream = device.stream("untold")
    (thread,) = threads_named("kvarena untold")
    device.run(stream, fails, (), ())
    del device, stream
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert ["stream 'untold' failed" in words for words in told] == [True]


LEAVES = """
import sys, threading, torch
from kvarena.backends.cpu import CpuDevice
device = CpuDevice()
device.reserve(1 << 20)
stream, begun = device.stream("forward"), threading.Event()
def work():
    begun.set()
    for _ in range(20):
        torch.ones(256, 256).matmul(torch.ones(256, 256))
for _ in range(100_000):
    device.run(stream, work, (), ())
begun.wait()
device.run(device.stream("broken"), lambda: 1 // 0, (), ())
sys.exit(3)
"""


def test_a_program_that_ends_early_ends_cleanly() -> None:
    """Its streams end what they are at, and no more; the exit code is the program's own."""
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, ""), ended.stderr
