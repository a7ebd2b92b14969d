"""The operations of a scenario file for a trace: its steps in order, variables filled in, expectations left out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.scenario.file import Scenario, Step, Variant, ordered
from kvarena.plugins.stress.scenario.values import resolved
from kvarena.plugins.stress.stage.chain_spec import lifetimes_of
from kvarena.plugins.stress.stage.operations import VERBS, Op, read_operation
from kvarena.plugins.stress.stage.stage import Outcome
from kvarena.plugins.stress.trace.setting import Setting
from kvarena.terms.errors import ConfigError

NO_STORAGE = frozenset({"plan", "size"})
"""Planning needs no storage and is no decision of one."""


class Script:
    """One variant of a scenario: what it runs on, and its operations. Answers that it keeps fill in later steps."""

    def __init__(self, scenario: Scenario, variant: Variant, catalog: Catalog) -> None:
        self.name = f"{scenario.path}: {variant}"
        chain = resolved(scenario.head.chain, variant.case)
        self.setting = Setting(chain=chain, device="simulated", timing="late")
        self._steps = ordered(scenario.steps, variant.orders)
        self._variables: dict[str, Any] = dict(variant.case)
        lifetimes = lifetimes_of(scenario.chain_of(variant.case), catalog, scenario.path)
        self._names = {name: lifetime.name for name, lifetime in lifetimes.items()}
        self._back = {theirs: ours for ours, theirs in self._names.items()}

    def operations(self, play: Callable[[Op], Outcome]) -> None:
        """Give each operation to ``play``, which answers with what came of it."""
        for op, step in self._of(self._steps):
            outcome = play(op)
            if step.save:
                self._variables[step.save] = _renamed(outcome.value, self._back)

    def _of(self, steps: Sequence[Step]) -> Iterator[tuple[Op, Step]]:
        for step in steps:
            is_case = all(self._variables.get(name) in _several(value) for name, value in step.only.items())
            if is_case and self._filled(step, step.when):
                yield from self._repeated(step)

    def _repeated(self, step: Step) -> Iterator[tuple[Op, Step]]:
        first = self._filled(step, step.first)
        for number in range(self._filled(step, step.times)):
            if step.counter:
                self._variables[step.counter] = first + number
            if step.verb == "repeat":
                yield from self._of(step.steps)
            elif step.verb == "let":
                self._variables.update(self._filled(step, step.expect))
            elif step.verb in VERBS and step.verb not in NO_STORAGE:
                yield read_operation(step.verb, self._arguments(step), step.place, step.line), step

    def _arguments(self, step: Step) -> dict[str, Any]:
        """With sub-pools by kvarena's own names."""
        given = self._filled(step, dict(step.arguments))
        if isinstance(given.get("units"), Mapping):
            given["units"] = {self._names.get(name, name): count for name, count in given["units"].items()}
        if "sub_pool" in given:
            given["sub_pool"] = self._names.get(given["sub_pool"], given["sub_pool"])
        return dict(given)

    def _filled(self, step: Step, value: Any) -> Any:
        try:
            return resolved(value, self._variables)
        except ConfigError as error:
            raise ConfigError(f"{step.place}: {error}") from None


def scripts_of(scenario: Scenario, catalog: Catalog) -> Iterator[Script]:
    """Every variant but for the timings: when work lands decides nothing."""
    if scenario.only_plans or not scenario.head.chain.get("sub_pools"):
        return
    for variant in scenario.variants(("late",)):
        yield Script(scenario, variant, catalog)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {names.get(name, name): _renamed(each, names) for name, each in value.items()}
    return value
