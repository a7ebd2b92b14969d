"""The harness is proven: each planted fault is found by ordinary seeds, within a stated number of operations."""

from collections.abc import Iterator

import attrs
import pytest
from planted import FAULTS, Fault
from planted_sharing import SHARED_FAULTS

from kvarena.bands.unit_ids import IdPool
from kvarena.ledger.clearance import CLEARANCE, Answer
from kvarena.ledger.ledger import Ledger
from kvarena.plugins.stress.swarm.harness import run_seed
from kvarena.plugins.stress.swarm.world import draw_world
from kvarena.terms.ports import IntArray, Stream

OPERATIONS = 400
READERS = ("FORWARD_READ", "SCHEDULE_READ", "HOST_SAVE", "NETWORK_SEND")
BOTH_READ = {(reader, hazard) for reader in READERS for hazard in ("COPY_READ", "NETWORK_SEND")}
"""Cells that say none because both only read: there is no order in them that could be lost."""

HELD = {
    ("FORWARD_READ", "NETWORK_RECEIVE"): "a row that is being received does not run: forwards.launch refuses it",
    ("HOST_SAVE", "NETWORK_RECEIVE"): "nobody backs up a row that is being received: what it holds is not known",
    ("NETWORK_SEND", "NETWORK_RECEIVE"): "nobody sends a row on that is being received",
    ("HOST_SAVE", "FIXED"): "a row that is to be loaded has nothing to back up before its copy is submitted",
    ("NETWORK_SEND", "FIXED"): "a row that is to be loaded has nothing to send before its copy is submitted",
}
"""Cells that core's verbs do not reach in any order that a scheduler could want, with the reason."""

found: dict[str, tuple[int, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print what was found, and after how many operations."""
    yield
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    if capture is not None and found:
        with capture.global_and_fixture_disabled():
            print(f"\n{'operations':>10}  {'check':<32}  planted fault")
            for name, (operations, check) in found.items():
                print(f"{operations:>10,}  {check:<32}  {name}")


@pytest.mark.slow
@pytest.mark.req("HAR-3")
@pytest.mark.parametrize("fault", [*FAULTS, *SHARED_FAULTS], ids=str)
def test_a_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds from 0 on, each a world of its own, break a promise before the stated number of operations."""
    fault.plant(monkeypatch)

    operations = 0
    for seed in range(fault.within // OPERATIONS):
        run = run_seed(draw_world(seed), OPERATIONS)
        operations += run.operations
        if run.case is not None:
            # a patch that no longer fits what it patches crashes, and would seem to be found
            assert not run.case.check.startswith("crash."), run.case.words
            found[fault.name] = operations, run.case.check
            return
    pytest.fail(f"{fault.name}: not found in {operations:,} operations")


@pytest.mark.req("HAR-3")
def test_there_are_at_least_thirty_faults_and_every_cell_is_accounted_for() -> None:
    """Each cell of CLEARANCE is broken by a fault, says none because both read, or is out of reach as named."""
    broken = {cell for fault in FAULTS for cell in fault.cells}

    assert len(FAULTS) >= 30
    every = [fault.name for fault in (*FAULTS, *SHARED_FAULTS)]
    assert len(set(every)) == len(every)
    assert broken | BOTH_READ | set(HELD) == set(CLEARANCE.cells)
    assert not broken & (BOTH_READ | set(HELD))
    assert {CLEARANCE.cells[cell].answer for cell in BOTH_READ} == {Answer.NONE}


@pytest.mark.req("HAR-3")
def test_cells_that_nobody_reaches_are_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sweep without faults no page is ever asked for under a cell that is named as out of reach.

    Cells in which both read are met, often, and nothing comes of it.
    """
    met: set[tuple[str, str]] = set()
    clear = Ledger.clear

    def watched(
        ledger: Ledger, unit_bytes: int, pages: IntArray, actors: tuple[object, ...], stream: Stream | None = None
    ) -> None:
        for use in ledger.uses.over(unit_bytes, pages):
            met.update((actor.name, use.hazard.name) for actor in actors)
        clear(ledger, unit_bytes, pages, actors, stream)

    monkeypatch.setattr(Ledger, "clear", watched)
    runs = [run_seed(attrs.evolve(draw_world(seed), misuse=0.0), OPERATIONS) for seed in range(40)]

    assert [run.case for run in runs if run.case] == []
    assert not met & set(HELD)
    assert met >= {("HOST_SAVE", "NETWORK_SEND"), ("NETWORK_SEND", "COPY_READ"), ("FORWARD_READ", "COPY_READ")}


def test_a_fault_is_gone_when_its_patch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are planted for one test only: the same seeds run clean before and after."""
    accept = IdPool.accept
    with monkeypatch.context() as inner:
        next(fault for fault in FAULTS if fault.name == "an id is minted twice").plant(inner)
        assert any(run_seed(draw_world(seed), 100).case for seed in range(3))

    assert IdPool.accept is accept
    assert not any(run_seed(draw_world(seed), 100).case for seed in range(3))
