"""The twenty handed scenarios as files: each passes or awaits a named capability, and planted faults make them fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.chain.usage import Usage
from kvarena.ledger.batches import Batches
from kvarena.ledger.timeline import Timeline
from kvarena.ledger.writes import Writes
from kvarena.plugins.stress.scenario.file import read_scenario
from kvarena.plugins.stress.scenario.run import AWAITING, FAILED, PASSED, run_scenario
from kvarena.storage.lanes import Lanes

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("h*.toml"))
CATALOG = Catalog.installed()
WAITING = {"h19"}
"""Those that await what comes with later steps: stages."""


def test_there_is_a_file_for_each_scenario() -> None:
    """H01 to H20."""
    assert [path.stem for path in FILES] == [f"h{number:02}" for number in range(1, 21)]


@pytest.mark.req("HAR-1")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_it_should(path: Path) -> None:
    """In every timing, case and order; what awaits a capability is skipped with its name, and never passes."""
    report = run_scenario(read_scenario(path), CATALOG)
    assert not report.failures, "\n".join(map(str, report.failures))
    assert report.fate == (AWAITING if path.stem in WAITING else PASSED)
    if report.awaited:
        pytest.skip(f"{report.title}: awaits {', '.join(report.awaits)}")


def nothing(*given: Any, **named: Any) -> None:
    """What a fault leaves undone."""


def add_over(self: Batches, forward: int, pages: Any) -> None:
    """A second batch of one key replaces the first."""
    if self._batches and self._batches[-1][0] == forward:
        self.count -= sum(map(len, self._batches.pop()[1]))
    self._batches.append((forward, [pages]))
    self.count += len(pages)


FAULTS: dict[str, tuple[str, type, str, Any]] = {
    "the peer is told at once": ("h10", Timeline, "tail", nothing),
    "the allocator's stream waits for nothing": ("h16", Timeline, "wait", nothing),
    "a load waits for no forward": (
        "h17",
        Lanes,
        "behind",
        lambda self, name: self._ledger.timeline.device.stream(name),
    ),
    "a receive keeps no page": ("h18", Usage, "_pin", nothing),
    "a batch replaces another": ("h15", Batches, "add", add_over),
    "unknown writes are none": ("h13", Writes, "are_unknown", lambda self, name: False),
}


@pytest.mark.req("HAR-3")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_makes_its_scenario_fail(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that the scenario is about, put back: the file fails, and says at which line."""
    name, owner, method, instead = FAULTS[fault]
    replaced: Callable[..., Any] = instead
    monkeypatch.setattr(owner, method, replaced)
    report = run_scenario(read_scenario(FOLDER / f"{name}.toml"), CATALOG)
    assert report.fate == FAILED
    assert all(failure.place.startswith(f"{FOLDER / name}.toml:") for failure in report.failures)
