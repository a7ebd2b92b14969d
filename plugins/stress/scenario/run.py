"""Run a scenario: every variant on a stage of its own, every step's answer beside what was expected of it.

After each step the device and the stage are asked whether a promise was broken. Runs that differ in timing alone must
have decided alike, step by step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.plugins.stress.scenario.file import Scenario, Variant
from kvarena.plugins.stress.scenario.planning import Drawing
from kvarena.plugins.stress.scenario.script import Step
from kvarena.plugins.stress.scenario.values import differences, matches, several, spelled
from kvarena.plugins.stress.stage.chain_spec import open_stage
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import TIMED, Outcome, Stage
from kvarena.terms.errors import ConfigError, InvariantError, KvarenaError

PASSED, FAILED, AWAITING = "passed", "failed", "awaiting"


@attrs.frozen
class Failure:
    """What went wrong, or what is awaited: the place, the step, and the words."""

    place: str
    variant: str
    step: str
    words: str

    def __str__(self) -> str:
        return f"{self.place}: {self.step}: {self.words} [{self.variant}]"


@attrs.frozen
class Report:
    """What came of one file. ``fate``: passed, failed or awaiting; a file that awaits anything is never passed."""

    path: str
    title: str
    runs: int
    steps: int
    failures: tuple[Failure, ...]
    awaited: tuple[Failure, ...]

    @property
    def fate(self) -> str:
        """One word for all its variants."""
        return FAILED if self.failures else AWAITING if self.awaited else PASSED

    @property
    def awaits(self) -> tuple[str, ...]:
        """The capabilities that it waits for, each once."""
        return tuple(dict.fromkeys(failure.words for failure in self.awaited))


class _StoppedError(Exception):
    """The run ends here: a failure, or a step that awaits something."""

    def __init__(self, failure: Failure, *, awaited: bool = False) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.awaited = awaited


def run_scenario(
    scenario: Scenario, catalog: Catalog, *, timings: Sequence[str] = (), told: Callable[[str], None] | None = None
) -> Report:
    """Run every variant, or those of these timings. ``told`` is given a line for each step.

    Raises:
        ConfigError: the file says something impossible, found only as it runs.
    """
    failures: list[Failure] = []
    awaited: list[Failure] = []
    decided: dict[tuple[str, str], _Run] = {}
    runs = steps = 0
    for variant in scenario.variants(timings):
        run = _Run(scenario, variant, catalog, told)
        try:
            run.play()
            run.same_as(decided.setdefault(variant.decides, run))
        except _StoppedError as stopped:
            (awaited if stopped.awaited else failures).append(stopped.failure)
        runs, steps = runs + 1, steps + run.done
    return Report(scenario.path, scenario.head.title, runs, steps, tuple(failures), tuple(awaited))


class _Run:
    """One variant."""

    def __init__(
        self, scenario: Scenario, variant: Variant, catalog: Catalog, told: Callable[[str], None] | None
    ) -> None:
        self.done = 0
        self.decisions: list[tuple[str, int]] = []
        self._scenario = scenario
        self._variant = variant
        self.timing = variant.timing
        self._told = told
        chain = scenario.chain_of(variant.case)
        self._script = scenario.script(variant, catalog)
        self._drawing = Drawing(chain, catalog, scenario.path)
        self._stage: Stage | None = None
        self._seen = [0, 0]
        if scenario.has_storage(variant.case):
            device = Choice("simulated", {"seed": variant.seed, "timing": variant.timing})
            self._stage = open_stage(chain, device, catalog, scenario.path)

    def play(self) -> None:
        """All steps, and quiet at the end."""
        try:
            for step in self._script.due():
                self._once(step)
            if self._scenario.head.quiet and self._stage is not None:
                line, place = self._script.steps[-1].line, f"{self._scenario.path}: the end"
                self._once(Step(line, place, "quiet", {}, expect=[], has_expectation=True))
        finally:
            if self._stage is not None:
                self._stage.storage.release()

    def same_as(self, other: "_Run") -> None:
        """Both have decided alike: how work lands decides nothing."""
        for (place, mine), (_, theirs) in zip(self.decisions, other.decisions, strict=False):
            if mine != theirs:
                words = f"decided otherwise than with the timing {other.timing!r}: rank_divergence"
                raise _StoppedError(Failure(place, str(self._variant), "after this step", words))

    # -- inside

    def _once(self, step: Step) -> None:
        self.done += 1
        if step.verb == "check":
            outcome, expected = Outcome("value", self._script.expectation(step)), True
            spoken = f"check {step.expect}"
        else:
            arguments, expected = self._script.arguments(step), self._script.expectation(step)
            outcome = self._apply(step, arguments)
            spoken = str(Op(step.verb, arguments))
        self._script.save(step, outcome.value)
        words = _unmet(outcome, expected, step.has_expectation or step.verb == "check")
        if self._told is not None:
            self._told(f"{step.place}: {spoken} -> {outcome}")
        failure = Failure(step.place, str(self._variant), spoken, words or "")
        if step.awaits and not words:
            gone = f"what it awaits ({step.awaits}) is there: take the mark away"
            raise _StoppedError(attrs.evolve(failure, words=gone))
        if words:
            awaits = step.awaits or (outcome.value if outcome.kind == "awaits" else "")
            if step.awaits:
                raise _StoppedError(attrs.evolve(failure, words=str(awaits)), awaited=True)
            raise _StoppedError(failure)
        self._check_promises(failure)
        if self._stage is not None and step.verb not in TIMED | {"check"}:
            self.decisions.append((step.place, self._stage.digest()))

    def _apply(self, step: Step, arguments: Mapping[str, Any]) -> Outcome:
        operation = self._script.operation(step, arguments)
        verbs: Mapping[str, Callable[..., Any]] = {"plan": self._drawing.plan, "size": self._drawing.size}
        planning = verbs.get(step.verb)
        if planning is None and step.verb == "demand" and "window" in arguments and self._stage is None:
            planning = self._drawing.peak
        if planning is not None:
            try:
                return Outcome("value", planning(**operation.arguments))
            except KvarenaError as error:
                return Outcome("error", None, type(error).__name__, str(error))
        if self._stage is None:
            raise ConfigError(f"{step.place}: {step.verb} needs a storage; give [chain.sub_pools] tables")
        kind, value, name, words = self._stage.apply(operation)
        self._turn()
        return Outcome(kind, self._script.by_file_names(value), name, words)

    def _turn(self) -> None:
        assert self._stage is not None
        try:
            self._stage.device.turn()
        except InvariantError as error:
            raise ConfigError(f"the device cannot go on: {error}") from error

    def _check_promises(self, failure: Failure) -> None:
        """Nothing was found by the device, and no row held what it should not, up to this step."""
        if self._stage is None:
            return
        found = [getattr(self._stage.device, "violations", []), self._stage.findings]
        new = [item for seen, items in zip(self._seen, found, strict=True) for item in items[seen:]]
        self._seen = [len(items) for items in found]
        if new:
            words = "; ".join(f"{item.check}: {item.words}" for item in new[:3])
            raise _StoppedError(attrs.evolve(failure, words=f"broken promise: {words}"))


def _unmet(outcome: Outcome, expected: Any, has_expectation: bool) -> str:
    """Why the outcome is not what was expected; empty where it is."""
    if not has_expectation:
        return "" if outcome.kind == "value" else f"it should go through, and came to {outcome}"
    several = expected["any"] if isinstance(expected, Mapping) and set(expected) == {"any"} else [expected]
    if any(_meets(outcome, one) for one in several):
        return ""
    if len(several) == 1 and outcome.kind == "value" and not _is_kind(expected):
        return "; ".join(differences(outcome.value, expected))
    return f"expected {' or '.join(_worded(one) for one in several)}, and it came to {outcome}"


def _meets(outcome: Outcome, expected: Any) -> bool:
    if expected == "refused":
        return outcome.kind == "refused"
    if isinstance(expected, Mapping) and "error" in expected:
        says = str(expected.get("says", ""))
        return outcome.kind == "error" and outcome.name in several(expected["error"]) and says in outcome.words
    return outcome.kind == "value" and matches(outcome.value, expected)


def _is_kind(expected: Any) -> bool:
    return expected == "refused" or (isinstance(expected, Mapping) and "error" in expected)


def _worded(expected: Any) -> str:
    if expected == "refused":
        return "a refusal"
    if isinstance(expected, Mapping) and "error" in expected:
        return f"the error {' or '.join(several(expected['error']))}"
    return spelled(expected)
