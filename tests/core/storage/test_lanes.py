"""Streams beside the forwards: behind both others, opened once, and drained together."""

from functools import partial

import numpy as np
import pytest
from storages import FULL, overlapped, simulated, storage_of

from kvarena.backends.simulated import SimulatedDevice
from kvarena.storage.lanes import Lanes


@pytest.mark.req("HIC-1")
def test_a_lane_comes_after_what_forwards_and_allocator_were_given() -> None:
    """All of it lands before the lane's work; asked for again, the same stream waits for what came meanwhile."""
    storage = overlapped(FULL, backend=simulated("late"))
    device, timeline, unit = storage.device, storage.chain.ledger.timeline, storage.plan["full"].unit_bytes
    assert isinstance(device, SimulatedDevice)
    lanes, seen = Lanes(storage.chain.ledger), list[object]()
    for page in (1, 2):
        device.host_bytes(unit, page)[:] = 7
        timeline.zero_pages(unit, np.array([page]))
        device.run(timeline.forward, partial(seen.append, f"forward {page}"), [], [])
        lane = lanes.behind("save")
        device.run(lane, lambda page=page: seen.append(bool(device.host_bytes(unit, page).any())), [], [])
    assert lanes.behind("save") is lane
    assert lanes.behind("load") is not lane
    device.synchronize(device.record(lane))
    assert (seen.count(False), len(seen), seen[-1]) == (2, 4, False)
    assert seen.index("forward 1") < seen.index(False)


def test_all_streams_are_drained() -> None:
    """The allocator's, the forwards' and every lane: nothing is left to land."""
    storage = overlapped(FULL, backend=simulated("late"))
    device, timeline, lanes = storage.device, storage.chain.ledger.timeline, Lanes(storage.chain.ledger)
    seen: list[str] = []
    for stream in (lanes.behind("save"), lanes.behind("load"), timeline.forward, timeline.memory):
        device.run(stream, partial(seen.append, stream.name), [], [])
    lanes.drain()
    assert sorted(seen) == ["forward", "load", "memory", "save"]


def test_without_overlap_every_lane_is_the_callers_own_stream() -> None:
    """And there is nothing to wait for."""
    storage = storage_of((FULL,))
    lanes = Lanes(storage.chain.ledger)
    assert lanes.behind("save") is lanes.behind("load") is storage.device.current()
    lanes.drain()
