"""Workers of ``kvarena stress`` and ``kvarena explore``: one that is killed, and a parent that is."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarena.plugins.stress.workers import Pool

COMMAND = [sys.executable, "-c", "from kvarena.plugins.cli.main import main; main()"]
STRESS = ["stress", "--seeds", "0:100000", "--ops", "400", "--jobs", "2"]
EXPLORE = ["explore", "--depth", "12", "--world", "two-ends", "--jobs", "2"]
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


def workers_of(pid: int) -> list[int]:
    """The running processes that this one started to work, the longest there first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z" and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> list[int]:
    """Those that are still there after a while."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and any(map(is_running, pids)):
        time.sleep(0.05)
    return [pid for pid in pids if is_running(pid)]


@pytest.fixture
def started(request: pytest.FixtureRequest) -> "Iterator[tuple[subprocess.Popen[str], list[int]]]":
    """A run with two workers under way."""
    process = subprocess.Popen(
        [*COMMAND, *request.param], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + PATIENCE_SECONDS
    workers: list[int] = []
    while len(workers) < 2 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
        workers = workers_of(process.pid)
    time.sleep(2)
    yield process, workers
    process.kill()
    for worker in workers:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("started", [STRESS, [*STRESS, "--json"], EXPLORE], ids=str, indirect=True)
def test_a_worker_that_is_killed_is_one_message(started: "tuple[subprocess.Popen[str], list[int]]") -> None:
    """Exit code 2, what was under way and what to do; nothing on stdout that could be taken for a result."""
    process, workers = started
    os.kill(workers[0], signal.SIGKILL)
    out, told = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 2, told
    assert "Traceback" not in told
    assert "kvarena: a worker process was ended from outside" in told
    assert "under way: the seeds " in told or "under way: the world 'two-ends', moves of " in told
    assert "run again with --jobs 1" in told
    assert out == ""
    assert wait_until_gone(workers) == []


@pytest.mark.parametrize("started", [STRESS, EXPLORE], ids=str, indirect=True)
def test_workers_end_with_a_parent_that_is_killed(started: "tuple[subprocess.Popen[str], list[int]]") -> None:
    """Nobody goes on working, and nobody holds the output open: whoever reads it comes to its end."""
    process, workers = started
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == -signal.SIGTERM
    assert "Traceback" not in told
    assert len(workers) == 2
    assert wait_until_gone(workers) == []


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="interrupts cannot be held back")
def test_a_worker_that_starts_late_begins_deaf_to_interrupts() -> None:
    """Any submit may start a worker: Ctrl-C never comes in between, and the worker begins with it held back."""
    with Pool(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(time.sleep, 0).result(PATIENCE_SECONDS)  # one worker has started, and is idle
        busy = pool.submit(time.sleep, 5)
        held_back = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result(PATIENCE_SECONDS)
        busy.result(PATIENCE_SECONDS)

    assert signal.SIGINT in held_back
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
