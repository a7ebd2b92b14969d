"""Run a scenario: every variant on a stage of its own, every step's answer beside what was expected of it.

After each step the device and the stage are asked whether a promise was broken. Runs that differ in timing alone must
have decided alike, step by step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import Choice
from kvarena.plugins.stress.scenario.file import Scenario, Step, Variant, ordered
from kvarena.plugins.stress.scenario.planning import Drawing
from kvarena.plugins.stress.scenario.values import differences, matches, resolved, spelled
from kvarena.plugins.stress.stage.chain_spec import lifetimes_of, open_stage
from kvarena.plugins.stress.stage.operations import Op, read_operation
from kvarena.plugins.stress.stage.stage import TIMED, Outcome, Stage
from kvarena.terms.errors import ConfigError, InvariantError, KvarenaError

TIMES_MAX = 1_000_000
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
        self._variables: dict[str, Any] = dict(variant.case)
        chain = scenario.chain_of(variant.case)
        self._drawing = Drawing(chain, catalog, scenario.path)
        self._names: dict[str, str] = {}
        self._stage: Stage | None = None
        self._seen = [0, 0]
        if chain.sub_pools and not scenario.only_plans:
            lifetimes = lifetimes_of(chain, catalog, scenario.path)
            self._names = {name: lifetime.name for name, lifetime in lifetimes.items()}
            device = Choice("simulated", {"seed": variant.seed, "timing": variant.timing})
            self._stage = open_stage(chain, device, catalog, scenario.path)
        self._back = {theirs: ours for ours, theirs in self._names.items()}

    def play(self) -> None:
        """All steps, and quiet at the end."""
        steps = ordered(self._scenario.steps, self._variant.orders)
        try:
            for step in steps:
                self._play(step)
            if self._scenario.head.quiet and self._stage is not None:
                last = steps[-1]
                self._play(
                    Step(last.line, f"{self._scenario.path}: the end", "quiet", {}, expect=[], has_expectation=True)
                )
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

    def _play(self, step: Step) -> None:
        if any(self._variables.get(name) not in _several(value) for name, value in step.only.items()):
            return
        if not self._resolved(step, step.when):
            return
        times = self._resolved(step, step.times)
        if not isinstance(times, int) or isinstance(times, bool) or not 0 <= times <= TIMES_MAX:
            raise ConfigError(
                f"{step.place}: {step.verb}: so many times must be a whole number up to {TIMES_MAX:,}, not {times!r}"
            )
        first = self._resolved(step, step.first)
        for number in range(times):
            if step.counter:
                self._variables[step.counter] = first + number
            if step.verb == "repeat":
                for inner in step.steps:
                    self._play(inner)
            elif step.verb == "let":
                self._let(step)
            else:
                self._once(step)

    def _let(self, step: Step) -> None:
        values = self._resolved(step, step.expect)
        if not isinstance(values, Mapping):
            raise ConfigError(f"{step.place}: let: values must be a table of variables, not {values!r}")
        self._variables.update(values)

    def _once(self, step: Step) -> None:
        self.done += 1
        if step.verb == "check":
            outcome, expected, spoken = (
                Outcome("value", self._resolved(step, step.expect)),
                True,
                f"check {step.expect}",
            )
        else:
            arguments = self._resolved(step, dict(step.arguments))
            expected = self._resolved(step, step.expect)
            outcome = self._apply(step, arguments)
            spoken = " ".join([step.verb, *(f"{name}={value!r}" for name, value in arguments.items())])
        if step.save:
            self._variables[step.save] = outcome.value
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
        operation = read_operation(step.verb, arguments, step.place, step.line)
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
        kind, value, name, words = self._stage.apply(
            Op(step.verb, _renamed_arguments(operation.arguments, self._names), step.line)
        )
        self._turn()
        return Outcome(kind, _renamed(value, self._back), name, words)

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

    def _resolved(self, step: Step, value: Any) -> Any:
        try:
            return resolved(value, self._variables)
        except ConfigError as error:
            raise ConfigError(f"{step.place}: {error}") from None


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
        return outcome.kind == "error" and outcome.name in _several(expected["error"]) and says in outcome.words
    return outcome.kind == "value" and matches(outcome.value, expected)


def _is_kind(expected: Any) -> bool:
    return expected == "refused" or (isinstance(expected, Mapping) and "error" in expected)


def _worded(expected: Any) -> str:
    if expected == "refused":
        return "a refusal"
    if isinstance(expected, Mapping) and "error" in expected:
        return f"the error {' or '.join(_several(expected['error']))}"
    return spelled(expected)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _renamed_arguments(arguments: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Sub-pools by kvarena's names instead of the file's."""
    given = dict(arguments)
    if isinstance(given.get("units"), Mapping):
        given["units"] = {names.get(name, name): count for name, count in given["units"].items()}
    if "sub_pool" in given:
        given["sub_pool"] = names.get(given["sub_pool"], given["sub_pool"])
    return given


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """An answer's sub-pools by the file's names."""
    if isinstance(value, Mapping):
        return {names.get(name, name): _renamed(each, names) for name, each in value.items()}
    return value
