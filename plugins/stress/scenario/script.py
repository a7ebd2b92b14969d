"""The steps of a scenario file: what may stand in one, when and how often it is done, and with which values.

Whoever plays a file, to judge its answers or to record them, goes through ``Script.due``: what a key of a step means
is said here and nowhere else.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from kvarena.plugins.stress.scenario.values import resolved, several
from kvarena.plugins.stress.stage.operations import VERBS, Op, read_operation
from kvarena.terms.errors import ConfigError, nearest

TIMES_MAX = 1_000_000
STEPS_MAX = 10_000_000
"""So many steps may be played in one variant, each round of a repeat counted."""
RUNNER_VERBS: Mapping[str, tuple[str, ...]] = {"repeat": ("times", "steps"), "check": ("holds",), "let": ("values",)}
"""What is no operation: steps again and again, a sum that must hold, variables."""
PLANNING = frozenset({"plan", "size"})
"""Operations that need no storage and are no decision of one."""
_AS_WRITTEN = ("only", "when", "order", "save", "awaits", "counter", "first")
STEP_KEYS = frozenset({"do", "expect", "note", "repeat", *_AS_WRITTEN})


@attrs.frozen
class Step:
    """One step: an operation whose arguments may have variables, and what is expected of it.

    ``only``: the cases in which it is done; ``when``: a sum that must hold for it. ``awaits``: the capability without
    which the expectation cannot be met yet. ``steps``: of a repeat.
    """

    line: int
    place: str
    verb: str
    arguments: Mapping[str, Any]
    expect: Any = None
    has_expectation: bool = False
    only: Mapping[str, Any] = attrs.field(factory=dict)
    when: Any = True
    order: str = ""
    save: str = ""
    awaits: str = ""
    times: Any = 1
    counter: str = ""
    first: Any = 0
    steps: "tuple[Step, ...]" = ()

    @property
    def only_plans(self) -> bool:
        """Whether it needs no storage."""
        if self.verb in RUNNER_VERBS:
            return all(step.only_plans for step in self.steps)
        return self.verb in PLANNING or (self.verb == "demand" and "window" in self.arguments)


def read_step(table: Mapping[str, Any], path: str, lines: Iterator[int]) -> Step:
    """A step and those inside it; ``lines``: where the next ones stand in the file.

    Raises:
        ConfigError: no such operation or key, one is missing, or a value is of another kind; with the line.
    """
    line = next(lines)
    place = f"{path}:{line}"
    verb = table.get("do")
    if not isinstance(verb, str):
        raise ConfigError(f'{place}: a step needs do = "..."; one of {", ".join(VERBS)}')
    if verb not in VERBS and verb not in RUNNER_VERBS:
        raise ConfigError(f"{place}: there is no operation {verb!r}; {nearest(verb, [*VERBS, *RUNNER_VERBS])}")
    own = set(RUNNER_VERBS.get(verb, ()))
    known = own or {argument.name for argument in VERBS[verb].arguments}
    _check_keys(table, verb, place, known, own)
    return Step(
        line=line,
        place=place,
        verb=verb,
        arguments={key: value for key, value in table.items() if key in known and key not in own},
        expect=table.get("expect", table.get("holds", table.get("values"))),
        has_expectation="expect" in table,
        times=table.get("times", table.get("repeat", 1)),
        steps=tuple(read_step(each, path, lines) for each in table.get("steps", ())),
        **{key: table[key] for key in _AS_WRITTEN if key in table},
    )


def _check_keys(table: Mapping[str, Any], verb: str, place: str, known: set[str], needed: set[str]) -> None:
    """Every key is one that the verb or any step has, none is missing, and each is of its kind."""
    for key in table:
        if key not in known and key not in STEP_KEYS:
            raise ConfigError(f"{place}: {verb} has no argument {key!r}; {nearest(key, [*known, *STEP_KEYS])}")
    for key in needed - set(table):
        raise ConfigError(f"{place}: {verb} needs {key}")
    inner = table.get("steps", ())
    if not isinstance(inner, list | tuple) or not all(isinstance(each, Mapping) for each in inner):
        raise ConfigError(f"{place}: steps must be a list of tables")
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("only", Mapping, "a table of variables"),
        ("order", str, 'a text "group.key"'),
        ("counter", str, "the name of a variable"),
        ("save", str, "the name of a variable"),
        ("awaits", str, "a text"),
    )
    for key, kind, word in kinds:
        if key in table and not isinstance(table[key], kind):
            raise ConfigError(f"{place}: {key} must be {word}, not {table[key]!r}")
    if "order" in table and not re.fullmatch(r"\w+\.\w+", table["order"]):
        raise ConfigError(f'{place}: order must be a text "group.key", not {table["order"]!r}')


class Script:
    """The steps of one variant as they are played, its variables, and its names of the sub-pools.

    ``names``: kvarena's name of each sub-pool by the file's. Variables start as the case's; ``let``, counters and
    answers that are kept (``save``) change them while ``due`` goes on.
    """

    def __init__(self, steps: Sequence[Step], case: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self.steps = tuple(steps)
        self._variables: dict[str, Any] = dict(case)
        self._names = names
        self._played = 0
        self._back = {theirs: ours for ours, theirs in names.items()}

    def due(self) -> Iterator[Step]:
        """Each step that is to be done, as often as it is: an operation, or a check.

        Raises:
            ConfigError: a sum that is none, or a value of another kind; with the line.
        """
        yield from self._due(self.steps)

    def arguments(self, step: Step) -> dict[str, Any]:
        """Those of a step, variables filled in; sub-pools by the file's names."""
        return dict(self._filled(step, dict(step.arguments)))

    def expectation(self, step: Step) -> Any:
        """What is expected of a step, or the sum of a check, variables filled in."""
        return self._filled(step, step.expect)

    def operation(self, step: Step, arguments: Mapping[str, Any]) -> Op:
        """The operation of a step with these arguments; sub-pools by kvarena's names.

        Raises:
            ConfigError: an argument is missing or of another kind; with the line.
        """
        given = dict(read_operation(step.verb, arguments, step.place).arguments)
        if isinstance(given.get("units"), Mapping):
            given["units"] = {self._names.get(name, name): count for name, count in given["units"].items()}
        if "sub_pool" in given:
            given["sub_pool"] = self._names.get(given["sub_pool"], given["sub_pool"])
        return Op(step.verb, given, step.line)

    def by_file_names(self, answer: Any) -> Any:
        """An answer of the storage, its sub-pools by the file's names."""
        if isinstance(answer, Mapping):
            return {self._back.get(name, name): self.by_file_names(each) for name, each in answer.items()}
        return answer

    def save(self, step: Step, answer: Any) -> None:
        """Keep the answer in a variable, if the step says so."""
        if step.save:
            self._variables[step.save] = answer

    def _due(self, steps: Sequence[Step]) -> Iterator[Step]:
        for step in steps:
            is_case = all(self._variables.get(name) in several(value) for name, value in step.only.items())
            if is_case and self._filled(step, step.when):
                yield from self._repeated(step)

    def _repeated(self, step: Step) -> Iterator[Step]:
        times, first = self._times(step), self._filled(step, step.first)
        if not isinstance(first, int):
            raise ConfigError(f"{step.place}: {step.verb}: first must be a whole number, not {first!r}")
        for number in range(times):
            self._played += 1
            if self._played > STEPS_MAX:
                raise ConfigError(f"{step.place}: more than {STEPS_MAX:,} steps would be played; repeat fewer times")
            if step.counter:
                self._variables[step.counter] = first + number
            if step.verb == "repeat":
                yield from self._due(step.steps)
            elif step.verb == "let":
                self._let(step)
            else:
                yield step

    def _times(self, step: Step) -> int:
        times = self._filled(step, step.times)
        if not isinstance(times, int) or isinstance(times, bool) or not 0 <= times <= TIMES_MAX:
            raise ConfigError(
                f"{step.place}: {step.verb}: so many times must be a whole number up to {TIMES_MAX:,}, not {times!r}"
            )
        return times

    def _let(self, step: Step) -> None:
        values = self._filled(step, step.expect)
        if not isinstance(values, Mapping):
            raise ConfigError(f"{step.place}: let: values must be a table of variables, not {values!r}")
        self._variables.update(values)

    def _filled(self, step: Step, value: Any) -> Any:
        try:
            return resolved(value, self._variables)
        except ConfigError as error:
            raise ConfigError(f"{step.place}: {error}") from None
