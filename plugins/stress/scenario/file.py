"""A scenario file: a chain, steps with what is expected of each, and the ways in which all of it is run.

The format is in docs/scenarios.md. Every mistake is refused with its file and line before anything runs.
"""

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import CONFIG_VERSION, SettingError, at_least, structure
from kvarena.plugins.stress.scenario.script import Script, Step, read_step
from kvarena.plugins.stress.scenario.values import resolved
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, lifetimes_of
from kvarena.terms.errors import ConfigError, nearest

TIMINGS = ("late", "early", "random")
SEEDS_MAX = 10_000


@attrs.frozen(kw_only=True)
class Variants:
    """``[variants]``: every combination of a timing, a case (variables and their values) and an order is run.

    ``seeds``: how many random timings.
    """

    timing: tuple[str, ...] = attrs.field(default=TIMINGS, converter=tuple)
    seeds: int = attrs.field(default=2, validator=at_least(1, SEEDS_MAX))
    cases: tuple[Mapping[str, Any], ...] = attrs.field(default=({},), converter=tuple)
    orders: Mapping[str, tuple[tuple[str, ...], ...]] = attrs.field(factory=dict)

    @timing.validator
    def _timings_are_known(self, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
        unknown = [timing for timing in value if timing not in TIMINGS]
        if unknown or not value:
            raise SettingError("timing", f"{unknown[:1] or value}: choose from {', '.join(TIMINGS)}")

    @cases.validator
    def _cases_are_alike(self, attribute: "attrs.Attribute[Any]", value: tuple[Mapping[str, Any], ...]) -> None:
        if not value or any(set(case) != set(value[0]) for case in value):
            raise SettingError("cases", "each case must give the same variables")


@attrs.frozen(kw_only=True)
class StepList:
    """``[script]``: the steps as a list, one to a line."""

    steps: tuple[Mapping[str, Any], ...] = attrs.field(default=(), converter=tuple)


@attrs.frozen(kw_only=True)
class Head:
    """The keys at the top of a file. ``chain`` may have variables of the cases; ``chain_of`` fills them in.

    Steps are ``[[step]]`` tables, or the list of ``[script]``.
    """

    version: int = attrs.field()
    title: str
    chain: Mapping[str, Any] = attrs.field(factory=dict)
    step: tuple[Mapping[str, Any], ...] = attrs.field(default=(), converter=tuple)
    script: StepList = attrs.field(factory=StepList)
    source: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    about: str = ""
    variants: Variants = attrs.field(factory=Variants)
    quiet: bool = True

    @version.validator
    def _version_is_known(self, attribute: "attrs.Attribute[Any]", value: int) -> None:
        if value != CONFIG_VERSION or isinstance(value, bool):
            raise SettingError("version", f"{value!r} is not known here; this kvarena reads version {CONFIG_VERSION}")

    @script.validator
    def _has_steps(self, attribute: "attrs.Attribute[Any]", value: StepList) -> None:
        if not value.steps and not self.step:
            raise SettingError("step", "there is none, so nothing would be tried; add [[step]] tables")
        if value.steps and self.step:
            raise SettingError("script", "there are [[step]] tables too; write all steps one way")

    @property
    def tables(self) -> tuple[Mapping[str, Any], ...]:
        """The steps as they are written."""
        return self.step or self.script.steps


@attrs.frozen
class Variant:
    """One way to run a scenario. ``timing``: how work lands; ``seed``: of a random timing."""

    timing: str
    seed: int
    case: Mapping[str, Any]
    orders: Mapping[str, tuple[str, ...]]

    @property
    def decides(self) -> tuple[str, str]:
        """Runs that are alike in this must decide alike, however work lands."""
        return str(self.case), str(self.orders)

    def __str__(self) -> str:
        words = [self.timing + (f" {self.seed}" if self.timing == "random" else "")]
        words += [f"{name} = {value!r}" for name, value in self.case.items()]
        words += [f"{name}: {', '.join(order)}" for name, order in self.orders.items()]
        return "; ".join(words)


@attrs.frozen
class Scenario:
    """A file, read and checked."""

    path: str
    head: Head
    steps: tuple[Step, ...]

    def chain_of(self, case: Mapping[str, Any]) -> ChainSpec:
        """``[chain]`` with the variables of a case.

        Raises:
            ConfigError: it says something impossible.
        """
        try:
            return structure(ChainSpec, resolved(self.head.chain, case), self.path, at="chain")
        except ConfigError as error:
            place = str(error) if str(error).startswith(self.path) else f"{self.path}: chain: {error}"
            raise ConfigError(place) from None

    @property
    def only_plans(self) -> bool:
        """Whether no step needs a storage: then nothing lands, and one timing is as good as another."""
        return all(step.only_plans for step in self.steps)

    def has_storage(self, case: Mapping[str, Any]) -> bool:
        """Whether a storage is opened for a case: there are sub-pools, and not every step plans alone."""
        return bool(self.chain_of(case).sub_pools) and not self.only_plans

    def script(self, variant: Variant, catalog: Catalog) -> Script:
        """What is done in a variant, step by step.

        Raises:
            ConfigError: two sub-pools have one lifetime.
        """
        names: dict[str, str] = {}
        if self.has_storage(variant.case):
            lifetimes = lifetimes_of(self.chain_of(variant.case), catalog, self.path)
            names = {name: lifetime.name for name, lifetime in lifetimes.items()}
        return Script(ordered(self.steps, variant.orders), variant.case, names)

    def variants(self, timings: Sequence[str] = ()) -> Iterator[Variant]:
        """Every way to run it; with ``timings`` only those."""
        wanted = self.head.variants
        if self.only_plans:
            timings = (wanted.timing[0],)
        choices = [[(name, order) for order in orders] for name, orders in wanted.orders.items()]
        for case, chosen in itertools.product(wanted.cases, itertools.product(*choices)):
            for timing in timings or wanted.timing:
                for seed in range(wanted.seeds if timing == "random" else 1):
                    yield Variant(timing, seed, case, dict(chosen))


def read_scenario(path: Path) -> Scenario:
    """Read a file.

    Raises:
        ConfigError: it cannot be read, or says something impossible; with the line where it is about a step.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from None
    head = structure(Head, tables, str(path))
    lines = _step_lines(text)
    if len(lines) != sum(map(_count, head.tables)):
        raise ConfigError(f'{path}: step: begin each step with its do = "...", so that its line can be told')
    counted = iter(lines)
    steps = tuple(read_step(table, str(path), counted) for table in head.tables)
    _check_variables(steps, head, str(path))
    scenario = Scenario(str(path), head, steps)
    for case in head.variants.cases:
        scenario.chain_of(case)
    return scenario


def _step_lines(text: str) -> list[int]:
    """The line of each step's ``do``, in order; what stands inside texts of several lines, or comments, is none."""
    lines, inside = [], ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not inside and not line.lstrip().startswith("#"):
            lines += [number] * len(re.findall(r"(?:^|[\[{,])\s*do\s*=", line))
        for mark in re.findall(r'"""|\'\'\'', line):
            inside = "" if inside == mark else inside or mark
    return lines


def _count(table: Any) -> int:
    """A step and those that it repeats."""
    inner = table.get("steps", ()) if isinstance(table, Mapping) else ()
    return 1 + sum(map(_count, inner if isinstance(inner, list) else ()))


def _check_variables(steps: Sequence[Step], head: Head, source: str) -> None:
    """``only`` names variables of the cases, ``order`` groups and keys of the orders."""
    cases, orders = head.variants.cases, head.variants.orders
    for step in steps:
        for name in step.only:
            if name not in cases[0]:
                raise ConfigError(f"{step.place}: only: no case gives {name!r}; {nearest(name, cases[0])}")
        group, _, key = step.order.partition(".")
        if group and not all(key in order for order in orders.get(group, ((),))):
            raise ConfigError(f"{step.place}: order: [variants] orders.{group} has no {key!r} in each of its orders")
        _check_variables(step.steps, head, source)
    for group in orders:
        keys = [step.order.partition(".")[2] for step in steps if step.order.startswith(f"{group}.")]
        if len([key for key, _ in itertools.groupby(keys)]) != len(set(keys)):
            raise ConfigError(f"{source}: variants.orders.{group}: the steps of one key must follow each other")


def ordered(steps: Sequence[Step], orders: Mapping[str, tuple[str, ...]]) -> list[Step]:
    """The steps with each group of an order in that order: the groups' places stay, who stands there changes."""
    result = list(steps)
    for group, order in orders.items():
        at = [index for index, step in enumerate(result) if step.order.startswith(f"{group}.")]
        mine = [result[index] for index in at]
        sorted_ = sorted(mine, key=lambda step: order.index(step.order.partition(".")[2]))
        for index, step in zip(at, sorted_, strict=True):
            result[index] = step
    return result
