"""What a trace's prompts find of each other, each cached before the next arrives: counted by hand, and by the tree."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which drives the tree by a trace."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("prefix")


def by_hand(trace: Any, grain: int) -> int:
    """Leading blocks in common with any prompt before, block by block; one token is left, whole grains count."""
    total, before = 0, []
    for row in trace.rows:
        common = [next((at for at, pair in enumerate(zip(row.prefix_ids, ids, strict=False)) if pair[0] != pair[1]),
                       min(len(ids), len(row.prefix_ids))) for ids in before]  # fmt: skip
        total += min(512 * max(common, default=0), row.prompt_tokens - 1) // grain * grain
        before.append(row.prefix_ids)
    return total


@pytest.mark.req("TRE-1")
@pytest.mark.req("CKP-1")
@pytest.mark.parametrize(("states", "grain"), [(False, 16), (True, 64)])
def test_a_slice_finds_what_it_has_in_common(prefix: Any, states: bool, grain: int) -> None:
    """With memory for all of it every token that was there is found, to the page, and to the grid with states."""
    trace = prefix.read_trace(prefix.SMALL)
    hits = prefix.unlimited(trace, states=states)
    assert hits == by_hand(trace, grain) == prefix.expected_hits(trace, grain)
    assert hits > 0


@pytest.mark.slow
@pytest.mark.req("TRE-1")
@pytest.mark.req("CKP-1")
@pytest.mark.skipif("KVARENA_TRACES" not in os.environ, reason="set KVARENA_TRACES to the folder with the large traces")
@pytest.mark.parametrize("case", ["page 16, full", "grid 64, full and state"])
def test_the_whole_slice_finds_what_it_has_in_common(prefix: Any, case: str) -> None:
    """The figures of the conversation slice of 8,000 prompts come out to the token."""
    trace = prefix.trace_of(None)
    assert len(trace.rows) == 8000
    assert prefix.expected_hits(trace, 64 if "state" in case else 16) == prefix.EXPECTED[case]
    assert prefix.unlimited(trace, states="state" in case) == prefix.EXPECTED[case]
