"""Takes, frees, ids and whole serving steps: ``python benchmarks/takes.py [--json] [--quick] [--page-size N ...]``.

A chain of three kinds (state, a window of 128, full attention) in an arena of 800 MB, page sizes 1, 16 and 64, beside
SGLang's released allocator on the same work; then whole models beside vLLM's manager. Microseconds of the thread's CPU
time, medians, the sides in turn, garbage collection off. Zeroing and copying of bytes are not in the figures: our side
runs on the ``host`` backend, which counts bytes, and what SGLang spends on them is subtracted and named in the case.
Goals: ``peers/table.py``.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from peers import kvarena_work as our
from peers import table
from peers.found import works_of
from peers.kvarena_side import model_layers, storage_like, storage_of
from peers.schedule import Drift, Schedule
from peers.shape import PAGE_SIZES, WINDOW, Shape, tight
from peers.table import Goals
from peers.timing import Series, Work, in_turn
from rows import figure, show

Row = dict[str, Any]
DECODING = np.random.default_rng(1).integers(256, 1024, 256)
PREFILL = 8192
BASE_RUNNING = 256
GIB = 1 << 30


@attrs.frozen
class Scale:
    """How often each work is done, and how many running requests the large steps have."""

    repeats: int
    warm: int
    turns: int
    crowds: tuple[int, ...] = ()


FULL, QUICK = Scale(repeats=150, warm=40, turns=750, crowds=(1024, 4096)), Scale(repeats=4, warm=1, turns=30)


class Bench:
    """One page size, our side and SGLang's where it is there."""

    def __init__(self, page_tokens: int, scale: Scale, sglang: Any) -> None:
        self.page_tokens, self.scale = page_tokens, scale
        self.side: Any
        self.work: Any
        self.side, self.work = sglang or (None, None)
        self.goals = Goals(page_tokens)
        self.peer: Any = self.side.Sglang(Shape(page_tokens)) if self.side else None

    def storage(self, windows: Sequence[int] = (WINDOW,)) -> Any:
        """An empty arena of the shape that all rows share."""
        return storage_like(Shape(self.page_tokens), windows)

    def measure(self, ours: Work, theirs: Callable[[], Work], repeats: int = 0) -> list[dict[str, Series]]:
        """Both sides in turn; ``theirs`` makes the peer's work, if there is a peer."""
        works = [ours, theirs()] if self.peer else [ours]
        found = in_turn(works, repeats or self.scale.repeats, warm=self.scale.warm)
        if self.peer:
            self.peer.check()
        return found

    def row(self, case: str, goal: str, found: list[dict[str, Series]], key: str) -> Row:
        """Medians of both sides, the goal scaled by the peer's, and what the peer spent on bytes."""
        ours, theirs = found[0][key], found[1].get(key) if len(found) > 1 else None
        aim = self.goals.of(goal, theirs.gross_us if theirs else None)
        median = [theirs.median_us] if theirs else []
        apart = f", without {theirs.apart_us:.0f} us of theirs on bytes" if theirs and theirs.apart_us else ""
        return beside(f"{case}, page {self.page_tokens}{apart}", ours.median_us, "us", self.paired(median), aim)

    def paired(self, theirs: Sequence[float]) -> tuple[str, float] | None:
        """The peer and its figure, where there is one."""
        return (self.side.Sglang.name, theirs[0]) if theirs else None

    def rows(self) -> list[Row]:
        """All of this page size."""
        steps = self.steps(table.STEP, flush=False)  # first: what it finds scales the goals of the rest
        steps += self.steps(table.STEP_FLUSH, flush=True)
        rows = [*steps, *self.crowds(), *self.kinds(), *self.decode(), *self.takes(), *self.translate()]
        self.peer = None  # its arena is real memory
        return [*rows, *self.full()]

    def steps(self, goal: str, *, flush: bool) -> list[Row]:
        """The serving step: its median, its slow ones."""
        found = self.measure(
            our.ServingStep(self.storage(), Schedule(), flush=flush),
            lambda: self.work.ServingStep(self.peer, Schedule(), flush=flush),
        )
        if goal == table.STEP and len(found) > 1:
            self.goals.step_us = found[1]["step"].gross_us
        case = f"{goal}, {BASE_RUNNING} running"
        ours, *theirs = (side["step"].quantile_us(0.99) for side in found)
        rows = [
            self.row(case, goal, found, "step"),
            beside(f"{case}, p99, page {self.page_tokens}", ours, "us", self.paired(theirs), None),
        ]
        if not flush:
            checked = storage_like(Shape(self.page_tokens), checks=1)
            (found_checked,) = in_turn([our.ServingStep(checked, Schedule())], self.scale.repeats, warm=self.scale.warm)
            median = found_checked["step"].median_us
            rows.append(beside(f"{case}, check level 1, page {self.page_tokens}", median, "us", None, None))
        return rows

    def crowds(self) -> list[Row]:
        """The step with more running requests, in an arena that grows with them; page 16 only."""
        rows = []
        for running in self.scale.crowds if self.page_tokens == 16 else ():
            times = running // BASE_RUNNING
            shape = Shape(
                self.page_tokens,
                full_tokens=times << 20,
                window_tokens=times << 18,
                slots=times << 10,
                running=2 * running,
            )
            work = our.ServingStep(storage_like(shape), Schedule(running))
            (found,) = in_turn([work], self.scale.repeats, warm=self.scale.warm)
            goal = {1024: table.STEP_1024, 4096: table.STEP_4096}[running]
            rows.append(
                beside(f"{goal}, page {self.page_tokens}", found["step"].median_us, "us", None, self.goals.of(goal))
            )
        return rows

    def kinds(self) -> list[Row]:
        """What each further window kind adds to the step: one more, two more."""
        chains = [(WINDOW, *range(2 * WINDOW, (2 + more) * WINDOW, WINDOW)) for more in range(3)]
        works = [our.ServingStep(self.storage(windows), Schedule()) for windows in chains]
        base, *more = (found["step"].median_us for found in in_turn(works, self.scale.repeats, warm=self.scale.warm))
        goal = self.goals.of(table.WINDOW)
        return [
            beside(
                f"each further window kind, {count} more, page {self.page_tokens}",
                (median - base) / count, "us", None, goal,
            )
            for count, median in enumerate(more, 1)
        ]  # fmt: skip

    def decode(self) -> list[Row]:
        """A token each, and where it goes."""
        found = self.measure(
            our.DecodeTake(self.storage(), DECODING), lambda: self.work.DecodeTake(self.peer, DECODING)
        )
        return [
            self.row("decode take, 256 requests, window retired", table.DECODE, found, "take"),
            self.row("256 write ids, every sub-pool", table.WRITE, found, "write"),
        ]

    def takes(self) -> list[Row]:
        """A long prompt comes and goes."""
        plain = self.measure(
            our.TakeFree(self.storage(), PREFILL, holes=False),
            lambda: self.work.TakeFree(self.peer, PREFILL, holes=False),
        )
        holes = self.measure(
            our.TakeFree(self.storage(), PREFILL, holes=True),
            lambda: self.work.TakeFree(self.peer, PREFILL, holes=True),
        )
        return [
            self.row("take 8,192 tokens", table.TAKE, plain, "take"),
            self.row("take 8,192 tokens with holes", table.TAKE_HOLES, holes, "take"),
            self.row("free 8,192 tokens", table.FREE, plain, "free"),
        ]

    def translate(self) -> list[Row]:
        """The reads of a forward."""
        repeats = max(3, self.scale.repeats // 4)
        found = self.measure(our.Translate(self.storage()), lambda: self.work.Translate(self.peer), repeats)
        rows = [self.row("translate 256 x 2,048 reads, as tokens", table.TOKENS, found, "tokens")]
        if self.page_tokens > 1:  # else a page is a token
            rows.append(self.row("translate 256 x 2,048 reads, as page tables", table.TABLES, found, "tables"))
        return rows

    def full(self) -> list[Row]:
        """A full arena whose mix drifts."""
        turns, shape = self.scale.turns, tight(self.page_tokens)
        works: list[Any] = [our.Pressure(storage_like(shape), Drift(turns))]
        if self.side:
            works.append(self.work.Pressure(self.side.Sglang(shape), Drift(turns)))
        found = in_turn(works, turns)
        rows = []
        for goal, share in ((table.FULL_P99, 0.99), (table.FULL_WORST, 1.0)):
            ours, *theirs = (series["take"].quantile_us(share) / 1e3 for series in found)
            aim = self.goals.of(goal) / 1e3
            rows.append(beside(f"{goal}, page {self.page_tokens}", ours, "ms", self.paired(theirs), aim))
        counted: list[tuple[str, str, list[float], float | None]] = [
            ("false refusals", "refusals", [work.false for work in works], 0),
            ("refusals", "refusals", [work.refused for work in works], None),
            ("moved", "MiB", [work.moved_bytes / (1 << 20) for work in works], None),
        ]
        for case, unit, values, limit in counted:
            ours, *theirs = values
            rows.append(beside(f"full arena, {case}, page {self.page_tokens}", ours, unit, self.paired(theirs), limit))
        return rows


def beside(case: str, ours: float, unit: str, theirs: tuple[str, float] | None, goal: float | None) -> Row:
    """A row, with the peer's name and figure where there is one."""
    row = figure(case, ours, unit, None if goal is None else round(goal, 2))
    return row | ({"peer": theirs[0], "theirs": round(theirs[1], 3)} if theirs else {})


def model_rows(name: str, scale: Scale, vllm: Any) -> list[Row]:
    """One model at page 16, beside vLLM's own plan of it: both without a prefix cache, and its step with one too."""
    side: Any
    work: Any
    side, work = vllm or (None, None)
    layers = model_layers(name)
    make = {"gpt-oss-120b": "gpt_oss", "qwen3-next-80b-a3b": "qwen3_next"}[name]

    def peer(cached: bool = False) -> Any:
        return side.Vllm(getattr(side, make)(cached), cached=cached)

    def storage() -> Any:
        return storage_of(layers, 60 * GIB, 16, 512)

    def both(ours: Work, theirs: Callable[[], Work]) -> list[dict[str, Series]]:
        works = [ours, theirs()] if side else [ours]
        return in_turn(works, max(3, scale.repeats // 3), warm=scale.warm // 3)

    decode = both(our.DecodeTake(storage(), DECODING), lambda: work.DecodeTake(peer(), DECODING))
    takes = both(our.TakeFree(storage(), PREFILL, holes=False), lambda: work.TakeFree(peer(), PREFILL))
    steps = both(our.ServingStep(storage(), Schedule()), lambda: work.ServingStep(peer(), Schedule()))
    cached = both(our.ServingStep(storage(), Schedule()), lambda: work.ServingStep(peer(True), Schedule()))
    found = (
        ("decode take, 256 requests", decode, "take"),
        ("take 8,192 tokens", takes, "take"),
        ("free 8,192 tokens", takes, "free"),
        ("serving step, 256 running", steps, "step"),
        ("serving step, 256 running, only theirs with a prefix cache", cached, "step"),
    )
    return [
        beside(
            f"{name}: {case}", both[0][key].median_us, "us",
            (side.Vllm.name, both[1][key].median_us) if len(both) > 1 else None, None,
        )
        for case, both, key in found
    ]  # fmt: skip


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="a few repeats at page 16: does it run?")
    parser.add_argument("--page-size", type=int, action="append", choices=PAGE_SIZES, help="only this one; may repeat")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    sglang, vllm = works_of("sglang"), works_of("vllm")
    pages = arguments.page_size or ([16] if arguments.quick else PAGE_SIZES)
    rows = [row for page in pages for row in Bench(page, scale, sglang).rows()]
    rows += [row for name in ("gpt-oss-120b", "qwen3-next-80b-a3b") for row in model_rows(name, scale, vllm)]
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
