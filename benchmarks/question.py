"""Does it fit? ``python benchmarks/question.py [--json] [--quick] [--page-size N ...]``.

``chain.feasible`` on chains of two, three and five bands after a change (a page taken and freed) and again while
nothing changed; and admission's question with 64 waiting requests, each admitted one charged. Beside the chain of three
stands SGLang's: an admission question after the same change, again, and an admission pass over the same 64.
Microseconds of wall time (the clock of CPU time costs more than a question), medians, the sides in turn, garbage
collection off. Goals: ``peers/table.py``; they are scaled by SGLang's serving step, in turn with the rest.
"""

import argparse
from typing import Any

import attrs
import numpy as np
from peers import kvarena_work as our
from peers import table
from peers.found import works_of
from peers.kvarena_side import storage_like
from peers.schedule import Schedule
from peers.shape import PAGE_SIZES, WINDOW, Shape
from peers.table import Goals
from peers.timing import Series, Work, in_turn
from rows import figure, show

Row = dict[str, Any]
CHAINS = {2: (), 3: (WINDOW,), 5: (WINDOW, 4 * WINDOW, 16 * WINDOW)}
"""Windows between the state and the full band."""

WAITING = [
    (int(prompt), int(output))
    for prompt, output in zip(
        np.random.default_rng(3).integers(64, 8192, 64), np.random.default_rng(6).integers(64, 2048, 64), strict=True
    )
]


@attrs.frozen
class Scale:
    """How often each question is asked."""

    repeats: int
    warm: int


FULL, QUICK = Scale(repeats=300, warm=60), Scale(repeats=10, warm=2)


def page_rows(page_tokens: int, scale: Scale, sglang: Any) -> list[Row]:
    """All chains at one page size."""
    shape, goals, name = Shape(page_tokens), Goals(page_tokens), None
    works: list[Work] = [our.Questions(storage_like(shape, windows), WAITING) for windows in CHAINS.values()]
    if sglang:
        side, work = sglang
        name = side.Sglang.name
        works += [work.Questions(side.Sglang(shape), WAITING), work.ServingStep(side.Sglang(shape), Schedule())]
    found = in_turn(works, scale.repeats, warm=scale.warm)
    theirs = None
    if sglang:
        theirs, steps = found[len(CHAINS) :]
        goals.step_us = steps["step"].gross_us
    return [
        row(f"{what}, {bands} bands, page {page_tokens}", ours[key], goals.of(goal)) | peer_of(name, theirs, bands, key)
        for bands, ours in zip(CHAINS, found, strict=False)
        for what, key, goal in (
            ("feasible after a change", "changed", table.CHANGED),
            ("feasible, nothing changed", "remembered", table.REMEMBERED),
            ("admission, per question, 64 waiting", "ask", table.ASK),
        )
    ]


def row(case: str, ours: Series, goal: float) -> Row:
    """Our median."""
    return figure(case, ours.median_us, "us", round(goal, 2))


def peer_of(name: str | None, theirs: dict[str, Series] | None, bands: int, key: str) -> Row:
    """The peer's median of the same question, for the chain that it has too."""
    return {"peer": name, "theirs": round(theirs[key].median_us, 3)} if theirs and bands == 3 else {}


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="a few questions at page 16: does it run?")
    parser.add_argument("--page-size", type=int, action="append", choices=PAGE_SIZES, help="only this one; may repeat")
    arguments = parser.parse_args()
    scale, sglang = QUICK if arguments.quick else FULL, works_of("sglang")
    pages = arguments.page_size or ([16] if arguments.quick else PAGE_SIZES)
    show([made for page in pages for made in page_rows(page, scale, sglang)], as_json=arguments.json)


if __name__ == "__main__":
    main()
