"""Requests on the stage share prefixes: through kvarena's own tree, with tags that follow the ids."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice, PrefixConfig
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, PoolSpec, open_stage
from kvarena.plugins.stress.stage.keys import Keys
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import Stage

CATALOG = Catalog.installed()
WINDOWED = ChainSpec(
    unit=64, arena=60, page_tokens=4, requests=4, context=32, forwards_in_flight=2, mirrors=True,
    prefix=PrefixConfig(share=True),
    sub_pools={"W": PoolSpec(lifetime={"name": "window", "window": 8}), "F": PoolSpec(lifetime="full")},
)  # fmt: skip
STATEFUL = ChainSpec(
    unit=64, arena=60, page_tokens=4, requests=4, context=32, forwards_in_flight=2, mirrors=True,
    prefix=PrefixConfig(share=True, strategy="extra_buffer_lazy", checkpoint_tokens=8),
    sub_pools={
        "S": PoolSpec(lifetime="state", units=4),
        "W": PoolSpec(lifetime={"name": "window", "window": 8}),
        "F": PoolSpec(lifetime="full"),
    },
)  # fmt: skip


def opened(spec: ChainSpec) -> Iterator[Stage]:
    stage = open_stage(spec, Choice("simulated", {"timing": "late"}), CATALOG, "")
    yield stage
    assert stage.findings == []
    assert stage.device.violations == []
    stage.storage.release()


@pytest.fixture
def windowed() -> Iterator[Stage]:
    yield from opened(WINDOWED)


@pytest.fixture
def stateful() -> Iterator[Stage]:
    yield from opened(STATEFUL)


def play(stage: Stage, verb: str, **arguments: Any) -> Any:
    """Play an operation that must go through; its value."""
    outcome = stage.apply(Op(verb, arguments))
    stage.turn()
    assert outcome.kind == "value", f"{verb} {arguments}: {outcome}"
    return outcome.value


def test_keys_are_shared_as_far_as_was_asked() -> None:
    """And differ from there on; what begins like a part of a part has that part of the first."""
    one = Keys(1)
    two = one.forked(6, 2)
    three = two.forked(4, 3)
    assert np.array_equal(two.first(6), one.first(6))
    assert not (two.first(9)[6:] == one.first(9)[6:]).any()
    assert np.array_equal(three.first(4), one.first(4))
    assert not (three.first(9)[4:] == two.first(9)[4:]).any()
    assert two.spelled(2, 4)[0] == one.spelled(2, 4)[0]
    assert two.spelled(2, 4)[1] != one.spelled(2, 4)[1]
    assert one.forked(8, 4, "salt").spelled(1, 4) != one.spelled(1, 4)


@pytest.mark.req("TRE-1")
def test_a_request_reads_what_another_left(windowed: Stage) -> None:
    """It starts from whole pages, with the tags that their writer put there, and is charged for the rest alone."""
    play(windowed, "take", request="A", rows=14, write=True)
    assert play(windowed, "cache", request="A", entry="E", tokens=12) == 12
    found = play(windowed, "match", request="B", shares={"A": 13}, prompt=20)
    assert found == {"tokens": 12, "agreed": 12, "has_state": False, "stopped": "differs"}
    answer = play(windowed, "admit", request="B", prompt=20, output=1)
    assert (answer["answer"], answer["cached"], answer["charge"]["full"]) == ("yes", 12, 2)
    assert play(windowed, "start", request="B") == 12
    assert play(windowed, "counts", sub_pool="full")["live"] == 4
    play(windowed, "step", forward="f", requests=["B"], rows=8)
    assert play(windowed, "read", request="B") == "ok"
    assert windowed.apply(Op("evict", {"entry": "E"})).name == "prefix_tree.drop_of_locked_entry"
    play(windowed, "process", forward="f")
    assert play(windowed, "relax", request="B") == 12
    for name in ("A", "B"):
        play(windowed, "finish", request=name)
    assert play(windowed, "evict", entry="E") == ["E"]
    assert play(windowed, "quiet") == []


@pytest.mark.req("TRE-2")
def test_what_two_computed_is_kept_once(windowed: Stage) -> None:
    """The second reads the first's pages, its own come back, and each row holds what its last writer wrote."""
    play(windowed, "take", request="A", rows=12, write=True)
    play(windowed, "take", request="B", rows=12, write=True, shares={"A": 12})
    play(windowed, "cache", request="A", entry="E1")
    play(windowed, "cache", request="B", entry="E2")
    assert play(windowed, "counts", sub_pool="full")["live"] == 3
    assert play(windowed, "pages", request="A", sub_pool="full") == play(
        windowed, "pages", request="B", sub_pool="full"
    )
    for name in ("A", "B", "E1", "E2"):
        assert play(windowed, "read", request=name) == "ok"
    for name in ("A", "B"):
        play(windowed, "finish", request=name)
    play(windowed, "evict", pieces=0)
    assert play(windowed, "quiet") == []


