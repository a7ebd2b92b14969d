"""Cases that broke a promise: each is played as its file has it, and every promise holds."""

from pathlib import Path

import pytest

from kvarena.plugins.stress.swarm.case import read_case
from kvarena.plugins.stress.swarm.harness import replay_case

FILES = sorted((Path(__file__).parent / "cases").glob("*.toml"))


@pytest.mark.req("HAR-2")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_that_was_found_holds_every_promise(path: Path) -> None:
    """All of its operations are played, none of them is misuse, and nothing is left at rest."""
    case = read_case(path)
    run = replay_case(case)

    assert run.case is None, run.case.words
    assert run.operations == len(case.operations)
    assert not {kind for _, kind in run.counts} - {"value", "refused"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_says_what_it_broke(path: Path) -> None:
    """In its first line for people, and by the name of the check."""
    case = read_case(path)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert case.check
    assert case.words.startswith(case.check)
    assert f"(after {len(case.operations)} operations)" in case.words


def test_there_are_cases() -> None:
    """A folder that was moved is no reason to pass."""
    assert FILES
