"""What an operation's arguments may be: kinds of values, and verbs with what they are given."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

NUMBER_MAX = 1 << 48
"""No row, unit or budget that anybody means is larger."""
REQUIRED: Any = object()
"""The default of an argument that must be given."""


@attrs.frozen
class Kind:
    """A kind of value: its words in a message, and whether a value is one.

    ``each``: of what kind its items are; ``least``, ``most``: the bounds of a number; ``size``: how many items it has.
    """

    words: str
    types: tuple[type, ...]
    each: "Kind | None" = None
    least: int = -NUMBER_MAX
    most: int = NUMBER_MAX
    size: int | None = None

    def holds(self, value: Any) -> bool:
        """Whether the value is of this kind; True and False are no numbers."""
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            return False
        if isinstance(value, int) and not self.least <= value <= self.most:
            return False
        given: Any = value
        if self.size is not None and len(given) != self.size:
            return False
        if self.each is None:
            return True
        items: Iterable[Any] = given.values() if isinstance(given, Mapping) else given
        return all(self.each.holds(item) for item in items)


NAME = Kind("a name", (str,))
COUNT = Kind("a whole number", (int,))
TOKENS = Kind("a number of tokens, at most 1,048,576", (int,), least=0, most=1 << 20)
PROMPT = Kind("a number of tokens from 1 to 1,048,576", (int,), least=1, most=1 << 20)
NATURAL = Kind("a whole number from 0 on", (int,), least=0)
NUMBER = Kind("a number", (int, float))
FLAG = Kind("true or false", (bool,))
TABLE = Kind("a table", (Mapping,))
NAMES = Kind("a list of names", (list, tuple), NAME)
COUNTS = Kind("a list of whole numbers from 0 on", (list, tuple), NATURAL)
PAIR = Kind("[first, end]", (list, tuple), NATURAL, size=2)
PIECES = Kind("a list of [first, end] pairs", (list, tuple), PAIR)
UNITS = Kind("a table of whole numbers by sub-pool", (Mapping,), NATURAL)
LENGTHS = Kind("a table of whole numbers by request", (Mapping,), NATURAL)
POSITIONS = Kind("a table of lists of rows by request", (Mapping,), COUNTS)
AMOUNT = Kind('bytes, as a number or a text such as "1GiB"', (int, str))
ANYTHING = Kind("anything", (object,))


@attrs.frozen
class Argument:
    """One argument of a verb. ``default`` is ``REQUIRED`` where it must be given."""

    name: str
    kind: Kind
    default: Any
    doc: str


@attrs.frozen
class Verb:
    """One verb. ``awaits`` names the capability that it waits for, where it cannot do anything yet."""

    name: str
    doc: str
    arguments: tuple[Argument, ...] = ()
    awaits: str = ""

    def __getitem__(self, name: str) -> Argument:
        for argument in self.arguments:
            if argument.name == name:
                return argument
        raise KeyError(name)
