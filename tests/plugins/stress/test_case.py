"""A case is a file that gives back what was run, and any other file is refused with its place."""

from pathlib import Path

import attrs
import pytest

from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.case import Case, dump_case, read_case
from kvarena.plugins.stress.swarm.harness import run_seed
from kvarena.plugins.stress.swarm.world import draw_world
from kvarena.terms.errors import ConfigError

CASE = Case(
    world=draw_world(3),
    operations=(
        Op("take", {"request": "r1", "rows": 2}),
        Op("extend", {"to": {"r1": 3}}),
        Op("free", {"request": "r1", "pieces": [[2, 3]]}),
        Op("end", {"copy": "c1", "wait": False}),
    ),
    check="lost_write",
    words='row 1 of "r1" \\ page 4\nis gone',
)


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "case.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.req("HAR-2")
def test_a_case_is_read_back_as_it_was(tmp_path: Path) -> None:
    """World, operations, check, words and device; for any world that a seed draws."""
    for seed in range(30):
        case = attrs.evolve(CASE, world=draw_world(seed))
        assert read_case(written(tmp_path, dump_case(case))) == case


def test_whatever_a_run_plays_can_be_written(tmp_path: Path) -> None:
    """The operations of real runs are read back equal, so that replaying them is replaying the run."""
    for seed in range(3):
        run = run_seed(draw_world(seed), 200, keep=True)
        assert run.played is not None
        case = attrs.evolve(CASE, world=draw_world(seed), operations=run.played)
        assert read_case(written(tmp_path, dump_case(case))) == case


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version = 1", "version = 2", "version: 2 is not known here; this kvarena reads version 1"),
        ("version = 1\n", "", "version: is missing"),
        (
            'verb = "take"',
            'verb = "takes"',
            r"play.operations\[0\]: there is no operation 'takes'; did you mean 'take'",
        ),
        ('{verb = "take", ', "{", r"play.operations\[0\]: verb: is missing"),
        ("rows = 2", 'rows = "2"', r"play.operations\[0\]: take: rows must be a whole number"),
        ("rows = 2", "row = 2", r"play.operations\[0\]: take has no argument 'row'; did you mean 'rows'"),
        ('request = "r1", rows = 2', "rows = 2", r"play.operations\[0\]: take needs request"),
        ("pressure = ", "pressur = ", r"world.pressur: unknown key; did you mean 'pressure'"),
        ("[world.storage.policies]", "[world.storage.polices]", r"world.storage: polices: unknown key"),
    ],
)
def test_a_wrong_file_is_refused_by_its_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Another version, an unknown operation, argument or setting: one message with the place and what would do."""
    text = dump_case(CASE)
    assert old in text

    with pytest.raises(ConfigError, match=rf"case\.toml: {words}"):
        read_case(written(tmp_path, text.replace(old, new, 1)))


def test_a_file_that_was_cut_off_is_never_a_shorter_case(tmp_path: Path) -> None:
    """Wherever it ends before its last bracket, it is refused."""
    text = dump_case(CASE).rstrip()
    for stop in range(0, len(text) - 1, 7):
        with pytest.raises(ConfigError, match=r"case\.toml: "):
            read_case(written(tmp_path, text[:stop]))


def test_no_file_is_said_so(tmp_path: Path) -> None:
    """A path that leads nowhere."""
    with pytest.raises(ConfigError, match="there is no such file"):
        read_case(tmp_path / "none.toml")
