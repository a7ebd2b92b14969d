"""A whole serving step, overlap on: ``python benchmarks/step.py [--json] [--quick] [--page-size N ...]``.

256 running requests of three kinds (state, a window of 128, full attention), 2 % replaced by 512-token prompts in
every step, admission asked, each forward launched before the one before it is processed. First without a prefix cache,
then with one: keys, match, checkpoints every 64 tokens, inserts, locks, and evictions, since the arena is full by then.
Then the same with 1,024 and 4,096 running at page size 16; and the loop itself (``Scheduler.step``), its queue, records
and runner included. Beside them SGLang's released allocator, without a prefix cache, and vLLM's manager on whole models
with its own on.

Microseconds of the thread's CPU time, medians, the sides in turn, garbage collection off; bytes are neither zeroed nor
copied. Goals: ``peers/table.py``.
"""

import argparse
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from peers import kvarena_work as our
from peers import table
from peers.found import works_of
from peers.kvarena_cached import CachedStep
from peers.kvarena_loop import LoopStep
from peers.kvarena_side import storage_like
from peers.schedule import Schedule
from peers.shape import PAGE_SIZES, Shape
from peers.table import Goals
from peers.timing import Series, Work, in_turn
from rows import figure, show

from kvarena.assembly.config import PrefixConfig

Row = dict[str, Any]
RUNNING = 256
IN_FLIGHT = 2
SHARED = PrefixConfig(share=True, checkpoint_tokens=64)
CROWDS = {1024: table.STEP_1024, 4096: table.STEP_4096}


@attrs.frozen
class Scale:
    """How often each work is done, and which crowds there are."""

    repeats: int
    warm: int
    crowds: tuple[int, ...] = ()


FULL, QUICK = Scale(repeats=300, warm=60, crowds=(1024, 4096)), Scale(repeats=4, warm=1)


def shape_of(page_tokens: int, running: int = RUNNING) -> Shape:
    """The arena of the rows, which grows with the crowd."""
    times = running // RUNNING
    return Shape(
        page_tokens, full_tokens=times << 18, window_tokens=times << 17, slots=times << 10, running=2 * running
    )


def plain(page_tokens: int, running: int = RUNNING) -> Work:
    """The step without a cache."""
    return our.OverlappedStep(storage_like(shape_of(page_tokens, running), in_flight=IN_FLIGHT), Schedule(running))


def cached(page_tokens: int, running: int = RUNNING) -> Work:
    """The step with one."""
    storage = storage_like(shape_of(page_tokens, running), in_flight=IN_FLIGHT, prefix=SHARED)
    return CachedStep(storage, Schedule(running))


def loop(page_tokens: int, prefix: PrefixConfig | None) -> Work:
    """``Scheduler.step``."""
    return LoopStep(storage_like(shape_of(page_tokens), in_flight=IN_FLIGHT, prefix=prefix), RUNNING)


def page_rows(page_tokens: int, scale: Scale, sglang: Any) -> list[Row]:
    """All at one page size."""
    goals, side, theirs = Goals(page_tokens), None, list[Series]()
    works: dict[str, Work] = {
        "serving step": plain(page_tokens),
        "serving step, prefix cache": cached(page_tokens),
        "serving step of the loop itself": loop(page_tokens, None),
        "serving step of the loop itself, prefix cache": loop(page_tokens, SHARED),
    }
    made = list(works.values())
    if sglang:
        side, work = sglang
        made.append(work.ServingStep(side.Sglang(Shape(page_tokens)), Schedule()))
    found = [series["step"] for series in in_turn(made, scale.repeats, warm=scale.warm)]
    if side:
        theirs = found[len(works) :]
        goals.step_us = theirs[0].gross_us
    aims = {"serving step": table.STEP, "serving step, prefix cache": table.STEP_CACHED}
    rows = []
    for name, ours in zip(works, found, strict=False):
        aim = aims.get(name)
        has_goal = aim is not None and page_tokens in table.GOALS[aim]
        row = figure(
            f"{name}, {RUNNING} running, page {page_tokens}", ours.median_us, "us", rounded(goals, aim, has_goal)
        )
        rows.append(row | ({"peer": side.Sglang.name, "theirs": round(theirs[0].median_us, 3)} if side else {}))
        rows.append(figure(f"{name}, p99, {RUNNING} running, page {page_tokens}", ours.quantile_us(0.99), "us"))
    for running in scale.crowds if page_tokens == 16 else ():
        rows += crowd_rows(page_tokens, running, scale, goals)
    return rows


def rounded(goals: Goals, aim: str | None, has_goal: bool) -> float | None:
    """The goal of a row, where there is one."""
    return round(goals.of(aim), 2) if aim is not None and has_goal else None


def crowd_rows(page_tokens: int, running: int, scale: Scale, goals: Goals) -> list[Row]:
    """More running requests in an arena that grows with them, both ways."""
    makers: dict[str, Callable[[int, int], Work]] = {"serving step": plain, "serving step, prefix cache": cached}
    rows = []
    for name, make in makers.items():
        (found,) = in_turn([make(page_tokens, running)], scale.repeats, warm=scale.warm)
        goal = round(goals.of(CROWDS[running]), 2) if make is plain else None
        rows.append(figure(f"{name}, {running:,} running, page {page_tokens}", found["step"].median_us, "us", goal))
    return rows


def model_rows(scale: Scale, vllm: Any) -> list[Row]:
    """vLLM's step on whole models, its prefix cache on: what the rows with a cache stand beside."""
    if not vllm:
        return []
    side, work = vllm
    rows = []
    for name in ("gpt_oss", "qwen3_next"):
        peer = work.ServingStep(side.Vllm(getattr(side, name)(True), cached=True), Schedule())
        ours, theirs = in_turn([cached(16), peer], max(3, scale.repeats // 3), warm=scale.warm // 3)
        row = figure(f"serving step, prefix cache, page 16, beside vLLM's {name}", ours["step"].median_us, "us")
        rows.append(row | {"peer": side.Vllm.name, "theirs": round(theirs["step"].median_us, 3)})
    return rows


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="a few repeats at page 16: does it run?")
    parser.add_argument("--page-size", type=int, action="append", choices=PAGE_SIZES, help="only this one; may repeat")
    arguments = parser.parse_args()
    np.seterr(all="raise")
    scale = QUICK if arguments.quick else FULL
    pages = arguments.page_size or ([16] if arguments.quick else PAGE_SIZES)
    sglang, vllm = works_of("sglang"), works_of("vllm")
    rows = [row for page in pages for row in page_rows(page, scale, sglang)]
    show([*rows, *model_rows(scale, vllm)], as_json=arguments.json)


if __name__ == "__main__":
    main()
