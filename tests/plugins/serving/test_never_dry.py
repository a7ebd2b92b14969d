"""What was admitted in full is served to its end: nothing is retracted, and nothing fails."""

import random

import pytest
from loops import CountingRunner, assert_empty, loop_over, storage_of
from toys import SinksAndWindow

from kvarena.assembly.config import PrefixConfig
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import DONE, REFUSED
from kvarena.terms.lifetimes import Full, Lifetime, State, Window

KINDS: tuple[tuple[Lifetime, ...], ...] = (
    (Window(24), Full()),
    (Window(8), Window(20), Full()),
    (State(), Window(24), Full()),
    (State(), Window(8), Full()),
    (State(), Full()),
    (Window(6), Window(24)),
    (SinksAndWindow(5, 12), Full()),
    (State(), SinksAndWindow(5, 12)),
)


@pytest.mark.req("ADM-1")
@pytest.mark.req("DEM-3")
@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "+".join(lifetime.name for lifetime in kinds))
@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_what_was_admitted_in_full_never_runs_dry(kinds: tuple[Lifetime, ...], strategy: str) -> None:
    """Arenas of a few requests, prompts that share their beginnings, windows longer than a chunk and than the grid."""
    for seed in range(4):
        draw = random.Random(f"{kinds}{strategy}{seed}")
        storage = storage_of(
            draw.randint(260, 520), lifetimes=kinds, in_flight=draw.choice([0, 2]),
            prefix=PrefixConfig(share=True, strategy=strategy, checkpoint_tokens=draw.choice([4, 8, 16])),
        )  # fmt: skip
        loop = loop_over(storage, CountingRunner(), chunk_tokens=draw.choice([3, 4, 6, 12]))
        heads = [tuple(draw.choices(range(50), k=40)) for _ in range(2)]
        requests = []
        for number in range(14):
            head = draw.choice(heads)[: draw.randint(0, 40)]
            prompt = (*head, *draw.choices(range(50), k=draw.randint(1, 12)))
            requests.append(Request(number, draw.uniform(0, 60), len(prompt), draw.randint(1, 30), prompt=prompt))
        report = loop.run(requests)
        assert {served.fate for served in report.served} <= {DONE, REFUSED}, seed
        assert report.retractions == 0, seed
        assert_empty(loop)
