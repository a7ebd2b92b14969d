"""Does cost grow with the arena? ``python benchmarks/scale.py [--json] [--quick]``.

The same steps of 128 requests (windows retired, pages taken, 3 of them replaced, write ids) on an arena of 10^4 and one
of 10^7 pages of the full band:

- operations: numpy calls and the bytes that they produce, counted through every array of the bookkeeping; the goal is
  the count on the small arena.
- time: how many times as long the large arena takes, with contiguous pages and with pages and ids in random order.
- bookkeeping: host bytes a page, over all sub-pools, request rows aside; on the plans of the six models of ``fill``.
- the largest arena: 192 GiB in units of 4 KiB: seconds to build, and a step on it.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fill import MODELS
from peers.kvarena_side import layers_of, model_layers, storage_of
from peers.timing import Reading, in_turn
from rows import figure, show

from kvarena.assembly.config import Choice, PoliciesConfig
from kvarena.layouts.mha import Mha
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Refused
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, Window

Row = dict[str, Any]
PAGE_TOKENS = 16
PAGE_BYTES = 512 * PAGE_TOKENS
RUNNING, LEAVING, PROMPT = 128, 3, 128
RECENT_MAX = 256
"""Recent frees that the hole order keeps: by itself it would keep more on the larger arena, and search less."""
GIB = 1 << 30


class Tally:
    """What numpy was asked to do: calls, and the bytes that they made."""

    calls = bytes = 0


class Counted(np.ndarray):
    """An array that notes every operation on it; so is what comes of it."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if "out" in named:
            named["out"] = tuple(_plain(array) for array in named["out"])
        return _noted(getattr(ufunc, method)(*map(_plain, inputs), **{key: _plain(it) for key, it in named.items()}))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _noted(function(*[_plain(arg) for arg in args], **{key: _plain(it) for key, it in kwargs.items()}))

    def __getitem__(self, key: Any) -> Any:
        return _noted(_plain(self)[_plain(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        Tally.calls += 1
        Tally.bytes += _plain(self)[_plain(key)].nbytes
        _plain(self)[_plain(key)] = _plain(value)


def _method(name: str) -> Callable[..., Any]:
    def counted(self: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        return _noted(getattr(_plain(self), name)(*map(_plain, args), **kwargs))

    return counted


for _name in ("nonzero", "cumsum", "sum", "min", "max", "tobytes", "tolist", "copy", "astype", "repeat", "reshape"):
    setattr(Counted, _name, _method(_name))


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, Counted) else value


def _noted(result: Any) -> Any:
    """Count the call, and what it made unless that is a view; hand its arrays on as counted ones."""
    Tally.calls += 1
    if isinstance(result, tuple):
        return tuple(array.view(Counted) for array in result)
    if isinstance(result, np.ndarray):
        Tally.bytes += result.nbytes if result.base is None else 0
        return result.view(Counted)
    return result


def books_of(owner: object, seen: set[int] | None = None) -> Iterator[tuple[Any, str, Any]]:
    """Every array and byte table below an object of ours: its holder, its name, itself."""
    seen = set() if seen is None else seen
    if id(owner) in seen or not type(owner).__module__.startswith("kvarena"):
        return
    seen.add(id(owner))
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if isinstance(value, (np.ndarray, bytearray)):
            yield owner, name, value
        for inner in (
            value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else [value]
        ):
            yield from books_of(inner, seen)


def host_bytes(storage: Storage) -> int:
    """What the chain's maps take; views of one buffer count once."""
    buffers: dict[int, int] = {}
    for _, _, array in books_of(storage.chain):
        if isinstance(array, bytearray):
            buffers[id(array)] = len(array)
        elif array.base is None:
            buffers[id(array)] = array.nbytes
    return sum(buffers.values())


def pages_of(storage: Storage) -> int:
    """The pages of every sub-pool."""
    return sum(band.grid.page_count for band in storage.chain.bands.values() if band.grid.unit_bytes)


class Steps:
    """Serving steps on one storage; ``scatter`` leaves free pages and free ids in random order first."""

    def __init__(self, pages: int, *, scatter: bool) -> None:
        policies = PoliciesConfig(holes=Choice("nearest", {"recent_max": RECENT_MAX}))
        self.storage = storage_of(
            layers_of(state=False), pages * PAGE_BYTES, PAGE_TOKENS, RUNNING, context=4096, policies=policies
        )
        self.random = np.random.default_rng(5)
        if scatter:
            self._scatter()
        rows = self.storage.open_batch(RUNNING)
        assert not isinstance(rows, Refused)
        self.rows, self.lengths = rows, self.random.integers(PROMPT, 2 * PROMPT, RUNNING)
        self.names = [pool.name for pool in self.storage.plan.token_pools]
        assert not isinstance(self.storage.step(self.rows, self.lengths), Refused)

    def _scatter(self) -> None:
        chain, owner = self.storage.chain, self.storage.plan.owner
        assert owner is not None
        taken = chain.take_new(owner, chain.minters[owner].pool.free // 3)
        assert not isinstance(taken, Refused), taken
        chain.free_all({owner: self.random.permutation(taken.ids)[: len(taken.ids) // 2]})

    def __call__(self) -> dict[str, Reading]:
        """One step."""
        places = self.random.permutation(RUNNING)[:LEAVING]
        self.lengths += 1
        self.lengths[places] = PROMPT
        began = time.thread_time_ns()
        self.storage.close(self.rows[places])
        fresh = self.storage.open_batch(LEAVING)
        assert not isinstance(fresh, Refused)
        self.rows[places] = fresh
        ids = self.storage.step(self.rows, self.lengths)
        assert not isinstance(ids, Refused), ids
        for name in self.names:
            ids.write_ids(name)
        return {"step": Reading(time.thread_time_ns() - began)}


def operations(pages: int, steps: int) -> tuple[int, int]:
    """Numpy calls and bytes of so many steps."""
    work = Steps(pages, scatter=False)
    for holder, name, array in list(books_of(work.storage)):
        if isinstance(array, np.ndarray):
            setattr(holder, name, array.view(Counted))
    Tally.calls = Tally.bytes = 0
    for _ in range(steps):
        work()
    return Tally.calls, Tally.bytes


def growth_rows(small: int, large: int, steps: int) -> list[Row]:
    """Calls, bytes and time on both arenas."""
    counted = {pages: operations(pages, steps) for pages in (small, large)}
    rows = [
        figure(f"{what} of {steps} steps on {large:,} pages", counted[large][index], what, counted[small][index])
        for index, what in enumerate(("numpy calls", "bytes"))
    ]
    for order, goal in (("contiguous", 1.2), ("random", 3.0)):
        works = [Steps(pages, scatter=order == "random") for pages in (small, large)]
        quick, slow = (found["step"].median_us for found in in_turn(works, steps, warm=min(steps, 20)))
        case = f"a step on {large:,} pages over one on {small:,}, {order} pages ({quick:.0f} and {slow:.0f} us)"
        rows.append(figure(case, slow / quick, "times", goal))
    return rows


def bookkeeping_rows(memory: int) -> list[Row]:
    """Host bytes a page, for the plans of real models."""
    rows = []
    for name in MODELS:
        storage = storage_of(model_layers(name), memory, PAGE_TOKENS, 64)
        case = f"bookkeeping, {name}, {memory // GIB} GiB, {pages_of(storage):,} pages"
        rows.append(figure(case, host_bytes(storage) / pages_of(storage), "bytes/page", 32))
    return rows


def largest_rows(memory: int) -> list[Row]:
    """An arena of this size in units of 4 KiB: build it, and use its last page."""
    layers = [Layer(0, (Part(Mha(1, 64), Window(1024), "kept"),)), Layer(1, (Part(Mha(1, 64), Full(), "kept"),))]
    gc.collect()
    began = time.thread_time()
    storage = storage_of(layers, memory, 16, 64)
    seconds = time.thread_time() - began
    unit = storage.plan["full"].unit_bytes
    assert unit == 4096
    row = storage.open()
    assert isinstance(row, int)
    ids = storage.step(np.array([row]), np.array([16]))
    assert not isinstance(ids, Refused)
    assert ids.tables["full"][0, 0] == memory // unit - 2
    return [
        figure(f"an arena of {memory // GIB} GiB in units of 4 KiB, built", seconds, "s"),
        figure(
            f"its bookkeeping, {pages_of(storage):,} pages", host_bytes(storage) / pages_of(storage), "bytes/page", 32
        ),
    ]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="small arenas and few steps: does it run?")
    arguments = parser.parse_args()
    quick = arguments.quick
    rows = growth_rows(10**4, 10**5 if quick else 10**7, 8 if quick else 200)
    rows += bookkeeping_rows((8 if quick else 60) * GIB)
    rows += largest_rows((2 if quick else 192) * GIB)
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
