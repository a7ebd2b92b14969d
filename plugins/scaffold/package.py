"""A new plugin's package as texts: its names derived from one, its files from the templates beside this one."""

import builtins
import keyword
import re
from collections.abc import Mapping
from importlib import resources
from string import Template

import attrs

from kvarena.terms.errors import ConfigError


@attrs.frozen
class Sort:
    """One sort of plugin to begin with: the group of its entry point, its words, and how its class's name ends."""

    group: str
    words: str
    suffix: str
    what: str

    @property
    def one(self) -> str:
        """A hole order, an eviction policy."""
        return f"an {self.words}" if self.words[0] in "aeiou" else f"a {self.words}"


SORTS: Mapping[str, Sort] = {
    "layout": Sort("layouts", "layout", "Layout", "keys and values, and the length of each key beside them."),
    "lifetime": Sort("lifetimes", "lifetime", "Lifetime", "rows in blocks, of which the last few stay."),
    "holes": Sort("policies", "hole order", "Order", "holes are filled from one side."),
    "compaction": Sort("policies", "compaction policy", "Compaction", "holes are closed only where they are many."),
    "placement": Sort("policies", "placement policy", "Placement", "an empty band begins at a share of the room."),
    "eviction": Sort("policies", "eviction policy", "Eviction", "first in, first out, with second chances."),
    "backend": Sort("backends", "backend", "Device", "an arena in an array of numpy."),
}
"""By the name of its templates; the policies are four sorts of one kind."""

POLICIES = ("compaction", "eviction", "holes", "placement")
PREFIX = "kvarena-"
NAME_MAX = 40

_TAKEN = frozenset(
    [*map(str.lower, dir(builtins)), *keyword.kwlist, *keyword.softkwlist]
    + ["self", "cls", "conftest", "test", "tests", "con", "prn", "aux", "nul"]
    + [f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)]
)
"""Names of Python, of pytest and of Windows: a module of that name hides what others mean, or cannot be written."""

_DISTRIBUTION = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*", re.IGNORECASE)


@attrs.frozen
class Names:
    """All that a package is called: ``kvarena-row-scale``, ``kvarena_row_scale``, ``row-scale``, ``RowScale``."""

    distribution: str
    module: str
    entry: str
    camel: str

    @classmethod
    def of(cls, name: str) -> "Names":
        """The names that follow from a distribution's.

        Raises:
            ConfigError: pip knows no such name, or no module or class can be called so, or should be.
        """
        if not _DISTRIBUTION.fullmatch(name):
            raise ConfigError(
                f"NAME {name!r}: a distribution's name is letters and digits, with single '-' between; "
                f"such as {PREFIX}mine"
            )
        if len(name) > NAME_MAX:
            raise ConfigError(f"NAME {name!r}: {len(name)} letters; at most {NAME_MAX}, as it is typed into configs")
        distribution = re.sub(r"[._-]+", "-", name).lower()
        entry, module = distribution.removeprefix(PREFIX), distribution.replace("-", "_")
        if not entry[0].isalpha() or not module.isidentifier() or keyword.iskeyword(module):
            raise ConfigError(
                f"NAME {name!r}: no module can be called {module!r}, or no class after {entry!r}; "
                f"begin with a letter, such as {PREFIX}my-{entry}"
            )
        if module in _TAKEN:
            raise ConfigError(
                f"NAME {name!r}: a module called {module!r} would hide what Python, pytest or the system means by it; "
                f"choose another name, such as {PREFIX}my-{entry}"
            )
        camel = "".join(part.capitalize() for part in entry.split("-"))
        return cls(distribution, module, entry, camel)


def package(sort: str, names: Names) -> Mapping[str, str]:
    """The files of a package, by their names: its module, its test, ``pyproject.toml`` and ``README.md``."""
    about = SORTS[sort]
    words = {
        "distribution": names.distribution,
        "module": names.module,
        "entry": names.entry,
        "Class": names.camel.removesuffix(about.suffix) + about.suffix,
        "group": about.group,
        "kind": about.words,
        "one": about.one,
        "One": about.one.capitalize(),
        "what": about.what,
    }
    words["config"] = _filled(f"{sort}.toml", words)
    return {
        "pyproject.toml": _filled("pyproject.toml", words),
        "README.md": _filled("README.md", words),
        f"{names.module}.py": _filled(f"{sort}.py", words),
        f"test_{names.module}.py": _filled(f"{sort}_test.py", words),
    }


def _filled(name: str, words: Mapping[str, str]) -> str:
    text = resources.files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(words)
