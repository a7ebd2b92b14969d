"""What an iteration asks of a GPU: how many uploads and kernels, and nothing that a captured graph could not bear."""

from collections.abc import Iterator
from typing import Any

import gpu_toys
import numpy as np
import pytest
import storages
from gpu_toys import ToyDevice
from storages import CHAINS, opened, process, rows_of, storage_of
from torch.utils._python_dispatch import TorchDispatchMode

from kvarena.assembly.config import Choice
from kvarena.storage.storage import Storage
from kvarena.storage.tables import BatchTables
from kvarena.terms.answers import Refused
from kvarena.terms.ports import FieldView

HARMLESS = {"aten::slice.Tensor", "aten::select.int", "aten::copy_", "aten::view", "aten::view.dtype"}
"""Views, and copies into memory that is there: nothing of the device is read, nothing allocated."""


@pytest.fixture(autouse=True, scope="module")
def toys() -> Iterator[None]:
    with gpu_toys.toys_in(storages):
        yield


class Seen(TorchDispatchMode):
    """Every operation of torch, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def started(name: str, running: int, **device: Any) -> tuple[Storage, BatchTables, ToyDevice]:
    """A storage with tables, its rows open, after its first forward."""
    settings = {"kernels": "torch", "counted": True, **device}
    storage = storage_of(
        CHAINS[name], memory=20_000, running=running, backend=Choice("toy-gpu", settings), mirrors=True, checks=0,
        forwards_in_flight=2,
    )  # fmt: skip
    assert storage.mirrors is not None
    assert isinstance(storage.device, ToyDevice)
    tables = storage.mirrors.tables(running)
    for _ in range(running):
        opened(storage)
    tables.batch(storage.requests.open_rows())
    process(storage, forward_of(storage, tables, 3))
    return storage, tables, storage.device


def forward_of(storage: Storage, tables: BatchTables, length: int) -> Any:
    """One iteration of an engine: step, launch, translate, record."""
    rows = storage.requests.open_rows()
    ids = storage.step(rows, np.full(len(rows), length))
    assert not isinstance(ids, Refused)
    return launched(storage, tables, ids)


def launched(storage: Storage, tables: BatchTables, ids: Any) -> Any:
    forward = storage.forwards.launch(ids)
    storage.forwards.run(forward, tables.translate, ids)
    storage.forwards.record(forward)
    return forward


@pytest.mark.parametrize("name", sorted(CHAINS))
@pytest.mark.parametrize("running", [1, 2, 3])
def test_an_iteration_is_one_upload_and_two_kernels(name: str, running: int) -> None:
    """For the update of the mirror and the tables of all sub-pools and slots, whatever changed and for all rows."""
    storage, tables, device = started(name, running)
    flying: list[Any] = []
    for length in range(4, 14):
        if len(flying) == 2:
            process(storage, flying.pop(0))
        rows = storage.requests.open_rows()
        ids = storage.step(rows, np.full(len(rows), length))
        assert not isinstance(ids, Refused)
        tables.batch(np.roll(rows, length))  # another order of the rows is a part of the same update
        before = len(device.calls)
        flying.append(launched(storage, tables, ids))
        calls = [call for call in device.calls[before:] if call != "wait"]
        assert calls.count("upload") <= 1
        assert calls in (["translate"], ["upload", "scatter", "translate"])
    process(storage, *flying)
    storage.release()


def test_nothing_that_changed_is_nothing_to_write() -> None:
    """The same rows in the same pages: the tables are filled again, and that is all."""
    storage, tables, device = started("state, window, full", 3, lag=5)
    before = len(device.calls)
    process(storage, forward_of(storage, tables, 4))  # the same page of 4 tokens
    calls = [call for call in device.calls[before:] if call not in ("wait", "synchronize")]
    assert calls == ["translate"]
    storage.release()


@pytest.mark.req("LIF-8")
def test_from_launch_to_record_nothing_is_read_allocated_or_waited_for() -> None:
    """The host asks the device for no number and no memory, also where rows come and pages move."""
    storage, tables, device = started("state, three floats, full", 3, idle=True)
    length = 3
    for round_ in range(12):
        length += 3
        if round_ == 5:
            storage.close(rows_of(0))
            opened(storage)
        rows = storage.requests.open_rows()
        ids = storage.step(rows, np.maximum(storage.requests.lengths[rows], length + np.arange(3)))
        assert not isinstance(ids, Refused)
        storage.flush()
        ids = storage.translate(rows)
        before = len(device.calls)
        with Seen() as seen:
            forward = launched(storage, tables, ids)
        assert not {"allocation", "synchronize"} & set(device.calls[before:])
        assert set(seen.names) <= HARMLESS, set(seen.names) - HARMLESS
        process(storage, forward)
    storage.release()


def test_what_a_graph_captures_is_one_launch() -> None:
    """Filling the tables calls one kernel and nothing of torch: its arguments are what stood there at the capture."""
    storage, tables, device = started("state, window, full", 3, idle=True)
    before = len(device.calls)
    with Seen() as seen:
        tables.translate(2, 4)
    assert device.calls[before:] == ["translate"]
    assert seen.names == []
    storage.release()


@pytest.mark.req("SIZ-5")
def test_addresses_stay() -> None:
    """Tables, views and what the kernel is given: from the first forward to the last, bytes alone change."""
    storage, tables, device = started("state, window, full", 3)
    view = FieldView("uint8", (), 1, 0, 1, 100)
    handed: list[tuple[int, ...]] = []
    translate = device.chosen.translate

    def told(mirror: Any, plan: Any, rows: int, width: int) -> None:
        handed.append((mirror.data_ptr(), plan.numbers.data_ptr(), plan.out.data_ptr(), plan.batch_at))
        translate(mirror, plan, rows, width)

    device.chosen.translate = told  # type: ignore[method-assign]
    places = set()
    for length in range(4, 40, 3):
        process(storage, forward_of(storage, tables, length))
        storage.flush()
        arrays = [*tables.values(), tables.slots]
        places.add((device.view(view).data_ptr(), *(array.data_ptr() for array in arrays)))
    assert len(places) == len(set(handed)) == 1
    storage.release()


def test_a_first_launch_that_writes_all_goes_in_pieces() -> None:
    """What is larger than a slot takes several uploads, in order; from then on one is enough."""
    settings = {"kernels": "torch", "counted": True}
    storage = storage_of(
        (storages.FULL,), page_tokens=1, memory=4000, running=1, context=1, mirrors=True, forwards_in_flight=2,
        backend=Choice("toy-gpu", settings),
    )  # fmt: skip
    device = storage.device
    assert isinstance(device, ToyDevice)
    before = len(device.calls)
    process(storage, storages.run_forward(storage, None))
    assert device.calls[before:].count("upload") == device.calls[before:].count("scatter") > 3
    row, before = opened(storage), len(device.calls)
    process(storage, storages.run_forward(storage, storages.stepped(storage, (row, 1))))
    assert [call for call in device.calls[before:] if call in ("upload", "scatter")] == ["upload", "scatter"]
    storage.release()


@pytest.mark.req("CMP-7")
def test_moves_and_zeroes_are_a_call_or_an_upload_and_a_kernel() -> None:
    """However many pages: few runs go to the copy engines, all else to one kernel; nothing is allocated."""
    device = ToyDevice(kernels="torch", counted=True, idle=True)
    device.reserve(8 * 1000)
    stream, every = device.stream("memory"), np.arange(0, 400, 2)
    for act, expected in (
        (lambda: device.copy_pages(stream, 8, every, every + 401), ["upload", "copy"]),
        (lambda: device.copy_pages(stream, 8, np.arange(300), np.arange(500, 800)), ["move"]),
        (lambda: device.zero_pages(stream, 8, every), ["upload", "zero"]),
        (lambda: device.zero_pages(stream, 8, np.arange(100)), []),
    ):
        before = len(device.calls)
        with Seen() as seen:
            act()
        assert device.calls[before:] == expected
        assert set(seen.names) <= {*HARMLESS, "aten::zero_"}
