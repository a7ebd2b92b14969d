"""A run of the harness: clean on kvarena as it is, and a fault is found, said in words, shrunk and seen again."""

import attrs
import pytest
from planted import FAULTS

from kvarena.backends.simulated import SimulatedDevice
from kvarena.chain.chain import Chain
from kvarena.plugins.stress.stage import forwards
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.swarm.checks import PROMISES
from kvarena.plugins.stress.swarm.harness import (
    WATCHED_EVERY,
    check_world,
    open_storages,
    replay_case,
    run_operations,
    run_seed,
    shrink_case,
    simpler,
)
from kvarena.plugins.stress.swarm.sweep import Job, sweep
from kvarena.plugins.stress.swarm.world import draw_world
from kvarena.policies.compaction import Eager, Lazy
from kvarena.terms.errors import ConfigError

SIX = (
    "lost_write", "unordered_overlap", "host_read_after_wait", "rank_divergence", "cross_dtype_bytes", "ledger_leak",
)  # fmt: skip


def plant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the list."""
    next(fault for fault in FAULTS if fault.name == name).plant(monkeypatch)


@pytest.mark.req("HAR-1")
def test_a_slice_of_seeds_breaks_no_promise() -> None:
    """Every world of a few, all six checks after every operation."""
    for seed in range(12):
        run = run_seed(draw_world(seed), 300)
        assert run.case is None, run.case.words
        assert run.operations == 300


@pytest.mark.req("HAR-1")
def test_the_six_checks_are_named_in_words() -> None:
    """Each has its sentence."""
    assert set(SIX) <= set(PROMISES)
    assert all(words.endswith(".") for words in PROMISES.values())


def test_two_ranks_are_two_devices_with_their_own_time() -> None:
    """Each rank has a device with its timing and a seed of its own, on grains that divide every unit."""
    world = draw_world(4)
    devices = []
    for storage in open_storages(world, "simulated"):
        assert isinstance(storage.device, SimulatedDevice)
        devices.append((storage.device.timing, storage.device.seed))
        assert all(pool.unit_bytes % storage.device.grain_bytes == 0 for pool in storage.plan.sub_pools)
        storage.release()
    assert [timing for timing, _ in devices] == list(world.timings)
    assert devices[0][1] != devices[1][1]


@pytest.mark.req("HAR-2")
def test_a_failing_case_is_shrunk_and_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest list breaks the same promise, none of it can go, and without the fault it is clean."""
    with monkeypatch.context() as inner:
        plant("a page freed under a forward is a hole at once", inner)
        cases = [case for seed in range(8) if (case := run_seed(draw_world(seed), 200).case)]
        case = max(cases, key=lambda one: len(one.operations))
        least = shrink_case(case)

        assert least.check == case.check
        assert len(least.operations) < min(12, len(case.operations))
        assert replay_case(least).case is not None
        for place in range(len(least.operations)):
            part = least.operations[:place] + least.operations[place + 1 :]
            found = run_operations(least.world, part).case
            assert found is None or found.check != least.check

    assert replay_case(least).case is None


def test_words_say_the_operation_the_rank_and_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person reads first."""
    plant("pages are not zeroed on hand-out", monkeypatch)
    case = next(case for seed in range(9) if (case := run_seed(draw_world(seed), 200).case))

    assert case.check == "lost_write"
    assert "expected zeros, found tag" in case.words
    assert "(rank " in case.words
    assert f"(after {len(case.operations)} operations)" in case.words


def test_operations_on_what_is_not_there_are_skipped_on_both_ranks() -> None:
    """Parts of a run may be left out: what hangs on them is an error on both ranks, and no violation."""
    world = draw_world(8)
    whole = run_seed(world, 300, keep=True).played or ()

    for step in (2, 3, 5):
        run = run_operations(world, whole[::step])
        assert run.case is None, run.case.words


def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that stops with anything but a named error is told like any other broken promise."""

    def broken(chain: Chain, *args: object) -> int:
        raise IndexError("list index out of range")

    monkeypatch.setattr(Chain, "flush", broken)
    case = run_operations(draw_world(0), [Op("take", {"request": "r", "rows": 1}), Op("flush", {})]).case

    assert case is not None
    assert case.check == "crash.IndexError"


def test_an_operation_has_simpler_forms() -> None:
    """Fewer rows, requests or units; never none of them."""
    assert Op("take", {"request": "r", "rows": 1}) in simpler(Op("take", {"request": "r", "rows": 5}))
    assert simpler(Op("step", {"forward": "f", "requests": ["a", "b"]}))[0].arguments["requests"] == ["b"]
    assert simpler(Op("flush", {})) == []


@pytest.mark.req("HAR-2")
def test_seeds_run_on_several_workers_as_on_one() -> None:
    """The same seeds come to the same, whoever runs them."""
    jobs = [Job(seed=seed, operations=60) for seed in range(4)]

    alone = [attrs.evolve(one, seconds=0.0) for one in sweep(jobs)]
    shared = [attrs.evolve(one, seconds=0.0) for one in sweep(jobs, workers=2)]

    assert sorted(shared, key=lambda one: one.seed) == alone


@pytest.mark.req("HAR-2")
def test_the_same_operations_run_on_real_streams() -> None:
    """On the cpu backend payload, divergence and ledger are checked, with worker threads for streams."""
    for seed in range(4):
        run = run_seed(draw_world(seed), 120, "cpu")
        assert run.case is None, run.case.words


def test_a_backend_that_is_not_here_is_one_clear_error() -> None:
    """With the names of those that are."""
    with pytest.raises(ConfigError, match=r"--device coda: no backend of this name is installed here; there are: cpu"):
        check_world(draw_world(0), "coda", "seed 0")


def test_a_policy_that_answers_nonsense_breaks_the_run_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops both ranks alike, and is no refusal of an operation."""
    for kind in (Lazy, Eager):
        monkeypatch.setattr(kind, "moves", lambda self, live, holes: 0.5)
    runs = (run_seed(draw_world(seed), 400) for seed in range(12))
    cases = [run.case for run in runs if run.case is not None]
    assert cases
    assert all(case.check == "crash.PluginError" for case in cases)
    assert "answered 0.5 where a whole number was asked for" in cases[0].words


def test_a_forward_that_does_not_name_what_it_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the worlds that are watched for it: no other check can see a race on bytes that nobody named."""
    monkeypatch.setattr(forwards, "touches", lambda parts: [])
    run = run_seed(draw_world(WATCHED_EVERY), 200)
    assert run.case is not None
    assert run.case.check == "undeclared_write"
