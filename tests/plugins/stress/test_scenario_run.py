"""The runner: what was expected and what came, broken promises, decisions that differ, and what is awaited."""

from pathlib import Path

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.ledger.timeline import Timeline
from kvarena.plugins.stress.scenario.file import read_scenario
from kvarena.plugins.stress.scenario.run import AWAITING, FAILED, PASSED, Report, run_scenario
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import Outcome, Stage
from kvarena.terms.errors import ConfigError, KvarenaError

CATALOG = Catalog.installed()
HEAD = """version = 1
title = "a file"

[chain]
arena = 4
requests = 2
context = 4
forwards_in_flight = 1
sub_pools = {F = {lifetime = "full"}}

[script]
steps = [
"""


def run(tmp_path: Path, *steps: str, head: str = HEAD) -> Report:
    path = tmp_path / "x.toml"
    path.write_text(head + "".join(f"    {{{step}}},\n" for step in steps) + "]\n")
    return run_scenario(read_scenario(path), CATALOG)


def words(report: Report) -> str:
    return str(report.failures[0])


def test_a_file_that_comes_out_as_expected_passes(tmp_path: Path) -> None:
    """Four runs: late, early and two random timings; each ends quiet."""
    report = run(tmp_path, 'do = "take", request = "R", rows = 4', 'do = "finish", request = "R", expect = 4')
    assert (report.fate, report.runs, report.steps, report.failures) == (PASSED, 4, 12, ())


def test_a_failure_says_line_step_expectation_and_what_came(tmp_path: Path) -> None:
    """And the variant in which it was."""
    report = run(tmp_path, 'do = "take", request = "R", rows = 4', 'do = "counts", sub_pool = "F", expect = {live = 3}')
    assert report.fate == FAILED
    assert words(report) == f"{tmp_path}/x.toml:14: counts sub_pool='F': live is 4, not 3 [late]"


@pytest.mark.parametrize(
    ("step", "found"),
    [
        ('do = "take", request = "R", rows = 5', "it should go through, and came to error: "),
        ('do = "take", request = "R", rows = 4, expect = "refused"', "expected a refusal, and it came to 4"),
        (
            'do = "process", forward = "f", expect = {error = "forwards.process_out_of_order"}',
            "expected the error forwards.process_out_of_order, and it came to error: there is no forward 'f'",
        ),
        (
            'do = "fits", units = {F = 5}, expect = {any = ["refused", true]}',
            "expected a refusal or True, and it came to False",
        ),
        ('do = "check", holds = "= 1 == 2"', "the answer is False, not True"),
        ('do = "stages"', "awaits pipeline stages"),
        ('do = "take", request = "R", rows = 1', "the end: quiet: the answer is ['request R is open'"),
    ],
)
def test_what_does_not_come_out_fails(step: str, found: str, tmp_path: Path) -> None:
    """Values, refusals and named errors are each told from the others; what nobody awaits has failed."""
    report = run(tmp_path, step)
    assert report.fate == FAILED
    assert found in words(report)


def test_an_expected_error_may_be_one_of_several_and_say_something(tmp_path: Path) -> None:
    """By name, and by a part of its message."""
    error = '{error = ["ConfigError", "x.y"], says = "there is no forward"}'
    assert run(tmp_path, f'do = "process", forward = "f", expect = {error}').fate == PASSED
    other = '{error = "ConfigError", says = "something else"}'
    assert run(tmp_path, f'do = "process", forward = "f", expect = {other}').fate == FAILED


def test_a_file_that_awaits_something_is_never_passed(tmp_path: Path) -> None:
    """It stops at the step that awaits it, and names the capability."""
    step = 'do = "stages", awaits = "stages", expect = true'
    report = run(tmp_path, step, 'do = "take", request = "R", rows = 9')
    assert (report.fate, report.awaits) == (AWAITING, ("stages",))


def test_a_step_whose_capability_has_come_fails_until_the_mark_is_gone(tmp_path: Path) -> None:
    """So that no file goes on awaiting what is there."""
    report = run(tmp_path, 'do = "fits", units = {F = 4}, awaits = "questions", expect = true')
    assert report.fate == FAILED
    assert "what it awaits (questions) is there: take the mark away" in words(report)


def test_a_step_before_the_awaited_one_must_come_out(tmp_path: Path) -> None:
    """What is awaited hides nothing that comes before it."""
    report = run(
        tmp_path,
        'do = "fits", units = {F = 4}, expect = false',
        'do = "stages", awaits = "x"',
    )
    assert report.fate == FAILED


def test_a_broken_promise_fails_the_step_after_which_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its answer is as expected; in the words of the device."""
    monkeypatch.setattr(Timeline, "hand", lambda self, stream: None)
    report = run(
        tmp_path,
        'do = "take", request = "R", rows = 2',
        'do = "step", forward = "f", requests = ["R"], expect = 1',
        'do = "process", forward = "f"',
        'do = "finish", request = "R"',
    )
    assert report.fate == FAILED
    assert "broken promise: unordered_overlap: " in words(report)


def test_runs_that_differ_in_timing_alone_must_decide_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is read to decide shows in the digest of the step."""
    plain = Stage.apply

    def reads_an_event(self: Stage, op: Op) -> Outcome:
        outcome = plain(self, op)
        if op.verb == "counts" and self.props.events["f"].done():
            self.storage.flush()
            self.storage.chain.counters.moves += 1
            self.storage.requests.lengths[1] += 1
        return outcome

    monkeypatch.setattr(Stage, "apply", reads_an_event)
    report = run(
        tmp_path,
        'do = "take", request = "R", rows = 2',
        'do = "step", forward = "f", requests = ["R"]',
        'do = "counts"',
        'do = "process", forward = "f"',
        'do = "finish", request = "R"',
    )
    assert any("rank_divergence" in failure.words for failure in report.failures)


def test_what_is_found_as_it_runs_has_its_line_too(tmp_path: Path) -> None:
    """A variable that is not there, an argument that a sum makes of another kind."""
    with pytest.raises(ConfigError, match=r"x.toml:13: there is no variable 'n'"):
        run(tmp_path, 'do = "take", request = "R{n}", rows = 1')
    with pytest.raises(ConfigError, match=r"x.toml:13: take: rows must be a whole number from 0 on, not 'True'"):
        run(tmp_path, 'do = "take", request = "R", rows = "= 1 == 1"')


def test_sub_pools_are_named_as_in_the_file(tmp_path: Path) -> None:
    """In questions and in answers."""
    assert (
        run(tmp_path, 'do = "fits", units = {F = 4}, expect = "yes"', 'do = "counts", expect = {F = {free = 4}}').fate
        == PASSED
    )


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("memory = 100", r"x.toml: chain.memory: a budget of 100 B"),
        ('arena = 4\npolicies = {holes = "nope"}', r"x.toml: chain.policies.holes: no policy is named 'nope'"),
        ('arena = 4\nowner = "required"', r"x.toml: chain.owner: no full-attention layer"),
    ],
)
def test_a_chain_that_cannot_be_is_told_by_the_keys_of_the_file(tmp_path: Path, chain: str, words: str) -> None:
    """They stand under [chain], and not where a storage's config has them."""
    path, pool = tmp_path / "x.toml", '{name = "window", window = 4}'
    text = f"version = 1\ntitle = 't'\n[chain]\n{chain}\n[chain.sub_pools]\nW = {{lifetime = {pool}}}\n"
    path.write_text(text + '[[step]]\ndo = "flush"\n')
    with pytest.raises(KvarenaError, match=words):
        run_scenario(read_scenario(path), CATALOG)