@pytest.mark.req("CKP-3")
def test_a_checkpoint_is_copied_behind_its_kernels_and_cached_when_they_are_processed(stateful: Stage) -> None:
    """The next request starts with a copy of it; one that is given up on the way comes back."""
    play(stateful, "take", request="A", rows=7, write=True)
    assert play(stateful, "spare", request="A") == "held"
    play(stateful, "extend", to={"A": 8})
    play(stateful, "launch", forward="f1", requests=["A"])
    assert play(stateful, "checkpoint", request="A", entry="E", forward="f1") == "taken"
    assert stateful.apply(Op("checkpoint", {"request": "A", "entry": "E2", "forward": "f1"})).name == "ConfigError"
    play(stateful, "record", forward="f1")
    assert play(stateful, "entries") == []
    play(stateful, "process", forward="f1")
    assert play(stateful, "entries") == ["E"]
    play(stateful, "match", request="B", shares={"E": 8})
    assert play(stateful, "start", request="B") == 8
    assert play(stateful, "read", request="B") == "ok"
    play(stateful, "spare", request="B")
    play(stateful, "extend", to={"B": 16})
    play(stateful, "launch", forward="f2", requests=["B"])
    play(stateful, "checkpoint", request="B", entry="F", forward="f2")
    play(stateful, "record", forward="f2")
    play(stateful, "abort", request="B")
    play(stateful, "process", forward="f2")
    assert play(stateful, "counts", sub_pool="state")["live"] == 2
    play(stateful, "finish", request="A")
    assert play(stateful, "evict", pieces=0) == ["E"]
    assert play(stateful, "quiet") == []


def test_a_request_that_was_matched_and_gives_up_leaves_nothing(stateful: Stage) -> None:
    """Neither its lock nor what it was promised."""
    play(stateful, "take", request="A", rows=8, write=True)
    play(stateful, "checkpoint", request="A", entry="E")
    play(stateful, "finish", request="A")
    play(stateful, "match", request="B", shares={"E": 8}, prompt=12, lock=True)
    play(stateful, "admit", request="B", prompt=12)
    assert any(stateful.admission().promised())
    play(stateful, "abort", request="B")
    assert not any(stateful.admission().promised())
    assert play(stateful, "evict", entry="E") == ["E"]
    assert play(stateful, "quiet") == []


def test_what_cannot_be_is_refused_by_name(stateful: Stage) -> None:
    """A cache entry without a state, a checkpoint off the grid, a relax before its time: nothing changes."""
    play(stateful, "take", request="A", rows=7, write=True)
    assert "nobody could start from 'E'" in stateful.apply(Op("cache", {"request": "A", "entry": "E"})).words
    assert "no state at a grid point" in stateful.apply(Op("checkpoint", {"request": "A", "entry": "E"})).words
    assert "reads no entry" in stateful.apply(Op("relax", {"request": "A"})).words
    play(stateful, "take", request="A", rows=1, write=True)
    play(stateful, "checkpoint", request="A", entry="E")
    assert "needs the window rows" in stateful.apply(Op("relax", {"request": "A"})).words
    both = stateful.apply(Op("match", {"request": "B", "shares": {"A": 1, "E": 1}}))
    assert "begins like one other" in both.words
    play(stateful, "finish", request="A")
    play(stateful, "evict", pieces=0)
    assert play(stateful, "quiet") == []
