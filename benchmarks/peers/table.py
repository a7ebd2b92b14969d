"""What we aim at, and how an aim found on one machine is carried to another.

``GOALS``: our microseconds, at most, by page size, on the machine where SGLang's own host work took those of
``SGLANG`` (kernels as C loops, no profiler scopes, zeroing included). On another machine a goal is multiplied by what
the same row of SGLang takes there, over what it took here; a row without a figure of SGLang's by the serving step's
ratio at that page size. Without SGLang beside us goals stand as they are.
"""

from collections.abc import Mapping

import attrs

PageRow = Mapping[int, float]

STEP, STEP_FLUSH, DECODE = "serving step", "serving step, flushed", "decode take"
TAKE, TAKE_HOLES, FREE = "take 8,192", "take 8,192 with holes", "free 8,192"
WRITE, TOKENS, TABLES = "write ids", "translate, as tokens", "translate, as page tables"
WINDOW, ASK, CHANGED, REMEMBERED = "one more window kind", "admission", "question after a change", "question remembered"
FULL_P99, FULL_WORST = "full arena, p99", "full arena, worst"
STEP_CACHED = "serving step, prefix cache"
STEP_1024, STEP_4096 = "serving step, 1,024 running", "serving step, 4,096 running"


def _row(one: float, sixteen: float, sixty_four: float) -> PageRow:
    return {1: one, 16: sixteen, 64: sixty_four}


SGLANG: Mapping[str, PageRow] = {
    STEP: _row(6453, 1503, 1085),
    STEP_FLUSH: _row(22022, 2217, 1264),
    DECODE: _row(60, 97, 93),
    TAKE: _row(418, 219, 198),
    TAKE_HOLES: _row(2668, 383, 275),
    FREE: _row(1266, 106, 76),
    WRITE: {16: 12},
}

GOALS: Mapping[str, PageRow] = {
    STEP: _row(300, 100, 90),
    STEP_FLUSH: _row(400, 170, 170),
    STEP_CACHED: {16: 220},
    STEP_1024: {16: 200},
    STEP_4096: {16: 650},
    WINDOW: _row(150, 30, 30),
    DECODE: _row(50, 40, 35),
    TAKE: _row(60, 12, 10),
    TAKE_HOLES: _row(100, 15, 12),
    FREE: _row(60, 12, 10),
    TOKENS: _row(750, 700, 650),
    TABLES: {16: 40, 64: 40},
    WRITE: _row(4, 4, 4),
    CHANGED: _row(5, 5, 5),
    REMEMBERED: _row(0.5, 0.5, 0.5),
    ASK: _row(3, 3, 3),
    FULL_P99: _row(2000, 600, 600),
    FULL_WORST: _row(5000, 1500, 1500),
}


@attrs.define
class Goals:
    """The goals of one run at one page size; ``step_us`` is SGLang's serving step in it, where it is there."""

    page_tokens: int
    step_us: float | None = None

    def of(self, row: str, theirs_us: float | None = None) -> float:
        """The goal of a row in microseconds; ``theirs_us`` is SGLang's figure of it in this run, zeroing included."""
        goal, known = GOALS[row][self.page_tokens], SGLANG.get(row, {}).get(self.page_tokens)
        if theirs_us is not None and known is not None:
            return goal * theirs_us / known
        if self.step_us is not None:
            return goal * self.step_us / SGLANG[STEP][self.page_tokens]
        return goal
