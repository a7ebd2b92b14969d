"""What all classes of the kit share: promises, powers that are declined by name, and what a failure says."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings

from kvarena.terms.errors import ConfigError, nearest
from kvarena.terms.owners import MISHAPS, described, raising

POWER = "kvarena_power"
PROMISE = "test_"

TRIED = settings(
    max_examples=60,
    phases=tuple(phase for phase in settings().phases if phase is not Phase.explain),
    report_multiple_bugs=False,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)
"""How random inputs are tried: the same ones in every run, so that a failure is there again."""
FEWER = settings(TRIED, max_examples=10)
"""The same, where each try opens a device."""

_UNUSABLE: set[type] = set()
"""Classes of tests whose fixture gave nothing to test, which one of their tests has said."""
_TOLD: dict[tuple[str, Any, str], str] = {}

AnyTest = TypeVar("AnyTest", bound=Callable[..., Any])


def needs(power: str) -> Callable[[AnyTest], AnyTest]:
    """A promise of a power: skipped where the power is declined."""

    def mark(test: AnyTest) -> AnyTest:
        setattr(test, POWER, power)
        return test

    return mark


@attrs.frozen
class Promise:
    """One promise of a class: the name of its test, the promise as a sentence, and the power that it belongs to."""

    name: str
    sentence: str
    power: str | None = None


class Conformance:
    """What every class of the kit is.

    ``powers``: what a plugin of the kind may also be able to do, each a sentence by its name. ``declines``: the names
    of those that yours cannot do; their promises are skipped and say so.
    """

    word: ClassVar[str] = "plugin"
    powers: ClassVar[Mapping[str, str]] = {}
    declines: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if isinstance(cls.declines, str):
            raise ConfigError(f"{cls.__name__}: declines is a tuple of names; write declines = ({cls.declines!r},)")
        for power in cls.declines:
            if power not in cls.powers:
                known = nearest(power, cls.powers)
                raise ConfigError(f"{cls.__name__} declines {power!r}, which is no power of a {cls.word}; {known}")

    @pytest.fixture(autouse=True)
    def _declined(self, request: pytest.FixtureRequest) -> None:
        power = getattr(request.function, POWER, None)
        if power is not None and power in self.declines:
            pytest.skip(f"declined: {power}: {self.powers[power]}")

    def _fail(self, value: Any, words: str) -> NoReturn:
        """The promise is broken: one line, which names the plugin's value and whose it is."""
        raise pytest.fail.Exception(f"{self._described(value)}: {words}", pytrace=False) from None

    def _described(self, value: Any) -> str:
        """The plugin's value for a message, and the distribution that it came with.

        Looked up once: while a failure is shrunk it is told over and over.
        """
        made = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
        key = (self.word, made, str(getattr(value, "name", "")))
        if key not in _TOLD:
            _TOLD[key] = described(self.word, value)
        return _TOLD[key]

    def _missing(self, fixture: str, example: str) -> NoReturn:
        """The subclass gives no value to test."""
        name = type(self).__name__
        pytest.fail(
            f"{name}: give the {self.word} to test: a fixture {fixture!r} in the class, such as\n"
            f"    @pytest.fixture\n    def {fixture}(self):\n        return {example}",
            pytrace=False,
        )


class ValueConformance(Conformance):
    """What every plugin promises that is a value: a layout, a lifetime, a policy."""

    @pytest.fixture(autouse=True)
    def _usable(self, request: pytest.FixtureRequest, _declined: None) -> None:
        """The fixture of the class gives a value; where it does not, one test says so and the others are skipped."""
        fixture = self.word if self.word in ("layout", "lifetime") else "policy"
        try:
            finding = _no_value(request.getfixturevalue("value"), self.word)
        except MISHAPS as error:
            finding = f"{raising('', error).lstrip()}; return a value of your {self.word}"
        if finding is None:
            return
        if type(self) in _UNUSABLE:
            pytest.skip(f"fixture {fixture!r} gives nothing to test; another test of this class says why")
        _UNUSABLE.add(type(self))
        pytest.fail(f"{type(self).__name__}: fixture {fixture!r} {finding}", pytrace=False)

    @pytest.fixture
    def value(self) -> Any:
        """The plugin's value; each kind has a fixture of its own name."""
        return self._missing("value", "MyPlugin()")

    def test_is_frozen(self, value: Any) -> None:
        """Nothing of it can be set once it is made."""
        for name in attributes(value):
            before = getattr(value, name)
            try:
                setattr(value, name, before)
            except (AttributeError, TypeError):
                continue
            self._fail(value, f"its {name!r} can be set; make its class frozen, by @attrs.frozen say")

    def test_is_equal_by_value(self, value: Any) -> None:
        """A copy of it is equal to it and has the same hash, and nothing else is equal to it."""
        twin = copy.deepcopy(value)
        try:
            hashes = hash(value), hash(twin)
        except TypeError as error:
            self._fail(value, f"it has no hash ({error}); make its class frozen, by @attrs.frozen say")
        if twin != value:
            self._fail(value, f"a copy of it is not equal to it: {value!r} and {twin!r}")
        if hashes[0] != hashes[1]:
            self._fail(value, f"a copy of it is equal to it and has another hash: {hashes[0]} and {hashes[1]}")
        if value == object():
            self._fail(value, "it is equal to an object of another class")

    def test_has_a_name_that_stays(self, value: Any) -> None:
        """Its ``name`` is a word without spaces, the same whenever it is asked, and that of its copies."""
        name = value.name
        if not isinstance(name, str) or not name or any(letter.isspace() for letter in name):
            self._fail(value, f"its name is {name!r}; it must be a text without spaces")
        for other in (value.name, copy.deepcopy(value).name):
            if other != name:
                self._fail(value, f"its name changed from {name!r} to {other!r}")


def _no_value(value: Any, word: str) -> str | None:
    """What is wrong with what a fixture returned, if it is no value at all."""
    if value is None:
        return f"returned None; return a value of your {word}"
    if inspect.isclass(value):
        return f"returned the class {value.__name__}; return a value: {value.__name__}(...)"
    return None


def attributes(value: Any) -> list[str]:
    """The names of what a value is made of, its ``name`` among them."""
    if attrs.has(type(value)):
        own = [field.name for field in attrs.fields(type(value))]
    elif dataclasses.is_dataclass(value):
        own = [field.name for field in dataclasses.fields(value)]
    else:
        own = list(getattr(value, "__dict__", {}))
    return list(dict.fromkeys([*own, "name"]))


def promises(kit: type[Conformance]) -> tuple[Promise, ...]:
    """The promises of a class of the kit, in the order of its file, those of the classes below it first."""
    return tuple(_found(kit))


def _found(kit: type[Conformance]) -> Iterator[Promise]:
    names = dict.fromkeys(name for one in reversed(kit.__mro__) for name in vars(one) if name.startswith(PROMISE))
    for name in names:
        test = getattr(kit, name)
        if callable(test):
            words = " ".join((test.__doc__ or "").partition("\n\n")[0].split())
            yield Promise(name, words, getattr(test, POWER, None))
