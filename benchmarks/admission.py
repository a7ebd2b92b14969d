"""Who may start? ``python benchmarks/admission.py [--json] [--quick] [--page-size N ...]``.

1,000 requests wait, 256 run, on the chain of three kinds, without a cache and with a prefix tree that could give
entries back. A question after a change: a page was taken and freed, then one of the waiting is asked about; its demand
was priced before. A pass: all of them are asked about in turn, who is admitted is promised its charge, and what is
refused is remembered. The price of a demand that was never asked for stands beside. Beside the passes stands SGLang's
over the same requests, which keeps no demands; its serving step, in turn with the rest, scales the goals. Microseconds
of the thread's CPU time, medians, garbage collection off.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from peers import kvarena_work as our
from peers import table
from peers.found import works_of
from peers.kvarena_side import storage_like
from peers.schedule import Schedule
from peers.shape import PAGE_SIZES, Shape
from peers.table import Goals
from peers.timing import Reading, Watch, Work, in_turn
from rows import figure, show

from kvarena.admission.admission import Admission
from kvarena.planning.demand import Purpose
from kvarena.plugins.prefix_tree.tree import PrefixTree
from kvarena.policies.eviction import Lru
from kvarena.storage.storage import Storage
from kvarena.terms.answers import Admit, Refused

Row = dict[str, Any]
ENTRIES, ENTRY_TOKENS = 128, 1024
CHUNK = 8192

_draw = np.random.default_rng(11)
WAITING = [
    (int(prompt), int(output))
    for prompt, output in zip(_draw.integers(64, 8192, 1000), _draw.integers(64, 2048, 1000), strict=True)
]


def cached(storage: Storage) -> PrefixTree:
    """A prefix tree in which requests that have ended left their prompts: nobody reads them."""
    tree, size = PrefixTree(storage, Lru()), storage.plan.page_tokens
    for number in range(ENTRIES):
        row = storage.open()
        assert not isinstance(row, Refused), row
        stepped = storage.step(np.array([row]), np.array([ENTRY_TOKENS]))
        assert not isinstance(stepped, Refused), stepped
        keys = np.arange(ENTRY_TOKENS) + number * ENTRY_TOKENS
        state = storage.sharing.hand_over_slot(row, 0)
        tree.insert(row, keys, ENTRY_TOKENS // size * size, state=state)
        storage.close(row)
    return tree


class Queue:
    """The waiting of one storage, beside running requests that go on."""

    def __init__(self, storage: Storage, *, with_cache: bool) -> None:
        self.storage = storage
        cache = cached(storage) if with_cache else None
        self.admission = Admission(storage.chain, storage.sizing, storage.ownership, chunk_tokens=CHUNK, cache=cache)
        lengths = Schedule().lengths
        answers, stopped = self.admission.admit([(int(length), 128) for length in lengths])
        assert stopped is None, stopped
        rows = our.started(storage, lengths)
        self.admission.start(rows, answers)
        self.rows, self.lengths = rows, lengths
        self.turn = 0
        self._pass()

    def __call__(self) -> Mapping[str, Reading]:
        """A question after a change; a pass; a price."""
        prompt, output = WAITING[self.turn * 7 % len(WAITING)]
        self.turn += 1
        self._change()
        with Watch() as changed:
            self.admission.ask(prompt, output)
        with Watch() as priced:
            self.admission.prices.by_chunk((8192 + self.turn, 7, 0), Purpose.ADMIT, CHUNK)
        return {"changed": Reading(changed.total), "priced": Reading(priced.total), "pass": Reading(self._pass())}

    def _change(self) -> None:
        """One of the running requests ends, and another like it starts."""
        at = self.turn % len(self.rows)
        row, length = self.rows[at : at + 1], self.lengths[at : at + 1]
        self.admission.forget(row)
        self.storage.close(row)
        answers, stopped = self.admission.admit([(int(length[0]), 128)])
        assert stopped is None, stopped
        self.rows[at : at + 1] = fresh = our.started(self.storage, length)
        self.admission.start(fresh, answers)

    def _pass(self) -> int:
        """Nanoseconds a question; the promises are taken back."""
        admitted: list[Admit] = []
        with Watch() as watch:
            for prompt, output in WAITING:
                answer = self.admission.ask(prompt, output)
                if isinstance(answer, Admit):
                    self.admission.promise(answer.charge)
                    admitted.append(answer)
        for answer in admitted:
            self.admission.withdraw(answer.charge)
        self.admitted = len(admitted)
        return watch.total // len(WAITING)


@attrs.frozen
class Scale:
    """How often each is done."""

    repeats: int
    warm: int


FULL, QUICK = Scale(repeats=200, warm=20), Scale(repeats=10, warm=2)


def page_rows(page_tokens: int, scale: Scale, sglang: Any) -> list[Row]:
    """Both chains at one page size."""
    shape, goals, name = Shape(page_tokens), Goals(page_tokens), None
    queues = [Queue(storage_like(shape), with_cache=with_cache) for with_cache in (False, True)]
    works: list[Work] = [*queues]
    if sglang:
        side, work = sglang
        name = side.Sglang.name
        works += [work.Questions(side.Sglang(shape), WAITING), work.ServingStep(side.Sglang(shape), Schedule())]
    found = in_turn(works, scale.repeats, warm=scale.warm)
    theirs: float | None = None
    if sglang:
        theirs, goals.step_us = found[2]["ask"].median_us, found[3]["step"].gross_us
    rows = []
    for queue, ours, kind in zip(queues, found, ("no cache", "a cache"), strict=False):
        where = f"{kind}, page {page_tokens}"
        change, turn = round(goals.of(table.CHANGED), 2), round(goals.of(table.ASK), 2)
        admitted = f"{queue.admitted} of 1,000 admitted"
        passed = figure(f"a question of a pass, {admitted}, {where}", ours["pass"].median_us, "us", turn)
        if theirs is not None and kind == "no cache":
            passed |= {"peer": name, "theirs": round(theirs, 3)}
        rows += [
            figure(f"a question after a change, {where}", ours["changed"].median_us, "us", change),
            passed,
            figure(f"the price of a new demand, {where}", ours["priced"].median_us, "us"),
        ]
    return rows


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="a few passes at page 16: does it run?")
    parser.add_argument("--page-size", type=int, action="append", choices=PAGE_SIZES, help="only this one; may repeat")
    arguments = parser.parse_args()
    scale, sglang = QUICK if arguments.quick else FULL, works_of("sglang")
    pages = arguments.page_size or ([16] if arguments.quick else PAGE_SIZES)
    show([made for page in pages for made in page_rows(page, scale, sglang)], as_json=arguments.json)


if __name__ == "__main__":
    main()
