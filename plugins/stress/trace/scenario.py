"""The operations of a scenario file for a trace: its steps in order, variables filled in, expectations left out."""

from collections.abc import Callable, Iterator

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.scenario.file import Scenario, Variant
from kvarena.plugins.stress.scenario.script import PLANNING, RUNNER_VERBS
from kvarena.plugins.stress.scenario.values import resolved
from kvarena.plugins.stress.stage.operations import Op
from kvarena.plugins.stress.stage.stage import Outcome
from kvarena.plugins.stress.trace.setting import Setting


class ScriptedRun:
    """One variant of a scenario: what it runs on, and its operations. Answers that it keeps fill in later steps."""

    def __init__(self, scenario: Scenario, variant: Variant, catalog: Catalog) -> None:
        self.name = f"{scenario.path}: {variant}"
        chain = resolved(scenario.head.chain, variant.case)
        self.setting = Setting(chain=chain, device="simulated", timing="late")
        self._script = scenario.script(variant, catalog)

    def operations(self, play: Callable[[Op], Outcome]) -> None:
        """Give each operation on the storage to ``play``, which answers with what came of it."""
        script = self._script
        for step in script.due():
            if step.verb not in PLANNING and step.verb not in RUNNER_VERBS:
                outcome = play(script.operation(step, script.arguments(step)))
                script.save(step, script.by_file_names(outcome.value))


def scripts_of(scenario: Scenario, catalog: Catalog) -> Iterator[ScriptedRun]:
    """Every variant but for the timings: when work lands decides nothing."""
    for variant in scenario.variants(("late",)):
        if scenario.has_storage(variant.case):
            yield ScriptedRun(scenario, variant, catalog)
