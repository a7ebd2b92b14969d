"""What is drawn is decided by the seed alone, reaches every verb of the harness, and follows the world's weights."""

import collections

import attrs
import pytest

from kvarena.plugins.stress.swarm.actions import DRAWN
from kvarena.plugins.stress.swarm.harness import run_seed
from kvarena.plugins.stress.swarm.world import ACTIONS, SHARING, draw_world

VERBS = {
    "take", "extend", "free", "finish", "abort", "retract", "read", "fits", "admit", "cache", "lock", "unlock", "evict",
    "launch", "run", "record", "process", "step", "barrier", "turn", "reserve", "commit", "backup", "load", "name",
    "submit", "end", "cancel", "copy_state", "send", "recv", "publish", "peer_write", "release", "flush", "relief",
    "match", "start", "spare", "checkpoint", "narrow", "relax",
}  # fmt: skip


def test_every_action_has_its_drawing() -> None:
    """The weights of a world name what can be drawn, and nothing else."""
    assert set(DRAWN) == {*ACTIONS, *SHARING}


def test_a_seed_draws_the_same_operations() -> None:
    """Twice the same, whatever the timings: the next operation depends on no rank's clock."""
    world = draw_world(11)
    first = run_seed(world, 300, keep=True)
    again = run_seed(world, 300, keep=True)
    other = run_seed(attrs.evolve(world, timings=("early", "early")), 300, keep=True)

    assert first.played == again.played == other.played


@pytest.mark.req("HAR-1")
def test_every_verb_comes_to_a_value() -> None:
    """Over some seeds each of the scheduler's operations is played and succeeds; takes are refused too."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for seed in range(30):
        counts += run_seed(draw_world(seed), 300).counts

    assert {verb for verb, kind in counts if kind == "value"} >= VERBS
    assert {verb for verb, kind in counts if kind == "refused"} >= {"take", "extend", "relief"}
    errors = sum(count for (_, kind), count in counts.items() if kind == "error")
    assert errors < 0.05 * counts.total()


def test_a_silent_action_never_happens() -> None:
    """Weight zero is never: no transfer in a world without sends and receives."""
    world = draw_world(5)
    silent = attrs.evolve(world, weights={**world.weights, "send": 0.0, "receive": 0.0, "flush": 0.0})

    verbs = {verb for verb, _ in run_seed(silent, 400).counts}
    assert not verbs & {"send", "recv", "publish", "flush"} - {"flush"}
    assert "launch" in verbs or "step" in verbs
